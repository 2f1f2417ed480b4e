package consensus

import (
	"fmt"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/invariant"
)

// hardState is raft's, by value.
type hardState struct{ term, vote, commit uint64 }

// appendQueue holds what a group has handed to the log and what waits for it, in order. An item is either real, and then
// an Append went out with it, or it only waits for the real ones before it.
type appendQueue struct {
	pending []pendingAppend
	seq     uint64
	// now is raft's hard state, given the one that the log was last given.
	now, given hardState
}

type pendingAppend struct {
	real bool
	seq  uint64
	// last is the last entry of the append; 0: none.
	last ident.Index
	// responses go back to raft or out to others, held (vote requests) go out, once this is durable.
	responses, held []*raftpb.Message
	// promise is answered once this is durable.
	promise *promiseAnswer
	// resigned: the node has been given up, and a new one starts on the log once this is durable.
	resigned bool
	// cut is the entry that the log has been cut behind.
	cut ident.Index
}

// append hands a storage append of raft's to the log. m may be nil, when there are only vote requests to hold.
//
// A change of the commit index alone makes no commit: it is written with the next real append, and what was applied is
// known committed at a restart anyway. Its responses rest on what earlier appends hold, so they wait for those (I1).
func (g *group) append(m *raftpb.Message, held []*raftpb.Message, highest hybridtime.Timestamp) {
	q := &g.appends
	if len(held) > 0 {
		for i := range q.pending {
			q.pending[i].held = nil // of an election before, which this one takes the place of
		}
	}
	p := pendingAppend{responses: m.GetResponses(), held: held}
	ents := m.GetEntries()
	p.real = len(ents) > 0 || q.now.term != q.given.term || q.now.vote != q.given.vote
	if p.real {
		a := Append{Entries: ents, MaxTimestamp: highest}
		for _, e := range ents {
			a.Bytes += len(e.GetData())
		}
		if q.now != q.given {
			a.HardState = &raftpb.HardState{Term: new(q.now.term), Vote: new(q.now.vote), Commit: new(q.now.commit)}
			q.given = q.now
			if g.core.planted(mistakeVoteForgotten) {
				a.HardState.Vote = new(uint64(0))
			}
		}
		if n := len(ents); n > 0 {
			p.last = ident.Index(ents[n-1].GetIndex())
		}
		p.seq = g.handOut(a)
	}
	if g.core.planted(mistakeAnswerEarly) {
		g.releaseAnswers(&p)
	}
	if g.core.planted(mistakeCountsItselfEarly) {
		g.releaseOwn(&p)
	}
	q.pending = append(q.pending, p)
	g.releaseWaiting()
}

// handOut puts an append on its way to the log and returns its number.
func (g *group) handOut(a Append) uint64 {
	g.appends.seq++
	a.Tablet, a.Number, a.Seq = g.cfg.Tablet, g.cfg.Number, g.appends.seq
	g.core.out.Appends = append(g.core.out.Appends, a)
	return a.Seq
}

// appended releases what waited for the appends through seq.
func (g *group) appended(seq uint64) {
	q := &g.appends
	invariant.Check(seq <= q.seq, "tablet %s: append %d of %d is durable", g.cfg.Tablet, seq, q.seq)
	for g.err == nil && len(q.pending) > 0 && (!q.pending[0].real || q.pending[0].seq <= seq) {
		g.releaseFirst()
	}
}

// releaseWaiting releases what waits for nothing more.
func (g *group) releaseWaiting() {
	for g.err == nil && len(g.appends.pending) > 0 && !g.appends.pending[0].real {
		g.releaseFirst()
	}
}

func (g *group) releaseFirst() {
	p := g.appends.pending[0]
	g.appends.pending[0] = pendingAppend{}
	g.appends.pending = g.appends.pending[1:]
	g.lag.durable(g, p.last)
	for _, m := range p.held {
		if g.stillAsks(m) {
			g.send(m)
		}
	}
	for _, m := range p.responses {
		if m.GetTo() != uint64(g.cfg.Replica) {
			g.send(m)
			continue
		}
		g.hear(m)
		if g.err != nil {
			return
		}
	}
	if p.cut != 0 {
		g.first = p.cut + 1
	}
	if p.promise != nil {
		g.promiseDurable(p.promise)
	}
	if p.resigned {
		g.startAnew()
	}
}

// stillAsks says whether a held vote request is of the election that this replica stands in now. Another one's would do no
// harm, but it would disturb for nothing.
func (g *group) stillAsks(m *raftpb.Message) bool {
	if g.barred() != causeNone {
		return false
	}
	if m.GetType() == raftpb.MsgPreVote {
		return g.role == raft.StatePreCandidate && m.GetTerm() == uint64(g.term)+1
	}
	return g.role == raft.StateCandidate && m.GetTerm() == uint64(g.term)
}

// releaseAnswers and releaseOwn are mistakes that tests plant: what must wait for the log doesn't.
func (g *group) releaseAnswers(p *pendingAppend) {
	keep := p.responses[:0:0]
	for _, m := range p.responses {
		if m.GetTo() != uint64(g.cfg.Replica) {
			g.send(m)
		} else {
			keep = append(keep, m)
		}
	}
	p.responses = keep
}

func (g *group) releaseOwn(p *pendingAppend) {
	keep := p.responses[:0:0]
	for _, m := range p.responses {
		if m.GetTo() == uint64(g.cfg.Replica) && m.GetFrom() != raft.LocalAppendThread {
			g.hear(m)
		} else {
			keep = append(keep, m)
		}
	}
	p.responses = keep
}

// computeHeld is the index through which every member's log is known to hold the leader's entries.
func (g *group) computeHeld() ident.Index {
	held := ident.Index(^uint64(0))
	g.node.WithProgress(func(_ uint64, _ raft.ProgressType, pr progress) {
		held = min(held, ident.Index(pr.Match))
	})
	return held
}

// cutHeartbeats is how many heartbeat intervals a few entries that could be cut may lie.
const cutHeartbeats = 10

// cutTick cuts the log when other members' news have freed enough of it, and now and then whatever they have freed.
func (g *group) cutTick() {
	if g.cutAge++; g.cutAge >= cutHeartbeats*g.core.cfg.HeartbeatTicks {
		g.cutAge = 0
		g.maybeCut(1)
		return
	}
	g.maybeCut(ident.Index(g.core.cfg.Limits.MinCutEntries))
}

// maybeCut cuts the log behind what the local store holds durably and nobody needs any more (I9, mayCut), if that drops at
// least so many entries. A leader knows what members hold; followers hear it with its heartbeats.
func (g *group) maybeCut(entries ident.Index) {
	if g.durable+1 < g.first+entries || g.frozen || g.cutting() {
		return
	}
	if g.role == raft.StateLeader {
		g.heldByAll = max(g.heldByAll, g.computeHeld())
	}
	upTo := g.mayCut(min(g.durable, g.appliedTo))
	if upTo+1 < g.first+entries {
		return
	}
	term, err := g.log.Term(uint64(upTo))
	if err != nil {
		g.fail(fmt.Errorf("term of entry %d: %w", upTo, err))
		return
	}
	seq := g.handOut(Append{CutBehind: ident.OpID{Term: ident.Term(term), Index: upTo}})
	g.appends.pending = append(g.appends.pending, pendingAppend{real: true, seq: seq, cut: upTo})
	g.core.metrics.logCuts.Inc()
}

// cutting says whether a cut is under way.
func (g *group) cutting() bool {
	for i := range g.appends.pending {
		if g.appends.pending[i].cut != 0 {
			return true
		}
	}
	return false
}
