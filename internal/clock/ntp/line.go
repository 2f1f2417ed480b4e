package ntp

import "time"

const (
	// maxPPM bounds all corrections of the rate, below the 500 ppm that package clock takes for slewing.
	maxPPM = 450
	// freqPPM bounds what is held to be the machine's own error of frequency.
	freqPPM = 300
	// stepAbove is what is made good by a step.
	stepAbove = 128 * time.Millisecond
	// freqAfter is how far apart two measurements must be to tell the frequency.
	freqAfter = 60 * time.Second
)

// line is a clock that is steered: a function of the machine's monotonic clock.
type line struct {
	from   int64   // monotonic
	steady int64   // the steered monotonic clock then
	base   int64   // the wall clock less the steered monotonic clock
	ppm    float64 // the correction of the rate
}

// begin is the line that tells the true time at a moment.
func begin(now, offset int64) line {
	return line{from: now, steady: now, base: offset}
}

// mono returns the steered monotonic clock.
func (l *line) mono(now int64) int64 {
	d := now - l.from
	return l.steady + d + int64(float64(d)*l.ppm/1e6)
}

// wall returns the steered wall clock.
func (l *line) wall(now int64) int64 { return l.mono(now) + l.base }

// steered goes on from now at another rate.
func (l *line) steered(now int64, ppm float64) line {
	return line{from: now, steady: l.mono(now), base: l.base, ppm: min(max(ppm, -maxPPM), maxPPM)}
}

// stepped is set by d at once.
func (l *line) stepped(d int64) line {
	next := *l
	next.base += d
	return next
}

// discipline decides how the line is to run on. It is a pure core.
type discipline struct {
	freq    float64 // ppm that the machine's clock is too slow by, as far as is known
	anchor  verdict // of the measurement that the frequency is told from
	anchor0 int64   // when it was made, by the clock that counts suspends
	doubt   bool    // the last measurement asked for a step
	off     time.Duration
}

// start begins with the first measurement, made at now of the monotonic clock and at counted of the one that counts suspends.
func (d *discipline) start(v verdict, now, counted int64) line {
	*d = discipline{anchor: v, anchor0: counted}
	return begin(now, counted+v.offset-now)
}

// measured takes a further measurement. horizon is the time in which it is to be made good.
func (d *discipline) measured(l line, v verdict, now, counted int64, horizon time.Duration) (next line, stepped bool) {
	off := counted + v.offset - l.wall(now) // the true time less ours
	d.off = time.Duration(off)
	if d.off.Abs() > max(stepAbove, 2*v.err) {
		if !d.doubt {
			d.doubt = true
			return l, false
		}
		d.doubt, d.off = false, 0
		d.anchor, d.anchor0 = v, counted
		next = l.stepped(off)
		return next.steered(now, d.freq), true
	}
	d.doubt = false
	if passed := counted - d.anchor0; passed >= int64(freqAfter) {
		// What both measurements are unsure of is unsure in the frequency too: it counts the more the longer the time was.
		seen := float64(v.offset-d.anchor.offset) / float64(passed) * 1e6
		unsure := float64(v.err+d.anchor.err) / float64(passed) * 1e6
		weight := 1 / (1 + unsure/10)
		d.freq = min(max(d.freq+(seen-d.freq)*weight, -freqPPM), freqPPM)
		d.anchor, d.anchor0 = v, counted
	}
	phase := float64(off) / float64(horizon) * 1e6
	return l.steered(now, d.freq+min(max(phase, freqPPM-maxPPM), maxPPM-freqPPM)), false
}
