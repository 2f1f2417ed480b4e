package ntp

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// oscillator is a machine's clock that runs wrong, against the true time.
type oscillator struct{ ppm, wander float64 }

// simulate runs a machine for a while and returns how far the line was off at most after it had settled, and the highest rate.
func simulate(t *testing.T, o oscillator, jitter, poll, length time.Duration) (worst time.Duration, ppm float64) {
	rnd := rand.New(rand.NewPCG(1, 2))
	const start = int64(1_800_000_000e9)
	mono, truth := int64(0), start
	measure := func() verdict {
		j := int64((rnd.Float64()*2 - 1) * float64(jitter))
		return verdict{offset: truth - mono + j, err: jitter + time.Millisecond}
	}
	var d discipline
	l := d.start(measure(), 0, 0)
	last := l.mono(0)
	rate := o.ppm
	for passed := time.Duration(0); passed < length; passed += poll {
		rate += o.wander * (rnd.Float64()*2 - 1)
		truth += int64(poll)
		mono += int64(float64(poll) * (1 + rate/1e6))
		if m := l.mono(mono); m < last {
			t.Fatal("the steered monotonic clock ran backwards (I4)")
		} else {
			last = m
		}
		if off := time.Duration(truth - l.wall(mono)).Abs(); passed > length/4 {
			worst = max(worst, off)
		}
		next, stepped := d.measured(l, measure(), mono, mono, 4*poll)
		if stepped {
			t.Fatalf("stepped after %v", passed)
		}
		l = next
		ppm = max(ppm, math.Abs(l.ppm))
	}
	return worst, ppm
}

// TestSteers shows that the line keeps within what the measurements allow on machines that run wrong in several ways, and that
// it is never led faster than package clock lets pass.
func TestSteers(t *testing.T) {
	for _, c := range []struct {
		name   string
		o      oscillator
		jitter time.Duration
		within time.Duration
	}{
		{"good", oscillator{}, 100 * time.Microsecond, time.Millisecond},
		{"50 ppm fast", oscillator{ppm: 50}, time.Millisecond, 5 * time.Millisecond},
		{"200 ppm slow", oscillator{ppm: -200}, time.Millisecond, 5 * time.Millisecond},
		{"it wanders", oscillator{ppm: 20, wander: 0.5}, time.Millisecond, 10 * time.Millisecond},
		{"a bad network", oscillator{ppm: 30}, 20 * time.Millisecond, 40 * time.Millisecond},
	} {
		worst, ppm := simulate(t, c.o, c.jitter, 16*time.Second, 24*time.Hour)
		if worst > c.within || ppm > maxPPM {
			t.Errorf("%s: off by %v, led by %.0f ppm", c.name, worst, ppm)
		}
	}
}

// TestStepsWhenTwiceTold shows that a large offset is made good at once, but not on one measurement's word.
func TestStepsWhenTwiceTold(t *testing.T) {
	var d discipline
	l := d.start(verdict{offset: 1e18, err: time.Millisecond}, 0, 0)
	at := func(s int64, off time.Duration) (line, bool) {
		return d.measured(l, verdict{offset: 1e18 + int64(off), err: time.Millisecond}, s*1e9, s*1e9, time.Minute)
	}
	next, stepped := at(16, 10*time.Second)
	if stepped || next != l {
		t.Error("stepped on one measurement")
	}
	if next, stepped = at(32, 0); stepped {
		t.Error("stepped although it was taken back")
	}
	l = next
	at(48, 10*time.Second)
	if l, stepped = at(64, 10*time.Second); !stepped || l.wall(64e9) != 64e9+1e18+10e9 {
		t.Errorf("%t, at %d", stepped, l.wall(64e9))
	}
}
