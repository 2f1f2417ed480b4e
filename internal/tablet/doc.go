// Package tablet is the store of a server's replicas: the state machine that log entries are applied to, and what scans read.
//
// # Main types
//
// A [Store] is one Pebble database that holds all replicas of a server, each under the number that it got on this server. A
// [Tablet] is one replica in it. A [Batch] applies log entries ([Op]) of one or more tablets and commits them at once. A
// [Scanner] reads a tablet at a snapshot and returns Arrow record batches. An [Export] is all that a tablet held at one
// moment, an [Import] makes a replica of it in another store.
//
// The package never sees a term, a peer or a clock: an entry comes with its index and its timestamp, and everything that it
// does follows from the entries before it.
//
// # Life cycle
//
// Open, then for each replica that the log knows Load, or Create where the store lost it; apply every entry above
// Tablet.Applied; Delete when the replica goes; ListNumbers once after the start, to delete what the log no longer knows;
// Close. Pebble has no log here: what a crash loses is applied again from the server's own log, which may be cut behind the
// index that Options.OnDurable tells. A replica that is copied from another begins with an Import instead, which is durable
// when it is finished; before that the store has nothing of it.
//
// # Invariants
//
//   - I1: all that an entry does (row versions, config, schema, request and client records) stands in one Pebble batch with
//     the state record that names the entry. So the store is at all times, and after every crash, as it was after some
//     prefix of the log.
//   - I2: an entry at or below the applied index changes nothing.
//   - I3: indexes rise by one, timestamps rise. An entry that breaks this ends the tablet.
//   - I4: at one timestamp a key has at most one version. What an entry's operations on one key come to is settled before
//     anything is written.
//   - I5: what an entry does, and what its request is answered, depends on the entries up to it alone: not on the time, on
//     chance, on how entries are put into batches, or on when the replica was restarted.
//   - I6: a row's oldest version is a whole row; a version that holds some columns stands above a version of a row that is
//     there.
//   - I7: row versions never change, and go away only with the replica.
//   - I8: a request is executed at most once for as long as its client is remembered.
//
// # Concurrency
//
// A Store's and a Tablet's methods are safe for concurrent use. A Batch or a Scanner belongs to one goroutine at a time, and
// a tablet may be in one uncommitted batch at a time. Scans don't wait for batches nor batches for scans. The store runs one
// goroutine of its own, which calls OnDurable, from Open to Close.
//
// # Formats
//
// Keys and values on disk are in docs/format/store.md, final from the first release on. Row operations and encoded keys are
// those of docs/format/rows.md and keys.md.
//
// # Tests
//
// A random test drives the store and a naive model in memory with the same entries, over several tablets, with flushes and
// crashes (Pebble's crashable file system) and copies under other numbers, and compares every result and every snapshot. A table
// of mistakes shows what it finds: each is planted, one at a time, in a copy of the sources, and must be found (go test -tags
// planted -run Planted). The request table has a model of its own. Each decoder has a fuzz target.
package tablet
