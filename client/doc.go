// Package client is Nyala's public Go client: it creates and describes tables, writes rows and scans them.
//
// # Life cycle
//
// Connect finds the leading master and returns a Client, which is shared by all of a program and closed at its end. OpenTable
// and CreateTable return a Table. A Session (Client.NewSession) writes Operations that the Table makes; a Scanner
// (Table.Scan) reads. Table and Client are safe for concurrent use, and so is a Session; an Operation and a Scanner belong to
// one goroutine at a time.
//
// # Contexts, deadlines, retries
//
// Every call takes a context and ends with it. Where it has no deadline, Options.Timeout bounds each operation. Within that,
// whatever passes by itself is tried again, here or at another server, with pauses that grow from 10 ms to half a second (to
// 80 ms while a tablet has no leader): a master or tablet server that is down, an election, a server that is busy or says
// when to come back. An error at the end says what was tried, where, and the last cause. Every error has an *Error in its
// chain, whose Code is the server's.
//
// # Exactly once
//
// A client has an identity of 16 random bytes; each write request has a number under it, and keeps the number when it is sent
// again, to whichever server. The tablet's replicas remember the answer, so that a write whose answer was lost is not applied
// twice. A write that was given up (its deadline passed, its context was cancelled, a server answered REQUEST_STALE) may have
// been applied or not: its RowError says OutcomeUnknown.
//
// # Time
//
// The client remembers the highest timestamp that a server has told it and sends it along, so that what it does later gets
// later timestamps on every server. A snapshot at T holds the writes with timestamps below T: to see a session's writes, read
// at Session.LastTimestamp()+1.
//
// # Tables that are altered
//
// A Table stays as it was when it was opened. Writes and scans with it go on after an ALTER: new columns have their defaults, names
// are those that it knows, rows go to the tablets that there are now. What concerns a column that was dropped is a
// CodeMismatchedSchema, a row in no range a CodeNotFound. Scans see what was written to a range that was added before they began.
//
// # Invariants
//
//   - I1: a batch's rows are in the order of Apply, and a tablet's batches are sent one after another: two operations on one
//     key take effect in that order. After a batch that failed as a whole no later one of its tablet is sent in that flush.
//   - I2: a request number is used for one request only, and the first_incomplete number sent with a request is at or below
//     the number of every request whose answer somebody waits for.
//   - I3: a scan that goes on elsewhere in a tablet does so at the snapshot that the tablet's first answer named, after the
//     last key that was returned: it repeats no row and leaves none out.
//   - I4: what is known of a table's tablets is found by a partition schema that is no older than they are; a row that a tablet
//     doesn't take is sent elsewhere only by what the master says then.
//   - I5: every goroutine that the client starts has ended when Close returns.
//
// # Tests
//
// An in-process cluster (fake_test.go) serves the wire protocol from plain maps over real connections, and can lose answers,
// move leaders, die, and be slow; the tests drive the client against it under goleak and the race detector.
package client
