package consensus

import (
	"go.etcd.io/raft/v3"

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
	asked  int // ticks until a copy is asked for again
}

const (
	// absentHeartbeats is for how many heartbeat intervals a server's word counts that it holds no such replica.
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
		a.absent, a.asked = max(a.absent-1, 0), max(a.asked-1, 0)
		if a.absent == 0 && a.asked == 0 {
			delete(m.away, id)
		}
	}
	g.holdTick()
	if g.role != raft.StateLeader {
		m.gone = nil
		return
	}
	if g.changing() {
		g.core.touch(g)
	}
	if m.age++; m.age < g.core.cfg.HeartbeatTicks {
		return
	}
	m.age = 0
	g.tellGone()
	g.askForCopies()
}

func (g *group) tellGone() {
	m := &g.membership
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

// askForCopies says which members need a copy. A learner whose server holds no such replica gets its first one. A voter without
// a replica has lost its votes and what it acknowledged, so nothing may take its place under its id. Whether a member is a
// learner is known once each config entry in the log counts.
func (g *group) askForCopies() {
	if !g.ready() {
		return
	}
	settled := !g.changing()
	g.progress(func(id ident.ReplicaID, learner bool, pr progress) {
		a := g.membership.away[id]
		if id == g.cfg.Replica || !g.beyondLog(pr) && (a == nil || a.absent == 0 || !learner || !settled) {
			return
		}
		if a = g.awayOf(id); a.asked == 0 {
			a.asked = copyHeartbeats * g.core.cfg.HeartbeatTicks
			g.core.out.Needs = append(g.core.out.Needs, Need{g.cfg.Tablet, g.peer(id), g.cfg.Config})
		}
	})
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

// receiveRemoved takes the word of a member that a later config is without this replica.
func (g *group) receiveRemoved(index uint64) {
	if index > g.cfg.Config.GetOpidIndex() {
		g.sayRemoved()
	}
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

// Removed says whether the replica has been removed from the group by the config that counts here. Replica ids rise, and none
// is used again.
func (s *GroupStatus) Removed(id ident.ReplicaID) bool {
	return s.Err == nil && uint64(id) < s.Config.GetNextReplicaId() && memberOf(s.Config, id) == nil
}
