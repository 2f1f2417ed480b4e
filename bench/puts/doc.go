// Command puts measures durable writes of single rows by 64 clients at once to one tablet with three replicas: how many a second,
// and how many per CPU-second of the servers.
//
//	go run ./bench/puts [-clients 64] [-seconds 10] [-rounds 3] [-etcd PROGRAM -etcd_clients PROGRAM] [-profile FOLDER]
//
// With -etcd three etcd nodes are written to in turns with ours, through their leader. -etcd_clients names a program that is
// called with ENDPOINT conc CLIENTS SECONDS and prints how many puts there were, the seconds they took, and their p50, p99 and
// longest in milliseconds.
//
// The target: at least as many writes a second as etcd's puts in the same run.
package main
