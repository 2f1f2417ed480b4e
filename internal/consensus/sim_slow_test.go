package consensus_test

import (
	"testing"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
)

// stall lets no commit of a server end any more, and tells it what its host would find out by its clock; or ends that.
func (w *world) stall(s *simServer, on bool) {
	if !s.up || s.stalled == on {
		return
	}
	w.trace.add("log of s%d stalls: %v", s.id, on)
	s.stalled = on
	s.core.SetLogStalled(on)
	w.take(s)
}

// slowWorld is three servers with one tablet that the first leads.
func slowWorld(t *testing.T) (w *world, tablet ident.TabletID) {
	w = newWorld(worldOptions{seed: 1, servers: 3, tablets: 1, batched: true})
	w.calm = true
	t.Cleanup(w.start())
	tablet = w.tablets[0]
	w.servers[0].core.Campaign(tablet)
	w.take(w.servers[0])
	w.settle(10, func() bool { return w.servers[0].views[tablet].Status().Ready })
	if !w.servers[0].views[tablet].Status().Ready {
		t.Fatal("no leader")
	}
	return w, tablet
}

func (w *world) proposeOn(s *simServer, tablet ident.TabletID) (committed func() bool) {
	before := w.check.group(tablet).stamped
	w.ask(s, "propose", tablet, 0)
	return func() bool { return w.check.group(tablet).stamped > before }
}

// TestSlowFollower shows a follower whose log stalls for many election timeouts, while writes go on and while nothing is written:
// its leader stays, the others commit, and when its log goes on it catches up.
func TestSlowFollower(t *testing.T) {
	w, tablet := slowWorld(t)
	leader, slow := w.servers[0], w.servers[2]
	term := leader.views[tablet].Status().Term
	for _, told := range []bool{false, true} { // before and after its host has noticed
		slow.stalled = true
		slow.core.SetLogStalled(told)
		for range 30 {
			if !w.settle(3, w.proposeOn(leader, tablet)) {
				t.Fatal("a write isn't committed")
			}
		}
		w.settle(60, func() bool { return false })
		for _, s := range w.servers {
			if st := s.views[tablet].Status(); st.Term != term || st.Leader != 1 {
				t.Fatalf("server %d: term %d, leader %d", s.id, st.Term, st.Leader)
			}
		}
	}
	w.stall(slow, false)
	if !w.settle(20, func() bool { return w.converged(tablet) }) || w.check.fault != "" {
		t.Fatalf("the slow follower doesn't catch up: %s", w.check.fault)
	}
}

// TestSlowLeader shows a leader whose log stalls: it hands over to a voter that has everything, though it can't make anything
// durable itself; the others go on; it stands for nothing while its log stalls, and follows when it goes on.
func TestSlowLeader(t *testing.T) {
	w, tablet := slowWorld(t)
	slow := w.servers[0]
	slow.stalled = true
	w.proposeOn(slow, tablet)
	w.settle(3, func() bool { return false })
	slow.core.SetLogStalled(true)
	var next *simServer
	if !w.settle(6, func() bool {
		for _, s := range w.servers[1:] {
			if s.views[tablet].Status().Ready {
				next = s
			}
		}
		return next != nil
	}) {
		t.Fatalf("nobody has taken over: %s", w.check.fault)
	}
	if !w.settle(3, w.proposeOn(next, tablet)) {
		t.Fatal("the next leader can't write")
	}
	slow.core.Campaign(tablet)
	w.settle(40, func() bool { return false })
	if st := slow.views[tablet].Status(); st.Role == nyalav1.Role_ROLE_LEADER || next.views[tablet].Status().Role != nyalav1.Role_ROLE_LEADER {
		t.Fatalf("the slow server is %v in term %d", st.Role, st.Term)
	}
	w.stall(slow, false)
	if !w.settle(20, func() bool { return w.converged(tablet) }) || w.check.fault != "" {
		t.Fatalf("the slow server doesn't catch up: %s", w.check.fault)
	}
}
