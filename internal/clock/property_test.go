package clock

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
)

// history drives one clock through what happens to a machine, and checks each timestamp it gives out.
type history struct {
	t         *rapid.T
	m         *machine
	c         *Clock
	others    bool         // two other servers answer each beat
	right     func() int64 // their clocks
	threshold time.Duration

	last    hybridtime.Timestamp
	marks   Marks
	guard   time.Duration // how far ahead other servers may have let the clock be
	drift   int64         // the most that honest slewing put into the wall clock
	refused int
}

func newHistory(t *rapid.T, others bool, threshold time.Duration) *history {
	h := &history{t: t, m: newMachine(), others: others, threshold: threshold}
	h.right = h.m.truth
	h.begin()
	if others { // a clock that is off by less is right to them, and as much may lapse unseen until they are heard again
		h.guard = 2 * h.c.cfg.MaxClockSyncError
	}
	h.now()
	return h
}

func (h *history) begin() {
	cfg := testConfig()
	cfg.WallClockJumpThreshold, cfg.TimeSource = h.threshold, SourceAuto
	if h.others {
		cfg.OtherServers = 2
	}
	c, err := New(cfg, h.m, h.marks)
	if err != nil {
		h.t.Fatal(err)
	}
	c.setPeriod(cfg.SamplePeriod)
	h.c = c
}

// now asks for a timestamp and makes its mark durable, as a commit that uses it does. It must rise, over restarts too, and
// must not be further ahead of the true time than the threshold, the mark's two seconds and what was let in.
func (h *history) now() {
	ts, err := h.c.Now()
	if err != nil {
		h.refused++
		return
	}
	if ts <= h.last {
		h.t.Fatalf("%v after %v", ts, h.last)
	}
	h.last = ts
	slack := int64(h.threshold+markAhead+h.guard) + h.drift + int64(5*time.Millisecond)
	if ahead := ts.Micros()*1000 - h.m.truth(); ahead > slack {
		h.t.Fatalf("%v ahead of the true time; the threshold is %v: %+v", time.Duration(ahead), h.threshold, h.c.Status())
	}
	if b, write := h.c.MarkFor(ts); write {
		h.c.MarkDurable(b)
		h.marks.Clock = b
	} else if h.marks.Clock == nil {
		h.t.Fatal("no mark")
	}
	h.now2(ts)
}

// now2 asks again, so that what follows a mark is looked at too.
func (h *history) now2(ts hybridtime.Timestamp) {
	if again, err := h.c.Now(); err == nil {
		if again <= ts {
			h.t.Fatalf("%v after %v", again, ts)
		}
		if d, _ := DecodeMark(h.marks.Clock); again <= d.Timestamp {
			h.last = again
		}
	}
}

// run lets time pass with samples and beats at their pace.
func (h *history) run(d time.Duration) {
	for n := 1; d > 0; n++ {
		h.pass(100 * time.Millisecond)
		d -= 100 * time.Millisecond
		h.c.sample()
		if n%5 != 0 || !h.others {
			continue
		}
		for i := range 2 {
			id := ident.ServerID(fmt.Sprint("right-", i))
			ours := h.c.Beat(id)
			h.pass(time.Millisecond)
			right := h.right()
			h.pass(time.Millisecond)
			h.c.HearBeat(id, Beat{Sent: 1, Wall: right, Echo: ours.Sent, EchoWall: right})
		}
	}
}

func (h *history) pass(d time.Duration) {
	h.m.advance(d)
	h.drift += int64(d) / 1_000_000 * max(h.m.ppm, 0)
}

// restart begins the process anew. CLOCK_BOOTTIME is all that a start has to go by, so leaps that moved it too end here:
// they would pass for time that the process was down.
func (h *history) restart() {
	h.m.do(func() {
		h.m.fast, h.m.leapt = 0, 0
		h.m.kernel.Synced = h.m.kernel.Synced && h.m.right() // a kernel that lies about this is believed at a start
	})
	h.begin()
}

func duration(t *rapid.T, label string, choices ...time.Duration) time.Duration {
	d := rapid.SampledFrom(choices).Draw(t, label)
	return d + time.Duration(rapid.Int64Range(0, int64(d.Abs())/2).Draw(t, label+" more"))
}

// honest are the things that happen to a machine whose clock is right.
func (h *history) honest() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"now":     func(*rapid.T) { h.now() },
		"run":     func(t *rapid.T) { h.run(duration(t, "for", time.Second, 5*time.Second)); h.now() },
		"slew":    func(t *rapid.T) { h.m.do(func() { h.m.ppm = rapid.Int64Range(-500, 500).Draw(t, "ppm") }) },
		"suspend": func(t *rapid.T) { h.m.suspend(duration(t, "for", time.Second, time.Minute, 8*time.Hour)); h.now() },
		"pauses": func(t *rapid.T) {
			n := rapid.IntRange(1, 4).Draw(t, "n")
			for range n {
				p := rapid.SampledFrom([]time.Duration{0, time.Microsecond, 20 * time.Millisecond, 2 * time.Second}).Draw(t, "pause")
				h.m.do(func() { h.m.pauses = append(h.m.pauses, p) })
			}
			h.now()
			h.m.do(func() { h.m.pauses = nil })
			h.run(time.Second) // long enough to hear others again
		},
		"restart": func(t *rapid.T) {
			h.pass(duration(t, "down", time.Second, time.Minute, time.Hour))
			h.m.do(func() { h.m.kernel.Synced = rapid.Bool().Draw(t, "synced") })
			h.restart()
			h.now()
		},
	}
}

// TestHonestHistories shows that nothing honest is ever refused: slewing, suspends, pauses inside a reading, restarts,
// reboots, with and without other servers.
func TestHonestHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(t, rapid.Bool().Draw(t, "others"), duration(t, "threshold", 100*time.Millisecond, time.Second, 900*time.Second))
		h.right = func() int64 { return h.m.truth() + h.m.slew + h.m.step } // they are slewed alike
		actions := h.honest()
		actions["reboot"] = func(t *rapid.T) {
			h.m.reboot(duration(t, "off", time.Second, time.Hour, 7*24*time.Hour))
			h.restart()
			h.run(2 * time.Second) // others must be heard first
			h.now()
		}
		actions[""] = func(t *rapid.T) {
			if h.refused != 0 {
				t.Fatalf("refused: %+v", h.c.Status())
			}
		}
		t.Repeat(actions)
	})
}

// TestHostileHistories shows that whatever happens to the clocks, no timestamp is further ahead of the true time than the
// threshold (and, where there are others, what they take for right), and all rise.
func TestHostileHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(t, rapid.Bool().Draw(t, "others"), duration(t, "threshold", 500*time.Millisecond, 20*time.Second, 900*time.Second))
		actions := h.honest()
		step := func(t *rapid.T) time.Duration {
			return duration(t, "by", 300*time.Microsecond, time.Millisecond, 200*time.Millisecond, 9*time.Second, 11*time.Second,
				400*time.Second, time.Hour, 40*8766*time.Hour)
		}
		actions["step forward"] = func(t *rapid.T) { h.m.stepBy(step(t)); h.now() }
		actions["step back"] = func(t *rapid.T) { h.m.stepBy(-step(t)); h.now() }
		actions["set right"] = func(t *rapid.T) {
			h.m.do(func() {
				h.m.step = -h.m.slew - h.m.leapt - h.m.fast
				h.m.kernel.Synced = true
			})
			h.run(12 * time.Second)
			h.now()
		}
		actions["wall and monotonic leap"] = func(t *rapid.T) { d := step(t); h.m.do(func() { h.m.fast += int64(d) }); h.now() }
		actions["restart after a step"] = func(t *rapid.T) { h.m.stepBy(step(t)); h.restart(); h.now() }
		actions["step in a suspend"] = func(t *rapid.T) {
			h.m.suspend(time.Hour)
			h.m.stepBy(step(t))
			h.now()
		}
		actions["update"] = func(t *rapid.T) {
			ahead := time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "ahead"))
			ts := hybridtime.FromMicros(h.m.truth()/1000, 0).Add(ahead)
			if h.c.Update(ts) == nil {
				h.guard = max(h.guard, h.c.cfg.MaxClockSyncError)
			}
		}
		if h.others { // alone, nothing can tell these from a process that was stopped, or a machine that was off
			actions["all leap"] = func(t *rapid.T) {
				d := step(t)
				h.m.do(func() {
					h.m.leapt += int64(d)
					h.m.kernel.Synced = h.m.kernel.Synced && h.m.right()
				})
				h.now()
			}
			actions["reboot after a step"] = func(t *rapid.T) {
				h.m.stepBy(step(t))
				h.m.do(func() { h.m.kernel.Synced = false })
				h.m.reboot(time.Second)
				h.restart()
				h.now()
				h.run(2 * time.Second)
			}
		}
		t.Repeat(actions)
	})
}
