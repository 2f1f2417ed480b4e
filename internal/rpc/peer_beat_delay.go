package rpc

import (
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
)

// pendingBeat is a beat that is to leave.
type pendingBeat struct {
	due   time.Time
	stamp func() *nyalav1.Beat
}

// make makes the beat as it leaves.
func (p *pendingBeat) make() *nyalav1.Beat {
	b := p.stamp()
	b.Due = b.GetSent() - int64(time.Since(p.due))
	return b
}

// beatWindow is how many beats count for the fastest one: each is compared with the last beatWindow to twice as many.
const beatWindow = 16

// beatDelay tells how late the beats of one stream are, from when each was due at its sender until it is taken in here. It
// counts all that may hold a beat up: the sender's timer, goroutines that wait for a core at either end, queues, the network.
//
// No clock is held against another server's. A beat names the moment at which it was due by its sender's clock, and its
// arrival is read off this server's: the difference of the two is the delay and a constant, how far the two clocks are apart. The
// least such difference of the last beats is the constant and the fastest one's delay; so what a beat has beyond it is its
// delay less that of the fastest of 16 to 32 beats. Between servers that have anything to spare, that is the network's time.
// (The other ways: a round trip holds two beats' delays, and is right for neither; the time between two arrivals calls the
// next beat after a late one early.) What is asked of the two clocks is that they go equally fast for the 16 s that this
// takes at the default interval: 500 ppm, the most that a kernel slews by, make 8 ms. When the sender's clock leaps, as after a
// pause of a virtual machine, the old constant is out of the window after 32 beats.
type beatDelay struct {
	n           int           // beats in the window that fills
	last, fresh time.Duration // the least difference in the window before, and in the one that fills
	start       time.Time     // of the first one
}

// of returns how late a beat is that was due at a moment of the sender's clock and is there now. There is nothing to hold the first
// one of a stream against, nor one of a sender that doesn't say.
func (d *beatDelay) of(due int64, now time.Time) (late time.Duration, ok bool) {
	if due == 0 {
		return 0, false
	}
	if d.start.IsZero() {
		d.start, d.n = now, 1
		d.last, d.fresh = -time.Duration(due), -time.Duration(due)
		return 0, false
	}
	diff := now.Sub(d.start) - time.Duration(due)
	if d.n == beatWindow {
		d.n, d.last, d.fresh = 0, d.fresh, diff
	}
	d.n++
	d.fresh = min(d.fresh, diff)
	return diff - min(d.last, d.fresh), true
}
