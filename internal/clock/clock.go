package clock

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/status"
)

// markAhead is how far a mark runs ahead of use, so that most commits carry none.
const markAhead = 2 * time.Second

// maxWall is the latest wall clock, in nanoseconds, that a timestamp can hold: in September 2112.
const maxWall = int64(hybridtime.Max>>hybridtime.LogicalBits) * 1000

// Marks are the two durable marks as the WAL returned them at the start; nil where there is none yet.
type Marks struct {
	Clock   []byte
	Promise []byte
}

// Clock is a hybrid clock. All methods may be called by many goroutines at once.
type Clock struct {
	cfg  Config
	src  Source
	log  *slog.Logger
	last atomic.Uint64 // highest timestamp given out or taken over

	durable        atomic.Uint64
	durablePromise atomic.Uint64
}

// New returns a clock over the source, beginning at the clock mark. It starts nothing.
func New(cfg Config, src Source, marks Marks) (*Clock, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c := &Clock{cfg: cfg, src: src, log: cfg.Logger}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	for _, m := range []struct {
		bytes []byte
		kind  markKind
		to    *atomic.Uint64
	}{{marks.Clock, clockMark, &c.durable}, {marks.Promise, promiseMark, &c.durablePromise}} {
		if m.bytes == nil {
			continue
		}
		d, err := decodeMark(m.bytes)
		if err != nil {
			return nil, fmt.Errorf("%v: %w", m.kind, err)
		}
		if d.kind != m.kind {
			return nil, fmt.Errorf("%v: found a %v in its place", m.kind, d.kind)
		}
		m.to.Store(uint64(d.ts))
	}
	c.last.Store(max(c.durable.Load(), c.durablePromise.Load()))
	return c, nil
}

// Run samples the clocks in the background until ctx ends.
func (c *Clock) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Now returns a timestamp above every one that this clock has given out or taken over.
func (c *Clock) Now() (hybridtime.Timestamp, error) {
	p := c.src.Pair()
	if uint64(p.Wall) > uint64(maxWall) {
		return 0, status.New(status.Clock, "clock: the wall clock reads %v, which no timestamp can hold", time.Unix(0, p.Wall).UTC())
	}
	return c.advance(p.Wall), nil
}

func (c *Clock) advance(wall int64) hybridtime.Timestamp {
	now := uint64(wall/1000) << hybridtime.LogicalBits
	for {
		last := c.last.Load()
		next := max(now, last+1)
		if c.last.CompareAndSwap(last, next) {
			return hybridtime.Timestamp(next)
		}
	}
}

// Latest returns the highest timestamp given out or taken over. It neither checks nor advances.
func (c *Clock) Latest() hybridtime.Timestamp { return hybridtime.Timestamp(c.last.Load()) }

// Fenced says whether the clock is fenced, and why.
func (c *Clock) Fenced() (reason string, fenced bool) { return "", false }

// AheadError says that a timestamp lies further ahead of this server's clock than the guard allows.
type AheadError struct {
	Timestamp hybridtime.Timestamp
	Now       hybridtime.Timestamp // this server's last good reading, carried on
	Bound     time.Duration        // max_clock_sync_error_usec
}

func (e *AheadError) Error() string {
	return fmt.Sprintf("timestamp %v is %v ahead of this server's clock (%v), more than max_clock_sync_error_usec (%v): one of the two clocks is wrong",
		e.Timestamp, e.Timestamp.Sub(e.Now), e.Now, e.Bound)
}

// CheckAhead returns an *AheadError if ts is further ahead of this server's clock than the guard allows.
func (c *Clock) CheckAhead(ts hybridtime.Timestamp) error {
	now := hybridtime.FromMicros(c.src.Pair().Wall/1000, 0)
	if ts.Sub(now) > c.cfg.MaxClockSyncError {
		return &AheadError{Timestamp: ts, Now: now, Bound: c.cfg.MaxClockSyncError}
	}
	return nil
}

// Update moves the clock past ts, or returns an *AheadError and leaves it unmoved.
func (c *Clock) Update(ts hybridtime.Timestamp) error {
	if uint64(ts) <= c.last.Load() {
		return nil
	}
	if err := c.CheckAhead(ts); err != nil {
		return err
	}
	raise(&c.last, ts)
	return nil
}

// AdvanceTo moves the clock past the last timestamp in the logs at the start, under the same guard as Update.
func (c *Clock) AdvanceTo(floor hybridtime.Timestamp) error { return c.Update(floor) }

// MarkFor returns the clock mark that a WAL commit which holds entries up to used must carry, or write false if the
// durable one covers it.
func (c *Clock) MarkFor(used hybridtime.Timestamp) (m []byte, write bool) {
	return c.markFor(clockMark, used, &c.durable)
}

// MarkDurable tells that a mark which MarkFor returned is on disk.
func (c *Clock) MarkDurable(m []byte) { c.markDurable(clockMark, m, &c.durable) }

// PromiseMarkFor is MarkFor for promises not to assign a timestamp at or below t.
func (c *Clock) PromiseMarkFor(t hybridtime.Timestamp) (m []byte, write bool) {
	return c.markFor(promiseMark, t, &c.durablePromise)
}

// PromiseDurable tells that a mark which PromiseMarkFor returned is on disk.
func (c *Clock) PromiseDurable(m []byte) { c.markDurable(promiseMark, m, &c.durablePromise) }

// DurablePromise returns the highest timestamp that may have been promised: the durable promise mark.
func (c *Clock) DurablePromise() hybridtime.Timestamp {
	return hybridtime.Timestamp(c.durablePromise.Load())
}

func (c *Clock) markFor(kind markKind, used hybridtime.Timestamp, durable *atomic.Uint64) ([]byte, bool) {
	if uint64(used) <= durable.Load() {
		return nil, false
	}
	p := c.src.Pair()
	ts := max(used, min(used, hybridtime.FromMicros(p.Wall/1000, 0)).Add(markAhead))
	m := mark{kind: kind, ts: ts, bootID: c.src.BootID(), boot: c.src.Counters().Boot, wall: p.Wall}
	return m.encode(), true
}

func (c *Clock) markDurable(kind markKind, b []byte, durable *atomic.Uint64) {
	m, err := decodeMark(b)
	if err != nil || m.kind != kind {
		panic(fmt.Sprintf("invariant broken: a %v was reported durable that this clock did not make: %v", kind, err))
	}
	raise(durable, m.ts)
}

func raise(to *atomic.Uint64, ts hybridtime.Timestamp) {
	for {
		old := to.Load()
		if uint64(ts) <= old || to.CompareAndSwap(old, uint64(ts)) {
			return
		}
	}
}
