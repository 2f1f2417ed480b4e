//go:build !linux

package clock

// Counters implements Source: this system offers no clocks that could check the pair.
func (s *System) Counters() Counters { return Counters{} }

// Discipline implements Source: this system has no adjtimex that could be asked.
func (s *System) Discipline() Discipline { return Discipline{} }

// ClockSource implements Source.
func (s *System) ClockSource() string { return "" }

func readBootID() (id [16]byte) { return id }
