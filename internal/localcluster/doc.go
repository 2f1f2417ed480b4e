// Package localcluster runs a whole cluster on this machine: real nyala-master and nyala-tserver processes on loopback,
// in one folder. `nyala local …` and the end-to-end tests use the same code.
//
// Up makes a cluster, or starts what is missing of one; Open takes up one that is there. A Cluster then starts, stops
// (SIGTERM) and kills (SIGKILL) servers by name. The servers are in sessions of their own: they outlive the process that
// started them, and anyone who opens the folder may go on with them.
//
// # The folder
//
//	DIR/cluster.json          the state file: servers, addresses, flags, processes
//	DIR/lock                  held (flock) while servers are being started or stopped
//	DIR/master-1/wal, data    the server's own folders
//	DIR/master-1/logs         its log files, and stderr.log: what it printed before it had a log
//	DIR/tserver-1/…
//
// # Invariants
//
//   - I1: the state file is replaced by rename only, under the lock; who reads it without the lock sees a whole one.
//   - I2: a process counts as a server's only if pid and start time (with the boot's id) both match: a pid that was used
//     again is never signalled.
//   - I3: a server keeps its addresses for good, once it has been ready for the first time.
//   - I4: deleting a cluster removes the servers' folders that its state file names, the state file and the lock, and the
//     folder itself only if nothing else is left in it.
//
// # Concurrency
//
// A Cluster may be used by several goroutines; several processes may work on one folder. The lock orders whatever changes
// the state file; waiting for a server to become ready is done without it, but in the very first Up, which holds it to the
// end so that it can still choose other ports.
//
// The package is tested with its own test binary standing in for the two servers.
package localcluster
