package consensus

import (
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
)

// The commit index is pushed: raft sends an append without entries to each follower when it moves. Of these a turn sends the last
// one, as a notice that isn't answered, and none where an append with entries goes out in the same turn. Answers say how much
// their sender knows to be committed, so a notice that was lost is made up for by a heartbeat, and who has heard isn't told again.
// Where an append or a notice went out within the interval a heartbeat waits until one has passed (docs/consensus.md).

// follower is what a leader keeps of a member beside raft's progress.
type follower struct {
	id ident.ReplicaID
	// known is the commit index that it has said it knows, in this term.
	known ident.Index
	// sentAge counts the ticks since an append or a notice left for it, heardAge those since it answered.
	sentAge, heardAge int32
	// due: raft would have had it sent a heartbeat, which waits until an interval has passed without anything else.
	due bool
	// asked: raft wants to know by the next append, even an empty one, whether one before was lost.
	asked bool
}

// outbox holds what may still be superseded before the turn ends.
type outbox struct {
	notices []*raftpb.Message
	ack     *raftpb.Message
}

// acknowledged is what a follower has told its leader.
type acknowledged struct {
	term  ident.Term
	index ident.Index
	// commit is what was said to be known committed, and commitAge counts the ticks for which more has been.
	commit    ident.Index
	commitAge int32
	// wanted: an append came since that has to be answered even if the answer is the same.
	wanted bool
}

// lateTicks is how many ticks after a notice a follower that has not spoken of it is sent a heartbeat: it tells what it knows
// within one, and its batch may wait for another.
const lateTicks = 3

// follower returns what is kept of a member. Only a leader asks.
func (g *group) follower(id ident.ReplicaID) *follower {
	for i := range g.followers {
		if g.followers[i].id == id {
			return &g.followers[i]
		}
	}
	// One that hasn't been heard gets every heartbeat.
	ticks := int32(g.core.cfg.HeartbeatTicks)
	g.followers = append(g.followers, follower{id: id, sentAge: ticks, heardAge: ticks})
	return &g.followers[len(g.followers)-1]
}

// answered notes an answer at a leader.
func (g *group) answered(m *raftpb.Message, known ident.Index) {
	if g.role != raft.StateLeader || ident.Term(m.GetTerm()) != g.term {
		return
	}
	f := g.follower(ident.ReplicaID(m.GetFrom()))
	f.known, f.heardAge = known, 0 // it may know of less than before: after a restart
	f.asked = f.asked || m.GetType() == raftpb.MsgHeartbeatResp
}

// replicating says whether raft sends a member its log as it grows, and what it knows it to hold.
func (g *group) replicating(id ident.ReplicaID) (match ident.Index, ok bool) {
	g.progress(func(i ident.ReplicaID, _ bool, pr progress) {
		if i == id {
			match, ok = ident.Index(pr.Match), pr.State == tracker.StateReplicate && !pr.IsPaused()
		}
	})
	return match, ok
}

// sendAppend puts an append on its way, or lets it wait for the end of the turn as a notice.
func (g *group) sendAppend(m *raftpb.Message) {
	if g.role != raft.StateLeader {
		g.sendRaft(Data, m, &nyalav1.GroupMessage{}) // it led when it decided on this
		return
	}
	to := ident.ReplicaID(m.GetTo())
	f := g.follower(to)
	g.dropNotice(m.GetTo())
	if len(m.GetEntries()) == 0 && !f.asked {
		if _, ok := g.replicating(to); ok {
			if g.core.cfg.PushCommit && f.known < ident.Index(m.GetCommit()) {
				g.outbox.notices = append(g.outbox.notices, m)
			}
			return
		}
	}
	f.asked, f.sentAge, f.due = false, 0, false
	g.sendRaft(Data, m, &nyalav1.GroupMessage{})
}

// dropNotice forgets a notice that what is sent now, or a later one, supersedes.
func (g *group) dropNotice(to uint64) {
	for i, n := range g.outbox.notices {
		if n.GetTo() == to {
			g.outbox.notices = append(g.outbox.notices[:i], g.outbox.notices[i+1:]...)
			return
		}
	}
}

// sendAck lets an acknowledgement wait for the end of the turn: a later one says all that it says.
func (g *group) sendAck(m *raftpb.Message) {
	if last := g.outbox.ack; last != nil && (last.GetTo() != m.GetTo() || last.GetTerm() != m.GetTerm() || last.GetIndex() > m.GetIndex()) {
		g.flushAck()
	}
	g.outbox.ack = m
}

// flush ends a turn: what has waited in the outbox leaves.
func (g *group) flush() {
	if g.err != nil {
		g.outbox = outbox{}
		return
	}
	g.flushAck()
	for _, m := range g.outbox.notices {
		if g.role != raft.StateLeader || ident.Term(m.GetTerm()) != g.term {
			break // the next leader tells
		}
		f := g.follower(ident.ReplicaID(m.GetTo()))
		f.sentAge, f.due = 0, false
		g.core.metrics.messagesNotice.Inc()
		g.sendOn(Data, f.id, &nyalav1.GroupMessage{Kind: &nyalav1.GroupMessage_CommitNotice{CommitNotice: &nyalav1.CommitNotice{
			Term: m.GetTerm(), Commit: m.GetCommit(), Index: m.GetIndex(), LogTerm: m.GetLogTerm(),
		}}})
	}
	g.outbox.notices = nil
}

// flushAck sends the acknowledgement that waits, unless it says what was said and nobody asks again.
func (g *group) flushAck() {
	m := g.outbox.ack
	if g.outbox.ack = nil; m == nil {
		return
	}
	a, term, index := &g.acknowledged, ident.Term(m.GetTerm()), ident.Index(m.GetIndex())
	if term == a.term && index == a.index && !a.wanted {
		return
	}
	a.term, a.index, a.wanted = term, index, false
	g.sendRaft(Data, m, &nyalav1.GroupMessage{KnownCommit: uint64(g.tellCommitted())})
}

// newLeader forgets what was said to another leader, or in another term.
func (g *group) newLeader() {
	g.acknowledged.commit, g.acknowledged.commitAge = 0, 0
	g.lag.index = 0
}

// tellCommitted is what an answer says to be known committed.
func (g *group) tellCommitted() ident.Index {
	g.acknowledged.commit, g.acknowledged.commitAge = g.commit, 0
	return g.commit
}

// heartbeatLater says whether a heartbeat of raft's isn't sent now: something else has gone out within the interval, to a
// member that answers and gets its log as it grows.
func (g *group) heartbeatLater(to ident.ReplicaID) bool {
	f, ticks := g.follower(to), int32(g.core.cfg.HeartbeatTicks)
	if g.core.cfg.PushCommit && f.sentAge < ticks && f.heardAge < ticks {
		if _, ok := g.replicating(to); ok {
			f.due = true
			return true
		}
	}
	f.due = false
	return false
}

// pushTick moves time on: a leader sends the heartbeats that have waited long enough, a follower tells its leader of a commit
// index that it has learnt by a notice alone.
func (g *group) pushTick() {
	switch g.role {
	case raft.StateLeader:
		for i := range g.followers {
			f := &g.followers[i]
			f.sentAge, f.heardAge = f.sentAge+1, f.heardAge+1
			if f.due {
				g.lateHeartbeat(f)
			}
		}
	case raft.StateFollower:
		a := &g.acknowledged
		if g.lead == 0 || g.commit <= a.commit || !g.core.cfg.PushCommit {
			return
		}
		if a.commitAge++; a.commitAge > 1 {
			g.sendHeartbeat(&raftpb.Message{
				Type: raftpb.MsgHeartbeatResp.Enum(), From: new(uint64(g.cfg.Replica)), To: new(uint64(g.lead)), Term: new(uint64(g.term)),
			})
		}
	default:
	}
}

// lateHeartbeat sends a heartbeat that has waited if an interval has passed, or less where a notice may have been lost.
func (g *group) lateHeartbeat(f *follower) {
	ticks := int32(g.core.cfg.HeartbeatTicks)
	match, _ := g.replicating(f.id)
	commit := min(match, g.commit)
	if f.sentAge < ticks && (f.known >= commit || f.sentAge < min(lateTicks, ticks)) {
		return
	}
	f.due = false
	g.sendHeartbeat(&raftpb.Message{
		Type: raftpb.MsgHeartbeat.Enum(), From: new(uint64(g.cfg.Replica)), To: new(uint64(f.id)), Term: new(uint64(g.term)), Commit: new(uint64(commit)),
	})
}

// receiveNotice takes a new commit index from the leader: to raft it is an append without entries.
func (g *group) receiveNotice(from ident.ReplicaID, n *nyalav1.CommitNotice) (ignored string) {
	if n.GetTerm() == 0 || n.GetLogTerm() > n.GetTerm() {
		return ignoredMalformed
	}
	return g.receiveRaft(&raftpb.Message{
		Type: raftpb.MsgApp.Enum(), From: new(uint64(from)), To: new(uint64(g.cfg.Replica)), Term: new(n.GetTerm()),
		Commit: new(n.GetCommit()), Index: new(n.GetIndex()), LogTerm: new(n.GetLogTerm()),
	}, aside{notice: true})
}

// commitLag measures at a follower how long an entry that is durable waits to be known committed: one entry at a time, the
// last of an append.
type commitLag struct {
	index ident.Index // 0: nothing is measured
	since time.Duration
}

// durable notes that entries through last are durable here.
func (l *commitLag) durable(g *group, last ident.Index) {
	switch {
	case last == 0 || g.role != raft.StateFollower:
	case last <= g.commit:
		g.core.metrics.commitLag.Observe(0)
	case l.index == 0:
		l.index, l.since = last, g.core.now
	}
}

// committed notes a new commit index.
func (l *commitLag) committed(g *group) {
	if l.index == 0 {
		return
	}
	if g.role != raft.StateFollower {
		l.index = 0
	} else if g.commit >= l.index {
		g.core.metrics.commitLag.Observe((g.core.now - l.since).Seconds())
		l.index = 0
	}
}
