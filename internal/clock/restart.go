package clock

import (
	"fmt"
	"time"
)

// start is what a clock knows as it begins.
type start struct {
	mark      mark // zero: there is none
	first     Look
	bootID    [16]byte
	threshold time.Duration
	maxError  time.Duration
	detect    bool
	alone     bool // there is no other server to ask
}

// beginning is how it begins.
type beginning struct {
	displaced time.Duration // of the wall clock, as far as the mark tells
	cause     cause         // of a fence that is closed from the start
	next      cause         // of causeBehind: what must be settled once the wall clock is no longer behind
	why       string
	note      string        // for the log, where nothing is wrong
	ahead     time.Duration // with a cause: how far the wall clock is ahead of the last good reading carried on
}

// begin compares the wall clock at the start with the durable mark: the step that happened before the process did.
//
// A mark's time was true when it was written, as far as was known. Under the same boot id CLOCK_BOOTTIME says how much time has passed since; it counts
// suspends and can't be set. Under another one nobody knows how long the machine was off: then a wall clock ahead says
// nothing, and one behind is wrong.
func begin(s start) beginning {
	m := s.mark
	if m.ts == 0 {
		return beginning{note: "first start: no clock mark yet"}
	}
	off := time.Duration(s.first.Wall - m.wall)
	b := beginning{next: causeUnknown}
	sameBoot := m.bootID == s.bootID && s.bootID != [16]byte{} && s.first.hasCounters()
	passed := time.Duration(max(s.first.Boot-m.boot, 0)) // it never runs backwards, whatever it says
	if sameBoot {
		b.next, b.displaced = causeJump, off-passed
	}
	behind := time.Duration(m.ts.Micros()-s.first.Wall/1000) * time.Microsecond
	switch {
	case behind >= s.maxError:
		if b.cause, b.ahead = causeBehind, off; sameBoot {
			b.ahead = b.displaced
		}
		b.why = fmt.Sprintf("the wall clock is %v behind the clock mark (%v): timestamps up to it were given out before the restart",
			behind, m.ts)
	case !s.detect:
		b.note = "jump detection is off: the wall clock was compared with the clock mark alone"
	case sameBoot && b.displaced.Abs() > s.threshold:
		b.cause, b.ahead = causeJump, b.displaced
		b.why = fmt.Sprintf("the wall clock jumped before this start: CLOCK_BOOTTIME says that %v have passed since the clock mark was written, the wall clock says %v",
			passed, off)
	case sameBoot:
		b.note = fmt.Sprintf("%v after the clock mark was written the wall clock is displaced by %v", passed, b.displaced)
	case off > s.threshold:
		b.cause, b.ahead, b.displaced = causeUnknown, off, time.Duration(m.displaced)
		b.why = fmt.Sprintf("the machine was started anew and the wall clock is %v past the clock mark: whether it was off that long nobody here can know; waiting for most of the other servers or a synchronised time source to agree",
			off)
	default:
		b.note = fmt.Sprintf("the machine was started anew; the wall clock is %v past the clock mark", off)
		// It may have been off for no time at all; others will soon show it right.
		if b.displaced = off; s.alone {
			b.displaced = time.Duration(m.displaced)
		}
	}
	return b
}
