// Package rpc is how servers listen, answer and call: acceptors that see the queue they work off, one port for every
// protocol, the limits on who comes and how much, the gRPC server that every daemon assembles, connections to others, and
// the streams on which servers swap Raft's messages.
//
// # Main types
//
// Listen makes a TCP listener with a backlog of the operator's choice. A connection to a Server passes its front door: the
// acceptors (acceptor.go), admission by subnet and number (admission.go), and the mux, which sorts it by its first bytes
// (mux.go) before gRPC sees it; a call passes its service's queue (limits.go). Server is a gRPC server with the limits,
// checks and metrics that all daemons share; services are registered on it as on a *grpc.Server, and its calls under way are
// known (calls.go). Dial gives a connection
// whose errors are *status.Error. PeerTransport sends batches of group messages to other servers and is the PeerService of its own.
//
// # Life cycle
//
// New… starts nothing. Server: register services, Listen (binds, so that Addresses is known), Run until the context ends,
// then a graceful stop with a bound. PeerTransport: Handle (who takes the messages), Run. A server's Run ends before the
// transport's is begun to stop only by mistake: stop the transport first, since its streams never end by themselves.
//
// # Invariants
//
//	I1: Send never blocks its caller and never calls back into it: what can't be queued is reported from another goroutine.
//	I2: what a link holds is bounded: its queue by bytes (a single larger message passes when the queue is empty), one batch
//	    on its way, and gRPC's flow control window.
//	I3: for one peer and channel, at most one stream is in use, the newest; Receive is never called twice at once for it.
//	I4: of two servers the one with the lower id dials. The other one may only knock: a short call that says where it is
//	    and that it wants to be dialed.
//	I5: a message is handed to a stream once, or dropped and reported; a report may be left out (and counted) when its taker
//	    is slower than the losses. Nothing is sent twice, but what a stream took before it broke may be lost in silence.
//	I6: a beat is made as its batch leaves and handed over before the batch's messages; at most one waits per peer.
//	I7: no message is taken from a peer before its hello was checked: cluster, server id, channel, direction.
//	I8: an acceptor never blocks but in the poller, and ends only when it is stopped; what waits then is accepted first.
//	I9: of a connection that gRPC doesn't have yet, preambleSize bytes are held at most, for the handshake timeout at most.
//	I10: each connection that was let in is counted once in admission and in one protocol's gauge, until it is closed.
//	I11: of one service, no more calls are worked on than it has places, no more wait than its queue is long, and none
//	     whose caller has gone begins.
//
// # Concurrency
//
// Everything exported is safe for concurrent use, but registering services and Handle, which come before Run. Locks: that
// of PeerTransport before that of a peer before that of a link; none is held while a callback or a stream is called,
// except link.receiving, which orders Receive and is taken with no other held. The front door's locks are taken one at a
// time.
//
// # Tests
//
// On loopback, with real listeners: acceptors held while queues fill, no file descriptors left, wrong bytes on the port
// (FuzzMux too), slow and silent clients, floods of HTTP/2, panics, sizes at the limit, restart and change of address of a
// peer, slow readers, clusters mixed up; goleak and the race detector over all of it.
package rpc
