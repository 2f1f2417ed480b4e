// Command loadgen measures a bulk load by `nyala perf loadgen` into 8 tablets with three replicas: rows a second, and rows per
// CPU-second of all servers.
//
//	go run ./bench/loadgen [-rounds 3] [-threads 2] [-rows 1000000] [-kudu FOLDER] [-profile FOLDER]
//
// With -kudu, the folder of an unpacked release (bin/kudu, lib), Kudu's own `kudu perf loadgen` runs in turns with ours, against
// servers that sync their logs as ours do (--log_force_fsync_all) and against some with its defaults, which don't.
//
// The target: as many rows per CPU-second as Kudu's servers that sync, and at the very least half as many.
package main
