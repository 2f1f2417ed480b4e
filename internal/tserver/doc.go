// Package tserver is the role that holds tablets: it answers reads and writes, creates and deletes replicas when a master
// says so, and keeps the masters told of what it holds.
//
// # Life cycle
//
// A Server is built on a replica.Node. It answers from the moment its node runs; calls for replicas that aren't open yet
// are told so and can be tried again. Heartbeats begin at once and go on until the end: a master that isn't up is said so
// of once, not at each try.
//
// # Invariants
//
//	I1: a tablet server that belongs to a cluster never takes a word from a master of another.
//	I2: a scanner holds nothing in the store between two calls: it goes on from its last key at its snapshot.
//	I3: what a master has been told it is told again after it, or this server, was restarted.
//
// # Concurrency
//
// scanners.mu guards the map of scanners; each scanner has a lock of its own, held over one step.
package tserver
