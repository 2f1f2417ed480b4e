package consensus_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/consensus"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

// What may become of an entry that followers refuse, case by case, on three servers that do what they should, with one tablet.

// ahead is a cluster whose leader's clock is a minute ahead, with an entry that the others refuse.
type ahead struct {
	*world
	t      *testing.T
	tablet ident.TabletID
	leader *simServer
	others []*simServer
	entry  ident.Index
	err    error // of the last answer
}

func newAhead(t *testing.T) *ahead {
	w := newWorld(worldOptions{seed: 1, servers: 3, tablets: 1})
	w.calm = true
	t.Cleanup(w.start())
	a := &ahead{world: w, t: t, tablet: w.tablets[0]}
	w.onAnswer = func(d consensus.Done) { a.err = d.Err }
	a.until("a leader", func() bool { return w.ready(a.tablet) != nil })
	a.leader = w.ready(a.tablet)
	for _, s := range w.servers {
		if s != a.leader {
			a.others = append(a.others, s)
		}
	}
	a.leader.clock.offset = minute
	w.ask(a.leader, "propose", a.tablet, 0)
	a.entry = a.of(a.leader).LastIndex
	a.ticks(1)
	return a
}

func (a *ahead) of(s *simServer) consensus.GroupStatus { return s.status(a.tablet) }

func (a *ahead) ticks(n int) { a.settle(n, func() bool { return false }); a.sound() }

func (a *ahead) until(what string, ok func() bool) {
	a.t.Helper()
	if !a.settle(100, ok) {
		a.t.Fatalf("waited too long for %s\n%s", what, a.trace)
	}
	a.sound()
}

func (a *ahead) sound() {
	a.t.Helper()
	if f := a.check.fault; f != "" {
		a.t.Fatalf("%s\n%s", f, a.trace)
	}
}

// away stops a server for good.
func (a *ahead) away(s *simServer) { s.down = true; a.crash(s) }

// write proposes until an entry is committed.
func (a *ahead) write(what string) {
	a.t.Helper()
	before := a.check.group(a.tablet).stamped
	a.until(what, func() bool {
		if s := a.ready(a.tablet); s != nil && a.check.group(a.tablet).stamped == before {
			a.ask(s, "propose", a.tablet, 0)
		}
		return a.check.group(a.tablet).stamped > before
	})
}

// holds says whether the entry stands in a server's log.
func (a *ahead) holds(s *simServer) bool {
	term, err := s.logOf(a.tablet).Term(uint64(a.entry))
	return err == nil && term == 1
}

// TestRefusedEntryCut judges the leader, with one of the others away: it cuts the entry, asks the one that refused it to
// campaign, answers that it leads no more, and the two go on at once. It leads nothing while it is judged.
func TestRefusedEntryCut(t *testing.T) {
	a := newAhead(t)
	a.away(a.others[1])
	a.ask(a.leader, "read", a.tablet, 0)
	a.leader.core.SetBlamed(true)
	a.take(a.leader)
	if status.CodeOf(a.err) != status.NotTheLeader || a.of(a.leader).Role != nyalav1.Role_ROLE_FOLLOWER {
		t.Fatalf("what waited: %v; status %+v", a.err, a.of(a.leader))
	}
	a.ask(a.leader, "propose", a.tablet, 0)
	if status.CodeOf(a.err) != status.NotTheLeader {
		t.Fatalf("a write: %v", a.err)
	}
	a.ticks(1)
	if a.holds(a.leader) || a.of(a.others[0]).Term != 2 {
		t.Fatalf("the entry is there: %v; %+v", a.holds(a.leader), a.of(a.others[0]))
	}
	a.leader.clock.offset = 0
	a.write("a write by the two")
	if s := a.ready(a.tablet); s != a.others[0] {
		t.Fatalf("server %d leads", s.id)
	}
	a.leader.core.SetBlamed(false)
	if q := a.of(a.leader).Quarantined; q != "" {
		t.Fatal(q)
	}
}

// TestRefusedEntryOverwritten cuts the leader off; the others elect, and their log replaces the entry when it is back.
func TestRefusedEntryOverwritten(t *testing.T) {
	a := newAhead(t)
	for i := range a.servers {
		a.cut[[2]int{i, a.leader.id}], a.cut[[2]int{a.leader.id, i}] = true, true
	}
	a.until("another leader", func() bool {
		return a.of(a.others[0]).Ready || a.of(a.others[1]).Ready
	})
	clear(a.cut)
	a.leader.clock.offset = 0
	a.until("its entry replaced", func() bool {
		return !a.holds(a.leader) && a.of(a.leader).LastIndex >= a.entry && a.of(a.leader).Quarantined == ""
	})
	a.write("a write")
}

// TestRefusedEntryAfterCrash lets the leader crash before it could cut. It may not any more: with one of the others away the two
// wait, and its status says why, until the clock is where the entry is.
func TestRefusedEntryAfterCrash(t *testing.T) {
	a := newAhead(t)
	a.away(a.others[1])
	a.crash(a.leader)
	a.ticks(1)
	a.leader.clock.offset = 0
	a.leader.core.SetBlamed(true)
	a.ticks(40)
	a.leader.core.SetBlamed(false)
	a.ticks(20)
	if !a.holds(a.leader) || !strings.HasPrefix(a.of(a.leader).Quarantined, "clocks: ") || a.ready(a.tablet) != nil {
		t.Fatalf("entry there: %v, status %+v", a.holds(a.leader), a.of(a.leader))
	}
	a.now += minute
	a.write("a write")
	if !a.holds(a.leader) || a.of(a.leader).Quarantined != "" {
		t.Fatalf("status %+v", a.of(a.leader))
	}
}

// TestRefusedEntryCommitted lets a second clock be a minute ahead as well: the entry is committed by the two, and the third takes
// it. When the clocks are set right nobody leads until they are near the entry; then all go on with it.
func TestRefusedEntryCommitted(t *testing.T) {
	a := newAhead(t)
	a.others[0].clock.offset = minute
	a.until("the entry on all", func() bool { return a.of(a.others[1]).Applied >= a.entry })
	for _, s := range a.servers {
		s.clock.offset = 0
	}
	a.ticks(30)
	for _, s := range a.servers {
		if a.of(s).Quarantined == "" {
			t.Fatalf("server %d: %+v", s.id, a.of(s))
		}
	}
	a.ask(a.leader, "propose", a.tablet, 0)
	if c := status.CodeOf(a.err); c != status.Clock && c != status.NotTheLeader {
		t.Fatalf("a write: %v", a.err)
	}
	a.now += minute
	a.write("a write")
	for _, s := range a.servers {
		if !a.holds(s) {
			t.Fatalf("server %d lacks the entry", s.id)
		}
	}
}

// TestNobodyToBlame leaves two servers that disagree: nothing is cut and nobody goes, writes are refused, and it ends when the
// clocks agree.
func TestNobodyToBlame(t *testing.T) {
	a := newAhead(t)
	a.away(a.others[1])
	a.ticks(100)
	if s := a.of(a.leader); s.Stalled == "" || s.Term != 1 || !a.holds(a.leader) {
		t.Fatalf("status %+v", s)
	}
	a.ask(a.leader, "propose", a.tablet, 0)
	if status.CodeOf(a.err) != status.Clock {
		t.Fatalf("a write: %v", a.err)
	}
	a.others[0].clock.offset = minute
	a.write("a write")
	if s := a.of(a.leader); s.Stalled != "" || s.Term != 1 {
		t.Fatalf("status %+v", s)
	}
}

// TestClockSetRight sets the leader's clock right before anybody has judged it: by its own guard the entry is too far ahead, and
// it cuts and goes.
func TestClockSetRight(t *testing.T) {
	a := newAhead(t)
	a.leader.clock.offset = 0
	a.ticks(2)
	if a.holds(a.leader) || a.of(a.leader).Quarantined != "" {
		t.Fatalf("entry there: %v, status %+v", a.holds(a.leader), a.of(a.leader))
	}
	a.write("a write")
	if s := a.ready(a.tablet); s == a.leader {
		t.Fatal("it leads again")
	}
	for range 3 {
		a.now += time.Second
		a.write(fmt.Sprint("a write after ", a.now))
	}
}
