package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/nyaladb/nyala/internal/status"
)

// leaderlessBackoff caps the pauses while a tablet has no leader: an election is over in a moment, and its winner should
// not wait for us.
const leaderlessBackoff = 80 * time.Millisecond

// withTimeout returns ctx bounded by d unless it has a deadline of its own.
func withTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d)
}

// retry paces the tries of one operation and remembers them for the error at the end.
type retry struct {
	c     *Client
	began time.Time
	delay time.Duration

	tries   int
	targets []string // those tried, in order, without repetition
	last    error
	// executed is set once a try whose outcome isn't known may have been carried out.
	executed bool
}

// maxTargetsNamed bounds how many servers an error names.
const maxTargetsNamed = 8

func (c *Client) newRetry() *retry { return &retry{c: c, began: time.Now(), delay: c.opts.MinBackoff} }

// failed notes a try. One that was cut off by ctx's own end tells less than the one before it did.
func (r *retry) failed(ctx context.Context, target string, err *callError) {
	r.tries++
	if r.last == nil || ctx.Err() == nil || !err.local {
		r.last = err.fault
	}
	r.executed = r.executed || err.executed()
	for _, t := range r.targets {
		if t == target {
			return
		}
	}
	if len(r.targets) < maxTargetsNamed {
		r.targets = append(r.targets, target)
	}
}

// blocked notes why no try could be made.
func (r *retry) blocked(err error) { r.last = err }

// pause waits for the next try: a random part, at least half, of a delay that doubles each time up to limit, or the server's
// wish when it has one. It fails when ctx ends or the client is closed.
func (r *retry) pause(ctx context.Context, limit time.Duration) error {
	d := min(r.delay, limit)
	r.delay = min(2*r.delay, r.c.opts.MaxBackoff)
	d -= rand.N(d/2 + 1)
	var wish *Error
	if errors.As(r.last, &wish) && wish.RetryAfter > 0 {
		d = max(d, min(wish.RetryAfter, r.c.opts.AttemptTimeout))
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-r.c.life.Done():
		return closedError()
	}
}

// failure is the error of an operation that was given up: what it was, why it ended, what was tried, the last cause.
func (r *retry) failure(ctx context.Context, what string) *Error {
	code, why := status.CodeOf(r.last), "failed"
	switch {
	case r.c.isClosed():
		return closedError()
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		code, why = status.TimedOut, fmt.Sprintf("timed out after %v", time.Since(r.began).Round(time.Millisecond))
	case ctx.Err() != nil:
		code, why = status.Aborted, fmt.Sprintf("cancelled after %v", time.Since(r.began).Round(time.Millisecond))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", what, why)
	if r.tries > 0 {
		noun := "tries"
		if r.tries == 1 {
			noun = "try"
		}
		fmt.Fprintf(&b, " and %d %s at %s", r.tries, noun, strings.Join(r.targets, ", "))
	}
	cause := r.last
	if cause == nil {
		cause = ctx.Err()
	} else {
		fmt.Fprintf(&b, ": %v", cause)
	}
	return &Error{Code: code, Msg: b.String(), Err: cause}
}
