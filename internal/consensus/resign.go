package consensus

import (
	"cmp"
	"fmt"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/invariant"
)

// A leader whose entries are refused because its clock is the one that is wrong has to go, and so that the next one can be
// elected by those who refused, it first cuts what they don't take off its log (I11).
//
// What may be cut: entries of its own term that it hasn't counted as committed, as long as it has not been started anew since
// it led. Nobody else counts entries of that term, so the cut is the same as a crash before they were written. It never leads,
// counts or closes anything in the term again, or there would be two entries at one (term, index). Entries of earlier terms may
// have been counted by their own leaders; after a restart the replica doesn't know what it had counted: neither is ever cut.
//
// Raft can't cut its own log. So the node is given up in the step that decides the cut: nothing that waits for it is released
// any more, and messages are dropped as if lost. When the cut is durable, and with it all that was appended before, a new node
// starts on the log, as a follower in the same term with the same vote. Only then somebody is asked to campaign.

// resignation is how a replica left the term that it led in.
type resignation struct {
	// term is the one that it leads no more in; 0: none.
	term ident.Term
	// age counts the ticks since.
	age int
	// ask are the replicas that may be asked to campaign, the best first.
	ask []ident.ReplicaID
	// early: asked before the cut, which a test has planted.
	early bool
}

// leftElections is for how many election timeouts a replica that has resigned doesn't campaign in the term that it left: those
// that it has asked come first.
const leftElections = 4

// hasLeft says whether the replica has resigned from this term, and still leaves it to others to campaign.
func (g *group) hasLeft() bool {
	return g.left.term == g.term && g.left.term != 0 && g.left.age < leftElections*g.core.cfg.ElectionTicks
}

// mayHaveToGo says whether it is worth looking closer: this replica leads, or led until now, with entries that aren't committed.
// One that has resigned may find more to cut when its clock is set right, as long as it is in the term.
func (g *group) mayHaveToGo() bool {
	return g.ledTerm == g.term && g.ledTerm != 0 && (len(g.stamps.tail) > 0 || len(g.refusers) > 0)
}

// mustGo says whether this replica has to leave the term that it leads in, because an entry that isn't committed is too far
// ahead: by its own clock, or by others' while most say that its own clock is off. from is where its log is to be cut; behind
// its end, nothing is. It is called with everything of raft's handled: what is counted as committed is known.
func (g *group) mustGo() (from ident.Index, why cause) {
	if g.err != nil || g.frozen || !g.mayHaveToGo() || !g.otherVoters() {
		return 0, causeNone
	}
	first := g.firstAhead()
	if first != 0 {
		why = causeQuarantined
	}
	if g.core.blamed {
		if refused := g.firstRefused(); refused != 0 && (first == 0 || refused < first) {
			first, why = refused, causeBlamed
		}
	}
	if first == 0 {
		return 0, causeNone
	}
	from = g.cutPoint(first)
	if from > g.last && g.role != raft.StateLeader {
		return 0, causeNone // it leads no more and holds nothing of its own
	}
	return from, why
}

// cutPoint is where to cut so that nothing from first on is left of what may be cut.
func (g *group) cutPoint(first ident.Index) ident.Index {
	from := first
	if !g.core.planted(mistakeCutsInherited) {
		from = max(from, g.ownFirst)
	}
	if g.core.planted(mistakeCutsCounted) && g.commit > g.ownFirst {
		return min(from, g.commit)
	}
	return max(from, g.commit+1)
}

// firstAhead is the first entry that isn't committed and is beyond this server's own guard; 0: none is.
func (g *group) firstAhead() ident.Index {
	tail := g.stamps.tail
	if len(tail) == 0 || g.core.clock.CheckAhead(g.stamps.last()) == nil {
		return 0
	}
	n, _ := slices.BinarySearchFunc(tail, true, func(s stamp, _ bool) int {
		if g.core.clock.CheckAhead(s.ts) == nil {
			return -1
		}
		return 1
	})
	if n == len(tail) {
		return 0 // its clock moved between the two looks
	}
	return tail[n].index
}

// firstRefused is the first entry that isn't committed and that a follower has said it refuses, or that none of those is known
// to hold: what they refuse may have begun before the entry that they named. 0: nobody refuses.
func (g *group) firstRefused() (first ident.Index) {
	for _, r := range g.refusers {
		if r.index > g.commit && (first == 0 || r.index < first) {
			first = r.index
		}
	}
	if first == 0 {
		return 0
	}
	var held ident.Index
	g.progress(func(id ident.ReplicaID, _ bool, pr progress) {
		if g.refusers[id] != nil {
			held = max(held, ident.Index(pr.Match))
		}
	})
	return min(first, held+1)
}

func (g *group) otherVoters() bool {
	ids := g.voters.IDs()
	delete(ids, uint64(g.cfg.Replica))
	return len(ids) > 0
}

// goIfMust resigns if this replica has to; it says whether it did.
func (g *group) goIfMust() bool {
	if !g.mayHaveToGo() {
		return false
	}
	g.drain()
	from, why := g.mustGo()
	if why == causeNone {
		return false
	}
	g.resign(from, why)
	return true
}

// resign gives the node up and cuts the log from the given index on, if there is anything.
func (g *group) resign(from ident.Index, why cause) {
	ask := g.left.ask
	if g.left.term != g.term {
		ask = g.whomToAsk()
	}
	if g.core.planted(mistakeAsksFirst) && !g.left.early {
		g.left = resignation{ask: ask, early: true}
		g.askNext()
		return
	}
	g.frozen = true
	g.left = resignation{term: g.term, ask: ask}
	for i := range g.appends.pending {
		p := &g.appends.pending[i]
		p.responses, p.held, p.promise = nil, nil, nil
	}
	if g.role == raft.StateLeader {
		if g.transfer.to == 0 {
			g.core.metrics.handedOver[why].Inc()
		}
		g.leadershipLost()
	}
	g.role, g.lead = raft.StateFollower, 0
	g.forgetAnswer()
	a := Append{}
	if from <= g.last {
		a.CutSuffix = from
		g.core.metrics.suffixCuts.Inc()
		g.stamps.truncate(from)
		g.truncateConfigs(from, nil)
		g.last = from - 1
	}
	seq := g.handOut(a)
	g.appends.pending = append(g.appends.pending, pendingAppend{real: true, seq: seq, resigned: true})
	g.core.touch(g)
}

// whomToAsk returns the voters that refuse entries, and where none does all others: the ones with the longest logs first.
func (g *group) whomToAsk() (ask []ident.ReplicaID) {
	match := map[ident.ReplicaID]uint64{}
	g.progress(func(id ident.ReplicaID, learner bool, pr progress) {
		if !learner && id != g.cfg.Replica {
			match[id] = pr.Match
			ask = append(ask, id)
		}
	})
	if refuse := slices.DeleteFunc(slices.Clone(ask), func(id ident.ReplicaID) bool { return g.refusers[id] == nil }); len(refuse) > 0 {
		ask = refuse
	}
	slices.SortStableFunc(ask, func(a, b ident.ReplicaID) int { return cmp.Compare(match[b], match[a]) })
	return ask
}

// startAnew goes on on the cut log with a new node: a follower of the same term, with the same vote.
func (g *group) startAnew() {
	log := startLog{GroupLog: g.log, applied: g.handedOn(), commit: g.commit}
	cfg := g.raftConfig(g.core.cfg, log)
	if g.core.planted(mistakeLeadsOn) {
		log.termBefore = true
		cfg.Storage, cfg.PreVote = log, false
	}
	if err := g.startNode(cfg); err != nil {
		g.fail(fmt.Errorf("go on behind a cut of the log: %w", err))
		return
	}
	g.frozen = false
	g.foreign = len(g.applying)
	if g.core.planted(mistakeLeadsOn) {
		g.leadOn()
		return
	}
	st := g.node.BasicStatus()
	invariant.Check(ident.Term(st.HardState.GetTerm()) == g.term && ident.Index(st.HardState.GetCommit()) == g.commit && st.RaftState == raft.StateFollower,
		"tablet %s: after a cut: %v in term %d, committed %d; before: term %d, committed %d", g.cfg.Tablet, st.RaftState,
		st.HardState.GetTerm(), st.HardState.GetCommit(), g.term, g.commit)
	if from, why := g.mustGo(); why != causeNone {
		g.resign(from, why) // its clock has been set right meanwhile, and shows more
		return
	}
	g.askNext()
	g.core.touch(g)
}

// leadOn is a mistake that tests plant: the replica is made leader of the same term again.
func (g *group) leadOn() {
	g.campaign()
	for id := range g.voters.IDs() {
		if id != uint64(g.cfg.Replica) {
			_ = g.step(&raftpb.Message{Type: raftpb.MsgVoteResp.Enum(), From: new(id), To: new(uint64(g.cfg.Replica)), Term: new(uint64(g.term))})
		}
	}
	g.core.touch(g)
}

// handedOn is the last entry that the state machine has been given.
func (g *group) handedOn() ident.Index {
	if n := len(g.applying); n > 0 {
		ents := g.applying[n-1].GetEntries()
		return ident.Index(ents[len(ents)-1].GetIndex())
	}
	return g.appliedTo
}

// askNext asks the next of those who may take over to campaign at once.
func (g *group) askNext() {
	q := g.left.ask
	if len(q) == 0 {
		return
	}
	to := q[0]
	copy(q, q[1:])
	q[len(q)-1] = to
	g.send(&raftpb.Message{Type: raftpb.MsgTimeoutNow.Enum(), From: new(uint64(g.cfg.Replica)), To: new(uint64(to)), Term: new(uint64(g.term))})
}

// leftTick asks again once per heartbeat interval, while nobody has taken over and this replica holds back.
func (g *group) leftTick() {
	if g.left.term == 0 || g.left.term != g.term || g.lead != 0 {
		return
	}
	if g.left.age++; g.hasLeft() && g.left.age%g.core.cfg.HeartbeatTicks == 0 {
		g.askNext()
	}
}
