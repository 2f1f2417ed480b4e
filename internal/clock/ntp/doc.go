// Package ntp is a time source for machines whose clock nobody steers: it asks NTP servers itself, believes what a majority
// of them says, and steers a clock of its own by it. It leaves the machine's clock alone and doesn't go by it.
//
// # Main types
//
// A Source is a clock.Source. Open asks the servers until a majority agrees; Run goes on asking. A sample is what one server
// said, elect finds what most of them agree on, and a line is the clock that is steered: a pure function of the machine's
// monotonic clock.
//
// # How it steers
//
// The line runs at the monotonic clock's rate plus a correction of at most 450 ppm, so that the check of package clock, which
// allows 500, takes it for the slewing that it is. What the servers say to be off by more than 128 ms, twice running, is made
// good by a step, which package clock then judges as it judges every step. CLOCK_BOOTTIME tells of suspends, in which the
// monotonic clock stands still.
//
// # Invariants
//
//	I1: the line changes only by what more than half of all configured servers agree on: one that lies, or lies as one of
//	    two, moves nothing, and neither do those that are silent.
//	I2: no server is asked more often than once per poll interval, but for the first few questions, two seconds apart. One
//	    that asks for less gets less.
//	I3: the error bound holds whatever the machine's frequency does within 200 ppm; when no majority was heard for five
//	    poll intervals the source says that it is lost.
//	I4: the steered monotonic clock never runs backwards.
//
// # Concurrency
//
// A Source's readings are lock-free and may be taken by many goroutines. Open comes before Run, which runs once.
//
// # Tests
//
// A small NTP server in the process tells the truth, lies, says nothing, says nonsense, or asks for peace. The line and the
// vote are tested as pure functions, on a simulated oscillator for a day and by random servers.
//
// # Limits
//
// The line begins anew at each start. What it was steered by in the life of the process before (50 ppm are 4 s a day) shows
// after a restart under the same boot as a displacement, which counts until other servers agree.
package ntp
