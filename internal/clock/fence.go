package clock

import (
	"fmt"
	"time"
)

// rightFor is how long a fenced server must agree with most of the others before it trusts its clock again.
const rightFor = 10 * time.Second

// State says whether a clock gives timestamps out.
type State uint8

// The states.
const (
	Open   State = iota // timestamps are given out
	Held                // none are until the others have been heard once: the wall clock moved by more than clocks may differ
	Fenced              // none are until the clock is right again
)

// String is the state's name in messages.
func (s State) String() string {
	switch s {
	case Open:
		return "open"
	case Held:
		return "held"
	case Fenced:
		return "fenced"
	}
	return "unknown"
}

// cause says what closed a fence, and so what opens it.
type cause uint8

const (
	causeNone    cause = iota
	causeJump          // the wall clock is displaced by more than the threshold
	causePeers         // most of the other servers say that this clock is off
	causeBehind        // at the start the wall clock was behind the mark; once it isn't, the fence's next cause counts
	causeUnknown       // at the start nobody knew how long the machine was off
)

// fence decides whether timestamps are given out. It is a pure core: what was seen goes in, a state comes out. It is not
// safe for use by several goroutines.
type fence struct {
	maxError time.Duration // max_clock_sync_error_usec

	state      State
	cause      cause
	next       cause // of causeBehind: what else was wrong at the start, or can't be known
	why        string
	since      int64         // monotonic: only what others said after it opens the fence, or undoes a lapse
	lapsed     time.Duration // while open: the time that passed unseen since others last agreed
	rightSince int64         // monotonic: since when most of the others agree; 0: they don't
	vouched    bool          // a source vouched for the wall clock at the look before
	accepted   bool          // an operator said that the clock is right: no blame counts until the others have agreed once
}

// sighting is what a fence is told at each look.
type sighting struct {
	now         int64 // monotonic
	j           Judgement
	opinion     Opinion       // of the others, heard at any time that counts
	later       Opinion       // of the others, heard after the fence's since
	behind      time.Duration // by how much the wall clock is behind the mark
	sourceRight bool          // a synchronised source vouches for the wall clock
}

// ruling is what follows from a sighting.
type ruling struct {
	changed    bool
	trust      bool          // the wall clock is good again
	shownRight bool          // whatever it did before: the detector's sum begins anew
	measured   bool          // it is known to be ahead by ahead
	doubted    bool          // it is no longer good: it is held to be ahead by ahead
	ahead      time.Duration // for measured and doubted
}

func (f *fence) close(to State, c cause, now int64, why string) {
	f.state, f.cause, f.why, f.since, f.rightSince, f.next, f.lapsed = to, c, why, now, 0, causeJump, 0
}

func (f *fence) accept() {
	f.open()
	f.accepted = true
}

func (f *fence) open() { f.close(Open, causeNone, 0, "") }

// step rules on a sighting.
func (f *fence) step(s sighting) (r ruling) {
	before := *f
	if s.opinion.Agree {
		f.accepted = false
	}
	if f.accepted {
		s.opinion.Blame, s.later.Blame = false, false
	}
	// What the others said until now was of the clock as it was before this look: where it has moved, it says nothing of it
	// as it is, and their agreement begins anew.
	moved := s.j.Step.Abs() > f.maxError || s.j.Refused && s.j.Step.Abs() > noise
	if moved && f.state != Open {
		f.since, f.rightSince = s.now, 0
		s.later = Opinion{Others: s.later.Others}
		// Nor does a source speak for it that vouched for it before as well: the kernel goes on saying that all is well after
		// a jump. One that vouches for the first time now has set the clock right. A server alone has nobody else to wait for.
		if f.vouched && s.later.Others > 0 {
			f.next = causeJump
			if f.cause == causeUnknown {
				f.cause = causeJump
			}
		}
	}
	f.vouched = s.sourceRight
	switch f.state {
	case Open:
		r = f.stepOpen(s)
	case Held:
		r = f.stepHeld(s)
	case Fenced:
		r = f.stepFenced(s)
	}
	r.changed = f.state != before.state || f.cause != before.cause
	return r
}

func (f *fence) stepOpen(s sighting) ruling {
	if s.j.Lapsed > 0 {
		f.lapsed, f.since = f.lapsed+s.j.Lapsed, s.now
	} else if s.later.Agree {
		f.lapsed = 0
	}
	switch {
	case s.j.Refused:
		f.close(Fenced, causeJump, s.now, f.jumped(s.j))
	case s.opinion.Others > 0 && s.j.Step.Abs() > f.maxError:
		f.close(Held, causeJump, s.now, fmt.Sprintf(
			"the wall clock moved by %v, more than clocks may differ (max_clock_sync_error_usec is %v): waiting to hear from most of the other servers",
			s.j.Step, f.maxError))
		return ruling{doubted: true, ahead: s.j.Step}
	case s.opinion.Others > 0 && f.lapsed > f.maxError:
		lapsed := f.lapsed
		f.close(Held, causeJump, s.now, fmt.Sprintf(
			"the clocks were not looked at for %v: this process was stopped, or all clocks leapt; waiting to hear from most of the other servers",
			lapsed))
		return ruling{doubted: true, ahead: lapsed}
	case s.opinion.Blame:
		f.close(Fenced, causePeers, s.now, blamed(s.opinion, f.maxError))
		return ruling{doubted: true, ahead: s.opinion.Ahead}
	case s.later.Agree && s.j.Step.Abs() <= noise:
		return ruling{measured: true, ahead: s.later.Ahead}
	}
	return ruling{}
}

func (f *fence) stepHeld(s sighting) ruling {
	switch {
	case s.j.Refused:
		f.close(Fenced, causeJump, s.now, f.jumped(s.j))
	case s.later.Blame:
		f.close(Fenced, causePeers, s.now, blamed(s.later, f.maxError))
	case s.later.Agree:
		f.open()
		return ruling{trust: true, measured: true, ahead: s.later.Ahead}
	case s.later.Others == 0:
		f.open()
		return ruling{trust: true}
	}
	return ruling{}
}

func (f *fence) stepFenced(s sighting) ruling {
	if !s.later.Agree {
		f.rightSince = 0
	} else if f.rightSince == 0 {
		f.rightSince = s.now
	}
	long := s.later.Agree && s.now-f.rightSince >= int64(rightFor)
	alone := s.later.Others == 0
	// However right the clock may be, others would refuse what it gives out while it is behind the mark: it begins there.
	if f.cause == causeBehind {
		if s.behind >= f.maxError {
			return ruling{}
		}
		f.cause = f.next
	}
	switch f.cause {
	case causeUnknown:
		switch {
		case s.later.Agree:
			f.open()
			return ruling{shownRight: true}
		case s.sourceRight && !s.later.Blame:
			f.open()
			return ruling{shownRight: true}
		case alone: // what the wall clock was displaced by before, it still is
			f.open()
			return ruling{trust: true, shownRight: s.j.Refused}
		}
	default: // a jump, or blame
		switch {
		case long:
			f.open()
			return ruling{shownRight: true}
		case alone && !s.j.Refused:
			f.open()
			return ruling{trust: true}
		}
	}
	return ruling{}
}

func (f *fence) jumped(j Judgement) string {
	direction := "ahead"
	if j.Displaced < 0 {
		direction = "behind"
	}
	return fmt.Sprintf("the wall clock jumped: since the last look it moved by %v and CLOCK_MONOTONIC_RAW by %v; with the steps before it is %v %s",
		j.WallMoved, j.MonoMoved, j.Displaced.Abs(), direction)
}

func blamed(o Opinion, bound time.Duration) string {
	direction := "ahead"
	if o.Ahead < 0 {
		direction = "behind"
	}
	return fmt.Sprintf("%d of %d servers heard say that this server's clock is off by more than max_clock_sync_error_usec (%v): about %v %s",
		o.Off, o.Heard, bound, o.Ahead.Abs(), direction)
}
