package consensus

import (
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/tracker"

	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

// progress is what raft knows of a member's log.
type progress = tracker.Progress

// transferState is the hand-over under way: ended by the loss of leadership, or given up by raft after an election timeout.
type transferState struct {
	ticket Ticket
	to     ident.ReplicaID
}

// transferTo begins a hand-over to another voter.
func (g *group) transferTo(to ident.ReplicaID, t Ticket) {
	g.drain()
	refuse := func(err error) { g.core.done(Done{Ticket: t, Err: err}) }
	switch {
	case g.err != nil:
		refuse(errFailed(g.cfg.Tablet, g.err))
		return
	case g.role != raft.StateLeader:
		refuse(g.notLeader())
		return
	case g.transfer.ticket != nil:
		refuse(errTooBusy(g.cfg.Tablet, "leadership is being handed over already"))
		return
	}
	if to == 0 {
		if to = g.bestVoter(); to == 0 {
			refuse(status.New(status.IllegalState, "tablet %s: no other voter to hand leadership to", g.cfg.Tablet))
			return
		}
	}
	_, voter := g.voters.IDs()[uint64(to)]
	switch {
	case !voter:
		refuse(status.New(status.InvalidArgument, "tablet %s: replica %d is no voter", g.cfg.Tablet, to))
		return
	case to == g.cfg.Replica:
		g.core.done(Done{Ticket: t})
		return
	}
	g.transfer = transferState{ticket: t, to: to}
	g.startTransfer(to)
	g.core.touch(g)
}

// bestVoter is the other voter that is furthest on, one heard of recently if there is one.
func (g *group) bestVoter() (best ident.ReplicaID) {
	var bestMatch uint64
	bestActive := false
	g.progress(func(id ident.ReplicaID, learner bool, pr progress) {
		if learner || id == g.cfg.Replica {
			return
		}
		better := pr.RecentActive && !bestActive || pr.RecentActive == bestActive && pr.Match > bestMatch
		if best == 0 || better {
			best, bestMatch, bestActive = id, pr.Match, pr.RecentActive
		}
	})
	return best
}

// transferTick sees whether raft has given a hand-over up.
func (g *group) transferTick() {
	if g.transfer.ticket != nil && g.role == raft.StateLeader && g.transferee() == 0 && !g.node.HasReady() {
		g.transferEnded(status.New(status.ServiceUnavailable, "tablet %s: replica %d did not take over within an election timeout",
			g.cfg.Tablet, g.transfer.to))
	}
}

func (g *group) transferEnded(err error) {
	if g.transfer.ticket != nil {
		g.core.done(Done{Ticket: g.transfer.ticket, Err: err})
		g.transfer = transferState{}
	}
}
