package consensus

import (
	"encoding/binary"

	"go.etcd.io/raft/v3"

	"github.com/nyaladb/nyala/internal/ident"
)

// readQueue batches reads: those that wait when a round begins share it; one that arrives later waits for the next,
// since a round may only vouch for what was acknowledged before it began (I7).
type readQueue struct {
	waiting []Ticket
	round   []Ticket // of the round under way
	id      uint64   // of the last round begun
	running bool
}

// runReads begins a round if reads wait and none is under way. It says whether raft has been stepped.
//
// The own-term entry is waited for here: raft answers a single voter at once, from a commit index that may lag behind
// what was acknowledged before a restart.
func (g *group) runReads() bool {
	q := &g.reads
	if len(q.waiting) == 0 {
		return false
	}
	if g.role != raft.StateLeader {
		g.failReads(g.notLeader)
		return false
	}
	if q.running || !g.ready() {
		return false
	}
	if g.core.planted(mistakeReadWithoutRound) {
		for _, t := range q.waiting {
			g.core.done(Done{Ticket: t, OpID: ident.OpID{Term: g.term, Index: g.commit}})
		}
		q.waiting = nil
		return false
	}
	q.id++
	q.running = true
	q.round, q.waiting = q.waiting, nil
	g.core.metrics.readRounds.Inc()
	g.startRead(binary.LittleEndian.AppendUint64(nil, q.id))
	return true
}

// readsConfirmed answers the round that raft has confirmed.
func (g *group) readsConfirmed(states []raft.ReadState) {
	q := &g.reads
	for _, s := range states {
		if !q.running || len(s.RequestCtx) != 8 || binary.LittleEndian.Uint64(s.RequestCtx) != q.id {
			continue
		}
		for _, t := range q.round {
			g.core.done(Done{Ticket: t, OpID: ident.OpID{Term: g.term, Index: ident.Index(s.Index)}})
		}
		q.round, q.running = nil, false
	}
}

// again begins the round under way anew: raft looks whether it is won when a member answers, and of a config with one voter left
// none may.
func (q *readQueue) again() {
	q.waiting = append(q.round, q.waiting...)
	q.round, q.running = nil, false
}

// failReads answers every read with an error: the round dies with the leadership.
func (g *group) failReads(why func() error) {
	q := &g.reads
	for _, ts := range [][]Ticket{q.round, q.waiting} {
		for _, t := range ts {
			g.core.done(Done{Ticket: t, Err: why()})
		}
	}
	q.round, q.waiting, q.running = nil, nil, false
}

func (q *readQueue) cancel(t Ticket) bool {
	return removeTicket(&q.waiting, t) || removeTicket(&q.round, t)
}

func removeTicket(ts *[]Ticket, t Ticket) bool {
	for i := range *ts {
		if (*ts)[i] == t {
			*ts = append((*ts)[:i], (*ts)[i+1:]...)
			return true
		}
	}
	return false
}
