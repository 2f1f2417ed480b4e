// Package consensus is the multi-Raft host of a server: every replica on it is one raft group, and all of them share a
// fixed set of workers, one log writer, one pool that applies, and two connections to each other server.
//
// # Main types
//
// [Core] is the pure part. It owns the raft nodes of the groups pinned to one worker and is stepped one event at a time:
// a tick, a message, a proposal, a read, a commit that is durable, entries that are applied. What it decides comes out as
// [Decisions]: messages, log appends with what waits for them, entries to apply, finished requests. It has no goroutine,
// file, log line or clock of its own, so a simulation can replay it (raft's election timeouts alone are drawn from
// crypto/rand.Reader, which a test may replace).
//
// [HeartbeatBatcher] is pure as well: it puts the heartbeats of all groups to one server into batches.
//
// [Servers] is pure as well: it knows the other servers by their beats, finds out who is silent or has started anew, and whether the
// two ends of a pair agree about which groups are quiet, by the sums in [QuietPairs]. Cores hear of it (HearOf).
//
// [Host] is the shell around one Core per worker. NewHost starts nothing; Run works until its context ends and returns
// when every goroutine has joined. A group is made by CreateGroup (durable), brought up by StartGroup, and ended by
// StopGroup or DeleteGroup.
//
// [Transport], [Applier], [Observer] and [Clock] are what the host needs from its surroundings.
//
// # Invariants
//
//	I1  What a vote or pre-vote request, an answer to an append, vote or pre-vote, or the leader's count of itself rests on
//	    (term, vote, entries) is durable before it leaves or is counted.
//	I2  applied <= committed <= last, and an entry is applied only when it is durable here.
//	I3  In a log the timestamps of stamped entries rise with the index, strictly.
//	I4  A leader stamps only after an entry of its own term is committed, above every promise in the votes it counted,
//	    above its own promise and above the last timestamp in its log.
//	I5  A promise to close T is made in the group's step, in the term it was asked for; T is under the server's durable
//	    promise mark before the answer leaves and before the leader counts itself.
//	I6  Who has applied through the index given with a closed T holds every write at or below T, for ever.
//	I7  A read index is confirmed by a round that began after the read arrived, on a leader that had committed an entry of
//	    its own term by then.
//	I8  Appends of a group become durable in the order in which raft made them; none is skipped.
//	I9  The log is cut only behind what the local store holds durably, and behind what every member's log holds and copies under
//	    way need, but for what is beyond the bounds of retention.
//	I10 A failed replica says nothing any more, but that it leads no more: no vote, no answer, no read.
//	I11 A replica cuts only entries of a term that it leads or led since its start, that it hasn't counted as committed, and while
//	    it is in that term. From the cut on it leads, counts and closes nothing in the term; and it asks nobody to campaign before
//	    the cut is durable.
//	I12 A quiet replica has a leader in its term, and all of its log is committed and applied. Nothing else here rests on
//	    whether a replica is quiet, or on what is known of servers.
//	I13 The config that counts is that of the last config entry handed to the state machine. A leader proposes one only when it has
//	    applied an entry of its own term and each config entry in its log, so a log that holds a config entry is durably known
//	    committed through the one before.
//	I14 A replica that is replaced by a copy under its own id keeps its term and vote, and every entry that it may have acknowledged
//	    and that the copy doesn't hold. One that was lost is never replaced under its id, unless it was never a voter.
//
// docs/consensus.md has the argument for each.
//
// # Concurrency
//
// A group is pinned to a worker by its local number; its Core is touched by that worker's goroutine alone. Queues between
// the goroutines are bounded: what comes from outside (messages, requests) is dropped or refused when they are full and
// counted; what the host itself has under way (commits, applies) is bounded by raft's limits per group.
//
// # Tests
//
// Scripts in testdata step a Core by hand (datadriven). A deterministic cluster of Cores with a simulated network, log,
// store and clocks is driven from seeds and checked after each step; with the build tag planted, mistakes are planted to
// show that the checks can fail. The shell is tested with real goroutines, under the race detector, with goleak.
package consensus
