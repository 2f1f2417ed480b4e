package client

import (
	"context"
	"sync"
	"time"
)

// flight shares one run of a function among all who ask while it is under way.
type flight[T any] struct {
	mu  sync.Mutex
	cur *run[T]
}

type run[T any] struct {
	done  chan struct{}
	value T
	err   error
}

// start joins the run under way or begins one, bounded by timeout and by the client's life but by no caller's context: others
// may wait for it too. It begins none, and returns nil, if needless, unless nil, says so after the run before has done all it does.
func (f *flight[T]) start(c *Client, timeout time.Duration, needless func() bool, fn func(context.Context) (T, error)) *run[T] {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cur != nil {
		return f.cur
	}
	if needless != nil && needless() {
		return nil
	}
	r := &run[T]{done: make(chan struct{})}
	ctx, cancel := context.WithTimeout(c.life, timeout)
	started := c.goroutine(func() {
		defer cancel()
		r.value, r.err = fn(ctx)
		f.mu.Lock()
		f.cur = nil
		f.mu.Unlock()
		close(r.done)
	})
	if !started {
		cancel()
		r.err = closedError()
		close(r.done)
		return r
	}
	f.cur = r
	return r
}

// wait returns the run's result, or fails when ctx ends first.
func (r *run[T]) wait(ctx context.Context) (T, error) {
	select {
	case <-r.done:
		return r.value, r.err
	case <-ctx.Done():
		var zero T
		return zero, ctx.Err()
	}
}
