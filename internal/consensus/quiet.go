package consensus

import (
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/quorum"
	"go.etcd.io/raft/v3/raftpb"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
)

// Quiet groups. A leader that has had nothing to do for a heartbeat interval, and whose followers hold all of its log, offers them
// to rest; a follower that is exactly there accepts, and is off the list of active groups from then on. When all that can be
// reached have accepted the leader rests as well. A quiet group costs nothing: it isn't ticked, and nothing is sent for it.
//
// No safety rests on it. Raft's time stands still in a quiet replica, as it may in any that is slow; it answers what it is asked
// by the same rules as before, in particular no read without a round. What has to be seen to is that a group wakes when it must:
//
//   - by any of raft's messages but answers, and by sending one (a proposal, a read, a hand-over);
//   - when its term, its role or its leader changes;
//   - when the leader says that it leads no more, or the follower that it isn't quiet;
//   - when the beats of two servers go on to differ about their quiet groups: those that aren't on both sides wake;
//   - when a server falls silent, is back, or starts anew (see HearOf).
//
// Closed timestamps are asked for and promised without waking anybody.

// quietState is a group's part in it.
type quietState struct {
	on bool
	// idle counts ticks with nothing to do, sentAge the ticks since one of raft's messages left.
	idle, sentAge int32
	// offered is the index of the offer under way, 0: none; seq its number; accepted who has accepted it.
	seq      uint64
	offered  ident.Index
	accepted []ident.ReplicaID
	// held are the shares in the sums of the beats.
	held []heldPair
	// absent are members of a quiet group that it doesn't wait for.
	absent []ident.ServerID
	// closes: it stands in the Core's list of quiet groups that wait for a closed timestamp.
	closes bool
	// inDoubt: it leads, and woke since too few of its voters' servers were heard, which is so still.
	inDoubt bool
}

// wakeCause is why a quiet group woke.
type wakeCause string

const (
	wakeMessage   wakeCause = "message"
	wakeSend      wakeCause = "request" // or something of raft's is sent without one
	wakeChange    wakeCause = "leadership_changed"
	wakeLeft      wakeCause = "leader_left"
	wakeNotQuiet  wakeCause = "follower_not_quiet"
	wakeList      wakeCause = "list"
	wakeSilent    wakeCause = "server_silent"
	wakeBack      wakeCause = "server_back"
	wakeRestarted wakeCause = "server_restarted"
	wakeBarred    wakeCause = "leads_no_more" // its server's clock is fenced or blamed
)

var wakeCauses = []wakeCause{
	wakeMessage, wakeSend, wakeChange, wakeLeft, wakeNotQuiet, wakeList, wakeSilent, wakeBack, wakeRestarted, wakeBarred,
}

// quietTick lets a leader with nothing to do offer to rest. Offers leave half a heartbeat interval after raft's heartbeats: these have
// mostly left by then (those that haven't leave with the first offer), and the answers are there before the next ones, which would wake
// who has accepted.
func (g *group) quietTick() {
	q := &g.quiet
	q.sentAge++
	if !g.core.cfg.Quiesce || !g.leaderIdle() {
		q.idle, q.offered = 0, 0
		return
	}
	q.idle++
	if int(q.idle) < g.core.cfg.HeartbeatTicks || int(q.sentAge) != (g.core.cfg.HeartbeatTicks+1)/2 && len(g.voters.IDs()) > 1 {
		return
	}
	g.offerQuiet()
}

// leaderIdle says whether this replica leads and there is nothing to do in the group that needs time or messages.
func (g *group) leaderIdle() bool {
	return g.err == nil && g.ready() && g.commit == g.last && g.nothingWaits() && g.transfer.to == 0 &&
		len(g.refusers) == 0 && !g.reads.running && len(g.reads.waiting) == 0 && !g.closing.busy() && g.membersIdle() && g.barred() == causeNone
}

// membersIdle says whether nothing is to be done about the group's members.
func (g *group) membersIdle() bool {
	m := &g.membership
	return !g.changing() && m.change.ticket == nil && len(m.gone) == 0 && len(m.holds) == 0 && m.proof != 0
}

// nothingWaits says whether nothing is under way to the log or the state machine.
func (g *group) nothingWaits() bool {
	return !g.frozen && len(g.appends.pending) == 0 && len(g.applying) == 0 && g.appliedTo == g.commit && len(g.proposals) == 0
}

// busy says whether anything about closed timestamps waits.
func (q *closeQueue) busy() bool { return q.round.running || len(q.waiting) > 0 || len(q.asks) > 0 }

// offerQuiet offers to rest, if every member that can be reached holds the whole log.
func (g *group) offerQuiet() {
	q := &g.quiet
	q.offered, q.accepted = 0, q.accepted[:0]
	var to []ident.ReplicaID
	ready := true
	g.progress(func(id ident.ReplicaID, learner bool, pr progress) {
		if id == g.cfg.Replica || g.absent(id, learner) {
			return
		}
		if ready = ready && ident.Index(pr.Match) == g.last && g.core.serverOf(g, id).beats; ready {
			to = append(to, id)
		}
	})
	if !ready || !g.elects(to) {
		return
	}
	q.seq++
	q.offered = g.last
	for _, id := range to {
		g.sendQuiet(kindOffer, id, &nyalav1.GroupMessage{Kind: &nyalav1.GroupMessage_QuietOffer{QuietOffer: &nyalav1.QuietOffer{
			Term: uint64(g.term), Index: uint64(g.last), Seq: q.seq, Held: uint64(g.computeHeld()),
		}}})
	}
	g.maybeRest()
}

// absent says whether a group needn't wait for a member to go quiet: its server is silent, or has said that it doesn't hold the
// voter, which nothing can bring up then. A learner that isn't there is copied.
func (g *group) absent(id ident.ReplicaID, learner bool) bool {
	a := g.membership.away[id]
	return !g.core.serverOf(g, id).heard || a != nil && a.absent > 0 && !learner
}

// elects says whether this replica and the given ones are enough to elect.
func (g *group) elects(others []ident.ReplicaID) bool {
	yes := map[uint64]bool{uint64(g.cfg.Replica): true}
	for _, id := range others {
		yes[uint64(id)] = true
	}
	return g.voters.VoteResult(yes) == quorum.VoteWon
}

// maybeRest makes the leader quiet when all that it waits for have accepted.
func (g *group) maybeRest() {
	q := &g.quiet
	all := true
	g.progress(func(id ident.ReplicaID, learner bool, _ progress) {
		all = all && (id == g.cfg.Replica || slices.Contains(q.accepted, id) || g.absent(id, learner))
	})
	if !all || !g.elects(q.accepted) {
		return
	}
	q.absent = q.absent[:0]
	for _, p := range members(g.cfg.Config) {
		id, server := ident.ReplicaID(p.GetReplicaId()), ident.ServerID(p.GetServerId())
		if slices.Contains(q.accepted, id) {
			g.hold(&g.core.cfg.Pairs.pair(server).leads, quietHash(g.id, g.term, g.cfg.Replica, id), server)
		} else if id != g.cfg.Replica {
			q.absent = append(q.absent, server)
		}
	}
	g.rest()
}

func (g *group) hold(sum *pairSum, hash uint64, server ident.ServerID) {
	sum.add(hash)
	g.quiet.held = append(g.quiet.held, heldPair{sum, hash, server})
}

// rest takes the group off the list of those that are ticked.
func (g *group) rest() {
	g.quiet.on = true
	g.core.deactivate(g)
	g.core.metrics.quiet.Inc()
	g.core.touch(g)
}

// wake ends the quiet.
func (g *group) wake(why wakeCause) {
	if !g.quiet.on {
		return
	}
	g.endQuiet()
	g.core.metrics.wakes[why].Inc()
	if g.err == nil && !g.stopped && g.slot < 0 {
		g.core.activate(g)
	}
	g.core.touch(g)
}

// needed is called with a request for the group: a leader wakes, a group without one goes first in the line of elections. A leader
// elsewhere that is heard is left in peace, whatever is asked here.
func (g *group) needed() {
	if g.role == raft.StateLeader {
		g.wake(wakeSend)
	}
	g.core.elections.urge(g)
}

// endQuiet takes the group's shares back.
func (g *group) endQuiet() {
	q := &g.quiet
	if !q.on {
		return
	}
	for _, h := range q.held {
		h.sum.remove(h.hash)
	}
	*q = quietState{seq: q.seq, closes: q.closes}
	g.core.metrics.quiet.Dec()
}

// sends is called with each of raft's messages that leaves: it wakes this replica, and the one it goes to, so that no offer stands.
func (g *group) sends() {
	g.wake(wakeSend)
	g.quiet.sentAge, g.quiet.offered = 0, 0
}

// hears is called with each of raft's messages that comes in, before raft sees it.
func (g *group) hears(m *raftpb.Message) {
	g.forgetSilentLeader(m)
	if t := m.GetType(); (t == raftpb.MsgApp || t == raftpb.MsgHeartbeat) && ident.Term(m.GetTerm()) >= g.term {
		g.core.elections.leave(g) // it has a leader
	}
	if !g.quiet.on || isAnswer(m) {
		return
	}
	from, lead := ident.ReplicaID(m.GetFrom()), g.lead
	g.wake(wakeMessage)
	// Its leader doesn't know that it woke, and would rest on until this replica stands for election.
	if g.role != raft.StateLeader && lead != 0 && lead != from && g.lead == lead {
		g.sayNotQuiet(lead)
	}
}

// isAnswer: these change nothing in a group that rests, unless they change its term, which wakes it.
func isAnswer(m *raftpb.Message) bool {
	switch m.GetType() {
	case raftpb.MsgAppResp, raftpb.MsgHeartbeatResp, raftpb.MsgVoteResp, raftpb.MsgPreVoteResp:
		return true
	default:
		return false
	}
}

func (g *group) sayNotQuiet(leader ident.ReplicaID) {
	g.sendQuiet(kindNotQuiet, leader, &nyalav1.GroupMessage{Kind: &nyalav1.GroupMessage_NotQuiet{NotQuiet: &nyalav1.NotQuiet{Term: uint64(g.term)}}})
}

// receiveQuietOffer lets a follower rest that has all there is and waits for nothing.
func (g *group) receiveQuietOffer(from ident.ReplicaID, o *nyalav1.QuietOffer) {
	g.drain()
	if g.err != nil || !g.core.cfg.Quiesce || ident.Term(o.GetTerm()) != g.term || g.lead != from || g.role != raft.StateFollower {
		return
	}
	index := ident.Index(o.GetIndex())
	there := g.last == index && g.commit == index && g.nothingWaits()
	if g.core.planted(mistakeRestsBehind) {
		there = true
	}
	if !there || g.quarantined() || g.hasLeft() || g.hurried() || !g.core.serverOf(g, from).beats {
		return // it is offered again
	}
	if !g.quiet.on {
		g.heldByAll = max(g.heldByAll, ident.Index(o.GetHeld()))
		g.maybeCut(1)
		server := ident.ServerID(g.peer(from).GetServerId())
		g.hold(&g.core.cfg.Pairs.pair(server).follows, quietHash(g.id, g.term, from, g.cfg.Replica), server)
		g.rest()
	}
	g.tellCommitted()
	g.sendQuiet(kindOfferAnswer, from, &nyalav1.GroupMessage{Kind: &nyalav1.GroupMessage_QuietAnswer{QuietAnswer: &nyalav1.QuietAnswer{
		Term: o.GetTerm(), Index: o.GetIndex(), Seq: o.GetSeq(),
	}}})
}

// receiveQuietAnswer counts a follower that rests, if the offer still stands.
func (g *group) receiveQuietAnswer(from ident.ReplicaID, a *nyalav1.QuietAnswer) {
	g.drain()
	q := &g.quiet
	if q.on || q.offered == 0 || a.GetSeq() != q.seq || ident.Term(a.GetTerm()) != g.term || ident.Index(a.GetIndex()) != q.offered ||
		q.offered != g.last || !g.leaderIdle() || g.peer(from) == nil || slices.Contains(q.accepted, from) {
		return
	}
	// To raft it is a heartbeat answered: it counts for the next look for a quorum, which comes soon after the group wakes. If there
	// is anything that raft wants to send for it, the offer is void.
	_ = g.step(&raftpb.Message{Type: raftpb.MsgHeartbeatResp.Enum(), From: new(uint64(from)), To: new(uint64(g.cfg.Replica)), Term: new(uint64(g.term))})
	if g.drain(); g.err != nil || q.offered == 0 {
		return
	}
	f := g.follower(from)
	f.known, f.heardAge = q.offered, 0
	q.accepted = append(q.accepted, from)
	g.maybeRest()
}

// receiveNotQuiet wakes a leader that counts a follower as quiet which isn't.
func (g *group) receiveNotQuiet(m *nyalav1.NotQuiet) {
	if g.drain(); g.err == nil && g.role == raft.StateLeader && ident.Term(m.GetTerm()) == g.term {
		g.wake(wakeNotQuiet)
	}
}

// receiveLeave takes a leader's word that it leads no more.
func (g *group) receiveLeave(from ident.ReplicaID, m *nyalav1.Leave) {
	g.drain()
	if g.err != nil || ident.Term(m.GetTerm()) != g.term || g.lead != from || g.role != raft.StateFollower || !g.core.cfg.ServerLiveness && !g.quiet.on {
		return
	}
	g.loseLeader(wakeLeft, electionLeft)
}

// sayLeft tells the others that this replica leads no more in the term that it led in.
func (g *group) sayLeft() {
	if g.core == nil || g.ledTerm == 0 {
		return
	}
	for _, p := range members(g.cfg.Config) {
		if id := ident.ReplicaID(p.GetReplicaId()); id != g.cfg.Replica {
			g.sendQuiet(kindLeave, id, &nyalav1.GroupMessage{Kind: &nyalav1.GroupMessage_Leave{Leave: &nyalav1.Leave{Term: uint64(g.ledTerm)}}})
		}
	}
}

// loseLeader makes a follower whose leader is no more wait for its turn to campaign. Raft would not let votes in: it counts the
// leader's lease in ticks, of which a quiet replica has none, so it is made to forget the leader.
func (g *group) loseLeader(why wakeCause, e electionCause) {
	old := g.lead
	g.wake(why)
	if !g.core.planted(mistakeLeaderNotForgotten) {
		g.forgetLeader()
	}
	g.drain()
	if g.err == nil && g.core.cfg.ServerLiveness {
		g.core.elections.add(g, e, old)
	}
	g.core.touch(g)
}

// sendQuiet sends one of the messages about quiet groups. They aren't raft's, and so wake nobody by themselves.
func (g *group) sendQuiet(kind string, to ident.ReplicaID, m *nyalav1.GroupMessage) {
	g.core.metrics.messagesQuiet[kind].Inc()
	g.sendOn(Control, to, m)
}

// QuietGroups returns the groups that are led here in quiet with followers on a server.
func (c *Core) QuietGroups(server ident.ServerID) (list []*nyalav1.QuietGroup) {
	for _, g := range c.byNumber() {
		if !g.quiet.on || g.role != raft.StateLeader {
			continue
		}
		for _, p := range members(g.cfg.Config) {
			if id := ident.ReplicaID(p.GetReplicaId()); ident.ServerID(p.GetServerId()) == server && slices.Contains(g.quiet.accepted, id) {
				list = append(list, &nyalav1.QuietGroup{TabletId: g.id[:], Term: uint64(g.term), Leader: uint64(g.cfg.Replica), Follower: uint64(id)})
			}
		}
	}
	if c.planted(mistakeListLosesOne) && len(list) > 0 {
		list = list[1:]
	}
	return list
}

// CompareQuiet wakes what isn't quiet on both sides: here, or by a message to the leader. Groups that this Core doesn't have may
// be in the list only if no other Core of the server has them.
func (c *Core) CompareQuiet(l QuietList) {
	theirs := make(map[[16]byte]*nyalav1.QuietGroup, len(l.Groups))
	for _, q := range l.Groups {
		theirs[[16]byte(q.GetTabletId())] = q
		g := c.groups[[16]byte(q.GetTabletId())]
		if g != nil && g.quiet.on && g.follows(l.From) && uint64(g.lead) == q.GetLeader() && uint64(g.term) == q.GetTerm() {
			continue
		}
		c.metrics.messagesQuiet[kindNotQuiet].Inc()
		c.out.Messages = append(c.out.Messages, Outgoing{To: l.From, Channel: Control, Message: &nyalav1.GroupMessage{
			TabletId: q.GetTabletId(), From: q.GetFollower(), To: q.GetLeader(),
			Kind: &nyalav1.GroupMessage_NotQuiet{NotQuiet: &nyalav1.NotQuiet{Term: q.GetTerm()}},
		}})
	}
	for _, g := range c.byNumber() {
		if !g.quiet.on || !g.follows(l.From) {
			continue
		}
		if q := theirs[g.id]; q == nil || q.GetLeader() != uint64(g.lead) || q.GetTerm() != uint64(g.term) {
			g.wake(wakeList)
			g.sayNotQuiet(g.lead)
			if c.cfg.ServerLiveness {
				c.elections.add(g, electionUnled, g.lead)
			}
		}
	}
}

// active says whether a leader has heard of a member lately; one that rests counts while its server is heard.
func (g *group) active(id ident.ReplicaID, pr progress) bool {
	if g.quiet.on {
		return slices.Contains(g.quiet.accepted, id) && g.core.serverOf(g, id).heard
	}
	return pr.RecentActive
}

// follows says whether the leader that this replica follows is on the given server.
func (g *group) follows(server ident.ServerID) bool {
	return g.lead != 0 && g.role != raft.StateLeader && ident.ServerID(g.peer(g.lead).GetServerId()) == server
}
