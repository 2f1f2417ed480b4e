package rpc

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
)

// Ids in the order that decides who dials: low dials high.
const (
	lowID   = ident.ServerID("00000000000000000000000000000001")
	highID  = ident.ServerID("00000000000000000000000000000002")
	otherID = ident.ServerID("00000000000000000000000000000003")
	cluster = ident.ClusterID("cccccccccccccccccccccccccccccccc")
)

// recorder is a PeerHandler that keeps what it gets; hold, while locked, makes Receive block.
type recorder struct {
	hold sync.Mutex

	mu       sync.Mutex
	changed  chan struct{} // closed and renewed at each event
	received []string      // the payloads, in order
	clocks   []hybridtime.Timestamp
	largest  int // messages in one batch
	dropped  []string
	beats    []int64  // their Sent
	order    []string // beats and payloads as they came
	inside   atomic.Int32
	overlap  atomic.Bool
}

func newRecorder() *recorder { return &recorder{changed: make(chan struct{})} }

func (r *recorder) Receive(_ ident.ServerID, b *nyalav1.PeerBatch) {
	if r.inside.Add(1) > 1 {
		r.overlap.Store(true)
	}
	defer r.inside.Add(-1)
	r.hold.Lock()
	defer r.hold.Unlock()
	r.event(func() {
		for _, m := range b.GetMessages() {
			r.received = append(r.received, string(m.GetRaft()))
			r.order = append(r.order, string(m.GetRaft()))
		}
		r.clocks = append(r.clocks, hybridtime.Timestamp(b.GetClock()))
		r.largest = max(r.largest, len(b.GetMessages()))
	})
}

func (r *recorder) HearBeat(_ ident.ServerID, b *nyalav1.Beat) {
	r.event(func() {
		r.beats = append(r.beats, b.GetSent())
		r.order = append(r.order, fmt.Sprint("beat ", b.GetSent()))
	})
}

func (r *recorder) Unreachable(_ ident.ServerID, dropped []*nyalav1.GroupMessage) {
	r.event(func() {
		for _, m := range dropped {
			r.dropped = append(r.dropped, string(m.GetRaft()))
		}
	})
}

func (r *recorder) event(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
	close(r.changed)
	r.changed = make(chan struct{})
}

// await waits until cond, called under the lock, holds.
func (r *recorder) await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	limit := time.After(10 * time.Second)
	for {
		r.mu.Lock()
		ok, changed := cond(), r.changed
		r.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

func (r *recorder) awaitReceived(t *testing.T, payload string) {
	t.Helper()
	r.await(t, "receive "+payload, func() bool { return slices.Contains(r.received, payload) })
}

// node is a server with a transport, that can be stopped and started again.
type node struct {
	t       testing.TB
	id      ident.ServerID
	address string       // "" before the first start
	cluster atomic.Value // an ident.ClusterID
	edit    func(*PeerConfig)
	rec     *recorder
	handler PeerHandler // nil: rec
	reg     *prometheus.Registry

	incarnation uint64
	transport   *PeerTransport
	stop        func()
}

func startNode(t *testing.T, id ident.ServerID, edit func(*PeerConfig)) *node {
	n := &node{t: t, id: id, edit: edit, rec: newRecorder()}
	n.cluster.Store(cluster)
	n.start()
	return n
}

func (n *node) start() {
	n.t.Helper()
	n.incarnation++
	n.reg = prometheus.NewRegistry()
	log := slog.New(slog.DiscardHandler)

	sc := DefaultServerConfig()
	sc.BindAddresses = []string{"127.0.0.1:0"}
	if n.address != "" {
		sc.BindAddresses = []string{n.address}
	}
	sc.ServerID, sc.ClusterID, sc.Logger = n.id, func() ident.ClusterID { return n.cluster.Load().(ident.ClusterID) }, log
	srv, err := NewServer(sc)
	require.NoError(n.t, err)
	require.NoError(n.t, srv.Listen())
	n.address = srv.Addresses()[0]

	pc := DefaultPeerConfig()
	pc.ServerID, pc.Incarnation, pc.Logger, pc.Registerer = n.id, n.incarnation, log, n.reg
	pc.Address = func() string { return srv.Addresses()[0] }
	pc.ClusterID = sc.ClusterID
	var clock atomic.Uint64
	pc.Stamp = func() (hybridtime.Timestamp, bool) { return hybridtime.Timestamp(clock.Add(1)), false }
	if n.edit != nil {
		n.edit(&pc)
	}
	n.transport, err = NewPeerTransport(pc)
	require.NoError(n.t, err)
	if n.handler != nil {
		n.transport.Handle(n.handler)
	} else {
		n.transport.Handle(n.rec)
	}
	nyalav1.RegisterPeerServiceServer(srv, n.transport)

	ctx, cancel := context.WithCancel(context.Background())
	tctx, tcancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var transportDone sync.WaitGroup
	transportDone.Go(func() { _ = n.transport.Run(tctx) })
	wg.Go(func() { _ = srv.Run(ctx) })
	n.stop = sync.OnceFunc(func() {
		tcancel()
		transportDone.Wait()
		cancel()
		wg.Wait()
	})
	n.t.Cleanup(n.stop)
	// Until then it tells peers to come later.
	require.Eventually(n.t, func() bool {
		n.transport.mu.Lock()
		defer n.transport.mu.Unlock()
		return n.transport.running
	}, 10*time.Second, time.Millisecond)
}

func message(payload string) []*nyalav1.GroupMessage {
	return []*nyalav1.GroupMessage{{Kind: &nyalav1.GroupMessage_Raft{Raft: []byte(payload)}}}
}

func (n *node) send(to *node, ch nyalav1.PeerChannel, payload string) {
	n.transport.Send(to.id, to.address, ch, message(payload))
}

// TestPeersSwapMessages shows that both sides send on both channels, in order, whoever dials, and that the stamp is that
// of the batch.
func TestPeersSwapMessages(t *testing.T) {
	low, high := startNode(t, lowID, nil), startNode(t, highID, nil)
	for _, ch := range channels {
		for i := range 200 {
			low.send(high, ch, fmt.Sprintf("low-%v-%d", ch, i))
			high.send(low, ch, fmt.Sprintf("high-%v-%d", ch, i))
		}
	}
	for _, ch := range channels {
		high.rec.awaitReceived(t, fmt.Sprintf("low-%v-199", ch))
		low.rec.awaitReceived(t, fmt.Sprintf("high-%v-199", ch))
	}
	for _, r := range []*recorder{low.rec, high.rec} {
		r.mu.Lock()
		require.Len(t, r.received, 400)
		for i := 1; i < len(r.clocks); i++ {
			require.NotZero(t, r.clocks[i])
		}
		require.Empty(t, r.dropped)
		r.mu.Unlock()
	}
	inc, ok := low.transport.Incarnation(highID)
	require.True(t, ok)
	require.EqualValues(t, 1, inc)
}
