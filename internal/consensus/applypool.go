package consensus

import (
	"context"
	"sync"

	"github.com/nyaladb/nyala/internal/ident"
)

// applyPool applies what is committed: a few goroutines, each call of the applier for as many groups as are ready (and its
// share of them), never two calls at once for one group.
type applyPool struct {
	host    *Host
	applier Applier
	size    int

	mu     sync.Mutex
	cond   *sync.Cond // on mu: ready or closed has changed
	groups map[ident.TabletID]*applyQueue
	ready  []*applyQueue
	closed bool
}

// applyQueue is one group's part: in ready, or running, or empty.
type applyQueue struct {
	worker  *worker
	tablet  ident.TabletID
	number  ident.LocalNumber
	items   []Apply
	running bool
	idle    chan struct{} // not nil: the group ends; closed when running does
}

const (
	applyCallGroups = 256
	applyCallBytes  = 4 << 20
)

func newApplyPool(h *Host, size int) *applyPool {
	p := &applyPool{host: h, applier: h.deps.Applier, size: size, groups: make(map[ident.TabletID]*applyQueue)}
	p.cond = sync.NewCond(&p.mu)
	return p
}

// add queues applies of one worker's groups.
func (p *applyPool) add(w *worker, as []Apply) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range as {
		q := p.groups[a.Tablet]
		if q == nil {
			q = &applyQueue{worker: w, tablet: a.Tablet, number: a.Number}
			p.groups[a.Tablet] = q
		}
		if q.items = append(q.items, a); len(q.items) == 1 && !q.running {
			p.ready = append(p.ready, q)
		}
	}
	p.cond.Broadcast()
}

// drain forgets what is queued for a group and waits until the call under way for it, if any, has returned.
func (p *applyPool) drain(ctx context.Context, tablet ident.TabletID) error {
	p.mu.Lock()
	q := p.groups[tablet]
	if q == nil {
		p.mu.Unlock()
		return nil
	}
	q.items = nil // it may still stand in ready, and is passed over there
	if !q.running {
		delete(p.groups, tablet)
		p.mu.Unlock()
		return nil
	}
	if q.idle == nil {
		q.idle = make(chan struct{})
	}
	idle := q.idle
	p.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run runs the pool's goroutines until ctx ends and the calls under way have returned.
func (p *applyPool) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		p.mu.Lock()
		p.closed = true
		p.mu.Unlock()
		p.cond.Broadcast()
	})
	defer stop()
	var wg sync.WaitGroup
	for range p.size {
		wg.Go(func() {
			for {
				qs, calls := p.next()
				if qs == nil {
					return
				}
				groups := calls.groups
				p.host.metrics.applyGroups.Observe(float64(len(groups)))
				p.applier.Apply(groups)
				p.finish(qs, calls)
			}
		})
	}
	wg.Wait()
	return nil
}

// applyCall is one call of the applier; counts says how many Applies each group's entries come from.
type applyCall struct {
	groups []ApplyGroup
	counts []int
}

// next waits for ready groups and takes this goroutine's share of them; nil: the pool is closed.
func (p *applyPool) next() ([]*applyQueue, applyCall) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		for len(p.ready) == 0 && !p.closed {
			p.cond.Wait()
		}
		if p.closed {
			return nil, applyCall{}
		}
		share := min((len(p.ready)+p.size-1)/p.size, applyCallGroups)
		var qs []*applyQueue
		var call applyCall
		bytes, n := 0, 0
		for n < share && bytes < applyCallBytes {
			q := p.ready[n]
			n++
			if len(q.items) == 0 {
				continue // drained
			}
			g := ApplyGroup{Tablet: q.tablet, Number: q.number, Entries: q.items[0].Entries}
			for i, it := range q.items {
				bytes += it.Bytes
				if i > 0 {
					g.Entries = append(g.Entries, it.Entries...)
				}
			}
			call.groups, call.counts = append(call.groups, g), append(call.counts, len(q.items))
			q.items, q.running = nil, true
			qs = append(qs, q)
		}
		rest := copy(p.ready, p.ready[n:])
		clear(p.ready[rest:])
		p.ready = p.ready[:rest]
		if len(qs) > 0 {
			return qs, call
		}
	}
}

// finish tells the workers, and puts groups that have more to do back in line.
func (p *applyPool) finish(qs []*applyQueue, call applyCall) {
	for i, q := range qs {
		q.worker.box.put(func(m *mail) {
			m.applied = append(m.applied, appliedMail{q.tablet, call.counts[i], call.groups[i].Err})
		})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range qs {
		q.running = false
		if q.idle != nil {
			delete(p.groups, q.tablet)
			close(q.idle)
		}
		if len(q.items) > 0 {
			p.ready = append(p.ready, q)
		}
	}
	p.cond.Broadcast()
}
