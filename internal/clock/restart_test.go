package clock

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nyaladb/nyala/internal/hybridtime"
)

// marked gives a timestamp out and returns it with the durable mark that covers it.
func marked(t testing.TB, c *Clock) (hybridtime.Timestamp, Marks) {
	t.Helper()
	ts := mustNow(t, c)
	m, write := c.MarkFor(ts)
	if !write {
		t.Fatalf("no mark for %v", ts)
	}
	c.MarkDurable(m)
	return ts, Marks{Clock: m}
}

// TestRestart is fault 12 and more: what a start does with each state of the wall clock, the mark and the machine.
func TestRestart(t *testing.T) {
	const week = 7 * 24 * time.Hour
	for _, c := range []struct {
		name   string
		others int
		do     func(m *machine)
		fenced string // a word of the reason; empty: it isn't
		heals  func(m *machine)
	}{
		{"nothing happened", 0, func(m *machine) {}, "", nil},
		{"process down for an hour", 0, func(m *machine) { m.pass(time.Hour) }, "", nil},
		{"process down for a suspend", 0, func(m *machine) { m.slept += int64(8 * time.Hour) }, "", nil},
		{"wall 9 s behind the mark", 0, func(m *machine) { m.step -= int64(7 * time.Second) }, "", nil},
		{
			"wall behind the mark", 0, func(m *machine) { m.step -= int64(20 * time.Second) }, "behind the clock mark",
			func(m *machine) { m.step += int64(20 * time.Second) },
		},
		{
			"wall years behind", 0, func(m *machine) { m.step -= int64(50 * 8766 * time.Hour) }, "behind the clock mark",
			func(m *machine) { m.step += int64(50 * 8766 * time.Hour) },
		},
		{"wall behind and the machine started anew a week later", 0, func(m *machine) {
			m.off += int64(week)
			m.step -= int64(2 * week)
			m.boot++
		}, "behind the clock mark", func(m *machine) { m.step += int64(2 * week) }},
		{
			"wall stepped forward", 0, func(m *machine) { m.pass(time.Minute); m.step += int64(901 * time.Second) }, "jumped before this start",
			func(m *machine) { m.step -= int64(901 * time.Second) },
		},
		{"wall stepped forward below the threshold", 0, func(m *machine) { m.step += int64(899 * time.Second) }, "", nil},
		{
			"wall stepped back while down long", 0, func(m *machine) { m.pass(2 * time.Hour); m.step -= int64(time.Hour) }, "jumped before this start",
			func(m *machine) { m.step += int64(time.Hour) },
		},
		{"switched off for a week, alone", 0, func(m *machine) { m.off += int64(week); m.boot++ }, "", nil},
		{
			"switched off for a week", 2, func(m *machine) { m.off += int64(week); m.boot++; m.kernel.Synced = false }, "started anew",
			func(m *machine) { m.kernel.Synced = true },
		},
		{"switched off for a week, source synchronised", 2, func(m *machine) { m.off += int64(week); m.boot++ }, "", nil},
		{"switched off for a minute", 2, func(m *machine) { m.off += int64(time.Minute); m.boot++; m.kernel.Synced = false }, "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine()
			old := sampling(newClock(t, m, nil))
			m.run(old, time.Second)
			last, marks := marked(t, old)
			m.do(func() { c.do(m) })
			clk := sampling(restartClock(t, m, marks, func(cfg *Config) {
				cfg.OtherServers = c.others
				cfg.TimeSource = SourceAuto
				cfg.LoopbackOnly = true
			}))
			if c.fenced == "" {
				if ts := mustNow(t, clk); ts <= last {
					t.Fatalf("%v after %v", ts, last)
				}
				return
			}
			mustRefuse(t, clk, c.fenced)
			m.run(clk, 20*time.Second)
			if c.name != "wall behind the mark" {
				mustRefuse(t, clk, c.fenced)
			}
			m.do(func() { c.heals(m) })
			m.run(clk, time.Second)
			if ts := mustNow(t, clk); ts <= last {
				t.Fatalf("%v after %v", ts, last)
			}
		})
	}
}

// TestRestartForgivesNothing shows that steps which the threshold let pass before a restart count after it, too.
func TestRestartForgivesNothing(t *testing.T) {
	m := newMachine()
	c := sampling(newClock(t, m, nil))
	var last hybridtime.Timestamp
	for i := range 4 {
		m.stepBy(250 * time.Second)
		m.run(c, time.Second)
		if i == 3 {
			mustRefuse(t, c, "jumped")
			break
		}
		var marks Marks
		last, marks = marked(t, c)
		if over := last.Micros()*1000 - m.truth(); over > int64(900*time.Second) {
			t.Fatalf("%v ahead", time.Duration(over))
		}
		c = sampling(restartClock(t, m, marks, nil))
	}
}

// TestMarks shows that a mark covers what it was asked for, is asked for once in two seconds of use, never runs away by
// restarts, and never follows a timestamp beyond the guard.
func TestMarks(t *testing.T) {
	m := newMachine()
	c := sampling(newClock(t, m, nil))
	writes := 0
	for range 1000 {
		m.run(c, 100*time.Millisecond)
		ts := mustNow(t, c)
		b, write := c.MarkFor(ts)
		if !write {
			continue
		}
		writes++
		d, err := DecodeMark(b)
		if err != nil || d.Timestamp < ts || d.Timestamp.Sub(ts) > 2*time.Second {
			t.Fatalf("mark %+v for %v: %v", d, ts, err)
		}
		c.MarkDurable(b)
	}
	if writes > 51 {
		t.Errorf("%d marks in 100 s", writes)
	}

	m.run(c, 3*time.Second)
	_, marks := marked(t, c)
	for range 50 {
		m.advance(10 * time.Millisecond)
		c = restartClock(t, m, marks, nil)
		ts := mustNow(t, c)
		b, write := c.MarkFor(ts)
		if write {
			marks.Clock = b
		}
	}
	d, err := DecodeMark(marks.Clock)
	if err != nil || d.Timestamp.Micros()*1000-m.truth() > int64(2*time.Second) {
		t.Errorf("after 50 quick restarts the mark is at %v: %v", d.Timestamp, err)
	}

	far := hybridtime.FromMicros(m.truth()/1000, 0).Add(time.Hour)
	b, _ := c.MarkFor(far)
	if d, err := DecodeMark(b); err != nil || d.Timestamp >= far || d.Timestamp.Micros()*1000-m.truth() > int64(10*time.Second)+1e6 {
		t.Errorf("mark for an entry an hour ahead: %v, %v", d.Timestamp, err)
	}
}

// TestPromiseMarks shows that promises have a mark of their own that moves the clock mark no more than that moves it.
func TestPromiseMarks(t *testing.T) {
	m := newMachine()
	c := newClock(t, m, nil)
	promise := mustNow(t, c).Add(time.Second)
	b, write := c.PromiseMarkFor(promise)
	if !write || c.DurablePromise() != 0 {
		t.Fatalf("write %v, durable %v", write, c.DurablePromise())
	}
	c.PromiseDurable(b)
	if c.DurablePromise() < promise {
		t.Fatalf("durable %v, promised %v", c.DurablePromise(), promise)
	}
	if _, write := c.PromiseMarkFor(promise); write {
		t.Error("asked for twice")
	}
	if _, write := c.MarkFor(promise); !write {
		t.Error("the promise mark stands for the clock mark")
	}
	d := restartClock(t, m, Marks{Promise: b}, nil)
	if d.DurablePromise() != c.DurablePromise() {
		t.Errorf("after a restart %v, before it %v", d.DurablePromise(), c.DurablePromise())
	}
	if _, err := New(testConfig(), m, Marks{Clock: b}); err == nil || !strings.Contains(err.Error(), "clock mark") {
		t.Errorf("a promise mark as clock mark: %v", err)
	}
	b[5] ^= 1
	if _, err := New(testConfig(), m, Marks{Promise: b}); err == nil || !strings.Contains(err.Error(), "CRC") {
		t.Errorf("a damaged mark: %v", err)
	}
}

// TestAdvanceTo shows that the logs' last timestamp moves the clock at the start, unless it is beyond the guard (fault 13).
func TestAdvanceTo(t *testing.T) {
	m := newMachine()
	c := newClock(t, m, nil)
	floor := hybridtime.FromMicros(m.truth()/1000, 0).Add(5 * time.Second)
	if err := c.AdvanceTo(floor); err != nil {
		t.Fatal(err)
	}
	if ts := mustNow(t, c); ts <= floor {
		t.Fatalf("%v after %v", ts, floor)
	}
	var ahead *AheadError
	if err := c.AdvanceTo(floor.Add(40 * 8766 * time.Hour)); !errors.As(err, &ahead) {
		t.Fatal(err)
	}
	if c.Latest().Sub(floor) > time.Second {
		t.Fatal("the clock moved")
	}
}

// FuzzDecodeMark shows that no input panics the decoder and that what it takes is what encode makes.
func FuzzDecodeMark(f *testing.F) {
	m := mark{kind: clockMark, ts: 1 << 60, bootID: [16]byte{1, 2}, boot: 5, wall: -7}
	f.Add(m.encode())
	m.kind = promiseMark
	f.Add(m.encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMark(b)
		if err == nil && string(m.encode()) != string(b) {
			t.Fatalf("%x decodes to %+v, which encodes to %x", b, m, m.encode())
		}
	})
}

// TestMarkFormat shows the format of docs/clock.md, to the byte.
func TestMarkFormat(t *testing.T) {
	m := mark{kind: clockMark, ts: 0x0102030405060708, bootID: [16]byte{15: 0xff}, boot: 1, wall: 2, displaced: 3}
	want := "01" + "01" + "0807060504030201" + "000000000000000000000000000000ff" + "0100000000000000" + "0200000000000000" + "0300000000000000" + "081f267b"
	if got := hexOf(m.encode()); got != want {
		t.Fatalf("the format changed; it is on disks:\n%s, want\n%s", got, want)
	}
}
