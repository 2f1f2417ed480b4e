package consensus

import (
	"errors"
	"maps"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
)

// newBeatingCluster is one whose servers send each other beats.
func newBeatingCluster(t *testing.T, servers, tablets int) *testCluster {
	c := newTestCluster(t, 0)
	c.cfg.Incarnation = 1
	for i := range servers {
		c.add("s" + string(rune('1'+i)))
	}
	stop, done := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(stop); <-done })
	go func() {
		defer close(done)
		tick := time.NewTicker(c.cfg.HeartbeatInterval)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				c.net.beat()
			}
		}
	}()
	for i := range tablets {
		c.createGroup(testTablet(i+1), servers)
	}
	return c
}

// beat lets every server send every other one a beat.
func (n *testNet) beat() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for from, a := range n.hosts {
		for to, b := range n.hosts {
			if from == to || n.cut[from] || n.cut[to] {
				continue
			}
			beat := &nyalav1.Beat{}
			a.StampBeat(to, beat)
			select {
			case b.in <- inBatch{from, &nyalav1.PeerBatch{Beat: beat}}:
			default:
			}
		}
	}
}

func (c *testCluster) cutOff(id ident.ServerID, cut bool) {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	c.net.cut[id] = cut
}

// rest waits until all replicas on the given hosts are quiet.
func (c *testCluster) rest(tablets int, hosts ...*testHost) {
	c.t.Helper()
	if !eventually(c.t, func() bool {
		for _, h := range hosts {
			for i := range tablets {
				if s, ok := h.Status(testTablet(i + 1)); !ok || !s.Quiet {
					return false
				}
			}
		}
		return true
	}) {
		c.t.Fatal("the groups don't come to rest")
	}
}

// TestHostRests lets idle groups come to rest: nothing is sent for them, no worker is woken, and a close at a follower is answered
// without waking anybody. A write wakes its group alone.
func TestHostRests(t *testing.T) {
	const tablets = 20
	c := newBeatingCluster(t, 3, tablets)
	c.rest(tablets, c.hosts...)
	sent := c.net.sent.Load()
	var woke []map[wakeCause]float64
	for _, h := range c.hosts {
		woke = append(woke, wakesOf(t, h))
	}
	if !eventually(t, func() bool {
		for _, h := range c.hosts {
			for _, w := range h.workers {
				if !w.rests.Load() {
					return false
				}
			}
		}
		return true
	}) {
		t.Fatal("workers are ticked for groups that rest")
	}
	if now := c.net.sent.Load(); now != sent {
		t.Fatalf("%d messages were sent for groups that rest", now-sent)
	}
	for i := range c.hosts {
		if _, err := c.hosts[i].CloseTimestamp(t.Context(), testTablet(1), hybridtime.FromTime(time.Now())); err != nil {
			t.Fatal(err)
		}
	}
	c.rest(tablets, c.hosts...)
	for i, h := range c.hosts {
		if now := wakesOf(t, h); !maps.Equal(now, woke[i]) {
			t.Fatalf("server %s: groups woke: %v, before %v", h.id, now, woke[i])
		}
	}
	c.write(testTablet(2), "a")
	c.rest(tablets, c.hosts...)
}

func wakesOf(t *testing.T, h *testHost) map[wakeCause]float64 {
	t.Helper()
	out := map[wakeCause]float64{}
	for cause, c := range h.metrics.wakes {
		m := &dto.Metric{}
		if err := c.Write(m); err != nil {
			t.Fatal(err)
		}
		out[cause] = m.GetCounter().GetValue()
	}
	return out
}

// TestServerLost cuts off a server that leads groups at rest: the others elect for all of them, rest again without it, and bring it
// up when it is back; it is asked for a read before it knows of anything, and doesn't answer.
func TestServerLost(t *testing.T) {
	const tablets = 30
	c := newBeatingCluster(t, 3, tablets)
	for i := range tablets {
		c.write(testTablet(i+1), "before")
	}
	c.rest(tablets, c.hosts...)
	old := c.leader(testTablet(1))
	others := make([]*testHost, 0, 2)
	for _, h := range c.hosts {
		if h != old {
			others = append(others, h)
		}
	}
	c.cutOff(old.id, true)
	for i := range tablets {
		c.write(testTablet(i+1), "without it")
	}
	c.rest(tablets, others...)
	began := c.net.sent.Load()
	if _, err := old.ReadIndex(t.Context(), testTablet(1)); err == nil {
		t.Fatal("who was cut off answers a read")
	}
	c.cutOff(old.id, false)
	c.rest(tablets, c.hosts...)
	for i := range tablets {
		old.until(t, "the writes it has missed", func() bool { return len(payloads(old.applied[testTablet(i+1)])) == 2 })
	}
	t.Logf("%d messages to bring %d replicas up", c.net.sent.Load()-began, tablets)
}

// TestServerRestarts starts a server anew, as another process, faster than the others could find it silent: what it led elects at
// once, and its replicas are brought up.
func TestServerRestarts(t *testing.T) {
	const tablets = 10
	c := newBeatingCluster(t, 3, tablets)
	c.rest(tablets, c.hosts...)
	old := c.leader(testTablet(1))
	c.stop(old)
	c.cfg.Incarnation++
	h := c.start(old.id, old.log)
	for i := range tablets {
		for _, g := range h.log.Groups() {
			if g.TabletID != testTablet(i+1) {
				continue
			}
			if err := h.StartGroup(t.Context(), GroupConfig{Number: g.Number, Tablet: g.TabletID, Replica: replicaOn(c, h.id), Config: c.config(3)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	live := []*testHost{h}
	for _, o := range c.hosts[:3] {
		if o != old {
			live = append(live, o)
		}
	}
	c.rest(tablets, live...)
}

func replicaOn(c *testCluster, id ident.ServerID) ident.ReplicaID {
	for i, h := range c.hosts {
		if h.id == id {
			return ident.ReplicaID(i + 1)
		}
	}
	return 0
}

// TestRestsWithoutFailed: a replica that has failed on a server that is well answers no offer. Its server says so, and the others rest.
func TestRestsWithoutFailed(t *testing.T) {
	c := newBeatingCluster(t, 3, 1)
	tablet := testTablet(1)
	leader := c.leader(tablet)
	var failing *testHost
	var others []*testHost
	for _, h := range c.hosts {
		h.Opened()
		if failing == nil && h != leader {
			failing = h
		} else {
			others = append(others, h)
		}
	}
	n := failing.find(tablet)
	n.worker.box.put(func(m *mail) {
		m.commands = append(m.commands, func(core *Core) { core.find(tablet).fail(errors.New("planted")) })
	})
	c.write(tablet, "x") // there was something to do since
	c.rest(1, others...)
}
