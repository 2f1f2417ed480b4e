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
// caller's wait is registered first. Apply decides the outcome in log order, in the same batch that holds the rows, and
// only then wakes the caller.
//
// # Invariants
//
//	I1: an answer is given only after the batch that holds its outcome is visible to reads.
//	I2: a tracked request is proposed at most once at a time by one replica; whoever asks again meanwhile shares the answer.
//	I3: every wait ends: by its outcome, by the loss of leadership, by the replica's failure or stop, or by its caller.
//	I4: applied indexes are delivered in order, each once.
//
// # Life cycle
//
// OpenNode opens everything and starts nothing; Node.Run starts replicas in parallel and runs until its context ends. A
// replica is bootstrapping, then running, and may end failed: then it answers TABLET_FAILED and takes no part in its group
// again under its id.
//
// # Concurrency
//
// Manager.mu guards the map of replicas, Replica.mu the waits and the state. Neither is held over I/O but for a look-up of
// a request record, and Manager.mu is taken before Replica.mu.
package replica
