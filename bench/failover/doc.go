// Command failover measures how long writes fail after a kill -9 of a leader, with default settings.
//
// First of one tablet that is written to row after row, in many trials: from the kill to the first write that succeeds. Then of
// a server that leads many tablets: until a write to each of them has succeeded.
//
//	go run ./bench/failover [-trials 20] [-tablets 500] [-many_trials 3]
//
// The target: a median of 2 s and at most 3 s for one tablet, 5 s for 500.
package main
