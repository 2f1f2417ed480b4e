// Package master is the role that keeps the catalog: which tables there are, how they are cut into tablets, and on which
// servers their replicas are. It answers where tablets are, places new replicas, and sees to it that the tablet servers hold
// what the catalog says. It is never in the way of reads and writes under way.
//
// The catalog is a tablet like any other, led by one of the masters (docs/format/catalog.md). What is held in memory is
// rebuilt from it each time this master begins to lead; a change is written first and shown after.
//
// # Invariants
//
//	I1: a change of the catalog is one write to its tablet: a table and all its tablets appear together or not at all.
//	I2: after a write whose outcome isn't known the state in memory is read anew before it is used for another change.
//	I3: a replica is deleted only where the catalog says that its tablet is: what the catalog doesn't know is left alone.
//	I4: replica ids are handed out per tablet and never used again.
//
// # Concurrency
//
// catalog.mu guards the tables and tablets in memory, changes hold catalog.ddl as well, from the check to the write.
// servers.mu guards what is known of tablet servers; it is taken after catalog.mu. Neither is held over a call.
package master
