package clock

import (
	"context"
	"time"

	"github.com/nyaladb/nyala/internal/hybridtime"
)

// waitStep is how long at most is slept before the clock is read again: it may have been set.
const waitStep = time.Second

// WaitPast returns once this clock has passed ts, so that Now gives out nothing at or below it and no snapshot at ts lies
// in the future. It fails where ctx ends or the clock gives nothing out.
func (c *Clock) WaitPast(ctx context.Context, ts hybridtime.Timestamp) error {
	return c.wait(ctx, func(v *view, wall int64) int64 {
		if c.Latest() > ts {
			return 0
		}
		return ts.Micros()*1000 - wall
	})
}

// WaitPastEverywhere returns once ts is past on every clock whose error bound is no worse than this one's: twice the bound
// after it was given out.
func (c *Clock) WaitPastEverywhere(ctx context.Context, ts hybridtime.Timestamp) error {
	return c.wait(ctx, func(v *view, wall int64) int64 {
		return ts.Micros()*1000 - wall + 2*int64(v.bound.is(wall-v.good))
	})
}

// wait sleeps until left says that nothing is left to wait.
func (c *Clock) wait(ctx context.Context, left func(v *view, wall int64) int64) error {
	for {
		v := c.view.Load()
		p := c.src.Pair()
		if !v.ok(p) {
			if p, v = c.relook(); v.err != nil {
				return v.err
			}
		}
		n := left(v, p.Wall+v.shift)
		if n < 0 || n == 0 {
			return nil
		}
		timer := time.NewTimer(min(time.Duration(n), waitStep))
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
	}
}
