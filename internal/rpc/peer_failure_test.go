package rpc

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

// patient makes a node wait a minute between attempts: what comes sooner came by a hint.
func patient(c *PeerConfig) { c.BackoffMin, c.BackoffMax = time.Minute, time.Minute }

// quick makes everything short.
func quick(c *PeerConfig) {
	c.BackoffMin, c.BackoffMax, c.QueueWait = time.Millisecond, 5*time.Millisecond, 50*time.Millisecond
}

// swap shows that both sides reach each other on both channels.
func swap(t *testing.T, a, b *node, payload string) {
	t.Helper()
	for _, ch := range channels {
		a.sendUntilReceived(b, ch, fmt.Sprintf("%s-%v-to-%s", payload, ch, b.id))
		b.sendUntilReceived(a, ch, fmt.Sprintf("%s-%v-to-%s", payload, ch, a.id))
	}
}

// sendUntilReceived sends as Raft does: again, until it has arrived.
func (n *node) sendUntilReceived(to *node, ch nyalav1.PeerChannel, payload string) {
	n.t.Helper()
	arrived := func() bool {
		to.rec.mu.Lock()
		defer to.rec.mu.Unlock()
		return slices.Contains(to.rec.received, payload)
	}
	require.Eventually(n.t, func() bool {
		if arrived() {
			return true
		}
		n.send(to, ch, payload)
		return false
	}, 10*time.Second, 10*time.Millisecond, payload)
}

// sendUntilDropped sends until a loss is reported: what a stream took just before it broke is lost in silence.
func (n *node) sendUntilDropped(to *node, ch nyalav1.PeerChannel, payload string) {
	n.t.Helper()
	require.Eventually(n.t, func() bool {
		n.rec.mu.Lock()
		dropped := slices.Contains(n.rec.dropped, payload)
		n.rec.mu.Unlock()
		n.send(to, ch, payload)
		return dropped
	}, 10*time.Second, 10*time.Millisecond, payload)
}

func (n *node) peerStatus(id ident.ServerID) PeerStatus {
	for _, p := range n.transport.Peers() {
		if p.ServerID == id {
			return p
		}
	}
	return PeerStatus{}
}

// TestPeerRestarts shows messages to a stopped peer reported as lost, and both sides reaching each other after either one
// has started again, at the same address, with its new incarnation known.
func TestPeerRestarts(t *testing.T) {
	low, high := startNode(t, lowID, quick), startNode(t, highID, quick)
	swap(t, low, high, "before")
	for i, n := range []*node{high, low} {
		other := low
		if n == low {
			other = high
		}
		n.stop()
		other.sendUntilDropped(n, Data, "lost")
		n.start()
		swap(t, low, high, fmt.Sprintf("after-%d", i))
		inc, ok := other.transport.Incarnation(n.id)
		require.True(t, ok)
		require.Equal(t, n.incarnation, inc)
		st := other.peerStatus(n.id)
		require.Empty(t, st.LastError)
		require.True(t, st.Control && st.Data)
	}
}

// TestRetryWhenHeard shows that a side that has given up for a minute connects at once when the peer knocks.
func TestRetryWhenHeard(t *testing.T) {
	low, high := startNode(t, lowID, patient), startNode(t, highID, quick)
	high.stop()
	for _, ch := range channels {
		low.send(high, ch, "lost")
	}
	low.rec.await(t, "both attempts fail", func() bool { return len(low.rec.dropped) == 2 })
	high.start()
	swap(t, high, low, "back")
}

// TestPeerMoves shows a peer at a new address reached at once when the caller of Send says the new address, and when only
// the peer itself does.
func TestPeerMoves(t *testing.T) {
	low, high := startNode(t, lowID, patient), startNode(t, highID, quick)
	swap(t, low, high, "before")
	move := func(n *node) (from string) {
		n.stop()
		from = n.address
		hold, err := net.Listen("tcp", from) // nobody answers there, nor gets the port
		require.NoError(t, err)
		t.Cleanup(func() { hold.Close() })
		n.address = ""
		n.start()
		require.NotEqual(t, from, n.address)
		return from
	}
	// The sender's config has it.
	move(high)
	low.sendUntilReceived(high, Data, "found by the caller's word")

	// The sender's config is old; the peer, which can't dial, knocks.
	old := move(high)
	low.transport.Send(high.id, old, Data, message("to the old address"))
	high.sendUntilReceived(low, Data, "here I am")
	low.transport.Send(high.id, old, Data, message("found by its own word"))
	high.rec.awaitReceived(t, "found by its own word")
	require.Equal(t, high.address, low.peerStatus(highID).Address)
}

// TestWrongServer shows that a server found at a peer's address under another id gets nothing, and that the error names
// both.
func TestWrongServer(t *testing.T) {
	low, other := startNode(t, lowID, quick), startNode(t, otherID, quick)
	low.transport.Send(highID, other.address, Data, message("not for you"))
	low.rec.await(t, "report", func() bool { return slices.Contains(low.rec.dropped, "not for you") })
	st := low.peerStatus(highID)
	require.Contains(t, st.LastError, "at this address is server "+string(otherID)+", not "+string(highID))
	require.False(t, st.Data)
	require.Empty(t, other.rec.received)
}

// TestClustersMixedUp shows that servers of two clusters refuse each other with both names, whoever begins, and swap
// nothing.
func TestClustersMixedUp(t *testing.T) {
	const foreign = ident.ClusterID("dddddddddddddddddddddddddddddddd")
	low, high := startNode(t, lowID, quick), startNode(t, highID, quick)
	high.cluster.Store(foreign)
	for _, c := range []struct{ from, to *node }{{low, high}, {high, low}} {
		c.from.send(c.to, Data, "x")
		c.from.rec.await(t, "report", func() bool { return len(c.from.rec.dropped) == 1 })
		st := c.from.peerStatus(c.to.id)
		require.Contains(t, st.LastError, string(cluster))
		require.Contains(t, st.LastError, string(foreign))
		require.Empty(t, c.to.rec.received)
	}
	// They agree once the mistake is corrected.
	high.cluster.Store(cluster)
	swap(t, low, high, "corrected")
}

// TestSlowReader shows what a receiver that stands still costs the sender: a full queue, no waiting, and a report of what
// found no room (but for what was lost faster than it could be reported); what was queued arrives afterwards, in order.
func TestSlowReader(t *testing.T) {
	const limit, size = 1 << 20, 16 << 10
	low := startNode(t, lowID, func(c *PeerConfig) { c.DataQueueBytes, c.BatchBytes = limit, 256<<10 })
	high := startNode(t, highID, nil)
	low.send(high, Data, "first")
	high.rec.awaitReceived(t, "first")
	high.rec.hold.Lock()

	fill := strings.Repeat("x", size)
	const n = 2000 // 32 MiB
	for i := range n {
		low.transport.Send(highID, high.address, Data, message(fmt.Sprintf("%s-%05d", fill, i)))
		require.LessOrEqual(t, low.peerStatus(highID).QueuedBytes, limit)
	}
	low.send(high, Control, "votes pass by") // another connection
	low.rec.await(t, "report", func() bool { return len(low.rec.dropped) > 0 })
	high.rec.hold.Unlock()
	high.rec.awaitReceived(t, "votes pass by")
	full := func() int {
		return int(series(t, low.reg, "peer_dropped_messages_total", "channel", "data", "reason", "queue_full"))
	}
	unreported := func() int { return int(series(t, low.reg, "peer_unreported_drops_total")) }
	require.Eventually(t, func() bool {
		high.rec.mu.Lock()
		defer high.rec.mu.Unlock()
		return len(high.rec.received)+full() == n+2
	}, 10*time.Second, 5*time.Millisecond)
	low.rec.await(t, "all reports", func() bool { return len(low.rec.dropped)+unreported() == full() })
	require.Less(t, full(), n)
	var data []string
	for _, r := range high.rec.received {
		if strings.HasPrefix(r, fill) {
			data = append(data, r)
		}
	}
	require.True(t, slices.IsSorted(data))
	require.Zero(t, series(t, low.reg, "peer_queue_bytes", "channel", "data"))
}

// TestBatches shows that what waits leaves as few batches, that a batch ends at its bound, that a single larger message
// passes, and that one that can't pass is dropped by name without harm to the others.
func TestBatches(t *testing.T) {
	low := startNode(t, lowID, func(c *PeerConfig) { c.BatchBytes, c.MaxMessageSize = 10_000, 2<<20 })
	high := startNode(t, highID, nil)
	var msgs []*nyalav1.GroupMessage
	for i := range 100 {
		msgs = append(msgs, message(fmt.Sprintf("%0900d", i))...)
	}
	low.transport.Send(highID, high.address, Data, msgs)
	low.transport.Send(highID, high.address, Data, message(strings.Repeat("l", 1<<20)))
	low.transport.Send(highID, high.address, Data, message(strings.Repeat("t", 3<<20)))
	low.send(high, Data, "last")
	high.rec.awaitReceived(t, "last")
	require.Equal(t, 10, high.rec.largest) // 964 bytes count each
	require.Len(t, high.rec.received, 102)
	low.rec.await(t, "report", func() bool { return len(low.rec.dropped) == 1 })
	require.EqualValues(t, 1, series(t, low.reg, "peer_dropped_messages_total", "channel", "data", "reason", "too_large"))
	require.EqualValues(t, len(high.rec.clocks), series(t, high.reg, "peer_batches_total", "channel", "data", "direction", "received"))
	require.EqualValues(t, 102, series(t, low.reg, "peer_messages_total", "channel", "data", "direction", "sent"))
}

// TestControlSingly shows that messages on the control channel leave one by one where that was asked for.
func TestControlSingly(t *testing.T) {
	low := startNode(t, lowID, func(c *PeerConfig) { c.ControlSingly = true })
	high := startNode(t, highID, nil)
	var msgs []*nyalav1.GroupMessage
	for i := range 50 {
		msgs = append(msgs, message(fmt.Sprint(i))...)
	}
	low.transport.Send(highID, high.address, Control, msgs)
	high.rec.awaitReceived(t, "49")
	require.Equal(t, 1, high.rec.largest)
	require.Len(t, high.rec.received, 50)
}

// TestNewestStreamWins shows a second stream of the same peer taking the first one's place, even while the first one's
// receiver stands still and its sender is blocked, and the first one ended by name.
func TestNewestStreamWins(t *testing.T) {
	high := startNode(t, highID, quick)
	open := func() nyalav1.PeerService_ExchangeClient {
		conn := dial(t, high.address, DialOptions{})
		s, err := nyalav1.NewPeerServiceClient(conn).Exchange(t.Context())
		require.NoError(t, err)
		require.NoError(t, s.Send(&nyalav1.ExchangeRequest{Frame: &nyalav1.ExchangeRequest_Hello{Hello: &nyalav1.PeerHello{
			ServerId: string(lowID), ClusterId: string(cluster), Incarnation: 1, Channel: Data, Address: "127.0.0.1:1",
		}}}))
		m, err := s.Recv()
		require.NoError(t, err)
		require.Equal(t, string(highID), m.GetHello().GetServerId())
		return s
	}
	batch := func(payload string) *nyalav1.ExchangeRequest {
		return &nyalav1.ExchangeRequest{Frame: &nyalav1.ExchangeRequest_Batch{Batch: &nyalav1.PeerBatch{Messages: message(payload)}}}
	}
	first := open()
	require.NoError(t, first.Send(batch("one")))
	high.rec.awaitReceived(t, "one")
	for range 40 { // more than the window of a stream that nobody reads
		high.transport.Send(lowID, "", Data, message(strings.Repeat("x", 64<<10)))
	}
	high.rec.hold.Lock()
	require.NoError(t, first.Send(batch("two")))
	second := open()
	require.NoError(t, second.Send(batch("three")))
	high.rec.hold.Unlock()
	high.rec.awaitReceived(t, "three")
	for {
		_, err := first.Recv()
		if err != nil {
			require.ErrorContains(t, err, "a newer stream took its place")
			break
		}
	}
	high.transport.Send(lowID, "", Data, message("to the second"))
	for {
		m, err := second.Recv()
		require.NoError(t, err)
		if slices.ContainsFunc(m.GetBatch().GetMessages(), func(g *nyalav1.GroupMessage) bool { return string(g.GetRaft()) == "to the second" }) {
			break
		}
	}
	require.False(t, high.rec.overlap.Load())
}

// TestHellos shows the hellos that are refused, with their codes.
func TestHellos(t *testing.T) {
	high := startNode(t, highID, func(c *PeerConfig) { c.HelloTimeout = 50 * time.Millisecond })
	good := func() *nyalav1.PeerHello {
		return &nyalav1.PeerHello{ServerId: string(lowID), ClusterId: string(cluster), Channel: Data, Address: "a:1"}
	}
	for name, c := range map[string]struct {
		edit func(*nyalav1.PeerHello)
		want status.Code
	}{
		"no id":           {func(h *nyalav1.PeerHello) { h.ServerId = "" }, status.InvalidArgument},
		"no hex":          {func(h *nyalav1.PeerHello) { h.ServerId = strings.Repeat("z", 32) }, status.InvalidArgument},
		"own id":          {func(h *nyalav1.PeerHello) { h.ServerId = string(highID) }, status.WrongServerID},
		"other cluster":   {func(h *nyalav1.PeerHello) { h.ClusterId = "d" }, status.ClusterIDMismatch},
		"wrong direction": {func(h *nyalav1.PeerHello) { h.ServerId = string(otherID) }, status.InvalidArgument},
		"lower knocks":    {func(h *nyalav1.PeerHello) { h.Channel = 0 }, status.InvalidArgument},
		"unknown channel": {func(h *nyalav1.PeerHello) { h.Channel = 9 }, status.NotSupported},
	} {
		t.Run(name, func(t *testing.T) {
			h := good()
			c.edit(h)
			s, err := nyalav1.NewPeerServiceClient(dial(t, high.address, DialOptions{})).Exchange(t.Context())
			require.NoError(t, err)
			require.NoError(t, s.Send(&nyalav1.ExchangeRequest{Frame: &nyalav1.ExchangeRequest_Hello{Hello: h}}))
			for err == nil {
				_, err = s.Recv()
			}
			requireCode(t, c.want, err)
		})
	}
	client := nyalav1.NewPeerServiceClient(dial(t, high.address, DialOptions{}))
	s, err := client.Exchange(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.Send(&nyalav1.ExchangeRequest{Frame: &nyalav1.ExchangeRequest_Batch{Batch: &nyalav1.PeerBatch{}}}))
	_, err = s.Recv()
	requireCode(t, status.InvalidArgument, err)
	s, err = client.Exchange(t.Context())
	require.NoError(t, err)
	_, err = s.Recv() // says nothing
	requireCode(t, status.TimedOut, err)
}

// TestSendBeforeRunAndAfter shows messages waiting for Run, dropped after it, and refused to the server itself.
func TestSendBeforeRunAndAfter(t *testing.T) {
	low := startNode(t, lowID, nil)
	low.send(low, Data, "to myself")
	low.rec.await(t, "report", func() bool { return slices.Contains(low.rec.dropped, "to myself") })
	low.transport.Send(highID, "", Data, message("to nowhere"))
	low.rec.await(t, "report", func() bool { return slices.Contains(low.rec.dropped, "to nowhere") })
	require.Contains(t, low.peerStatus(highID).LastError, "its address is not known")
	low.stop()
	low.send(low, Data, "too late")
	require.Error(t, low.transport.Run(context.Background()))

	high := startNode(t, highID, nil)
	cfg := DefaultPeerConfig()
	cfg.ServerID, cfg.Address, cfg.Stamp = lowID, func() string { return "" }, low.transport.cfg.Stamp
	early, err := NewPeerTransport(cfg)
	require.NoError(t, err)
	require.Error(t, early.Run(t.Context())) // nobody takes the messages
	early.Handle(newRecorder())
	early.Send(highID, high.address, Control, message("early"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- early.Run(ctx) }()
	high.rec.awaitReceived(t, "early")
	cancel()
	require.NoError(t, <-done)
	_, err = NewPeerTransport(PeerConfig{})
	require.ErrorContains(t, err, "server id")
}

// TestSendDoesNotBlock shows that Send returns at once though the peer's address leads nowhere, and that a queue holds no
// more than its bound in the meantime.
func TestSendDoesNotBlock(t *testing.T) {
	low := startNode(t, lowID, func(c *PeerConfig) { c.ControlQueueBytes = 10_000 })
	ln, err := Listen("127.0.0.1:0", 16)
	require.NoError(t, err)
	defer ln.Close() // it never accepts: the kernel does, and says nothing more
	for range 1000 {
		low.transport.Send(highID, ln.Addr().String(), Control, message("0123456789"))
		require.LessOrEqual(t, low.peerStatus(highID).QueuedBytes, 10_000)
		runtime.Gosched()
	}
	low.rec.await(t, "reports", func() bool { return len(low.rec.dropped) >= 1000-10_000/74-1 })
}
