package consensus_test

import (
	"fmt"
	"time"

	"github.com/nyaladb/nyala/internal/clock"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/invariant"
)

// minute is far beyond a clock's bound.
const minute = time.Minute

// simClock is a server's hybrid clock over the world's time, off by an offset. Marks are kept as decimal text.
type simClock struct {
	world  *world
	offset time.Duration
	bound  time.Duration
	last   hybridtime.Timestamp
	// What is durable.
	mark, promise hybridtime.Timestamp
}

func (c *simClock) wall() hybridtime.Timestamp {
	return hybridtime.FromMicros((c.world.now + c.offset).Microseconds(), 0)
}

func (c *simClock) Now() (hybridtime.Timestamp, error) {
	c.last = max(c.last+1, c.wall())
	return c.last, nil
}

func (c *simClock) Update(ts hybridtime.Timestamp) error {
	if err := c.CheckAhead(ts); err != nil {
		return err
	}
	c.last = max(c.last, ts)
	return nil
}

func (c *simClock) CheckAhead(ts hybridtime.Timestamp) error {
	if d := ts.Sub(c.wall()); d > c.bound {
		return &clock.AheadError{Timestamp: ts, Now: c.wall(), Bound: c.bound}
	}
	return nil
}

func (c *simClock) MarkFor(used hybridtime.Timestamp) ([]byte, bool) {
	return encodeMark(used.Add(2 * time.Second)), used > c.mark
}

func (c *simClock) MarkDurable(m []byte) { c.mark = max(c.mark, decodeMark(m)) }

func (c *simClock) PromiseMarkFor(ts hybridtime.Timestamp) ([]byte, bool) {
	return encodeMark(ts.Add(time.Second / 10)), ts > c.promise
}

func (c *simClock) PromiseDurable(m []byte) { c.promise = max(c.promise, decodeMark(m)) }

func (c *simClock) DurablePromise() hybridtime.Timestamp { return c.promise }

func encodeMark(ts hybridtime.Timestamp) []byte { return fmt.Appendf(nil, "%d", uint64(ts)) }

func decodeMark(b []byte) hybridtime.Timestamp {
	var v uint64
	if len(b) > 0 {
		if _, err := fmt.Sscanf(string(b), "%d", &v); err != nil {
			invariant.Check(false, "%v", err)
		}
	}
	return hybridtime.Timestamp(v)
}
