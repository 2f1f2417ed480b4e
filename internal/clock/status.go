package clock

import (
	"time"

	"github.com/nyaladb/nyala/internal/hybridtime"
)

// Status is what there is to know of a clock at a moment, for people and health checks.
type Status struct {
	State         State
	Reason        string // why nothing is given out; empty: something is
	Verdict       Verdict
	Detection     bool // wall clock jumps are looked for
	Source        string
	Extrapolating bool
	MaxError      time.Duration // of what is given out now
	Displaced     time.Duration // the sum of steps that the threshold is held against
	WallMinusMono time.Duration
	Latest        hybridtime.Timestamp
	Now           hybridtime.Timestamp // the last good reading, carried on
	Mark          hybridtime.Timestamp // durable
	Promise       hybridtime.Timestamp // durable
	Opinion       Opinion              // of the other servers
	Peers         []PeerOffset         // in the order of their ids; the caller must not change it
}

// Status returns what there is to know now.
func (c *Clock) Status() Status {
	wall := c.reading()
	v := c.view.Load()
	s := Status{
		State: v.state, Verdict: v.j.Verdict, Source: c.source(&v.bound), Detection: c.detects(),
		Extrapolating: v.bound.extrapolating, MaxError: c.MaxError(), Displaced: v.j.Displaced,
		WallMinusMono: time.Duration(c.src.Pair().Offset()),
		Latest:        c.Latest(), Now: hybridtime.FromMicros(wall/1000, 0),
		Mark: hybridtime.Timestamp(c.durable.Load()), Promise: c.DurablePromise(),
		Opinion: v.says, Peers: v.table,
	}
	if v.err != nil {
		s.Reason = v.err.Msg
	}
	return s
}

// MaxError returns the bound on the error of what Now gives out: the wall clock's own, plus how far the clock has run ahead
// of the wall clock.
func (c *Clock) MaxError() time.Duration {
	wall := c.reading()
	v := c.view.Load()
	ahead := time.Duration(c.Latest().Micros()-wall/1000) * time.Microsecond
	return v.bound.is(wall-v.good) + max(ahead, 0)
}

func (c *Clock) detects() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.detect
}
