package consensus

import (
	"cmp"
	"container/heap"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/nyaladb/nyala/internal/ident"
)

// Elections that don't come of raft's own timer are paced: a server that leads many groups may die, or all servers start at once,
// and then as many groups have to elect. A group that waits for its turn isn't ticked, but votes as always; it leaves the line
// when it hears of a leader. Those that somebody has asked for something go first. Of a group's replicas the one that comes first
// by a hash campaigns at once and the others a little later, so that they don't take each other's votes; after a few attempts raft's
// own timer goes on.

// electionCause is why a replica campaigns.
type electionCause string

const (
	electionTimeout   electionCause = "timeout" // raft's own timer, or a hand-over
	electionCreated   electionCause = "created"
	electionAsked     electionCause = "asked"
	electionStarted   electionCause = "started"
	electionSilent    electionCause = "server_silent"
	electionRestarted electionCause = "server_restarted"
	electionLeft      electionCause = "leader_left"
	electionUnled     electionCause = "not_on_list" // the leader's server doesn't count the group as quiet
)

var electionCauses = []electionCause{
	electionTimeout, electionCreated, electionAsked, electionStarted, electionSilent, electionRestarted, electionLeft, electionUnled,
}

const (
	// electionsPerTick is how many elections one Core begins in a tick.
	electionsPerTick = 64
	// electionTries is how often a replica campaigns by this before raft's timer takes over; one that was just created tries longer,
	// as the others may not be there yet.
	electionTries        = 3
	electionTriesCreated = 30
)

// elections are those that wait for their turn.
type elections struct {
	core *Core
	now  uint64 // ticks
	seq  uint64
	// asked are those that somebody has asked for something, line the others.
	asked, line electionLine
}

// electionState is a group's part.
type electionState struct {
	cause  electionCause
	queued bool
	urgent bool
	tries  uint8
	since  uint64
	due    uint64
	seq    uint64
	place  int
}

// begin campaigns at once, and again until there is a leader.
func (e *elections) begin(g *group, why electionCause) {
	g.elect = electionState{cause: why, tries: 1}
	g.campaign()
	if int(g.elect.tries) < g.maxTries() {
		e.put(g, g.retryTicks())
	}
}

// add puts a group in line; without is a member that stands in no election: the leader that was lost.
func (e *elections) add(g *group, why electionCause, without ident.ReplicaID) {
	if g.elect.queued || g.role == raft.StateLeader {
		return
	}
	rank := g.rank(without)
	wait := rank * (1 + e.core.cfg.HeartbeatTicks/2)
	switch why {
	case electionStarted:
		// Its leader, if there is one, finds it within this time.
		wait += e.core.cfg.ElectionTicks + int(quietHash(g.id, 0, 0, g.cfg.Replica)%uint64(e.core.cfg.ElectionTicks))
	case electionUnled:
		wait += e.core.cfg.ElectionTicks // it has as long to be heard
	default:
	}
	g.elect = electionState{cause: why, since: e.now}
	e.put(g, wait)
}

func (e *elections) put(g *group, wait int) {
	e.seq++
	g.elect.queued, g.elect.seq, g.elect.due = true, e.seq, e.now+uint64(max(wait, 1))
	g.core.deactivate(g)
	heap.Push(e.lineOf(g), g)
}

func (e *elections) lineOf(g *group) *electionLine {
	if g.elect.urgent {
		return &e.asked
	}
	return &e.line
}

// rank is this replica's place among the voters that may be reached, by a hash: 0 campaigns first.
func (g *group) rank(without ident.ReplicaID) int {
	place := func(id uint64) uint64 { return quietHash(g.id, g.term, 0, ident.ReplicaID(id)) }
	rank, own := 0, place(uint64(g.cfg.Replica))
	for id := range g.voters.IDs() {
		r := ident.ReplicaID(id)
		if s, known := g.core.servers[ident.ServerID(g.peer(r).GetServerId())]; r == g.cfg.Replica || r == without || known && !s.heard {
			continue
		}
		if place(id) < own {
			rank++
		}
	}
	return rank
}

// leave takes a group out of the line; it is ticked again.
func (e *elections) leave(g *group) {
	if !g.elect.queued {
		return
	}
	heap.Remove(e.lineOf(g), g.elect.place)
	g.elect.queued = false
	if g.err == nil && !g.stopped && g.slot < 0 {
		g.core.activate(g)
	}
}

// urge lets a group without a leader that is asked for something go first.
func (e *elections) urge(g *group) {
	if g.elect.queued && !g.elect.urgent {
		heap.Remove(&e.line, g.elect.place)
		g.elect.urgent = true
		heap.Push(&e.asked, g)
	}
}

// leaderUnheard says whether the group has waited for an election timeout for a leader whose server doesn't count it as quiet.
func (g *group) leaderUnheard() bool {
	e := &g.elect
	return e.queued && e.cause == electionUnled && g.core.elections.now >= e.since+uint64(g.core.cfg.ElectionTicks)
}

// answered moves a waiting group's turn when it has answered a request for its vote: behind the election that it takes part in; or
// forward where it refused because its own log is longer.
func (e *elections) answered(g *group, m *raftpb.Message) {
	if !g.elect.queued {
		return
	}
	switch m.GetType() {
	case raftpb.MsgPreVoteResp:
		if m.GetReject() {
			g.elect.due = e.now + 1
		} else {
			g.elect.due = max(g.elect.due, e.now+uint64(e.core.cfg.HeartbeatTicks))
		}
	case raftpb.MsgVoteResp:
		if !m.GetReject() {
			g.elect.due = max(g.elect.due, e.now+uint64(e.core.cfg.ElectionTicks))
		}
	default:
		return
	}
	heap.Fix(e.lineOf(g), g.elect.place)
}

// tick begins the elections whose turn it is.
func (e *elections) tick() {
	e.now++
	for range electionsPerTick {
		g := e.next()
		if g == nil {
			return
		}
		cause, tries := g.elect.cause, g.elect.tries
		if g.drain(); g.leaderUnheard() {
			g.forgetLeader()
			g.drain()
		}
		e.leave(g)
		switch {
		case g.err != nil || g.frozen || g.lead != 0 || g.barred() != causeNone:
			continue
		case g.role == raft.StateCandidate:
			continue // the pre-election was won; raft's timer sees to the rest
		}
		g.elect.cause = cause
		g.campaign()
		g.core.touch(g)
		if g.elect.tries = tries + 1; int(g.elect.tries) < g.maxTries() {
			e.put(g, g.retryTicks())
		}
	}
}

// next is the group whose turn it is, nil: none.
func (e *elections) next() *group {
	for _, l := range []electionLine{e.asked, e.line} {
		if len(l) > 0 && l[0].elect.due <= e.now {
			return l[0]
		}
	}
	return nil
}

func (g *group) maxTries() int {
	switch {
	case !g.core.cfg.PreElection:
		return 0 // each attempt is a term
	case g.elect.cause == electionCreated:
		return electionTriesCreated
	default:
		return electionTries
	}
}

// retryTicks is how long an attempt has: a message there and back and two commits.
func (g *group) retryTicks() int {
	if g.elect.cause == electionCreated {
		return 1
	}
	return g.core.cfg.HeartbeatTicks
}

// electionLine is a heap of groups by when they are due.
type electionLine []*group

// Len, Less, Swap, Push and Pop make it a heap.
func (l electionLine) Len() int { return len(l) }

// Less: see Len.
func (l electionLine) Less(i, j int) bool {
	a, b := &l[i].elect, &l[j].elect
	return cmp.Or(cmp.Compare(a.due, b.due), cmp.Compare(a.seq, b.seq)) < 0
}

// Swap: see Len.
func (l electionLine) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].elect.place, l[j].elect.place = i, j
}

// Push: see Len.
func (l *electionLine) Push(x any) {
	g := x.(*group)
	g.elect.place = len(*l)
	*l = append(*l, g)
}

// Pop: see Len.
func (l *electionLine) Pop() any {
	n := len(*l) - 1
	g := (*l)[n]
	(*l)[n] = nil
	*l = (*l)[:n]
	return g
}

// hurried says whether the group waits for an election.
func (g *group) hurried() bool { return g.elect.queued }
