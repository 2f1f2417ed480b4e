// Package clock gives out hybrid timestamps that can be trusted: they rise strictly, across restarts too, and none comes
// from a wall clock that has jumped. docs/clock.md says what that means to an operator.
//
// # Parts
//
// A [Source] gives readings: the wall and the monotonic clock as a [Pair], the kernel's further clocks, adjtimex.
// [System] reads the machine's; [Mock] lays faults over another source. Three pure cores think about readings and do
// nothing: a [Detector] tells a jump from slewing, a suspend, a leap second or a pause; a bound keeps the error and goes on
// from the monotonic clock where the source fails; a fence decides whether timestamps are given out, from the detector's
// judgement and from the [Opinion] that other servers' beats add up to. [Clock] is the shell around them.
//
// # Life cycle
//
// New takes the durable marks from the WAL and the first look at the clocks; a server begins fenced where the mark says
// that its wall clock can't be right. WaitSynchronized waits for a steered clock, AdvanceTo takes over the last timestamp
// of the logs, Run samples in the background. Without Run the calls look for themselves. Nothing needs closing.
//
// # How a timestamp is given out
//
// Now loads the view that the last look published, reads one pair, compares its offset (wall minus monotonic) and its age
// with the view, and moves the last timestamp up: one atomic load, one time.Now, two comparisons, one compare-and-swap, no
// lock, no allocation. Only where the view doesn't answer for the pair does it take the lock and look at all clocks
// before it hands anything out. What is refused costs less: the view holds the error.
//
// # Invariants
//
//   - I1: each timestamp is greater than every one given out or taken over before it, in this process or an earlier one
//     whose use of it became durable (the mark covers it).
//   - I2: no timestamp comes from a wall clock that is displaced by more than wall_clock_jump_threshold_sec since it was last
//     shown right. The sum of its steps counts; no time window forgives any.
//   - I3: no timestamp leaves without a look at CLOCK_MONOTONIC_RAW and CLOCK_BOOTTIME at most three sample periods before it.
//   - I4: a timestamp from elsewhere moves the clock to at most max_clock_sync_error_usec beyond the last good reading. That
//     is the wall clock while it is good, and carried on by the monotonic clock while it isn't.
//   - I5: used <= mark <= max(used, min(used, now) + 2 s), and mark <= max(now + max_clock_sync_error_usec, latest), where now
//     is the last good reading. So a mark never follows an entry from a clock that had jumped.
//   - I6: the promise mark is moved by promises alone, and is no part of what Now begins at.
//   - I7: nothing under the lock does I/O but readings of the clocks; tools are run, OnChange is called and lines are logged by
//     goroutines of Run's.
//
// # Concurrency
//
// All methods of Clock may be called by many goroutines. The cores aren't safe by themselves; Clock's lock guards them.
//
// # Tests
//
// A made-up machine with all its clocks and a true time (machine_test.go) drives tables of faults, three servers that send
// each other beats, and, by rapid, random histories of steps, slewing, suspends, pauses, leaps and restarts, which are held
// against I1 and I2. FuzzDecodeMark reads marks. BenchmarkNowRatio says what the check costs.
package clock
