package clock

import "time"

// driftPPM is how fast an undisciplined clock may drift, as the kernel assumes too: the bound grows by so much while nobody
// steers.
const driftPPM = 500

// grown returns how much a bound grows in span nanoseconds.
func grown(span int64) time.Duration { return time.Duration(max(span, 0) / 1_000_000 * driftPPM) }

// bound keeps the error bound of the wall clock. Where its source fails, it says to go on from the monotonic clock, and
// the bound grows. It is a pure core, not safe for use by several goroutines.
type bound struct {
	steered bool // the source is one that must say how good the wall clock is

	synced        bool // it has said so at least once
	extrapolating bool
	base          int64 // while extrapolating: what is added to the monotonic clock
	error         time.Duration
	at            int64 // monotonic, when error held
}

// usable says whether what the kernel says can be used: somebody steers the clock, and the bound is one. A bound below
// zero is none.
func (d *Discipline) usable() bool { return d.OK && d.Synced && d.MaxError >= 0 }

// carry takes a suspend into account, which the monotonic clock doesn't count.
func (b *bound) carry(slept time.Duration) { b.base += int64(slept) }

// see takes over what the kernel said at a moment. good is what is to be added to the monotonic clock for the last good
// reading.
func (b *bound) see(now int64, d Discipline, good int64) {
	if !b.steered {
		b.synced, b.error, b.at = true, 0, now
		return
	}
	switch {
	case d.usable():
		b.synced, b.extrapolating, b.error, b.at = true, false, d.MaxError, now
	case b.synced && !b.extrapolating:
		b.extrapolating, b.base = true, good
	}
}

// is returns the bound at a moment.
func (b *bound) is(now int64) time.Duration {
	if !b.steered {
		return 0
	}
	return b.error + grown(now-b.at)
}
