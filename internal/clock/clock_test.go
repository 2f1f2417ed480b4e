package clock

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/status"
)

func mustNow(t testing.TB, c *Clock) hybridtime.Timestamp {
	t.Helper()
	ts, err := c.Now()
	if err != nil {
		t.Fatal(err)
	}
	return ts
}

// mustRefuse wants Now refused with code Clock and a message that holds the words.
func mustRefuse(t testing.TB, c *Clock, words ...string) {
	t.Helper()
	ts, err := c.Now()
	if status.CodeOf(err) != status.Clock {
		t.Fatalf("Now gave %v, %v; want it refused", ts, err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q lacks %q", err, w)
		}
	}
}

// TestLogicalOverrun draws more timestamps than one microsecond holds while the wall clock stands still, then moves it by
// less than they ran ahead (T01): what follows is above all before it, and the error bound says how far the clock ran ahead.
func TestLogicalOverrun(t *testing.T) {
	m := newMachine()
	m.readCost = 0
	c := newClock(t, m, nil)
	p := hybridtime.FromMicros(m.truth()/1000, 0)
	if err := c.Update(p.Add(100 * time.Microsecond)); err != nil {
		t.Fatal(err)
	}
	last := hybridtime.Timestamp(0)
	for range 20_480 {
		ts := mustNow(t, c)
		if ts <= last {
			t.Fatalf("%v after %v", ts, last)
		}
		last = ts
	}
	m.advance(101 * time.Microsecond)
	ts := mustNow(t, c)
	if ts <= last || ts.Sub(p) < 105*time.Microsecond {
		t.Fatalf("%v after %v; it began at %v", ts, last, p)
	}
	wall := time.Duration(m.truth()) * time.Nanosecond
	ahead := time.Duration(ts.Micros())*time.Microsecond - wall.Truncate(time.Microsecond)
	if got, want := c.MaxError(), ahead+m.kernel.MaxError; got < want {
		t.Errorf("error bound %v, want at least %v", got, want)
	}
}

// TestConcurrent mixes Now and Update in many goroutines on the real clocks: each sees its own rise, and none sees what
// another was given.
func TestConcurrent(t *testing.T) {
	cfg := testConfig()
	cfg.TimeSource, cfg.UnlockUnsafeFlags = SourceSystemUnsync, true
	c, err := New(cfg, SystemSource(), Marks{})
	if err != nil {
		t.Fatal(err)
	}
	const goroutines, each = 16, 3000
	given := make([][]hybridtime.Timestamp, goroutines)
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range each {
				ts, err := c.Now()
				if err != nil {
					t.Error(err)
					return
				}
				given[g] = append(given[g], ts)
				if i%7 == g%7 {
					if err := c.Update(ts.Add(time.Duration(i%50) * time.Microsecond)); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	seen := make(map[hybridtime.Timestamp]bool, goroutines*each)
	for _, g := range given {
		for i, ts := range g {
			if seen[ts] {
				t.Fatalf("%v was given twice", ts)
			}
			if seen[ts] = true; i > 0 && ts <= g[i-1] {
				t.Fatalf("%v after %v", ts, g[i-1])
			}
		}
	}
}

// TestGuard shows that a timestamp within the guard moves the clock and one beyond it doesn't, to the microsecond, and
// that the guard goes by the last good reading once the wall clock has jumped.
func TestGuard(t *testing.T) {
	m := newMachine()
	m.readCost = 0
	c := newClock(t, m, nil)
	now := hybridtime.FromMicros(m.truth()/1000, 0)
	edge := now.Add(10 * time.Second)
	if err := c.CheckAhead(edge); err != nil {
		t.Fatal(err)
	}
	if got := c.Latest(); got >= edge {
		t.Fatalf("CheckAhead moved the clock to %v", got)
	}
	var ahead *AheadError
	before := c.Latest()
	if err := c.Update(edge.Add(time.Microsecond)); !errors.As(err, &ahead) || ahead.Now != now {
		t.Fatalf("one microsecond too far: %v", err)
	}
	if c.Latest() != before {
		t.Fatal("a refused timestamp moved the clock")
	}
	if err := c.Update(edge); err != nil {
		t.Fatal(err)
	}
	if ts := mustNow(t, c); ts <= edge {
		t.Fatalf("%v after %v", ts, edge)
	}
	if err := c.Update(edge); err != nil {
		t.Fatalf("what the clock is past already: %v", err)
	}

	m.stepBy(40 * 8766 * time.Hour)
	m.advance(time.Second)
	mustRefuse(t, c, "jumped")
	if err := c.CheckAhead(now.Add(11 * time.Second)); err != nil {
		t.Errorf("the last good reading wasn't carried on: %v", err)
	}
	if err := c.CheckAhead(now.Add(11*time.Second + time.Microsecond)); err == nil {
		t.Error("the guard went by the jumped wall clock")
	}
	if err := c.Update(now.Add(time.Hour)); !errors.As(err, &ahead) {
		t.Errorf("an hour ahead: %v", err)
	}
}

// TestJumps is T02 and the faults 8 to 10 for one server: what is refused, that nothing above the threshold leaves, and
// that it comes back by itself once the clock is right.
func TestJumps(t *testing.T) {
	const day = 24 * time.Hour
	for _, c := range []struct {
		name      string
		threshold time.Duration
		steps     []time.Duration // one after the other, a sample period apart
		refusedAt int             // index of the step that is refused; -1: none
		verdict   Verdict
	}{
		{"901 s", 900 * time.Second, []time.Duration{901 * time.Second}, 0, SteppedForward},
		{"40 years", 900 * time.Second, []time.Duration{14610 * day}, 0, SteppedForward},
		{"899 s", 900 * time.Second, []time.Duration{899 * time.Second}, -1, SteppedForward},
		{"an hour back", 900 * time.Second, []time.Duration{-time.Hour}, 0, SteppedBack},
		{"a second back", 900 * time.Second, []time.Duration{-time.Second}, -1, SteppedBack},
		{"eight hours", 900 * time.Second, []time.Duration{8 * time.Hour}, 0, SteppedForward},
		{"creeps", time.Second, []time.Duration{400e6, 400e6, 400e6}, 2, SteppedForward},
		{"creeps below what a call sees", 100 * time.Millisecond, creeps(900*time.Microsecond, 112), 111, SteppedForward},
		{"to and fro", time.Second, []time.Duration{800e6, -800e6, 800e6, -800e6, 800e6}, -1, SteppedForward},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine()
			clk := sampling(newClock(t, m, func(cfg *Config) { cfg.WallClockJumpThreshold = c.threshold }))
			m.run(clk, time.Second)
			last := mustNow(t, clk)
			var sum time.Duration
			for i, s := range c.steps {
				m.stepBy(s)
				sum += s
				if i == c.refusedAt {
					mustRefuse(t, clk, "jumped")
					if _, fenced := clk.Fenced(); !fenced {
						t.Error("not fenced")
					}
					break
				}
				if ts := mustNow(t, clk); ts <= last {
					t.Fatalf("step %d: %v after %v", i, ts, last)
				} else {
					last = ts
				}
				if over := last.Micros()*1000 - m.truth(); over > int64(c.threshold) {
					t.Fatalf("step %d: %v ahead", i, time.Duration(over))
				}
				m.run(clk, clk.cfg.SamplePeriod)
			}
			if v := clk.Status().Verdict; v != c.verdict && c.refusedAt >= 0 {
				t.Errorf("verdict %v, want %v", v, c.verdict)
			}
			m.run(clk, 20*time.Second)
			m.stepBy(-sum)
			m.run(clk, 200*time.Millisecond)
			if ts := mustNow(t, clk); ts <= last {
				t.Fatalf("right again: %v after %v", ts, last)
			}
		})
	}
}

func creeps(d time.Duration, n int) []time.Duration {
	steps := make([]time.Duration, n)
	for i := range steps {
		steps[i] = d
	}
	return steps
}

// TestFirstCallAfterAJump shows that the very first call after a jump is refused, whatever moved and however long ago the
// last look was, without a sampler.
func TestFirstCallAfterAJump(t *testing.T) {
	const jump = int64(time.Hour)
	for _, c := range []struct {
		name string
		do   func(m *machine)
	}{
		{"wall", func(m *machine) { m.step += jump }},
		{"wall, after idleness", func(m *machine) { m.pass(time.Minute); m.step += jump }},
		{"wall and monotonic", func(m *machine) { m.fast += jump }},
		{"wall and monotonic, after idleness", func(m *machine) { m.pass(time.Minute); m.fast += jump }},
		{"in a suspend", func(m *machine) { m.slept += int64(8 * time.Hour); m.step += jump }},
		{"beyond what a time.Time holds", func(m *machine) { m.step += int64(200 * 8766 * time.Hour) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine()
			clk := newClock(t, m, nil)
			mustNow(t, clk)
			m.do(func() { c.do(m) })
			mustRefuse(t, clk, "jumped", "ahead")
		})
	}
}

// TestAllClocksLeap shows what a leap of the counter behind all clocks does: with others to ask it is refused until they
// have been heard, alone it can't be told from a process that was stopped.
func TestAllClocksLeap(t *testing.T) {
	for _, others := range []int{0, 2} {
		m := newMachine()
		clk := sampling(newClock(t, m, func(cfg *Config) { cfg.OtherServers = others }))
		m.run(clk, time.Second)
		m.do(func() { m.leapt += int64(time.Hour) })
		if others == 0 {
			mustNow(t, clk)
			continue
		}
		mustRefuse(t, clk, "held", "59m59", "all clocks leapt")
		if err := clk.CheckAhead(hybridtime.FromMicros(m.truth()/1000, 0).Add(11 * time.Second)); err == nil {
			t.Error("the guard went by the leapt clocks")
		}
	}
}

// TestHonest shows what is no fault: slewing at 500 ppm over a day of idleness, a suspend of eight hours, pauses inside a
// reading, a leap second. Nothing is refused, and each is called what it is.
func TestHonest(t *testing.T) {
	slow := func(cfg *Config) {
		cfg.SamplePeriod = time.Second
		cfg.WallClockJumpThreshold = 5 * time.Second
	}
	t.Run("slewing", func(t *testing.T) {
		for _, ppm := range []int64{500, -500} {
			m := newMachine()
			clk := sampling(newClock(t, m, slow))
			m.do(func() { m.ppm = ppm })
			m.run(clk, 24*time.Hour)
			mustNow(t, clk)
			if s := clk.Status(); s.Verdict != Slewed || s.Displaced.Abs() > time.Millisecond {
				t.Errorf("%d ppm: %v, displaced by %v", ppm, s.Verdict, s.Displaced)
			}
		}
	})
	t.Run("idleness without a sampler", func(t *testing.T) {
		m := newMachine()
		clk := newClock(t, m, slow)
		m.do(func() { m.ppm = 500 })
		m.advance(24 * time.Hour)
		mustNow(t, clk)
	})
	t.Run("suspend", func(t *testing.T) {
		for _, others := range []int{0, 2} {
			m := newMachine()
			clk := sampling(newClock(t, m, func(cfg *Config) { slow(cfg); cfg.OtherServers = others }))
			m.run(clk, time.Minute)
			m.suspend(8 * time.Hour)
			mustNow(t, clk)
			if v := clk.Status().Verdict; v != Suspended {
				t.Errorf("verdict %v", v)
			}
			if err := clk.CheckAhead(hybridtime.FromMicros(m.truth()/1000, 0).Add(9 * time.Second)); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("pauses", func(t *testing.T) {
		m := newMachine()
		clk := sampling(newClock(t, m, slow))
		for range 100 {
			m.run(clk, 2*time.Second)
			m.do(func() { m.pauses = []time.Duration{2 * time.Second} })
			mustNow(t, clk)
			m.do(func() { m.pauses = []time.Duration{0, 2 * time.Second, 50 * time.Millisecond, 0, time.Second} })
			clk.sample()
		}
		if d := clk.Status().Displaced; d.Abs() > time.Millisecond {
			t.Errorf("displaced by %v", d)
		}
	})
	t.Run("leap second", func(t *testing.T) {
		for _, inserted := range []int{1, -1} {
			m := newMachine()
			m.epoch = time.Date(2026, 12, 31, 23, 59, 58, 0, time.UTC).UnixNano()
			clk := sampling(newClock(t, m, func(cfg *Config) { cfg.WallClockJumpThreshold = 500 * time.Millisecond }))
			m.do(func() { m.kernel.State = map[int]int{1: 1, -1: 2}[inserted] })
			m.run(clk, 2*time.Second)
			last := mustNow(t, clk)
			m.do(func() {
				m.step -= int64(inserted) * int64(time.Second)
				m.utc -= int64(inserted)
				m.kernel.State, m.kernel.TAI = 3, m.kernel.TAI+inserted
			})
			m.run(clk, time.Second)
			if ts := mustNow(t, clk); ts <= last {
				t.Fatalf("%v after %v", ts, last)
			}
			if s := clk.Status(); s.Displaced.Abs() > time.Millisecond {
				t.Errorf("a leap second (%d) was taken for a step: %v", inserted, s.Displaced)
			}
		}
	})
	t.Run("a second back at noon is a step", func(t *testing.T) {
		m := newMachine()
		clk := sampling(newClock(t, m, func(cfg *Config) { cfg.WallClockJumpThreshold = 500 * time.Millisecond }))
		m.do(func() { m.kernel.State = 1 })
		m.run(clk, time.Second)
		m.stepBy(-time.Second)
		mustRefuse(t, clk, "jumped", "behind")
	})
}

// TestSamplerFreshness counts the kernel's clocks read: a call reads them itself once the last look is three periods old,
// and only then.
func TestSamplerFreshness(t *testing.T) {
	m := newMachine()
	m.readCost = 0
	counting := &countingSource{machine: m}
	c := newClock(t, counting, nil)
	base := counting.looks
	m.advance(300 * time.Millisecond)
	for range 10 {
		mustNow(t, c)
	}
	if counting.looks != base {
		t.Errorf("%d looks at 300 ms", counting.looks-base)
	}
	m.advance(1)
	for range 10 {
		mustNow(t, c)
	}
	if counting.looks != base+1 {
		t.Errorf("%d looks beyond 300 ms, want 1", counting.looks-base)
	}
}

type countingSource struct {
	*machine
	looks int
}

func (c *countingSource) Counters() Counters {
	c.looks++
	return c.machine.Counters()
}

// TestDetectionOff shows that without detection the wall clock is taken as it is, as far as a timestamp can hold it.
func TestDetectionOff(t *testing.T) {
	m := newMachine()
	c := newClock(t, m, func(cfg *Config) { cfg.WallClockJumpDetection = DetectionDisabled })
	m.stepBy(time.Hour)
	if ts := mustNow(t, c); ts.Micros()*1000-m.truth() < int64(time.Hour)-int64(time.Millisecond) {
		t.Errorf("%v", ts)
	}
	m.stepBy(100 * 8766 * time.Hour)
	m.advance(time.Second)
	mustRefuse(t, c, "out of range")
}

// TestNowAllocatesNothing holds for given and for refused timestamps.
func TestNowAllocatesNothing(t *testing.T) {
	m := newMachine()
	c := newClock(t, m, nil)
	if n := testing.AllocsPerRun(1000, func() { _, _ = c.Now() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	m.stepBy(time.Hour)
	mustRefuse(t, c)
	if n := testing.AllocsPerRun(1000, func() { _, _ = c.Now() }); n != 0 {
		t.Errorf("%v allocations where refused", n)
	}
}

// TestFlood is fault 14: a server whose clock is ahead sends its timestamps without end. The clock follows within the guard
// and no further, however many they are.
func TestFlood(t *testing.T) {
	m := newMachine()
	c := sampling(newClock(t, m, nil))
	for _, ahead := range []time.Duration{9 * time.Second, 10 * time.Second, 11 * time.Second, time.Hour} {
		for range 1000 {
			m.advance(time.Millisecond)
			_ = c.Update(hybridtime.FromMicros(m.truth()/1000, 0).Add(ahead))
			mustNow(t, c)
		}
		if over := time.Duration(c.Latest().Micros()*1000 - m.truth()); over > c.cfg.MaxClockSyncError {
			t.Fatalf("%v ahead: the clock followed to %v", ahead, over)
		}
	}
}
