package clock

import (
	"math"

	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/status"
)

// freshPeriods is for how many periods of the sampler a look counts (I3).
const freshPeriods = 3

// maxWall is the latest wall clock, in nanoseconds, that a timestamp can hold: in September 2112.
const maxWall = int64(hybridtime.Max>>hybridtime.LogicalBits) * 1000

// view is what calls need to know of the last look. It is never changed, only replaced, so that a call reads it with one
// atomic load and no lock.
type view struct {
	checked bool
	// A pair is good if its offset is at least low and not more than span above it, and if it was read no later than
	// freshFor after fresh. Where nothing is given out no pair is: span is too small for any.
	low      int64
	span     uint64
	fresh    int64 // monotonic
	freshFor uint64
	latest   uint64 // where not checked: the wall clock must not be above it
	shift    int64  // to be added to the wall clock; not 0 while extrapolating

	err   *status.Error // why nothing is given out; nil: something is
	good  int64         // to be added to the monotonic clock for the last good reading, carried on
	ref   int64         // to be added to the monotonic clock for the time as it was last shown right, carried on
	slept int64         // to be added to the monotonic clock for CLOCK_BOOTTIME

	j     Judgement
	state State
	why   string
	bound bound
	table []PeerOffset
	says  Opinion
}

// ok says whether a timestamp may come from this pair. It stands in every call: two subtractions and comparisons.
func (v *view) ok(p Pair) bool {
	if v.checked {
		return uint64(p.Wall-p.Mono-v.low) <= v.span && uint64(p.Mono-v.fresh) <= v.freshFor
	}
	return uint64(p.Wall) <= v.latest
}

// isFresh says whether the look still counts at a moment. A moment before the look is none that counts either: the
// monotonic clock doesn't run backwards, so it is a fault.
func (v *view) isFresh(mono int64) bool { return uint64(mono-v.fresh) <= v.freshFor }

// shut makes that no pair is good.
func (v *view) shut() { v.low, v.span, v.latest = math.MaxInt64, 0, 0 }
