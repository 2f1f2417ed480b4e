// Command beats measures how late servers' beats are, and how long heartbeats of groups go round, while the cores are full: a master
// and three tablet servers, whose beats come ten times a second so that a minute has thousands of them.
//
//	go run ./bench/beats [-window 30s] [-loads none,processes,writes,scans,all]
//
// The loads: twice as many busy loops as there are cores, in processes of their own; bulk loads of large rows, which fill the data
// connections; scans of a whole table; all three at once.
//
// The target: 999 of 1,000 beats less than 200 ms late with each of the loads.
package main
