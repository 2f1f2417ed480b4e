// Command acceptor measures how many connections a second a tablet server takes in, and how long the slowest of them took to
// connect: clients connect and reset their connections as fast as they can, from a process of their own. A second or more is a
// handshake that the kernel dropped because the server's accept queue was full, and that the client sent again.
//
//	go run ./bench/acceptor [-rounds 5] [-seconds 2] [-kudu FOLDER]
//
// With -kudu, a folder that holds Kudu's binaries (bin/kudu-tserver, lib), its acceptor is measured in the same run, in turns with
// ours. The target: no stall over 100 ms with the settings that a server of ours has by default.
package main
