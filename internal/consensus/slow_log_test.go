package consensus

import (
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/wal"
)

// slowStore is a log whose commits wait while it is held.
type slowStore struct {
	wal.Store
	hold sync.RWMutex
}

func (s *slowStore) Commit(b *wal.Batch) error {
	s.hold.RLock()
	defer s.hold.RUnlock()
	return s.Store.Commit(b)
}

// TestHostSlowLog holds up the log of a follower, and sees its heartbeats answered and writes go on; then that of the leader, and
// sees leadership handed over to another voter, the write that was under way applied there, and the server follow when its log
// goes on.
func TestHostSlowLog(t *testing.T) {
	c := newTestCluster(t, 0)
	stores := map[ident.ServerID]*slowStore{}
	for _, id := range []ident.ServerID{"s1", "s2", "s3"} {
		stores[id] = &slowStore{Store: wal.NewMem()}
		c.start(id, stores[id])
	}
	tablet := testTablet(1)
	c.createGroup(tablet, 3)
	c.write(tablet, "a")
	leader := c.leader(tablet)
	var follower *testHost
	for _, h := range c.hosts {
		if h != leader {
			follower = h
		}
	}

	stores[follower.id].hold.Lock()
	c.write(tablet, "b")
	if !eventually(t, func() bool { return gauge(t, follower.metrics.logStalled) == 1 }) {
		t.Fatal("the stall isn't noticed")
	}
	c.write(tablet, "c")
	stores[follower.id].hold.Unlock()
	follower.until(t, "the follower catches up", func() bool { return len(payloads(follower.applied[tablet])) == 3 })

	leader = c.leader(tablet)
	stores[leader.id].hold.Lock()
	if _, _, err := leader.Propose(t.Context(), tablet, wal.KindWrite, []byte("d"), nil); err != nil {
		t.Fatal(err)
	}
	if !eventually(t, func() bool {
		s, _ := leader.Status(tablet)
		return s.Role != nyalav1.Role_ROLE_LEADER && s.Leader != 0
	}) {
		t.Fatal("a leader whose log stalls leads on")
	}
	if n := counted(t, leader.metrics.handedOver[causeLogStalled]); n == 0 {
		t.Error("nothing was handed over")
	}
	for _, h := range c.hosts {
		if h != leader {
			h.until(t, "the write is applied elsewhere", func() bool { return len(payloads(h.applied[tablet])) == 4 })
		}
	}
	stores[leader.id].hold.Unlock()
	leader.until(t, "the old leader follows", func() bool { return len(payloads(leader.applied[tablet])) == 4 })
	if !eventually(t, func() bool { return gauge(t, leader.metrics.logStalled) == 0 }) {
		t.Fatal("the end of the stall isn't noticed")
	}
}

// gauge reads a gauge.
func gauge(t testing.TB, g prometheus.Gauge) float64 {
	t.Helper()
	var m dto.Metric
	if err := g.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetGauge().GetValue()
}
