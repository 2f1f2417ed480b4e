package consensus

import (
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
)

// Need is a member that its leader can't bring up from the log.
type Need struct {
	Tablet ident.TabletID
	Peer   *nyalav1.Peer
	Config *nyalav1.RaftConfig
}

// Removal is a replica here that is no member of its group any more.
type Removal struct {
	Tablet  ident.TabletID
	Replica ident.ReplicaID
}

// MemberStatus is what a leader knows of a member.
type MemberStatus struct {
	Replica ident.ReplicaID
	Learner bool
	// Match is the last entry that its log is known to hold.
	Match ident.Index
	// Active: it has answered within the last election timeout or two.
	Active bool
	// NeedsCopy: what it needs next has been cut from this leader's log, or its server holds no such replica.
	NeedsCopy bool
	// Absent: its server said lately that it holds no such replica. A learner is copied; a voter has lost what it promised and
	// must be removed, and another added in its place.
	Absent bool
}

// awayMember is a member that can't be brought up from the log.
type awayMember struct {
	absent int // ticks for which its server's word that it isn't there still counts
	beyond int // ticks for which it still counts that it needed what has been cut
	asked  int // ticks until a copy is asked for again
}

const (
	// absentHeartbeats is for how many heartbeat intervals it counts that a member was found absent, or beyond the log.
	absentHeartbeats = 4
	// copyHeartbeats is how many heartbeat intervals lie between two calls for a copy.
	copyHeartbeats = 10
)

// awayOf makes room for what is known of a member.
func (g *group) awayOf(id ident.ReplicaID) *awayMember {
	m := &g.membership
	a := m.away[id]
	if a == nil {
		if m.away == nil {
			m.away = map[ident.ReplicaID]*awayMember{}
		}
		a = &awayMember{}
		m.away[id] = a
	}
	return a
}

// memberTick looks after members: removed ones are told so, and copies asked for where the log doesn't reach.
func (g *group) memberTick() {
	m := &g.membership
	for id, a := range m.away {
		a.absent, a.beyond, a.asked = max(a.absent-1, 0), max(a.beyond-1, 0), max(a.asked-1, 0)
		if *a == (awayMember{}) {
			delete(m.away, id)
		}
	}
	g.holdTick()
	if g.role != raft.StateLeader {
		m.gone = nil
		g.askWhetherRemoved()
		return
	}
	if g.changing() || m.proof == 0 {
		g.core.touch(g)
	}
	if m.age++; m.age < g.core.cfg.HeartbeatTicks {
		return
	}
	m.age = 0
	g.tellGone()
	g.askForCopies()
}

// tellGone tells members that were dropped so, once nobody can need them any more.
func (g *group) tellGone() {
	m := &g.membership
	if !g.proven() {
		return
	}
	kept := m.gone[:0]
	for _, r := range m.gone {
		g.sendTo(r.peer, Control, &nyalav1.GroupMessage{Kind: &nyalav1.GroupMessage_ReplicaRemoved{
			ReplicaRemoved: &nyalav1.ReplicaRemoved{ConfigIndex: g.cfg.Config.GetOpidIndex()},
		}})
		if r.left--; r.left > 0 {
			kept = append(kept, r)
		}
	}
	m.gone = kept
}

// askWhetherRemoved asks the members that this replica knows, while no leader is heard, whether it is one still. The leader alone
// answers, and only who isn't.
func (g *group) askWhetherRemoved() {
	m := &g.membership
	if m.unheard++; m.unheard < copyHeartbeats*g.core.cfg.HeartbeatTicks {
		return
	}
	m.unheard = 0
	for _, p := range members(g.cfg.Config) {
		if p.GetReplicaId() != uint64(g.cfg.Replica) {
			g.sendTo(p, Control, &nyalav1.GroupMessage{Kind: &nyalav1.GroupMessage_ReplicaRemoved{
				ReplicaRemoved: &nyalav1.ReplicaRemoved{Asked: true, ConfigIndex: g.cfg.Config.GetOpidIndex()},
			}})
		}
	}
}

// askForCopies says which members need a copy. A learner whose server holds no such replica gets its first one. A voter without
// a replica has lost its votes and what it acknowledged, so nothing may take its place under its id. Whether a member is a
// learner is known once an entry of the own term is committed and each config entry in the log counts.
func (g *group) askForCopies() {
	settled := g.ready() && !g.changing()
	g.progress(func(id ident.ReplicaID, learner bool, pr progress) {
		a := g.membership.away[id]
		beyond := g.beyondLog(pr)
		if id == g.cfg.Replica || !beyond && (a == nil || a.absent == 0 || !learner || !settled) {
			return
		}
		a = g.awayOf(id)
		if beyond {
			// It may hold more than is known of it: an acknowledgement was lost, or it was copied. So it is asked before.
			g.probeStart(id)
			known := a.beyond > 0
			if a.beyond = absentHeartbeats * g.core.cfg.HeartbeatTicks; !known {
				return
			}
		}
		if a.asked == 0 {
			a.asked = copyHeartbeats * g.core.cfg.HeartbeatTicks
			g.core.out.Needs = append(g.core.out.Needs, Need{g.cfg.Tablet, g.peer(id), g.cfg.Config})
		}
	})
}

// probeStart asks a member whether its log holds the entry that the leader's log begins behind, or more that is committed. Raft would
// not: it can't send what comes before, and takes up where the answer says.
func (g *group) probeStart(id ident.ReplicaID) {
	at := uint64(g.first) - 1
	term, err := g.log.Term(at)
	if err != nil {
		return // it has just been cut again
	}
	g.sendRaft(Data, &raftpb.Message{
		Type: raftpb.MsgApp.Enum(), From: new(uint64(g.cfg.Replica)), To: new(uint64(id)), Term: new(uint64(g.term)),
		Index: &at, LogTerm: &term, Commit: new(uint64(g.commit)),
	}, &nyalav1.GroupMessage{})
}

// beyondLog says whether a member that answers needs entries that the log doesn't hold any more.
func (g *group) beyondLog(pr progress) bool {
	return pr.RecentActive && pr.Next < uint64(g.first)
}

// receiveNoReplica notes that a member's server doesn't hold it.
func (g *group) receiveNoReplica(from ident.ReplicaID) {
	if g.role == raft.StateLeader && g.peer(from) != nil {
		g.awayOf(from).absent = absentHeartbeats * g.core.cfg.HeartbeatTicks
		g.core.touch(g)
	}
}

// receiveRemoved takes the word of a leader that its config is without this replica. A question is answered by the host, which
// knows where it came from (RemovedAnswer).
func (g *group) receiveRemoved(r *nyalav1.ReplicaRemoved) {
	m := &g.membership
	if r.GetAsked() || r.GetConfigIndex() < g.cfg.Config.GetOpidIndex() || m.said {
		return
	}
	m.said = true
	g.core.out.Removals = append(g.core.out.Removals, Removal{g.cfg.Tablet, g.cfg.Replica})
}

// members is what a leader knows of its members.
func (g *group) members() ([]MemberStatus, error) {
	if g.drain(); g.err != nil {
		return nil, errFailed(g.cfg.Tablet, g.err)
	}
	if g.role != raft.StateLeader {
		return nil, g.notLeader()
	}
	var out []MemberStatus
	g.progress(func(id ident.ReplicaID, learner bool, pr progress) {
		s := MemberStatus{Replica: id, Learner: learner, Match: ident.Index(pr.Match), Active: g.active(id, pr) || id == g.cfg.Replica}
		if a := g.membership.away[id]; a != nil && a.absent > 0 {
			s.Absent, s.NeedsCopy = true, learner
		}
		s.NeedsCopy = s.NeedsCopy || id != g.cfg.Replica && g.beyondLog(pr)
		out = append(out, s)
	})
	return out, nil
}

// tellConfigCommitted answers a request for a vote that will be refused for its shorter log: with the config that counts here. Who
// asks may not know that a joint config has been left, and need the vote of a replica that isn't to decide any more: that has been
// removed or is a learner now, can't lead itself, and has the longer log.
func (g *group) tellConfigCommitted(m *raftpb.Message) {
	c := g.cfg.Config
	if c.GetOpidIndex() == 0 || isJoint(c) || m.GetIndex() < c.GetOpidIndex() {
		return
	}
	last, err := g.log.LastIndex()
	if err != nil {
		return
	}
	// A log that has been cut behind the config entry was held by all members through it, or for them for long.
	term, err := g.log.Term(c.GetOpidIndex())
	lastTerm, err2 := g.log.Term(last)
	if err == nil && err2 == nil && (lastTerm > m.GetLogTerm() || lastTerm == m.GetLogTerm() && last > m.GetIndex()) {
		g.sendGroup(ident.ReplicaID(m.GetFrom()), &nyalav1.GroupMessage{Kind: &nyalav1.GroupMessage_ConfigCommitted{
			ConfigCommitted: &nyalav1.OpId{Term: term, Index: c.GetOpidIndex()},
		}})
	}
}

// receiveConfigCommitted takes the word of another replica that a config entry is committed. If this log holds it, it is so here
// too. Raft hears it as it would from a leader, which it forgets at once; one that campaigned goes on with the config that counts.
func (g *group) receiveConfigCommitted(from uint64, at *nyalav1.OpId) {
	g.drain()
	if g.err != nil || g.role == raft.StateLeader || at.GetIndex() <= uint64(g.commit) || g.lead != 0 {
		return
	}
	if term, err := g.log.Term(at.GetIndex()); err != nil || term != at.GetTerm() {
		return
	}
	campaigned := g.role != raft.StateFollower
	_ = g.step(&raftpb.Message{
		Type: raftpb.MsgHeartbeat.Enum(), From: &from, To: new(uint64(g.cfg.Replica)), Term: new(uint64(g.term)), Commit: new(at.GetIndex()),
	})
	g.forgetLeader()
	g.drain()
	if g.err == nil && campaigned && g.barred() == causeNone {
		g.campaign()
	}
	g.core.touch(g)
}

// Removed says whether this leader's config is without a replica that was a member, and that nobody needs any more.
func (s *GroupStatus) Removed(id ident.ReplicaID) bool {
	return s.ConfigProven && removedBy(s.Config, id)
}

// removedBy says whether a replica was a member before the config and is none any more. Ids rise, and none is used again.
func removedBy(c *nyalav1.RaftConfig, id ident.ReplicaID) bool {
	return uint64(id) < c.GetNextReplicaId() && memberOf(c, id) == nil
}
