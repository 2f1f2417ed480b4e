package consensus

import (
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/quorum"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/nyaladb/nyala/internal/ident"
)

// serverState is what a Core has been told of another server.
type serverState struct {
	heard, beats bool
	deaf         map[ident.ServerID]bool
}

// bringUpsPerTick is how many quiet groups wake in one tick for members that are back.
const bringUpsPerTick = 64

// HearOf takes news of another server.
//
// When one falls silent, the groups that follow it forget their leader and stand for election if most of their voters' servers
// don't hear it; which those are has to be asked for, once per pair of servers (Decisions.Questions). Groups led here in quiet wake
// if most of their voters' servers are silent now, so that raft finds out whether a quorum is there. When one is back, the groups
// that rest without a member there are brought up, at a bounded rate. When one has started anew, its leaderships are no more, and
// nothing there is quiet.
func (c *Core) HearOf(n ServerNews) {
	was := c.servers[n.Server]
	c.servers[n.Server] = serverState{heard: n.Heard, beats: n.Beats, deaf: n.Deaf}
	switch {
	case n.Restarted:
		c.restarted(n.Server)
	case !n.Heard:
		c.silent(n.Server)
	case n.Beats && !was.beats:
		c.back(n.Server)
	}
}

// serverOf is how things stand with the server of a member.
func (c *Core) serverOf(g *group, id ident.ReplicaID) serverState {
	return c.servers[ident.ServerID(g.peer(id).GetServerId())]
}

func (c *Core) silent(server ident.ServerID) {
	var ask []ident.ServerID
	for _, g := range c.byNumber() {
		switch {
		case g.err != nil || g.frozen:
		case g.role == raft.StateLeader:
			if g.quiet.on && !g.quorumHeard() {
				g.wake(wakeSilent)
				g.quiet.inDoubt = true
			}
		case g.follows(server) && !c.cfg.ServerLiveness:
			g.wake(wakeSilent) // raft's timer has to run
		case g.follows(server):
			if g.mostAreDeaf(server) {
				g.loseLeader(wakeSilent, electionSilent)
				continue
			}
			for id := range g.voters.IDs() {
				if to := ident.ServerID(g.peer(ident.ReplicaID(id)).GetServerId()); to != server && !slices.Contains(ask, to) {
					ask = append(ask, to)
				}
			}
		}
	}
	slices.Sort(ask)
	for _, to := range ask {
		c.out.Questions = append(c.out.Questions, Question{About: server, To: to})
	}
}

// mostAreDeaf says whether most voters, of both halves of a joint config, are on servers that don't hear the given one: this
// server and those that have said so.
func (g *group) mostAreDeaf(server ident.ServerID) bool {
	deaf := g.core.servers[server].deaf
	votes := make(map[uint64]bool, len(deaf)+1)
	for id := range g.voters.IDs() {
		if on := ident.ServerID(g.peer(ident.ReplicaID(id)).GetServerId()); ident.ReplicaID(id) == g.cfg.Replica || deaf[on] {
			votes[id] = true
		}
	}
	return g.voters.VoteResult(votes) == quorum.VoteWon
}

// quorumHeard says whether enough voters are on servers that are heard.
func (g *group) quorumHeard() bool {
	var heard []ident.ReplicaID
	for id := range g.voters.IDs() {
		if g.core.serverOf(g, ident.ReplicaID(id)).heard {
			heard = append(heard, ident.ReplicaID(id))
		}
	}
	return g.elects(heard)
}

// tickLeader moves raft's time on where this replica leads: twice as fast while it leads in doubt, having rested while its voters'
// servers fell silent. That has taken an election timeout. Raft takes two more to find out that nobody answers, as its next check
// still counts whom it heard before: at this pace it takes one, and of three there is one left for those who hear this server, though
// it hears nobody, to elect in.
func (g *group) tickLeader() {
	q := &g.quiet
	if q.inDoubt = q.inDoubt && !g.quorumHeard(); q.inDoubt {
		g.tickNode()
	}
	if g.err == nil {
		g.tickNode()
	}
}

// forgetSilentLeader lets votes in: raft ignores requests for them while it has heard of its leader within an election timeout,
// which it counts in ticks. A leader whose server is silent for as long hasn't been heard of, whatever the ticks of the group say.
func (g *group) forgetSilentLeader(m *raftpb.Message) {
	if t := m.GetType(); t != raftpb.MsgVote && t != raftpb.MsgPreVote || !g.core.cfg.ServerLiveness || g.role != raft.StateFollower || g.lead == 0 {
		return
	}
	on := ident.ServerID(g.peer(g.lead).GetServerId())
	if s, known := g.core.servers[on]; (known && !s.heard || g.leaderUnheard()) && !g.core.planted(mistakeLeaderNotForgotten) {
		g.forgetLeader()
		g.core.touch(g)
	}
}

func (c *Core) back(server ident.ServerID) {
	for _, g := range c.byNumber() {
		if g.quiet.on && slices.Contains(g.quiet.absent, server) {
			c.bringUp = append(c.bringUp, g)
		}
	}
}

// bringUpSome wakes groups for members that are back.
func (c *Core) bringUpSome() {
	if c.planted(mistakeNotBroughtUp) {
		c.bringUp = nil
	}
	for n := 0; n < bringUpsPerTick && len(c.bringUp) > 0; {
		g := c.bringUp[0]
		c.bringUp[0] = nil
		if c.bringUp = c.bringUp[1:]; len(c.bringUp) == 0 {
			c.bringUp = nil
		}
		if g.quiet.on && slices.ContainsFunc(g.quiet.absent, func(s ident.ServerID) bool { return c.servers[s].beats }) {
			g.wake(wakeBack)
			n++
		}
	}
}

func (c *Core) restarted(server ident.ServerID) {
	for _, g := range c.byNumber() {
		switch {
		case g.err != nil || g.frozen:
		case g.follows(server) && (g.quiet.on || c.cfg.ServerLiveness):
			g.loseLeader(wakeRestarted, electionRestarted)
		case g.quiet.on && g.role == raft.StateLeader:
			g.lost(server)
			if slices.Contains(g.quiet.absent, server) {
				c.bringUp = append(c.bringUp, g)
			}
		}
	}
}

// lost counts the members on a server as absent: what was quiet there is no more.
func (g *group) lost(server ident.ServerID) {
	q := &g.quiet
	for i, h := range q.held {
		if h.server != server {
			continue
		}
		h.sum.remove(h.hash)
		q.held = slices.Delete(q.held, i, i+1)
		q.accepted = slices.DeleteFunc(q.accepted, func(id ident.ReplicaID) bool { return ident.ServerID(g.peer(id).GetServerId()) == server })
		q.absent = append(q.absent, server)
		return
	}
}

// tickCloses goes on with what waits for closed timestamps in quiet groups: lost questions are asked again.
func (c *Core) tickCloses() {
	waiting := c.closers[:0]
	for _, g := range c.closers {
		if !g.quiet.on || g.err != nil || g.stopped || !g.closing.busy() {
			g.quiet.closes = false
			continue
		}
		waiting = append(waiting, g)
		if g.closeTick() {
			c.touch(g)
		}
	}
	clear(c.closers[len(waiting):])
	c.closers = waiting
}

// noteCloses sees to it that a quiet group with a close under way gets its ticks for that.
func (g *group) noteCloses() {
	if g.quiet.on && !g.quiet.closes && g.closing.busy() {
		g.quiet.closes = true
		g.core.closers = append(g.core.closers, g)
	}
}
