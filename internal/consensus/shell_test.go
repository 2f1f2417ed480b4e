package consensus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/invariant"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/wal"
)

// The shell's tests run hosts with their real goroutines over a transport inside the process.

// testNet carries batches between hosts; messages to and from a cut server are lost and reported.
type testNet struct {
	mu    sync.Mutex
	hosts map[ident.ServerID]*testHost
	cut   map[ident.ServerID]bool
	sent  atomic.Int64 // messages, those that are lost among them
}

// testHost is a server: its host, log, clock, and what it has applied.
type testHost struct {
	*Host
	id    ident.ServerID
	net   *testNet
	log   wal.Store
	clock *testClock
	// judged: most others say that the clock is off.
	judged atomic.Bool
	in     chan inBatch
	stop   context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	cond    *sync.Cond
	applied map[ident.TabletID][]CommittedEntry
	status  map[ident.TabletID]GroupStatus
	failed  map[ident.TabletID]error
	running map[ident.TabletID]bool
	needs   map[ident.TabletID][]ident.ReplicaID
	removed map[ident.TabletID]bool
	overlap bool
}

type inBatch struct {
	from  ident.ServerID
	batch *nyalav1.PeerBatch
}

func (h *testHost) Send(to ident.ServerID, _ string, _ Channel, msgs []*nyalav1.GroupMessage) {
	n := h.net
	n.sent.Add(int64(len(msgs)))
	n.mu.Lock()
	peer := n.hosts[to]
	lost := n.cut[to] || n.cut[h.id] || peer == nil
	n.mu.Unlock()
	if !lost {
		batch := &nyalav1.PeerBatch{Clock: uint64(h.clock.latest()), Messages: msgs}
		b, err := proto.Marshal(batch)
		if err != nil {
			invariant.Check(false, "%v", err)
		}
		batch = new(nyalav1.PeerBatch)
		if err := proto.Unmarshal(b, batch); err != nil {
			invariant.Check(false, "%v", err)
		}
		select {
		case peer.in <- inBatch{h.id, batch}:
			return
		default:
		}
	}
	h.Unreachable(to, msgs)
}

func (h *testHost) Apply(groups []ApplyGroup) {
	h.mu.Lock()
	for _, g := range groups {
		h.overlap = h.overlap || h.running[g.Tablet]
		h.running[g.Tablet] = true
	}
	h.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, g := range groups {
		h.running[g.Tablet] = false
		h.applied[g.Tablet] = append(h.applied[g.Tablet], g.Entries...)
	}
	h.cond.Broadcast()
}

func (h *testHost) LeadershipChanged(tablet ident.TabletID, s GroupStatus) {
	h.mu.Lock()
	h.status[tablet] = s
	h.mu.Unlock()
	h.cond.Broadcast()
}

func (h *testHost) ReplicaFailed(tablet ident.TabletID, err error) {
	h.mu.Lock()
	h.failed[tablet] = err
	h.mu.Unlock()
	h.cond.Broadcast()
}

func (h *testHost) NeedsCopy(tablet ident.TabletID, peer *nyalav1.Peer, _ *nyalav1.RaftConfig) {
	h.mu.Lock()
	h.needs[tablet] = append(h.needs[tablet], ident.ReplicaID(peer.GetReplicaId()))
	h.mu.Unlock()
	h.cond.Broadcast()
}

func (h *testHost) ReplicaRemoved(tablet ident.TabletID, _ ident.ReplicaID) {
	h.mu.Lock()
	h.removed[tablet] = true
	h.mu.Unlock()
	h.cond.Broadcast()
}

// until waits for a condition on what the host has told.
func (h *testHost) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	late := false
	timer := time.AfterFunc(20*time.Second, func() {
		h.mu.Lock()
		late = true
		h.mu.Unlock()
		h.cond.Broadcast()
	})
	defer timer.Stop()
	h.mu.Lock()
	defer h.mu.Unlock()
	for !ok() {
		if late {
			t.Fatalf("server %s: waited too long for %s", h.id, what)
		}
		h.cond.Wait()
	}
}

// testClock is a hybrid clock on the wall, with marks that hold the timestamp alone.
type testClock struct {
	mu            sync.Mutex
	last          hybridtime.Timestamp
	mark, promise hybridtime.Timestamp
	offset        time.Duration
	bound         time.Duration
	refuseAll     error
}

func newTestClock() *testClock { return &testClock{bound: 10 * time.Second} }

func (c *testClock) wall() hybridtime.Timestamp { return hybridtime.FromTime(time.Now().Add(c.offset)) }

func (c *testClock) Now() (hybridtime.Timestamp, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuseAll != nil {
		return 0, c.refuseAll
	}
	c.last = max(c.last+1, c.wall())
	return c.last, nil
}

func (c *testClock) latest() hybridtime.Timestamp {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

func (c *testClock) checkAhead(ts hybridtime.Timestamp) error {
	if d := ts.Sub(c.wall()); d > c.bound {
		return fmt.Errorf("%s is %s ahead", ts, d)
	}
	return nil
}

func (c *testClock) CheckAhead(ts hybridtime.Timestamp) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.checkAhead(ts)
}

func (c *testClock) Update(ts hybridtime.Timestamp) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.checkAhead(ts); err != nil {
		return err
	}
	c.last = max(c.last, ts)
	return nil
}

func encodeMark(ts hybridtime.Timestamp) []byte { return []byte(fmt.Sprintf("%d", uint64(ts))) }

func decodeMark(b []byte) hybridtime.Timestamp {
	v, err := strconv.ParseUint(string(b), 10, 64)
	if err != nil && len(b) > 0 {
		invariant.Check(false, "%v", err)
	}
	return hybridtime.Timestamp(v)
}

func (c *testClock) MarkFor(used hybridtime.Timestamp) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if used <= c.mark {
		return nil, false
	}
	return encodeMark(used.Add(2 * time.Second)), true
}

func (c *testClock) MarkDurable(m []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mark = max(c.mark, decodeMark(m))
}

func (c *testClock) PromiseMarkFor(ts hybridtime.Timestamp) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ts <= c.promise {
		return nil, false
	}
	return encodeMark(ts.Add(2 * time.Second)), true
}

func (c *testClock) PromiseDurable(m []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.promise = max(c.promise, decodeMark(m))
}

func (c *testClock) DurablePromise() hybridtime.Timestamp {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.promise
}

// testCluster is some hosts that are running.
type testCluster struct {
	t     testing.TB
	net   *testNet
	hosts []*testHost
	cfg   Config
}

func newTestCluster(t testing.TB, servers int) *testCluster {
	return newTestClusterAt(t, servers, 50*time.Millisecond)
}

func newTestClusterAt(t testing.TB, servers int, heartbeat time.Duration) *testCluster {
	c := &testCluster{t: t, net: &testNet{hosts: map[ident.ServerID]*testHost{}, cut: map[ident.ServerID]bool{}}, cfg: DefaultConfig()}
	c.cfg.HeartbeatInterval = heartbeat
	for i := range servers {
		c.start(ident.ServerID(fmt.Sprintf("s%d", i+1)), wal.NewMem())
	}
	t.Cleanup(func() {
		for _, h := range c.hosts {
			c.stop(h)
		}
	})
	return c
}

// add starts one more server.
func (c *testCluster) add(id string) *testHost { return c.start(ident.ServerID(id), wal.NewMem()) }

func (c *testCluster) start(id ident.ServerID, log wal.Store) *testHost {
	h := &testHost{
		id: id, net: c.net, log: log, clock: newTestClock(), in: make(chan inBatch, 10_000), done: make(chan struct{}),
		applied: map[ident.TabletID][]CommittedEntry{}, status: map[ident.TabletID]GroupStatus{},
		failed: map[ident.TabletID]error{}, running: map[ident.TabletID]bool{}, needs: map[ident.TabletID][]ident.ReplicaID{}, removed: map[ident.TabletID]bool{},
	}
	h.cond = sync.NewCond(&h.mu)
	cfg := c.cfg
	cfg.ServerID = id
	host, err := NewHost(cfg, Deps{Log: log, Clock: h.clock, Transport: h, Applier: h, Observer: h, Blamed: h.judged.Load})
	if err != nil {
		c.t.Fatal(err)
	}
	h.Host = host
	ctx, cancel := context.WithCancel(context.Background())
	h.stop = cancel
	go func() {
		defer close(h.done)
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case b := <-h.in:
					if beat := b.batch.GetBeat(); beat != nil {
						h.HearBeat(b.from, beat)
					}
					h.Receive(b.from, b.batch)
				}
			}
		})
		if err := h.Run(ctx); err != nil {
			invariant.Check(false, "%v", err)
		}
		wg.Wait()
	}()
	c.net.mu.Lock()
	c.net.hosts[id] = h
	c.net.mu.Unlock()
	c.hosts = append(c.hosts, h)
	return h
}

func (c *testCluster) stop(h *testHost) {
	c.net.mu.Lock()
	if c.net.hosts[h.id] == h {
		delete(c.net.hosts, h.id)
	}
	c.net.mu.Unlock()
	h.stop()
	<-h.done
}

func (c *testCluster) config(n int) *nyalav1.RaftConfig {
	cfg := &nyalav1.RaftConfig{NextReplicaId: uint64(n + 1)}
	for i := range n {
		cfg.Peers = append(cfg.Peers, &nyalav1.Peer{
			ReplicaId: uint64(i + 1), ServerId: string(c.hosts[i].id), Address: string(c.hosts[i].id) + ":7050",
		})
	}
	return cfg
}

func testTablet(i int) ident.TabletID { return ident.TabletID(fmt.Sprintf("%032x", i)) }

// createGroup makes a tablet with a replica on each of the first n hosts; the first campaigns.
func (c *testCluster) createGroup(tablet ident.TabletID, n int) {
	c.t.Helper()
	for i, h := range c.hosts[:n] {
		num, err := h.CreateGroup(c.t.Context(), tablet, []byte("record"), ident.OpID{})
		if err != nil {
			c.t.Fatal(err)
		}
		err = h.StartGroup(c.t.Context(), GroupConfig{
			Number: num, Tablet: tablet, Replica: ident.ReplicaID(i + 1), Config: c.config(n), CampaignNow: i == n-1,
		})
		if err != nil {
			c.t.Fatal(err)
		}
	}
}

// leader waits until one of the hosts leads and is ready.
func (c *testCluster) leader(tablet ident.TabletID) *testHost {
	c.t.Helper()
	var found *testHost
	ok := eventually(c.t, func() bool {
		for _, h := range c.hosts {
			if s, ok := h.Status(tablet); ok && s.Ready && !c.isCut(h.id) {
				found = h
				return true
			}
		}
		return false
	})
	if !ok {
		c.t.Fatalf("tablet %s: no leader", tablet)
	}
	return found
}

func (c *testCluster) isCut(id ident.ServerID) bool {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	return c.net.cut[id]
}

// eventually polls a condition that nothing signals.
func eventually(t testing.TB, ok func() bool) bool {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok() {
			return true
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			return false
		}
	}
}

// write proposes until it succeeds, on whoever leads.
func (c *testCluster) write(tablet ident.TabletID, payload string) (ident.OpID, hybridtime.Timestamp) {
	c.t.Helper()
	for {
		op, ts, err := c.leader(tablet).Propose(c.t.Context(), tablet, wal.KindWrite, []byte(payload), nil)
		if err == nil {
			return op, ts
		}
		if !status.CodeOf(err).Retriable() {
			c.t.Fatalf("propose: %v", err)
		}
	}
}

func payloads(es []CommittedEntry) (ps []string) {
	for _, e := range es {
		if e.Kind == wal.KindWrite {
			ps = append(ps, string(e.Payload))
		}
	}
	return ps
}

// TestHostReplicates writes to several tablets at once and sees every replica apply the same, in order.
func TestHostReplicates(t *testing.T) {
	c := newTestCluster(t, 3)
	const tablets, writes = 8, 50
	var wg sync.WaitGroup
	for i := range tablets {
		tablet := testTablet(i)
		c.createGroup(tablet, 3)
		wg.Go(func() {
			for k := range writes {
				c.write(tablet, fmt.Sprintf("%d-%d", i, k))
			}
		})
	}
	wg.Wait()
	for i := range tablets {
		tablet := testTablet(i)
		var want []string
		for k := range writes {
			want = append(want, fmt.Sprintf("%d-%d", i, k))
		}
		for _, h := range c.hosts {
			h.until(t, "all writes", func() bool { return len(payloads(h.applied[tablet])) >= writes })
			h.mu.Lock()
			if got := payloads(h.applied[tablet]); !slices.Equal(got, want) {
				t.Errorf("%s: %v", h.id, got)
			}
			for k, e := range h.applied[tablet] {
				if e.Index != ident.Index(k+1) {
					t.Fatalf("%s: entry %d has index %d", h.id, k, e.Index)
				}
			}
			if h.overlap {
				t.Errorf("%s: two calls of the applier for one group at once", h.id)
			}
			h.mu.Unlock()
		}
	}
}

// TestHostReadsAndCloses asks for read indexes on the leader and for closed timestamps on every replica.
func TestHostReadsAndCloses(t *testing.T) {
	c := newTestCluster(t, 3)
	tablet := testTablet(1)
	c.createGroup(tablet, 3)
	op, ts := c.write(tablet, "a")
	l := c.leader(tablet)
	l.until(t, "the write", func() bool { return len(payloads(l.applied[tablet])) > 0 })
	idx, err := l.ReadIndex(t.Context(), tablet)
	if err != nil || idx < op.Index {
		t.Fatalf("read index %d, %v", idx, err)
	}
	for _, h := range c.hosts {
		if h != l {
			if _, err := h.ReadIndex(t.Context(), tablet); status.CodeOf(err) != status.NotTheLeader {
				t.Fatalf("follower's read index: %v", err)
			}
			var e *status.Error
			if _, _, err := h.Propose(t.Context(), tablet, wal.KindWrite, nil, nil); !errors.As(err, &e) || e.Leader.GetServerId() != string(l.id) {
				t.Fatalf("follower's propose: %v", err)
			}
		}
		idx, err := h.CloseTimestamp(t.Context(), tablet, ts)
		if err != nil || idx < op.Index {
			t.Fatalf("%s: closed at %d, %v", h.id, idx, err)
		}
	}
	if _, err := l.CloseTimestamp(t.Context(), tablet, ts.Add(time.Hour)); status.CodeOf(err) != status.InvalidArgument {
		t.Fatalf("close an hour ahead: %v", err)
	}
	_, ts2 := c.write(tablet, "b")
	if ts2 <= ts {
		t.Fatalf("%s after %s was closed", ts2, ts)
	}
}

// TestHostTransfers hands leadership over, one tablet by name and the rest by StepDownAll.
func TestHostTransfers(t *testing.T) {
	c := newTestCluster(t, 3)
	for i := range 4 {
		c.createGroup(testTablet(i), 3)
		c.write(testTablet(i), "x")
	}
	tablet := testTablet(0)
	l := c.leader(tablet)
	s, _ := l.Status(tablet)
	to := s.Replica%3 + 1
	if err := l.TransferLeadership(t.Context(), tablet, to); err != nil {
		t.Fatal(err)
	}
	target := c.hosts[to-1]
	target.until(t, "leadership", func() bool { return target.status[tablet].Ready })
	if err := target.StepDownAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if led := target.leaderships(); len(led) != 0 {
		t.Fatalf("still leads %v", led)
	}
	for i := range 4 {
		c.write(testTablet(i), "y")
	}
}

// TestHostFailover cuts the leader off and sees writes go on elsewhere, and the old leader catch up when it is back.
func TestHostFailover(t *testing.T) {
	c := newTestCluster(t, 3)
	tablet := testTablet(7)
	c.createGroup(tablet, 3)
	c.write(tablet, "a")
	old := c.leader(tablet)
	c.net.mu.Lock()
	c.net.cut[old.id] = true
	c.net.mu.Unlock()
	c.write(tablet, "b")
	c.net.mu.Lock()
	delete(c.net.cut, old.id)
	c.net.mu.Unlock()
	old.until(t, "what was written without it", func() bool { return slices.Contains(payloads(old.applied[tablet]), "b") })
}

// TestHostRestart stops every server, and starts them on what their logs hold.
func TestHostRestart(t *testing.T) {
	c := newTestCluster(t, 3)
	tablet := testTablet(3)
	c.createGroup(tablet, 3)
	for i := range 20 {
		c.write(tablet, fmt.Sprint(i))
	}
	l := c.leader(tablet)
	l.until(t, "all writes", func() bool { return len(payloads(l.applied[tablet])) == 20 })
	var logs []*wal.Mem
	for _, h := range c.hosts {
		c.stop(h)
		logs = append(logs, h.log.(*wal.Mem).Crash())
	}
	c.hosts = nil
	for i, log := range logs {
		h := c.start(ident.ServerID(fmt.Sprintf("s%d", i+1)), log)
		h.clock.promise = decodeMark(log.Meta(MetaPromiseMark))
	}
	for i, h := range c.hosts {
		for _, g := range h.log.Groups() {
			if err := h.StartGroup(t.Context(), GroupConfig{Number: g.Number, Tablet: g.TabletID, Replica: ident.ReplicaID(i + 1), Config: c.config(3)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.write(tablet, "after")
	for _, h := range c.hosts {
		h.until(t, "everything again", func() bool { return len(payloads(h.applied[tablet])) == 21 })
	}
}
