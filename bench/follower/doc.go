// Command follower measures single-row writes through a follower against those through the leader, in turns on one cluster:
// first one session that writes one row after the other, then one `nyala table load` process per row.
//
//	go run ./bench/follower [-rounds 10] [-writes 100] [-processes 100]
//
// The target: the median through the follower is at most 1.2 times the leader's plus one round trip, and the processes through
// the follower take at most 1.2 times as long. The round trip is that of a call that does nothing.
package main
