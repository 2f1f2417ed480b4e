// Command writers measures closed-loop writers of single rows to one tablet: how many messages between the servers a committed
// write costs, by the number of writers, and what pushing the commit index costs in CPU.
//
// The second part runs two clusters, one with --raft_push_commit_index and one without, and has 64 writers write to one and then
// the other, in turns.
//
//	go run ./bench/writers [-writers 1,4,16,64] [-seconds 5] [-pairs 7]
//
// The target: messages per commit fall as the number of writers grows; CPU per committed write at most 1.05 times with the push.
package main
