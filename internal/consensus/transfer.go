package consensus

import (
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/tracker"

	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

// progress is what raft knows of a member's log.
type progress = tracker.Progress

// transferState is the hand-over under way, if to isn't zero: ended by the loss of leadership, or given up by raft after an
// election timeout. ticket is nil where nobody waits for it.
type transferState struct {
	ticket Ticket
	to     ident.ReplicaID
	cause  cause
}

// transferTo begins a hand-over to another voter, or joins the one under way.
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
	case g.transfer.to != 0 && g.transfer.ticket == nil && (to == 0 || to == g.transfer.to):
		g.transfer.ticket = t
		return
	case g.transfer.to != 0:
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
	g.beginTransfer(transferState{ticket: t, to: to, cause: causeAsked})
}

func (g *group) beginTransfer(s transferState) {
	g.transfer = s
	g.startTransfer(s.to)
	g.core.touch(g)
}

// bestVoter is the other voter that is furthest on: one heard of recently if there is one, and another than the one that did
// not take over the last time.
func (g *group) bestVoter() (best ident.ReplicaID) {
	var bestRank int
	var bestMatch uint64
	g.progress(func(id ident.ReplicaID, learner bool, pr progress) {
		if learner || id == g.cfg.Replica {
			return
		}
		rank := 0
		if pr.RecentActive {
			rank += 2
		}
		if id != g.avoid {
			rank++
		}
		if best == 0 || rank > bestRank || rank == bestRank && pr.Match > bestMatch {
			best, bestRank, bestMatch = id, rank, pr.Match
		}
	})
	return best
}

// transferTick sees whether raft has given a hand-over up.
func (g *group) transferTick() {
	if g.transfer.to != 0 && g.role == raft.StateLeader && g.transferee() == 0 && !g.node.HasReady() {
		g.transferEnded(status.New(status.ServiceUnavailable, "tablet %s: replica %d did not take over within an election timeout",
			g.cfg.Tablet, g.transfer.to))
	}
}

// transferEnded ends the hand-over under way, if there is one.
func (g *group) transferEnded(err error) {
	t := g.transfer
	if t.to == 0 {
		return
	}
	g.transfer = transferState{}
	if t.cause != causeAsked {
		g.core.handingOver--
	}
	if g.avoid = 0; err == nil {
		g.core.metrics.handedOver[t.cause].Inc()
	} else {
		g.avoid = t.to
	}
	if t.ticket != nil {
		g.core.done(Done{Ticket: t.ticket, Err: err})
	}
}
