package clock

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/invariant"
)

// markAhead is how far a mark runs ahead of use, so that most commits carry none.
const markAhead = 2 * time.Second

// MarkFor returns the clock mark that a WAL commit must carry which holds entries with timestamps up to used. write is
// false where the durable one covers them. The mark lies at most two seconds above used. It covers all that this clock gave
// out or took over, but not an entry that is further ahead than the guard allows (a majority had committed it): that costs
// its replica, not the server's clock (I5).
func (c *Clock) MarkFor(used hybridtime.Timestamp) (m []byte, write bool) {
	return c.markFor(clockMark, used, &c.durable)
}

// MarkDurable tells that a mark which MarkFor returned is on disk. It may be called in any order.
func (c *Clock) MarkDurable(m []byte) { c.markDurable(clockMark, m, &c.durable) }

// PromiseMarkFor returns the promise mark that must be durable before the promise leaves that nothing at or below t will
// be taken from an older leader. write is false where the durable one covers t.
func (c *Clock) PromiseMarkFor(t hybridtime.Timestamp) (m []byte, write bool) {
	return c.markFor(promiseMark, t, &c.durablePromise)
}

// PromiseDurable tells that a mark which PromiseMarkFor returned is on disk.
func (c *Clock) PromiseDurable(m []byte) { c.markDurable(promiseMark, m, &c.durablePromise) }

// DurablePromise returns the promise mark on disk: nothing above it was promised before a restart. 0: nothing was.
func (c *Clock) DurablePromise() hybridtime.Timestamp {
	return hybridtime.Timestamp(c.durablePromise.Load())
}

func (c *Clock) markFor(kind markKind, used hybridtime.Timestamp, durable *atomic.Uint64) ([]byte, bool) {
	if uint64(used) <= durable.Load() {
		return nil, false
	}
	now := hybridtime.FromMicros(c.reading()/1000, 0)
	// Ahead of the lesser of use and time: a clock that begins at its mark after a restart doesn't run two seconds further
	// ahead with each one.
	ts := max(used, min(used, now).Add(markAhead))
	if ts = min(ts, max(now.Add(c.cfg.MaxClockSyncError), c.Latest())); uint64(ts) <= durable.Load() {
		return nil, false
	}
	v, mono := c.view.Load(), c.src.Pair().Mono
	m := mark{
		kind: kind, ts: ts, bootID: c.bootID, boot: mono + v.slept, wall: mono + v.ref,
		displaced: v.good - v.ref,
	}
	return m.encode(), true
}

func (c *Clock) markDurable(kind markKind, b []byte, durable *atomic.Uint64) {
	m, err := decodeMark(b)
	invariant.Check(err == nil && m.kind == kind, "a %v was reported durable that this clock didn't make: %v", kind, err)
	raise(durable, m.ts)
}

// openMark reads a mark as the WAL returned it and takes it for durable; nil: there is none.
func openMark(kind markKind, b []byte, durable *atomic.Uint64) (mark, error) {
	if b == nil {
		return mark{}, nil
	}
	m, err := decodeMark(b)
	if err == nil && m.kind != kind {
		err = fmt.Errorf("found a %v in its place", m.kind)
	}
	if err != nil {
		return mark{}, fmt.Errorf("%v in the write-ahead log: %w", kind, err)
	}
	durable.Store(uint64(m.ts))
	return m, nil
}
