package clock

import "time"

// noise is how far two readings of clocks that agree may differ for reasons of their own. A difference up to it is no step;
// it isn't lost, though: what the detector holds to the threshold are differences from a fixed reference, not sums of
// differences that were large enough.
const noise = time.Millisecond

const (
	// honestPPM is how far the monotonic clock may run from the raw counter by slewing and by the counter's own error
	// (500 ppm each). What goes beyond counts as a displacement of the wall clock.
	honestPPM = 1000
	// slewedPPM is from where on the clock is called slewed; correcting an ordinary crystal takes less.
	slewedPPM = 200
	// anchorSpan is how long the rate is measured against one anchor. The longer, the less room there is below noise.
	anchorSpan = int64(time.Minute)
	// rateSpan is how much of it must have passed before a rate says anything.
	rateSpan = int64(time.Second)
	// leapSlack is how near to a second a leap second must be, and leapWindow how near to midnight UTC.
	leapSlack  = int64(20 * time.Millisecond)
	leapWindow = int64(10 * time.Second)
)

// Verdict says what a look showed.
type Verdict uint8

// The verdicts. docs/clock.md says what each means to an operator.
const (
	OK             Verdict = iota
	Slewed                 // the wall clock is being led to another time, in small portions
	Suspended              // the machine slept; the wall clock knows
	SteppedForward         // the wall clock was set forward
	SteppedBack            // the wall clock was set back
	Unsynchronised         // nobody steers the clock
	verdicts
)

var verdictNames = [verdicts]string{"ok", "slewed", "suspended", "stepped_forward", "stepped_back", "unsynchronised"}

// String is the verdict's name in metrics and messages.
func (v Verdict) String() string {
	if v >= verdicts {
		return "unknown"
	}
	return verdictNames[v]
}

// Judgement is what a detector thinks of a look.
type Judgement struct {
	Verdict Verdict
	// Refused says that the wall clock is displaced by more than the threshold: no timestamp may come from it.
	Refused bool
	// Step is how far the wall clock moved since the look before, beyond the time that passed. It holds no suspend, no leap
	// second and no lapse.
	Step time.Duration
	// Displaced is the sum that the threshold is held against: all steps since the clock was last shown right, steps
	// back taken off.
	Displaced time.Duration
	// WallMoved and MonoMoved are how far the two clocks moved since the look before: MonoMoved by CLOCK_MONOTONIC_RAW where
	// it can be read.
	WallMoved, MonoMoved time.Duration

	Slept   time.Duration // a suspend since the look before
	Lapsed  time.Duration // the time since the look before, if it came much later than it should have
	Leap    int           // 1: a leap second was inserted since the look before; -1: one was left out
	RatePPM float64       // the monotonic clock against the raw counter, over the last seconds; 0: not known yet
}

// Detector tells a wall clock that jumped from one that was slewed, slept through a suspend or met a leap second. It is a
// pure core: looks go in, judgements come out. It is not safe for use by several goroutines.
//
// How it thinks. Let S be how long the machine slept: CLOCK_BOOTTIME minus the monotonic clock. The kernel moves the wall
// clock and CLOCK_BOOTTIME alike in a suspend, so
//
//	W = wall - monotonic - S
//
// changes by steps and leap seconds alone. A fault that moves the wall and the monotonic clock together leaves W as it is
// and shows in R = monotonic - raw, whose rate is bounded by what slewing can honestly do. The displacement is the change
// of W since the reference, plus what R did beyond the honest rate. No time window forgives any of it; only
// evidence that the clock is right does.
//
// A fault that moves all clocks together shows in nothing but the time since the last look, which a process that was
// stopped shows as well. No clock of the machine can tell the two apart, so it is no displacement: the judgement says that
// time lapsed, and other servers may be asked.
type Detector struct {
	threshold int64
	period    int64 // at which looks come; 0: at no fixed pace, so that a lapse says nothing

	last   Look
	slept  int64 // S
	w      int64 // W of the last look
	ref    int64 // W that counts as displacement 0
	extra  int64 // displacement by R up to the anchor
	excess int64 // displacement by R since the anchor
	anchor Look
	rate   float64
	leapIn Discipline

	good       int64 // what the monotonic clock lacks to the last good reading, carried on
	distrusted bool  // good is carried on and not taken from the wall clock
}

// NewDetector returns a detector that begins with a look taken as good but for a displacement known from before.
func NewDetector(threshold time.Duration, first Look, displaced time.Duration) *Detector {
	d := &Detector{threshold: int64(threshold), last: first, anchor: first}
	if first.hasCounters() {
		d.slept = first.Boot - first.Mono
	}
	d.w = first.Offset() - d.slept
	d.ref = d.w - int64(displaced)
	d.good = first.Offset()
	d.leapIn = first.Kernel
	if abs(int64(displaced)) > d.threshold {
		d.Distrust(displaced)
	}
	return d
}

// SetPeriod says at which pace looks come from now on; 0: at none.
func (d *Detector) SetPeriod(p time.Duration) { d.period = int64(p) }

// SetThreshold changes the threshold from the next look on.
func (d *Detector) SetThreshold(t time.Duration) { d.threshold = int64(t) }

// Expected is the offset that the next look has if nothing happens.
func (d *Detector) Expected() int64 { return d.last.Offset() }

// Good returns what is to be added to the monotonic clock for the last good reading carried on: the wall clock itself
// while it is good, the time as it was before the jump while it isn't.
func (d *Detector) Good() int64 { return d.good }

// Reference returns what is to be added to the monotonic clock for the time as it was last shown right, carried on: the
// wall clock less its displacement.
func (d *Detector) Reference() int64 { return d.slept + d.ref - d.extra - d.excess }

// Slept returns CLOCK_BOOTTIME minus the monotonic clock as of the last look.
func (d *Detector) Slept() int64 { return d.slept }

// Displaced returns the displacement as of the last look.
func (d *Detector) Displaced() time.Duration {
	return time.Duration(d.w - d.ref + d.extra + d.excess)
}

// Trust takes the wall clock for good again; the sum goes on.
func (d *Detector) Trust() { d.distrusted, d.good = false, d.last.Offset() }

// ShownRight says that the wall clock of the last look is known to be right, whatever it did before: it is trusted again
// and the sum begins anew.
func (d *Detector) ShownRight() {
	d.forgive(0)
	d.Trust()
}

// Measured says that the wall clock of the last look is ahead of the true time by this much (less than 0: it is behind).
// Steps are forgiven as far as this shows them to be undone or to have been corrections: the sum comes no nearer to 0 than
// the clock is to the true time. It doesn't grow either: what clocks differ by without a step is no displacement.
func (d *Detector) Measured(ahead time.Duration) {
	switch sum := d.Displaced(); {
	case sum > 0:
		d.forgive(min(sum, max(ahead, 0)))
	case sum < 0:
		d.forgive(max(sum, min(ahead, 0)))
	}
}

// forgive sets the sum. The anchor stays where it is: a rate takes time to show.
func (d *Detector) forgive(to time.Duration) { d.ref, d.extra = d.w-int64(to), -d.excess }

// Distrust holds the wall clock of the last look to be ahead by displaced, until Trust or ShownRight: the last good reading
// is set to what the wall clock would be without, and carried on. The sum stays as it is.
func (d *Detector) Distrust(displaced time.Duration) {
	d.distrusted, d.good = true, d.last.Offset()-int64(displaced)
}

// Discount takes a time that may not have passed out of the last good reading, while the wall clock is distrusted.
func (d *Detector) Discount(t time.Duration) {
	if d.distrusted {
		d.good -= int64(t)
	}
}

// Judge looks at the next look.
func (d *Detector) Judge(l Look) Judgement {
	var j Judgement
	before := d.Displaced()

	// S only grows: the monotonic clock running ahead of CLOCK_BOOTTIME is a fault of the former, and shows in R.
	slept := int64(0)
	if l.hasCounters() && d.last.hasCounters() {
		if s := l.Boot - l.Mono - d.slept; s > int64(noise)+l.Spread {
			slept = s
		}
	}
	d.slept += slept
	w := l.Offset() - d.slept
	leap := d.leap(w-d.w, l)
	d.ref += leap
	d.w = w

	j.Lapsed = d.lapse(l)
	drifted := -d.excess - d.extra
	d.drift(l, &j)
	drifted += d.excess + d.extra

	j.WallMoved, j.MonoMoved = time.Duration(l.Wall-d.last.Wall), time.Duration(l.Mono-d.last.Mono)
	if l.hasCounters() && d.last.hasCounters() {
		j.MonoMoved = time.Duration(l.Raw - d.last.Raw)
	}
	j.Slept, j.Leap = time.Duration(slept), -leapSeconds(leap)
	j.Displaced = d.Displaced()
	j.Step = j.Displaced - before
	j.Refused = abs(int64(j.Displaced)) > d.threshold
	j.Verdict = d.verdict(&j)
	d.distrusted = d.distrusted || j.Refused
	if d.distrusted {
		d.good += slept + leap - drifted
	} else {
		d.good = l.Offset()
	}
	d.last = l
	if l.Kernel.OK {
		d.leapIn = l.Kernel
	}
	return j
}

func (d *Detector) verdict(j *Judgement) Verdict {
	switch {
	case j.Refused && j.Displaced > 0, j.Step > noise:
		return SteppedForward
	case j.Refused, j.Step < -noise:
		return SteppedBack
	case j.Slept > 0:
		return Suspended
	case j.RatePPM > slewedPPM, j.RatePPM < -slewedPPM:
		return Slewed
	}
	return OK
}

// drift puts into d.excess how far the monotonic clock has run from the raw counter since the anchor beyond what is
// honest, and sets a new anchor from time to time.
func (d *Detector) drift(l Look, j *Judgement) {
	if !l.hasCounters() || !d.anchor.hasCounters() {
		d.anchor = l
		return
	}
	span := l.Raw - d.anchor.Raw
	ran := (l.Mono - d.anchor.Mono) - span
	honest := abs(span)/1_000_000*honestPPM + int64(noise) + l.Spread + d.anchor.Spread
	switch {
	case ran > honest:
		d.excess = ran - honest
	case ran < -honest:
		d.excess = ran + honest
	default:
		d.excess = 0
	}
	if span >= rateSpan {
		d.rate = float64(ran) / float64(span) * 1e6
	}
	j.RatePPM = d.rate // of the last anchor, until the new one tells
	if span >= anchorSpan || span < 0 {
		d.extra += d.excess
		d.excess, d.anchor = 0, l
	}
}

// lapse returns the time since the last look if looks should have come in between.
func (d *Detector) lapse(l Look) time.Duration {
	passed := l.Mono - d.last.Mono
	if l.hasCounters() && d.last.hasCounters() {
		passed = min(passed, l.Raw-d.last.Raw) // what the monotonic clock has beyond the counter is drift's
	}
	if d.period == 0 || passed <= freshPeriods*d.period {
		return 0
	}
	return time.Duration(passed - d.period)
}

// leap returns what a leap second did to W: -1 s where one was inserted, +1 s where one was left out, 0 for no leap second.
// The kernel must have announced it or have counted it, and it comes at midnight UTC: a step of a second at another moment
// is a step.
func (d *Detector) leap(step int64, l Look) int64 {
	second := int64(time.Second)
	var leap int64
	switch {
	case abs(step+second) <= leapSlack:
		leap = -second
	case abs(step-second) <= leapSlack:
		leap = second
	default:
		return 0
	}
	day := 24 * int64(time.Hour)
	if at := (l.Wall%day + day) % day; at > leapWindow && at < day-leapWindow {
		return 0
	}
	const timeINS, timeDEL, timeOOP, timeWAIT = 1, 2, 3, 4 // adjtimex(2)
	counted := l.Kernel.OK && d.leapIn.OK && int64(l.Kernel.TAI-d.leapIn.TAI)*second == -leap
	announced := leap < 0 && d.leapIn.State == timeINS || leap > 0 && d.leapIn.State == timeDEL
	under := l.Kernel.OK && (l.Kernel.State == timeOOP || l.Kernel.State == timeWAIT)
	if counted || announced || under {
		return leap
	}
	return 0
}

func leapSeconds(leap int64) int { return int(leap / int64(time.Second)) }
