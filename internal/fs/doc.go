// Package fs looks after the folders of a daemon: which they are, whose they are, and that one process uses them at a time.
//
// # Layout
//
// A daemon has one WAL folder (--fs_wal_dir) and one or more data folders (--fs_data_dirs; the WAL folder where none is
// given). filenames.go has the names of all that lies in them:
//
//	instance   whose folder this is; a copy in each folder
//	lock       held with flock while a process uses the folder; holds that process's pid
//	wal.db     the write-ahead log, in the WAL folder
//	store/     the row store, in the first data folder
//
// Whatever else lies there is left alone. A temporary file of ours (instance.tmp) that a crash left behind is removed.
//
// # The instance file
//
// Text, so that a person can read it; one line per field, in this order, each ended by a newline:
//
//	nyala instance 1
//	server_id 0123456789abcdef0123456789abcdef
//	role tserver
//	cluster_id -
//	created 2013-01-01T05:00:00.000000Z
//	stores_created true
//	crc32c 89abcdef
//
// The 1 is the format's version: a reader refuses one that it doesn't know. The CRC-32C covers all bytes before its line.
// cluster_id is a minus until it is known. stores_created says that wal.db and store/ were there once, so that their absence
// is a loss and not a first start.
//
// # Life cycle
//
// Open locks the folders, reads and compares the instance files or makes them, and returns a *Layout. The daemon opens
// its WAL and its store in the places that the Layout names and calls MarkStoresCreated before it serves anything. Close
// releases the locks; so does the end of the process, however it comes. Inspect and Holder look at a folder without taking
// it.
//
// # Invariants
//
//   - I1: an instance file is replaced whole or not at all: temporary file, fsync, rename, fsync of the folder.
//   - I2: server id, role and creation time never change, and are equal in all folders of a server.
//   - I3: a cluster id is set once. Copies may differ only by a crash amid the setting, in that some lack it; Open
//     completes them.
//   - I4: stores_created is on disk in every folder before the server acknowledges anything; from then on a server
//     without its WAL or store doesn't start. It could vote a second time in a term, or lead without what it acknowledged.
//   - I5: Open deletes nothing but our own temporary files, whatever it finds.
//
// # Concurrency
//
// A Layout's methods may be called by several goroutines. Locks are per open file: a second Open of a folder fails in the
// same process too.
//
// # Tests
//
// Tables of mistakes (foreign, mixed, missing, damaged folders), a crash between every two steps of the writes, a second
// process, a process without permission, FuzzDecodeInstance.
package fs
