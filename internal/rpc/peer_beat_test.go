package rpc

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
)

// beat has a beat sent that is numbered as it leaves.
func (n *node) beat(to *node, counter *atomic.Int64) {
	n.transport.SendBeat(to.id, to.address, time.Now(), func() *nyalav1.Beat { return &nyalav1.Beat{Sent: counter.Add(1)} })
}

// TestBeatsAlone shows that a beat needs no message to ride on: it has a connection made, from either side, and again after
// the peer was restarted.
func TestBeatsAlone(t *testing.T) {
	low, high := startNode(t, lowID, quick), startNode(t, highID, quick)
	var lows, highs atomic.Int64
	swapBeats := func() {
		low.rec.mu.Lock()
		before, beforeHigh := len(low.rec.beats), len(high.rec.beats)
		low.rec.mu.Unlock()
		require.Eventually(t, func() bool {
			low.beat(high, &lows)
			high.beat(low, &highs)
			low.rec.mu.Lock()
			defer low.rec.mu.Unlock()
			high.rec.mu.Lock()
			defer high.rec.mu.Unlock()
			return len(low.rec.beats) > before && len(high.rec.beats) > beforeHigh
		}, 10*time.Second, 5*time.Millisecond)
	}
	swapBeats()
	high.stop()
	high.rec.mu.Lock()
	high.rec.beats = nil
	high.rec.mu.Unlock()
	high.start()
	swapBeats()
	require.NotZero(t, series(t, low.reg, "peer_beats_total", "direction", "sent"))
	require.NotZero(t, series(t, low.reg, "peer_beats_total", "direction", "received"))
	require.Empty(t, low.rec.dropped)
}

// TestHighBeatsFirst shows that the server that can't dial gets its beats through: it knocks for them.
func TestHighBeatsFirst(t *testing.T) {
	low, high := startNode(t, lowID, quick), startNode(t, highID, quick)
	var n atomic.Int64
	high.beat(low, &n)
	low.rec.await(t, "a beat", func() bool { return len(low.rec.beats) == 1 })
}

// TestLatestBeatCounts shows that at most one beat waits, that it is made as it leaves, that it goes ahead of the messages of
// its batch, and that it says nothing on the data channel.
func TestLatestBeatCounts(t *testing.T) {
	low, high := startNode(t, lowID, nil), startNode(t, highID, nil)
	low.send(high, Control, "first")
	high.rec.awaitReceived(t, "first")

	high.rec.hold.Lock() // what comes next stands still at the receiver
	low.send(high, Control, "held")
	require.Eventually(t, func() bool { return high.rec.inside.Load() > 0 }, 10*time.Second, time.Millisecond)
	var made atomic.Int64
	l := low.transport.peer(highID).link(Control)
	// As long as the stream isn't the one in use nothing is taken: what is queued meanwhile leaves as one batch.
	l.mu.Lock()
	s := l.session
	l.session = nil
	l.mu.Unlock()
	for range 5 {
		low.beat(high, &made)
	}
	low.send(high, Control, "behind")
	require.Zero(t, made.Load())
	l.mu.Lock()
	l.session = s
	l.mu.Unlock()
	signal(s.wake)
	high.rec.hold.Unlock()
	high.rec.awaitReceived(t, "behind")
	require.EqualValues(t, 1, made.Load())
	high.rec.mu.Lock()
	defer high.rec.mu.Unlock()
	require.Equal(t, []string{"first", "held", "beat 1", "behind"}, high.rec.order)
}

// TestBeatsToNobody shows that beats to a server that isn't there pile up nowhere and report nothing.
func TestBeatsToNobody(t *testing.T) {
	low := startNode(t, lowID, quick)
	gone := &node{id: highID, address: "127.0.0.1:1"}
	var n atomic.Int64
	for range 100 {
		low.beat(gone, &n)
	}
	require.Eventually(t, func() bool { return low.peerStatus(highID).LastError != "" }, 10*time.Second, time.Millisecond)
	require.Zero(t, n.Load())
	low.transport.SendBeat(lowID, "", time.Now(), func() *nyalav1.Beat { t.Error("a beat to itself"); return nil })
	require.Empty(t, low.rec.dropped)
}
