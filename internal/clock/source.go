package clock

import "time"

// Pair is one reading of the two clocks that every timestamp rests on, in nanoseconds.
type Pair struct {
	Wall int64 // since the Unix epoch
	Mono int64 // since a moment that the source chose when it was made
}

// Counters are the kernel's two further clocks, in nanoseconds since moments of their own: only differences mean
// something.
type Counters struct {
	Raw  int64 // CLOCK_MONOTONIC_RAW: as the monotonic clock, but never slewed
	Boot int64 // CLOCK_BOOTTIME: the monotonic clock plus the time the machine was suspended
	OK   bool  // false where the system has no such clocks, or refuses to read them
}

// Discipline is what the kernel says about who steers its clock: adjtimex, read only.
type Discipline struct {
	OK       bool          // false where the system has no adjtimex, or refuses it
	Synced   bool          // the kernel says that somebody steers the clock
	MaxError time.Duration // the kernel's own bound on the error; it grows while nobody steers. May be nonsense: see usable
	EstError time.Duration
	FreqPPM  float64 // the steady correction
	Tick     int64   // microseconds per tick, 10,000 unless the clock is being slewed hard
	State    int     // TIME_OK, TIME_INS, TIME_DEL, TIME_OOP, TIME_WAIT, TIME_ERROR
	Status   int32   // STA_… bits
	TAI      int     // seconds that TAI is ahead of UTC, as far as the kernel was told
}

// Source gives readings. SystemSource reads the machine's clocks; Mock lays faults over another source. All methods may
// be called by many goroutines at once.
type Source interface {
	// Pair reads the wall clock and then the monotonic clock. It stands in every call of Now: two vDSO calls, no more.
	Pair() Pair
	// Counters reads CLOCK_MONOTONIC_RAW and CLOCK_BOOTTIME, two system calls.
	Counters() Counters
	// Discipline asks the kernel how good its clock is, one system call.
	Discipline() Discipline
	// BootID names this run of the machine's kernel; all zero where the system doesn't tell.
	BootID() [16]byte
	// ClockSource names the counter behind the kernel's clocks (tsc, kvm-clock, hpet …); empty where unknown.
	ClockSource() string
}

// System is the Source that reads the machine's clocks.
type System struct {
	start  time.Time
	bootID [16]byte
}

// SystemSource returns the machine's clocks. Its monotonic clock counts from now.
func SystemSource() *System { return &System{start: time.Now(), bootID: readBootID()} }

// Pair implements Source by one time.Now, which reads CLOCK_REALTIME and then CLOCK_MONOTONIC.
//
// A time.Time drops its monotonic part where the wall clock lies before 1885 or after 2157. The difference is then one of
// wall clocks, off from the true monotonic clock by decades, so the reading fails the freshness rule (I3) and is judged on
// what Counters says.
func (s *System) Pair() Pair {
	t := time.Now()
	return Pair{Wall: t.UnixNano(), Mono: int64(t.Sub(s.start))}
}

// BootID implements Source.
func (s *System) BootID() [16]byte { return s.bootID }
