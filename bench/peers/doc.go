// Command peers measures other systems in the way the benchmarks beside it measure Nyala, on the same machine, so that figures of
// one run can be compared: sequential writes through a follower and through the leader of three-node etcd and of an ovsdb cluster,
// and of Kudu what idle tablets cost and how long a start takes.
//
//	go run ./bench/peers -peers_dir DIR [-only etcd,ovsdb,kudu] [-rounds 5] [-tablets 2000] [-window 60s]
//
// DIR (or $PEERS_DIR) holds their binaries: bin/etcd and bin/etcdbench (ENDPOINT seq N: prints count, seconds, p50 and p99 in ms),
// ovs/ with Debian's openvswitch, ovn and etcd-client packages unpacked, kudu/kudu-binary-VERSION-linux-x86_64. What is missing is
// named. Each peer keeps its data in a temporary folder, on free ports of the loopback address.
package main
