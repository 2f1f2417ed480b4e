// Command start measures how long a tablet server with many replicas takes from its start after a kill -9 until it is ready: until
// every replica is open and the leading master knows it.
//
//	go run ./bench/start [-replicas 1500] [-trials 3]
//
// The target: under 5 s for 1,500 replicas with a row each.
package main
