package clock

import (
	"sync"
	"sync/atomic"
	"time"
)

// Faults is what a Mock lays over the real readings. The zero value is no fault.
type Faults struct {
	// Offset is added to the wall clock: a step, back to 0 to set it right.
	Offset time.Duration
	// Suspended is how long the machine is to seem to have slept: the wall clock and CLOCK_BOOTTIME run ahead by it.
	Suspended time.Duration
	// LeaptAll is added to all four clocks, as when the counter behind them leaps.
	LeaptAll time.Duration
	// MaxError is the kernel's error bound, as given: below zero too.
	MaxError time.Duration
	// Unsynced makes the kernel say that nobody steers the clock.
	Unsynced bool
}

// Mock is a Source for tests: real readings plus faults, which can be changed at any time. What the kernel says about its
// clock is made up whole, so that a machine whose clock nobody steers can play one that is steered. Everything above the
// readings is the production code.
type Mock struct {
	real   Source
	mu     sync.Mutex // one change at a time
	faults atomic.Pointer[Faults]
}

// NewMock returns a source without faults over another one.
func NewMock(real Source) *Mock {
	m := &Mock{real: real}
	m.faults.Store(&Faults{})
	return m
}

// Faults returns the faults in force.
func (m *Mock) Faults() Faults { return *m.faults.Load() }

// Change changes the faults in force.
func (m *Mock) Change(f func(*Faults)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := *m.faults.Load()
	f(&next)
	m.faults.Store(&next)
}

// Pair implements Source.
func (m *Mock) Pair() Pair {
	f, p := m.faults.Load(), m.real.Pair()
	return Pair{Wall: p.Wall + int64(f.Offset+f.Suspended+f.LeaptAll), Mono: p.Mono + int64(f.LeaptAll)}
}

// Counters implements Source.
func (m *Mock) Counters() Counters {
	f, c := m.faults.Load(), m.real.Counters()
	c.Raw += int64(f.LeaptAll)
	c.Boot += int64(f.Suspended + f.LeaptAll)
	return c
}

// Discipline implements Source.
func (m *Mock) Discipline() Discipline {
	f := m.faults.Load()
	return Discipline{OK: true, Synced: !f.Unsynced, MaxError: f.MaxError, Tick: 10000}
}

// BootID implements Source.
func (m *Mock) BootID() [16]byte { return m.real.BootID() }

// ClockSource implements Source.
func (m *Mock) ClockSource() string { return "mock over " + m.real.ClockSource() }

func (m *Mock) cheap() (bool, string) {
	if c, ok := m.real.(coster); ok {
		return c.cheap()
	}
	return false, "what a reading costs is not known"
}
