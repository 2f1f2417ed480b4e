package clock

import (
	"encoding/hex"
	"sync"
	"testing"
	"time"
)

// machine is a made-up computer with all its clocks and the true time, for tests. Its time stands still but for what a test
// asks for and for what each reading takes.
type machine struct {
	mu     sync.Mutex
	epoch  int64 // true time, ns since 1970, at awake = slept = 0
	awake  int64 // ns that the machine ran
	slept  int64 // ns that it was suspended
	off    int64 // ns that it was off
	step   int64 // wall clock: steps and leap seconds
	slew   int64 // all but the raw counter: what slewing put in
	fast   int64 // all but the raw counter: a leap
	leapt  int64 // all clocks: a leap of the counter behind them
	ppm    int64 // slewing under way
	utc    int64 // seconds by which UTC was moved by leap seconds: true time is UTC
	kernel Discipline
	boot   byte // names the kernel's run

	readCost int64
	pauses   []time.Duration // taken one by one between the two halves of a pair
}

func newMachine() *machine {
	return &machine{
		epoch: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixNano(), boot: 1, readCost: 40,
		kernel: Discipline{OK: true, Synced: true, MaxError: time.Millisecond, Tick: 10000},
	}
}

func (m *machine) pass(d time.Duration) {
	m.awake += int64(d)
	m.slew += int64(d) / 1_000_000 * m.ppm
}

func (m *machine) mono() int64 { return m.awake + m.slew + m.fast + m.leapt }
func (m *machine) wall() int64 { return m.epoch + m.mono() + m.slept + m.off + m.step }

// right says whether the wall clock is: what a kernel that doesn't lie calls synchronised.
func (m *machine) right() bool { return abs(m.step+m.fast+m.leapt) < int64(time.Second) }

// truth is the true time.
func (m *machine) truth() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.epoch + m.awake + m.slept + m.off + m.utc*int64(time.Second)
}

func (m *machine) do(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

func (m *machine) advance(d time.Duration) { m.do(func() { m.pass(d) }) }
func (m *machine) stepBy(d time.Duration)  { m.do(func() { m.step += int64(d) }) }
func (m *machine) suspend(d time.Duration) { m.do(func() { m.slept += int64(d) }) }

// reboot starts the machine anew after it was off for a while; its wall clock ran on.
func (m *machine) reboot(off time.Duration) {
	m.do(func() {
		m.off += int64(off) + m.awake + m.slept
		m.step += m.slew + m.fast + m.leapt
		m.awake, m.slept, m.slew, m.fast, m.leapt = 0, 0, 0, 0, 0
		m.boot++
	})
}

func (m *machine) Pair() Pair {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pass(time.Duration(m.readCost))
	wall := m.wall()
	if len(m.pauses) > 0 {
		m.pass(m.pauses[0])
		m.pauses = m.pauses[1:]
	}
	return Pair{Wall: wall, Mono: m.mono()}
}

func (m *machine) Counters() Counters {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pass(time.Duration(m.readCost))
	return Counters{Raw: m.awake + m.leapt + 7e15, Boot: m.mono() + m.slept + 5e12, OK: true}
}

func (m *machine) Discipline() Discipline {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kernel
}

func (m *machine) BootID() (id [16]byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id[0] = m.boot
	return id
}

func (m *machine) ClockSource() string { return "test" }

func testConfig() Config {
	cfg := DefaultConfig()
	cfg.WallClockJumpDetection = DetectionEnabled
	cfg.TimeSource = SourceSystem
	return cfg
}

func newClock(t testing.TB, m Source, change func(*Config)) *Clock {
	t.Helper()
	return restartClock(t, m, Marks{}, change)
}

func restartClock(t testing.TB, m Source, marks Marks, change func(*Config)) *Clock {
	t.Helper()
	cfg := testConfig()
	if change != nil {
		change(&cfg)
	}
	c, err := New(cfg, m, marks)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// run lets time pass while the sampler looks at its pace.
func (m *machine) run(c *Clock, d time.Duration) {
	for ; d > 0; d -= c.cfg.SamplePeriod {
		m.advance(min(d, c.cfg.SamplePeriod))
		c.sample()
	}
}

// sampling makes the clock expect looks at the sampler's pace.
func sampling(c *Clock) *Clock {
	c.setPeriod(c.cfg.SamplePeriod)
	return c
}

func hexOf(b []byte) string { return hex.EncodeToString(b) }
