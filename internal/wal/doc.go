// Package wal keeps the write-ahead log of a server: the Raft logs, terms and votes of all its replicas, in one file.
//
// # What there is
//
// A Store holds groups, one for each replica on the server, under numbers that are never used again. A Batch gathers what
// many groups have ready (new groups, entries, terms and votes, cuts, compactions, deletions, small values) and Commit
// makes it durable as a whole: one transaction, whatever the number of groups. Gathering is the business of the caller's one
// writer goroutine. A Log is a group's log as raft sees it, a raft.Storage, which shows what is durable and nothing else.
// EncodePayload and DecodeEntry are the envelope of an entry's data: kind and hybrid timestamp.
//
// Bolt is the store on a go.etcd.io/bbolt file; Mem is its twin in memory, which crashes and fails in the ways in which
// that file does. Both are a core (what a batch means, the index, the trash, the cache, recovery) on a backend (where records
// are). Dump reads the file of a stopped server; Store.Dump lets a running one show its own. Reader looks into a stopped
// server's file, Repair takes entries out of it by an operator's word (docs/repair.md).
//
// # Life of an entry
//
// Entries of all groups stand in one bucket under a sequence number of the server's own, so that a commit touches the last
// leaf of one tree and not one leaf per tablet: pages touched are what a commit costs. Where (group, index) lies is known in
// memory only, and is rebuilt at open from one rule: an entry at index i, written later, supersedes all of its group written
// before it at index i or above. A superseded, compacted or orphaned record is trash. Each commit deletes about as many dead
// records as it adds, in ascending order (trash says why); Trim does so when there is nothing else to do.
//
// # Invariants
//
//	I1: what Commit returned nil for is there after any crash; a batch is there as a whole or not at all.
//	I2: a log goes without a gap from start.Index+1 to its last index, and start.Index <= commit <= last where commit isn't 0.
//	I3: a dead record is deleted no earlier than all that it supersedes.
//	I4: tally.records and tally.sum are the number of records on disk and the sum of their CRCs, at each commit.
//	I5: a group number that a durable CreateGroup used is never given out again.
//	I6: a group that is damaged stays so over restarts until it is deleted; found so at open it takes no other change.
//	I7: after a failed write or sync nothing is ever written to the file again by this process.
//	I8: a commit is synced as a whole before the next one begins; its pages are none that the one before uses.
//
// # One sync
//
// A commit's pages and its meta page are synced together, once. By I8 what a power cut may leave is the last commit torn and the
// one before whole; which of the two a file holds is found out at open, and a torn commit, which nobody was told of, is left out.
// torn.go has the argument, and how a torn commit is told from a damaged one.
//
// # Damage
//
// bbolt's pages have no checksums, and it trusts them. So each record has a CRC that covers its key, and a tally of all
// records is written by each commit; before bbolt opens a file, all that it would trust is read and checked here
// (pages.go). What is damaged in one replica's records costs that replica (Group.Damaged), anything else the file
// (DamageError; SetAside). A fault while reading the map and a panic inside bbolt are caught and fail the file; a failed
// sync fails it for good; a full disk changes and fails nothing (space.go argues it).
//
// Three things are out of reach. Of a commit that the machine went down after, before the next one or the store's end, a page
// may have rotted: it is taken for torn. A disk that acknowledges a sync and then loses the newest meta page whole shows a consistent
// older commit. And when a write fails, bbolt walks its map in a goroutine of its own to undo the transaction: a page that
// can't be read at that moment ends the process, which a failed disk may do.
//
// # Concurrency
//
// Commit and Trim exclude each other; everything else may be called at any time. Lock order: core.writer, then core.mu, then
// one Log.mu. No lock is held while the disk is read, and no read transaction outlives a call: a reader, however slow, never
// keeps pages from being used again. There are no goroutines.
//
// # Format
//
// docs/format/wal.md has the drawing. The format is final; golden bytes hold it (TestGolden).
//
// # Tests
//
// One conformance suite and one model test (random batches, crashes, a naive model) run on both stores; a raft group of
// three runs on each under a random schedule. Failures: each way on the twin, and on the file through replaced descriptors
// and a truncated map. Damage: bits, sectors and pages of real files, stale pages, cuts, and the images that a power cut may
// leave, of a torn commit those without any one page or sector too. Every decoder has a fuzz target.
package wal
