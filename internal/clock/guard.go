package clock

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nyaladb/nyala/internal/hybridtime"
)

// AheadError says that a timestamp lies further ahead of this server's clock than the guard allows: the clock that gave it
// out, or this one, is wrong.
type AheadError struct {
	Timestamp hybridtime.Timestamp
	Now       hybridtime.Timestamp // this server's last good reading, carried on
	Bound     time.Duration        // max_clock_sync_error_usec
}

func (e *AheadError) Error() string {
	return fmt.Sprintf("timestamp %v is %v ahead of this server's clock (%v), more than max_clock_sync_error_usec (%v) allows: one of the two clocks is wrong",
		e.Timestamp, e.Timestamp.Sub(e.Now), e.Now, e.Bound)
}

// CheckAhead is the guard alone: it returns an *AheadError if ts is further ahead of this server's clock than clocks may
// differ. It stands before whatever is persisted, and goes by the last good reading carried on, whatever the wall clock says
// now.
func (c *Clock) CheckAhead(ts hybridtime.Timestamp) error {
	now := c.reading()
	if ahead := ts.Micros() - now/1000; ahead <= c.cfg.MaxClockSyncError.Microseconds() {
		return nil
	}
	c.metrics.ahead.Inc()
	return &AheadError{Timestamp: ts, Now: hybridtime.FromMicros(now/1000, 0), Bound: c.cfg.MaxClockSyncError}
}

// Update moves the clock past a timestamp from elsewhere, or returns an *AheadError and leaves it unmoved. What the clock is
// past already is never too far ahead: it was given out or taken over under this very guard.
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

// AdvanceTo moves the clock past the last timestamp in the logs at the start, under the guard: an entry from a clock that
// had jumped costs its replica and not the server.
func (c *Clock) AdvanceTo(floor hybridtime.Timestamp) error { return c.Update(floor) }

// raise lifts a value to ts if it is below.
func raise(to *atomic.Uint64, ts hybridtime.Timestamp) {
	for {
		old := to.Load()
		if uint64(ts) <= old || to.CompareAndSwap(old, uint64(ts)) {
			return
		}
	}
}
