// Package netproxy is a network between processes of this machine that a test can cut, one way or both, between any two of them.
//
// Each process advertises a door: an address at which the network listens and from which it passes connections on to where the
// process really listens. Who knocks is found by the socket's owner in /proc, so processes need not know of the network. What is
// sent while a way is cut is held, as a network that drops packets holds it by TCP's own trying again, and arrives when the
// way is open again; connections neither break nor say anything. It works on Linux only.
package netproxy
