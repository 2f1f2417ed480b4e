package consensus

import (
	"go.etcd.io/raft/v3"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

// publish puts the status where other goroutines read it, and notes a change of leadership.
func (g *group) publish() {
	s := g.status()
	old := g.view.p.Load()
	if old != nil && *old == s {
		return
	}
	now := new(GroupStatus)
	*now = s
	g.view.p.Store(now)
	if g.core == nil || old == nil {
		return
	}
	if old.Role != s.Role || old.Term != s.Term || old.Leader != s.Leader || old.Ready != s.Ready {
		g.core.out.Changes = append(g.core.out.Changes, s)
	}
}

func (g *group) status() GroupStatus {
	return GroupStatus{
		Tablet: g.cfg.Tablet, Number: g.cfg.Number, Replica: g.cfg.Replica, Role: g.nyalaRole(), Term: g.term,
		Leader: g.lead, Ready: g.ready(), Config: g.cfg.Config, ConfigPending: len(g.membership.entries) > 0, ConfigProven: g.proven(),
		FirstIndex: g.first, LastIndex: g.last, Commit: g.commit,
		Applied: g.appliedTo, AppliedTimestamp: g.appliedTS, Stalled: g.stalled(), Quarantined: g.quarantine.why, Quiet: g.quiet.on, Err: g.err,
	}
}

func (g *group) nyalaRole() nyalav1.Role {
	switch p := g.peer(g.cfg.Replica); {
	case g.err != nil || p == nil:
		return nyalav1.Role_ROLE_NON_PARTICIPANT
	case g.role == raft.StateLeader:
		return nyalav1.Role_ROLE_LEADER
	case p.GetLearner():
		return nyalav1.Role_ROLE_LEARNER
	default:
		return nyalav1.Role_ROLE_FOLLOWER
	}
}

// peer returns the member with the given id, nil if there is none.
func (g *group) peer(id ident.ReplicaID) *nyalav1.Peer { return memberOf(g.cfg.Config, id) }

// notLeader is the error that sends a caller to the leader.
func (g *group) notLeader() error {
	e := status.New(status.NotTheLeader, "tablet %s: replica %d doesn't lead in term %d", g.cfg.Tablet, g.cfg.Replica, g.term)
	e.Term = uint64(g.term)
	if p := g.peer(g.lead); p != nil && g.lead != g.cfg.Replica {
		e.Leader = proto.CloneOf(p)
	}
	return e
}
