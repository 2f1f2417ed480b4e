package clock

import "time"

// tornLook is how far the readings of one look may lie apart before they are taken again, and lookTries how often that is
// done. The counters are believed to within the time that the last try took.
const (
	tornLook  = 100 * time.Microsecond
	lookTries = 3
)

// rereads is how often a suspected backward step is read again before it is believed. A pause between the two halves of a
// pair looks the same (the wall clock is read first, and then too early); it doesn't come four times running.
const rereads = 3

// Look is one set of readings, as near to each other in time as could be had.
type Look struct {
	Pair                // the latest whose difference is the largest, so the least disturbed by a pause
	Counters            // read within Spread of Pair
	Spread   int64      // nanoseconds
	Before   int64      // the monotonic clock before any of the counters was read
	Kernel   Discipline // OK is false where it was not asked
}

// Offset is the wall clock minus the monotonic clock. A step of the wall clock or a suspend changes it, slewing doesn't.
func (p Pair) Offset() int64 { return p.Wall - p.Mono }

// hasCounters says whether the system's further clocks could be read.
func (l *Look) hasCounters() bool { return l.OK }

// takeLook reads all clocks. expected is the offset that the last good look had: one below it by more than noise is read
// again. The kernel is asked where ask says so, or where the offset is not the expected one.
func takeLook(src Source, expected int64, ask bool) Look {
	var l Look
	for range lookTries {
		before := src.Pair()
		l.Counters = src.Counters()
		after := src.Pair()
		l.Pair, l.Before, l.Spread = after, before.Mono, after.Mono-before.Mono
		if before.Offset() > after.Offset() {
			// Carried to the end of the look, so that the reading is not older than need be.
			l.Wall = after.Mono + before.Offset()
		}
		// A step or a suspend amid the look shows as a difference of the pairs; a pause shows as spread.
		if l.Spread <= int64(tornLook) && abs(after.Offset()-before.Offset()) <= int64(noise) {
			break
		}
	}
	for i := 0; i < rereads && l.Offset() < expected-int64(noise); i++ {
		if p := src.Pair(); p.Offset() > l.Offset() {
			l.Pair = p
		}
	}
	if ask || abs(l.Offset()-expected) > int64(noise) {
		l.Kernel = src.Discipline()
	}
	return l
}

// baseline is the largest offset of several pairs: what the first look is compared with.
func baseline(src Source) int64 {
	best := src.Pair().Offset()
	for range 7 {
		best = max(best, src.Pair().Offset())
	}
	return best
}

func abs(n int64) int64 {
	if n < 0 {
		return -n
	}
	return n
}
