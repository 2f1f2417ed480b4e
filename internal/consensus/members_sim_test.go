package consensus_test

import (
	"testing"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/consensus"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

// membersCase is a calm cluster of which one tablet's members change, with what was answered last.
type membersCase struct {
	*world
	t      *testing.T
	tablet ident.TabletID
	last   consensus.Done
}

func newMembersCase(t *testing.T, servers, members int) *membersCase {
	w := newWorld(worldOptions{seed: 1, servers: servers, members: members, tablets: 1})
	t.Cleanup(w.start())
	w.calm = true
	c := &membersCase{world: w, t: t, tablet: w.tablets[0]}
	w.onAnswer = func(d consensus.Done) { c.last = d }
	return c
}

// lead makes a server lead, with an entry of its own term committed, if appends get through.
func (c *membersCase) lead(s *simServer, ready bool) {
	c.t.Helper()
	if !c.settle(200, func() bool {
		st := s.status(c.tablet)
		if st.Role == nyalav1.Role_ROLE_LEADER {
			return st.Ready == ready
		}
		if l := c.ready(c.tablet); l != nil && !c.lost(l.id, s.id, consensus.Control) {
			c.next++
			c.pending[c.next] = &asked{server: l.id, tablet: c.tablet, kind: "transfer"}
			l.core.Transfer(c.tablet, st.Replica, c.next)
			c.take(l)
		} else {
			s.core.Campaign(c.tablet)
			c.take(s)
		}
		return false
	}) {
		c.t.Fatalf("server %d doesn't lead: %+v", s.id, s.status(c.tablet))
	}
	c.sound()
}

func (c *membersCase) change(s *simServer, ch consensus.ConfigChange) error {
	c.t.Helper()
	c.last = consensus.Done{}
	a := c.askChange(s, c.tablet, ch)
	if !c.settle(100, func() bool { return !c.isPending(a) }) {
		c.t.Fatalf("the change isn't answered: %+v", s.status(c.tablet))
	}
	c.sound()
	return c.last.Err
}

func (c *membersCase) sound() {
	c.t.Helper()
	if c.check.fault != "" {
		c.t.Fatalf("%s\n%s", c.check.fault, c.trace)
	}
}

func (c *membersCase) everybodyHas(ids ...uint64) {
	c.t.Helper()
	if !c.settle(200, func() bool {
		for _, id := range ids {
			s := c.serverOf(c.tablet, ident.ReplicaID(id))
			if s == nil {
				return false
			}
			st := s.status(c.tablet)
			if len(everybody(st.Config)) != len(ids) || st.ConfigPending || st.Config.GetOpidIndex() != c.check.lastConfig(c.tablet).GetOpidIndex() {
				return false
			}
		}
		return true
	}) {
		c.t.Fatalf("configs differ\n%s", c.trace)
	}
	c.sound()
}

// TestChangeWaitsForOwnTerm: of five replicas the followers grant votes, but get no appends. A new leader refuses to remove one of
// them until an entry of its own term is committed; when appends are let through it does, and all five hold the same.
func TestChangeWaitsForOwnTerm(t *testing.T) {
	c := newMembersCase(t, 5, 5)
	for i := range c.servers {
		for k := range c.servers {
			c.noData[[2]int{i, k}] = i != k
		}
	}
	c.lead(c.servers[1], false)
	if err := c.change(c.servers[1], consensus.ConfigChange{Remove: []ident.ReplicaID{5}}); status.CodeOf(err) != status.IllegalState {
		t.Fatalf("before an entry of its own term is committed: %v", err)
	}
	clear(c.noData)
	c.lead(c.servers[1], true)
	if err := c.change(c.servers[1], consensus.ConfigChange{Remove: []ident.ReplicaID{5}}); err != nil {
		t.Fatal(err)
	}
	c.everybodyHas(1, 2, 3, 4)
	if !c.settle(100, func() bool { return c.serverOf(c.tablet, 5) == nil }) {
		t.Fatal("the one that was removed isn't told so")
	}
}

// TestAbortedChangeLeavesNothing: A leads {A, B, C} and is cut off with a change that adds D. B adds E. Back again, A has dropped its
// change, answers who asked for it, is made leader and removes E.
func TestAbortedChangeLeavesNothing(t *testing.T) {
	c := newMembersCase(t, 5, 3)
	a, b := c.servers[0], c.servers[1]
	c.lead(a, true)
	for i := range c.servers {
		c.cut[[2]int{i, 0}], c.cut[[2]int{0, i}] = i != 0, i != 0
	}
	lost := c.askChange(a, c.tablet, consensus.ConfigChange{Add: []*nyalav1.Peer{{ServerId: "s3", Address: "s3:7050"}}})
	c.settle(2, func() bool { return false })
	if !a.status(c.tablet).ConfigPending {
		t.Fatal("the change doesn't stand in A's log")
	}
	c.lead(b, true)
	if err := c.change(b, consensus.ConfigChange{Add: []*nyalav1.Peer{{ServerId: "s4", Address: "s4:7050"}}}); err != nil {
		t.Fatal(err)
	}
	added := c.check.lastConfig(c.tablet).GetPeers()[3].GetReplicaId()
	var answer error
	c.onAnswer = func(d consensus.Done) {
		if !c.isPending(lost) && answer == nil {
			answer = d.Err
		}
		c.last = d
	}
	clear(c.cut)
	c.everybodyHas(1, 2, 3, added)
	if status.CodeOf(answer) != status.Aborted {
		t.Fatalf("who asked for the change is told %v", answer)
	}
	c.lead(a, true)
	if err := c.change(a, consensus.ConfigChange{Remove: []ident.ReplicaID{ident.ReplicaID(added)}}); err != nil {
		t.Fatal(err)
	}
	c.everybodyHas(1, 2, 3)
}

// TestLastVoterLearnsOfLeaving: of two voters the leader removes itself, with an entry behind that the other lacks, and before the
// other knows that the joint config has been left. The other can't have its vote, and hears from it why it needs none.
func TestLastVoterLearnsOfLeaving(t *testing.T) {
	c := newMembersCase(t, 2, 2)
	a, b := c.servers[0], c.servers[1]
	c.lead(a, true)
	c.askChange(a, c.tablet, consensus.ConfigChange{Remove: []ident.ReplicaID{1}})
	for turns := 0; a.status(c.tablet).Role == nyalav1.Role_ROLE_LEADER; turns++ {
		if turns > 100 {
			t.Fatal("it doesn't go")
		}
		c.ask(a, "propose", c.tablet, 0)
		c.commit(a)
		for len(c.flight) > 0 {
			c.deliver()
		}
		c.ask(a, "propose", c.tablet, 0) // stands in its log alone
		c.commit(a)
		c.flight = nil
		c.commit(b)
		for len(c.flight) > 0 && a.status(c.tablet).Role == nyalav1.Role_ROLE_LEADER {
			c.deliver()
		}
		c.apply(a)
		c.apply(b)
		c.now += 50 * time.Millisecond
		a.core.Tick()
		c.take(a)
		c.sound()
	}
	if gone, left := a.status(c.tablet), b.status(c.tablet); gone.LastIndex <= left.LastIndex || len(left.Config.GetOutgoingVoters()) == 0 {
		t.Fatalf("the one that goes holds %d, the other %d, whose config is %v: there is nothing to show", gone.LastIndex, left.LastIndex, left.Config)
	}
	c.flight = nil
	c.lead(b, true)
	if !c.settle(100, func() bool { return c.serverOf(c.tablet, 1) == nil }) {
		t.Fatal("the one that has gone isn't told so")
	}
	c.sound()
}
