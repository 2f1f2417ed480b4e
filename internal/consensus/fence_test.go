package consensus

import (
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/wal"
)

// TestHostFenced fences a server that leads: its leaderships go elsewhere and stay there, it follows on, a group of its alone
// refuses writes with the clock's own error, and it leads again once it is asked to after the fence has opened.
func TestHostFenced(t *testing.T) {
	c := newTestCluster(t, 3)
	shared, alone := testTablet(1), testTablet(2)
	c.createGroup(shared, 3)
	c.createGroup(alone, 1)
	c.write(shared, "a")
	first := c.hosts[0]
	first.until(t, "leadership of its own group", func() bool { return first.status[alone].Ready })
	if l := c.leader(shared); l != first {
		if err := l.TransferLeadership(t.Context(), shared, 1); err != nil {
			t.Fatal(err)
		}
		first.until(t, "leadership", func() bool { return first.status[shared].Ready })
	}
	first.clock.mu.Lock()
	first.clock.refuseAll = status.New(status.Clock, "clock fenced: it jumped")
	first.clock.mu.Unlock()
	first.SetFenced(true)
	first.until(t, "no leadership", func() bool { s := first.status[shared]; return !s.Ready && s.Leader != 0 && s.Leader != s.Replica })
	if n := counted(t, first.metrics.handedOver[causeFenced]); n != 1 {
		t.Fatalf("%v leaderships handed over", n)
	}
	c.write(shared, "b")
	first.until(t, "what is written elsewhere", func() bool { return len(payloads(first.applied[shared])) == 2 })
	_, _, err := first.Propose(t.Context(), alone, wal.KindWrite, []byte("x"), nil)
	if status.CodeOf(err) != status.Clock {
		t.Fatalf("a write of its own group: %v", err)
	}
	if s, _ := first.Status(alone); !s.Ready {
		t.Fatal("it gave up the leadership of a group of its alone")
	}
	if err := c.leader(shared).TransferLeadership(t.Context(), shared, 1); status.CodeOf(err) != status.ServiceUnavailable {
		t.Fatalf("leadership handed to a fenced server: %v", err)
	}
	first.clock.mu.Lock()
	first.clock.refuseAll = nil
	first.clock.mu.Unlock()
	first.SetFenced(false)
	c.write(alone, "x")
	if err := c.leader(shared).TransferLeadership(t.Context(), shared, 1); err != nil {
		t.Fatal(err)
	}
	first.until(t, "leadership again", func() bool { return first.status[shared].Ready })
}

// TestHostBlamed lets a leader whose clock is a minute ahead write what the others refuse, judges it, and sees the entry cut from
// its log, and writes go on elsewhere; then it follows.
func TestHostBlamed(t *testing.T) {
	c := newTestCluster(t, 3)
	tablet := testTablet(1)
	c.createGroup(tablet, 3)
	c.write(tablet, "a")
	old := c.leader(tablet)
	old.clock.mu.Lock()
	old.clock.offset = time.Minute
	old.clock.mu.Unlock()
	op, ts, err := old.Propose(t.Context(), tablet, wal.KindWrite, []byte("far"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !eventually(t, func() bool { s, _ := old.Status(tablet); return s.Stalled != "" }) {
		t.Fatal("nobody refuses")
	}
	old.judged.Store(true)
	c.write(tablet, "b")
	if l := c.leader(tablet); l == old {
		t.Fatal("it leads on")
	}
	old.until(t, "what is written elsewhere", func() bool { return slices.Equal(payloads(old.applied[tablet]), []string{"a", "b"}) })
	for _, h := range c.hosts {
		if got := h.log.(*wal.Mem).Log(1).LastOpID(); got.Term <= op.Term {
			t.Fatalf("server %s: its log ends at %s", h.id, got)
		}
		h.mu.Lock()
		for _, e := range h.applied[tablet] {
			if e.Timestamp >= ts {
				t.Errorf("server %s applied %s at %s", h.id, e.OpID, e.Timestamp)
			}
		}
		h.mu.Unlock()
	}
	if n := counted(t, old.metrics.suffixCuts); n != 1 {
		t.Fatalf("%v cuts", n)
	}
}

// counted is what a counter stands at.
func counted(t *testing.T, c prometheus.Counter) float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	if err := r.Register(c); err != nil {
		t.Fatal(err)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return families[0].GetMetric()[0].GetCounter().GetValue()
}
