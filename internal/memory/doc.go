// Package memory knows how much memory the process may use and uses, and says when writes must wait for some to be given
// back.
//
// # Main types
//
// Limit is the hard limit (--memory_limit_hard_bytes), the soft one below it (--memory_limit_soft_percentage), and the use
// as of a moment ago. Refuse is asked before a write is proposed: between the limits it refuses by chance, the more often the
// nearer the hard one, so that writers slow down together and none is shut out; above the hard limit always. Full is asked
// before a request's body is received. Reads are never refused here.
//
// # What is counted
//
// All that the Go runtime has from the system and hasn't free at hand: memtables, log entries that wait for the disk, requests
// and answers under way, scanners, caches, stacks. A build without cgo (as `make build` makes) has no other memory but mapped
// files, which the system takes back by itself. Garbage counts until it is collected; so that nothing is refused for garbage
// alone, the collector is told (as by GOMEMLIMIT) to keep a bit below the soft limit. A sample costs about a microsecond and is
// taken when one is needed and the last is old; what requests add in between is counted by hand.
//
// # Life cycle
//
// New samples once and registers metrics; Close takes them back. There are no goroutines.
//
// # Invariants
//
//	I1: goLimit < soft <= hard.
//	I2: at or below the soft limit nothing is refused, above the hard one everything is.
//
// # Concurrency
//
// Everything is safe for concurrent use. A nil *Limit refuses nothing.
//
// # Tests
//
// With a made-up use of memory and made-up chance; samples of the real one for their cost and for being near the truth.
package memory
