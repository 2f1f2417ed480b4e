// Package replica is where consensus, the tablet store, the WAL and the clock meet: it turns a client's write into a log
// entry and the entry's outcome into the client's answer, and a read into a point in the log to wait for.
//
// A Node holds what one server has of each: the folders, the WAL, the clock, the connections to other servers, the store
// and the consensus host. Its Manager holds the replicas. Master and tablet server are both built on a Node: the catalog is
// a tablet like any other.
//
// # A write
//
// Write checks the rows against the schema and the partition, looks whether this very request is known already, and
// proposes. The host gives index and timestamp in one step and calls back before the entry can be applied, so that the
// proposal is known first. Apply decides the outcome in log order, in the same batch that holds the rows, and only then
// wakes the caller.
//
// A follower has the leader take a tracked write, by one call that is never passed on again, and answers when an entry with
// the request's number is applied here. It doesn't rest on the leader's answer, so it is decided by the log alone, once,
// whoever leads by then; it gives that answer only where the caller's time ends before the entry is here. A server without a
// replica passes nothing on: it doesn't know where to.
//
// # A copy
//
// A leader whose log doesn't reach a member has the member's server make a copy: its copier fetches one stream (docs/format/copy.md)
// of the leader's store as of one moment, writes it under a new number, and installs it by one commit of the WAL that names the
// number and drops the old one's. The leader holds its log meanwhile. Whatever fails leaves nothing, and is begun anew as long
// as it is needed. A replica that was removed from its group deletes itself.
//
// # Invariants
//
//	I1: an answer is given only after the batch that holds its outcome is visible to reads here; to a write that was passed
//	    on and isn't applied here in its caller's time, at the leader.
//	I2: a tracked request has at most one proposal under way at one replica, its own or passed on to the leader; whoever asks
//	    again meanwhile shares it. Where several stand in the log, from several leaders, the first that is applied decides.
//	I3: every wait ends: by its outcome, by another entry's being applied in its place, by the loss of leadership (a
//	    tracked one: it can be asked about again), by the replica's failure, deletion or stop, or by its caller.
//	I4: applied indexes are delivered in order, each once.
//	I5: a replica is created, opened and deleted by one call at a time; the WAL alone says whether it exists. A creation or
//	    an opening that was begun is finished or undone, whatever becomes of its caller.
//	I6: "not applied" is said only of what never will be.
//	I7: a copy's rows are durable before the WAL names their number; a number that the WAL doesn't name holds nothing once the
//	    server has started, durably, before any is given out.
//	I8: a copy takes the place of a replica of its own id that is sound, or of a lower id. It is never made of a voter that isn't
//	    here: what that one promised is lost.
//
// # Life cycle
//
// OpenNode opens everything and starts nothing; Node.Run starts replicas in parallel and runs until its context ends. A
// replica is bootstrapping, then running, and may end failed: then it answers TABLET_FAILED and takes no part in its group
// again under its id. At a stop leaderships are handed over, then every wait ends, then the parts stop.
//
// # Concurrency
//
// Manager.mu guards the map of replicas, Replica.mu the waits and the state. Neither is held over I/O but for a look-up of
// a request record. A replica's turn is taken before Manager.mu, Manager.mu before Replica.mu, and Replica.mu before the
// locks of host and store. copier.mu guards which copies are under way, and no other lock is taken under it.
//
// # Tests
//
// Several nodes in one process, with real folders, ports and parts, are stopped, killed and damaged; proposals are checked
// against random runs of terms; goleak and the race detector over all of it.
package replica
