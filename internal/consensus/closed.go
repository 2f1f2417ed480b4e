package consensus

import (
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/quorum"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

// Closed timestamps. A leader closes T when a majority of the voters (of both halves of a joint config) has promised T to
// it in its term; with T goes the index of the last entry at or below T in its log at that moment (I5, I6).
//
// Why it holds. A promise of T made in term t is carried, by the voter's memory or after a restart by its durable mark, in
// every vote the voter casts later; a vote for a later term is cast after the voter has left t, so after the promise. The
// votes that make a later leader and the promises that closed T share a voter, so that leader begins above T, and so does
// each one after it, whatever clocks do. The closing leader itself has promised, so it stamps above T from the beginning of
// the round on. And it had committed an entry of its own term, so its log held every entry that was ever committed in an
// earlier term: none at or below T can appear behind the index.

// closeQueue is what a replica has under way about closed timestamps.
type closeQueue struct {
	waiting []closeWaiter
	asks    []closeAsk // of other replicas, at the leader
	round   closeRound // at the leader
	asked   hybridtime.Timestamp
	// askAge counts ticks since the question to the leader went out.
	askAge int
	// closed is the highest closed timestamp this replica knows, with its index.
	closed stamp
}

type closeWaiter struct {
	ts     hybridtime.Timestamp
	ticket Ticket
}

type closeAsk struct {
	from ident.ReplicaID
	ts   hybridtime.Timestamp
	age  int
}

type closeRound struct {
	running  bool
	term     ident.Term
	ts       hybridtime.Timestamp
	promised map[uint64]bool
	age      int
}

// promiseAnswer is a promise that waits for its mark: to another replica, or to this one, which leads.
type promiseAnswer struct {
	to   ident.ReplicaID
	term ident.Term
	ts   hybridtime.Timestamp
}

// closeTimestamp takes a request of this server.
func (g *group) closeTimestamp(ts hybridtime.Timestamp, t Ticket) {
	g.core.metrics.closeRequests.Inc()
	if err := g.core.clock.CheckAhead(ts); err != nil {
		g.core.done(Done{Ticket: t, Err: status.Wrap(status.InvalidArgument, err, "tablet %s: close %s", g.cfg.Tablet, ts)})
		return
	}
	if len(g.closing.waiting) >= g.core.cfg.Limits.MaxWaiting {
		g.core.done(Done{Ticket: t, Err: errTooBusy(g.cfg.Tablet, "too many reads wait for a closed timestamp")})
		return
	}
	g.closing.waiting = append(g.closing.waiting, closeWaiter{ts, t})
	g.core.touch(g)
}

// runCloses answers what can be answered and asks for what is needed. It is called when nothing of raft's is left to
// handle: role, term, commit and stamps are those of raft's log at this moment.
func (g *group) runCloses() {
	q := &g.closing
	for {
		g.endRound()
		g.answerCloses()
		need := q.need()
		if need == 0 {
			q.round, q.asked = closeRound{}, 0
			return
		}
		if g.role != raft.StateLeader {
			g.askLeader(need)
			return
		}
		if q.round.running {
			g.askAgain()
			return
		}
		mayClose := g.ready() && g.configSettled() || g.core.planted(mistakeCloseBeforeOwnTerm)
		if !mayClose || !g.beginRound(need) {
			return
		}
	}
}

// need is the highest timestamp that isn't closed yet and that somebody waits for; 0: none.
func (q *closeQueue) need() (need hybridtime.Timestamp) {
	for _, w := range q.waiting {
		if w.ts > q.closed.ts {
			need = max(need, w.ts)
		}
	}
	for _, a := range q.asks {
		need = max(need, a.ts)
	}
	return need
}

// answerCloses answers those whose timestamp is closed. A request of this server waits until the index is known committed
// here: the entry there may never be, if its leader goes first, and then the next leader is asked.
func (g *group) answerCloses() {
	q := &g.closing
	waiting := q.waiting[:0]
	for _, w := range q.waiting {
		if w.ts <= q.closed.ts && q.closed.index <= g.commit {
			g.core.done(Done{Ticket: w.ticket, OpID: ident.OpID{Term: g.term, Index: q.closed.index}})
		} else {
			waiting = append(waiting, w)
		}
	}
	clear(q.waiting[len(waiting):])
	q.waiting = waiting
	if g.role != raft.StateLeader {
		q.asks = nil
		return
	}
	asks := q.asks[:0]
	for _, a := range q.asks {
		if a.ts > q.closed.ts {
			asks = append(asks, a)
			continue
		}
		g.sendGroup(a.from, &nyalav1.GroupMessage{Kind: &nyalav1.GroupMessage_Closed{Closed: &nyalav1.ClosedTimestamp{
			Term: uint64(g.term), Timestamp: uint64(q.closed.ts), Index: uint64(q.closed.index),
		}}})
	}
	q.asks = asks
}

// beginRound promises T itself and asks the other voters to. It says whether a round is under way.
func (g *group) beginRound(ts hybridtime.Timestamp) bool {
	if err := g.core.clock.Update(ts); err != nil {
		return false // beyond the guard by now: those who ask run into their deadlines
	}
	q := &g.closing
	q.round = closeRound{running: true, term: g.term, ts: ts, promised: make(map[uint64]bool)}
	g.core.metrics.closeRounds.Inc()
	g.promise(promiseAnswer{to: g.cfg.Replica, term: g.term, ts: ts})
	g.askVoters()
	return true
}

// askVoters asks the voters that haven't promised yet.
func (g *group) askVoters() {
	q := &g.closing
	q.round.age = 0
	for _, p := range members(g.cfg.Config) {
		id := p.GetReplicaId()
		if _, voter := g.voters.IDs()[id]; !voter || q.round.promised[id] || ident.ReplicaID(id) == g.cfg.Replica {
			continue
		}
		g.sendGroup(ident.ReplicaID(id), &nyalav1.GroupMessage{Kind: &nyalav1.GroupMessage_CloseRequest{
			CloseRequest: &nyalav1.CloseRequest{Term: uint64(q.round.term), Timestamp: uint64(q.round.ts)},
		}})
	}
}

// askAgain repeats what may have been lost, once per heartbeat interval.
func (g *group) askAgain() {
	if g.closing.round.age >= g.core.cfg.HeartbeatTicks {
		g.askVoters()
	}
}

// askLeader asks the leader's server for the timestamp that is needed; one question at a time.
func (g *group) askLeader(need hybridtime.Timestamp) {
	q := &g.closing
	if q.asked != 0 && q.askAge < g.core.cfg.HeartbeatTicks || g.lead == 0 || g.lead == g.cfg.Replica {
		return
	}
	q.asked, q.askAge = need, 0
	g.sendGroup(g.lead, &nyalav1.GroupMessage{Kind: &nyalav1.GroupMessage_CloseQuestion{
		CloseQuestion: &nyalav1.CloseQuestion{Timestamp: uint64(need)},
	}})
}

// endRound closes the round's timestamp if enough have promised it. The index is fixed here, once.
func (g *group) endRound() {
	q := &g.closing
	if !q.round.running || g.role != raft.StateLeader || q.round.term != g.term || !g.configSettled() {
		return
	}
	won := g.voters.VoteResult(q.round.promised) == quorum.VoteWon
	if g.core.planted(mistakeCloseOnMinority) {
		won = len(q.round.promised) > 0
	}
	if won {
		q.closed = stamp{index: g.stamps.through(q.round.ts), ts: q.round.ts}
		q.round = closeRound{}
	}
}

// promise makes a promise in this step: from here on nothing at or below ts is stamped by this replica, and each vote it
// casts says so. The answer leaves once the mark is durable (I5).
func (g *group) promise(p promiseAnswer) {
	g.promised = max(g.promised, p.ts)
	if g.core.clock.DurablePromise() >= p.ts || g.core.planted(mistakePromiseNotDurable) {
		g.promiseDurable(&p)
		return
	}
	seq := g.handOut(Append{Promise: p.ts})
	g.appends.pending = append(g.appends.pending, pendingAppend{real: true, seq: seq, promise: &p})
}

// promiseDurable lets a promise count: here, if its round still goes on, or at the leader that asked for it.
func (g *group) promiseDurable(p *promiseAnswer) {
	if p.to == g.cfg.Replica {
		g.countPromise(p.to, p.term, p.ts)
		return
	}
	g.core.metrics.promisesMade.Inc()
	g.sendPromise(*p, false)
}

func (g *group) sendPromise(p promiseAnswer, refused bool) {
	g.sendGroup(p.to, &nyalav1.GroupMessage{Kind: &nyalav1.GroupMessage_ClosePromise{ClosePromise: &nyalav1.ClosePromise{
		Term: uint64(p.term), Timestamp: uint64(p.ts), Refused: refused,
	}}})
}

// countPromise notes a promise for the round of the same term; whether the round is won is seen once raft's state is
// settled, so that nothing is counted after the leadership is lost.
func (g *group) countPromise(from ident.ReplicaID, term ident.Term, ts hybridtime.Timestamp) {
	r := &g.closing.round
	if r.running && r.term == term && ts >= r.ts {
		r.promised[uint64(from)] = true
		g.core.touch(g)
	}
}

// receiveCloseRequest answers a leader that asks for a promise. The term is looked at in this step, with everything of
// raft's handled: a replica that has left the term promises nothing for it.
func (g *group) receiveCloseRequest(from ident.ReplicaID, r *nyalav1.CloseRequest) {
	g.drain()
	if g.err != nil {
		return
	}
	p := promiseAnswer{to: from, term: ident.Term(r.GetTerm()), ts: hybridtime.Timestamp(r.GetTimestamp())}
	inTerm := p.term == g.term && g.role == raft.StateFollower && (g.lead == from || g.lead == 0)
	if g.core.planted(mistakePromiseAfterTerm) {
		inTerm = true
	}
	if !inTerm || g.core.clock.CheckAhead(p.ts) != nil {
		g.core.metrics.promisesRefused.Inc()
		g.sendPromise(p, true)
		return
	}
	g.promise(p)
}

// receiveCloseQuestion takes another replica's wish for a closed timestamp.
func (g *group) receiveCloseQuestion(from ident.ReplicaID, ts hybridtime.Timestamp) {
	g.drain()
	if g.err != nil || g.role != raft.StateLeader || g.core.clock.CheckAhead(ts) != nil {
		return // it asks again, and runs into its caller's deadline if nothing changes
	}
	g.core.touch(g)
	q := &g.closing
	for i := range q.asks {
		if q.asks[i].from == from {
			q.asks[i].ts, q.asks[i].age = max(q.asks[i].ts, ts), 0
			return
		}
	}
	q.asks = append(q.asks, closeAsk{from: from, ts: ts}) // at most one per member
}

// receiveClosed takes a leader's answer. It stays true for ever, whatever the term.
func (g *group) receiveClosed(c *nyalav1.ClosedTimestamp) {
	if ts := hybridtime.Timestamp(c.GetTimestamp()); ts > g.closing.closed.ts {
		g.closing.closed = stamp{index: ident.Index(c.GetIndex()), ts: ts}
	}
	g.closing.asked = 0
	g.core.touch(g)
}

// forgetAnswer is called when leader or term changes: an index that isn't known committed here may never be reached, so
// the next leader is asked. It is not wrong, and a lower one may do.
func (g *group) forgetAnswer() {
	if g.closing.closed.index > g.commit {
		g.closing.closed = stamp{}
	}
	g.closing.asked = 0
}

// leadershipLost drops the round: from here on no promise is counted.
func (q *closeQueue) leadershipLost() {
	q.round, q.asks = closeRound{}, nil
}

// tick ages what is under way; it says whether something is to be asked again.
func (g *group) closeTick() (due bool) {
	q := &g.closing
	if q.round.running {
		q.round.age++
		due = q.round.age >= g.core.cfg.HeartbeatTicks
	}
	if len(q.waiting) > 0 {
		q.askAge++
		due = due || q.askAge >= g.core.cfg.HeartbeatTicks
	}
	asks := q.asks[:0]
	for _, a := range q.asks {
		if a.age++; a.age < 2*g.core.cfg.ElectionTicks { // its replica asks every heartbeat interval while it wants it
			asks = append(asks, a)
		}
	}
	q.asks = asks
	return due
}

func (q *closeQueue) cancel(t Ticket) bool {
	for i := range q.waiting {
		if q.waiting[i].ticket == t {
			q.waiting = append(q.waiting[:i], q.waiting[i+1:]...)
			return true
		}
	}
	return false
}

func (q *closeQueue) fail(c *Core, err error) {
	for _, w := range q.waiting {
		c.done(Done{Ticket: w.ticket, Err: err})
	}
	*q = closeQueue{}
}
