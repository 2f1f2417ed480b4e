package consensus

import (
	"cmp"
	"maps"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/nyaladb/nyala/internal/ident"
)

// cause is why a leadership is handed over.
type cause string

const (
	causeNone   cause = ""
	causeAsked  cause = "asked"
	causeFenced cause = "fenced"
	// causeBlamed: most of the other servers heard say that this one's clock is off.
	causeBlamed cause = "blamed"
	// causeQuarantined: the log holds an entry that is too far ahead of this server's clock.
	causeQuarantined cause = "quarantined"
	// causeLogStalled: a commit of this server's log has been under way for an election timeout.
	causeLogStalled cause = "log_stalled"
	// causeLeft: the replica has resigned from this term. It leads nothing that could be handed over.
	causeLeft cause = "left"
)

// causes are those that a leadership is handed over for.
var causes = []cause{causeAsked, causeFenced, causeBlamed, causeQuarantined, causeLogStalled}

// maxHandOvers bounds the hand-overs that one Core has under way by its own accord.
const maxHandOvers = 256

// SetFenced says whether this server's clock gives no timestamps out. While it is fenced no replica here asks for leadership,
// and those that lead hand it over, as many at once as maxHandOvers allows and as often as it takes. They go on following,
// answering and voting. A replica without another voter keeps its leadership, and refuses what needs a timestamp.
func (c *Core) SetFenced(fenced bool) {
	c.fenced = fenced
	c.vacateAll()
}

// SetBlamed says whether most of the other servers heard, and more than one, say that this server's clock is off. While they do
// its replicas lead nothing, as with SetFenced; and those that lead with entries that others refuse cut them before they go.
func (c *Core) SetBlamed(blamed bool) {
	c.blamed = blamed
	c.vacateAll()
}

// SetLogStalled says whether a commit of this server's log has been under way for so long that followers would have given up a
// leader who said nothing. While it is, replicas here ask for no leadership, and those that lead hand it over: their followers
// have what is committed, here nothing of it can be applied. A quiet group stays as it is until somebody needs it, and a replica
// without another voter goes on waiting.
func (c *Core) SetLogStalled(stalled bool) { c.logStalled = stalled }

// vacateAll lets the leaders here that should not lead begin to leave.
func (c *Core) vacateAll() {
	for _, g := range c.byNumber() {
		if g.err == nil && g.barred() != causeNone {
			if g.drain(); !g.goIfMust() {
				if g.role == raft.StateLeader && g.otherVoters() {
					g.wake(wakeBarred) // a tick tries again what doesn't come off at once
				}
				g.vacate()
			}
			c.touch(g)
		}
	}
}

// byNumber returns the groups in a fixed order.
func (c *Core) byNumber() []*group {
	return slices.SortedFunc(maps.Values(c.groups), func(a, b *group) int { return cmp.Compare(a.cfg.Number, b.cfg.Number) })
}

// barred says why this replica should lead nothing now; causeNone: it may.
func (g *group) barred() cause {
	switch {
	case g.core.fenced:
		return causeFenced
	case g.core.blamed:
		return causeBlamed
	case g.quarantined():
		return causeQuarantined
	case g.hasLeft():
		return causeLeft
	case g.core.logStalled:
		return causeLogStalled
	default:
		return causeNone
	}
}

// vacate begins to hand leadership to the best voter, if this replica leads and should not. A hand-over that fails is
// tried again from the next tick on, to another voter if there is one.
func (g *group) vacate() {
	why := g.barred()
	if why == causeNone || why == causeLeft || g.err != nil || g.role != raft.StateLeader || g.transfer.to != 0 || g.core.handingOver >= maxHandOvers {
		return
	}
	if to := g.bestVoter(); to != 0 {
		g.core.handingOver++
		g.beginTransfer(transferState{to: to, cause: why})
	}
}

// tickBarred stands in for raft's tick at a replica that must not campaign. Raft ignores vote requests while it has heard of its
// leader within an election timeout, which it counts in the same ticks; so a leader that is silent for as long is forgotten.
func (g *group) tickBarred() {
	if g.silence++; g.silence >= g.core.cfg.ElectionTicks && g.lead != 0 {
		g.silence = 0
		g.forgetLeader()
	}
}

// heard notes word from the leader of this term or a later one.
func (g *group) heard(m *raftpb.Message) {
	if ident.Term(m.GetTerm()) >= g.term {
		g.silence, g.membership.unheard = 0, 0
	}
}

// wouldLead says whether raft could be on its way to leadership after this message: what a barred replica must not hear. It
// hears refusals: they end its election.
func wouldLead(m *raftpb.Message) bool {
	switch m.GetType() {
	case raftpb.MsgTimeoutNow:
		return true
	case raftpb.MsgVoteResp, raftpb.MsgPreVoteResp:
		return !m.GetReject()
	default:
		return false
	}
}
