// Package master is the role that keeps the catalog: which tables there are, how they are cut into tablets, and on which
// servers their replicas are. It answers where tablets are, places new replicas, and sees to it that the tablet servers hold
// what the catalog says. It is never in the way of reads and writes under way.
//
// The catalog is a tablet like any other, led by one of the masters (docs/format/catalog.md). What is held in memory is
// rebuilt from it each time this master begins to lead; a change is written first and shown after. What the leading master
// knows of the cluster's health it shows as metrics and pages, and it names all servers to Prometheus (AddPages).
//
// # Invariants
//
//	I1: a change of the catalog is one write to its tablet: a table and all its tablets appear together or not at all, and an
//	    ALTER's steps are all taken or none.
//	I2: after a write whose outcome isn't known the state in memory is read anew before it is used for another change.
//	I3: a replica is deleted only where the catalog says that its tablet is, or where a committed config is without it that has
//	    handed out a higher id: what the catalog doesn't know is left alone.
//	I4: replica ids are handed out per tablet and never used again; a replica that a server had and lost is not made anew.
//	I5: a deleted table leaves the catalog only after every server with a replica of it has answered that it has none, and so do
//	    the tablets of a dropped range.
//	I6: what is known of tablet servers is of one leadership; a heartbeat that another one has overtaken changes nothing.
//	I7: clients are told of a version of a table's schema only once every tablet has it; every tablet has what they were told of.
//	I8: all replicas of a tablet are made with the same version of the schema, whenever that is.
//	I9: who is in a tablet's group is taken from what replicas have applied, never made up: of two configs the later one counts.
//
// # Life cycle
//
// New starts nothing. Run makes the catalog's replica at the first start and then follows its leadership: while this master
// leads it reads the catalog, takes reports, and holds one conversation with each tablet server, in which that is told what
// to create, delete and give a later schema to until it has. All of this ends with the leadership, before the next one begins.
//
// # Concurrency
//
// A change of the catalog holds the DDL token from its check to its write. catalog.mu guards the tables and tablets in memory,
// servers.mu what is known of tablet servers, reconcile.mu who is being talked to. Order: the DDL token, reconcile.mu,
// catalog.mu, servers.mu. None of the locks is held over a call.
//
// # Tests
//
// A master and tablet servers in one process, with real folders, ports and parts, are killed, started late and told
// nonsense; which heartbeats count is a table.
package master
