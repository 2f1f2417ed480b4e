package consensus

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/quorum"
	"go.etcd.io/raft/v3/raftpb"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/clock"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/wal"
)

// Refusal is a run of a leader's entries that was not taken because its first timestamp is beyond the guard of a follower:
// of a replica here, or of another that has told its leader here.
type Refusal struct {
	Tablet ident.TabletID
	// From is the leader, By the follower.
	From, By  ident.ReplicaID
	Index     ident.Index
	Timestamp hybridtime.Timestamp
	// Reading is the follower's clock; 0: unknown.
	Reading hybridtime.Timestamp
	// Here: the follower is the one on this server.
	Here bool
}

// refused is what a leader knows of a follower that refuses its entries from index on.
type refused struct {
	index       ident.Index
	ts, reading hybridtime.Timestamp
	age         int // ticks since the follower said so last
	lasts       int // ticks since it said so first of this entry
}

// holdHeartbeats is for how many heartbeat intervals a leader doesn't offer a follower what it has refused. A follower answers
// at most once per interval, so each offer after that can be answered.
const holdHeartbeats = 2

// refuseAhead takes entries out of an append whose timestamps are beyond this server's guard, unless they are known
// committed: what is refused is never written. The message still counts as word from the leader. The leader is told, and
// offers them again later; they are taken when the clocks agree.
func (g *group) refuseAhead(m *raftpb.Message) {
	for i, e := range m.GetEntries() {
		if e.GetIndex() <= m.GetCommit() {
			continue
		}
		info, err := wal.DecodeEntry(e)
		if err != nil || info.Timestamp == 0 {
			continue // a bad entry fails the replica where its timestamps are checked
		}
		if err := g.core.clock.CheckAhead(info.Timestamp); err != nil {
			g.core.metrics.refused[sideFollower].Add(float64(len(m.GetEntries()) - i))
			m.Entries = m.Entries[:i]
			g.tellRefused(m, ident.Index(e.GetIndex()), info.Timestamp, err)
			return
		}
	}
}

// tellRefused answers the leader, at most once per heartbeat interval and term: a leader that hasn't been told goes on offering.
func (g *group) tellRefused(m *raftpb.Message, index ident.Index, ts hybridtime.Timestamp, why error) {
	term := ident.Term(m.GetTerm())
	if term < g.term || term == g.refusedIn && g.refusedAgo < g.core.cfg.HeartbeatTicks {
		return
	}
	g.refusedAgo, g.refusedIn = 0, term
	r := Refusal{
		Tablet: g.cfg.Tablet, From: ident.ReplicaID(m.GetFrom()), By: g.cfg.Replica, Index: index, Timestamp: ts, Here: true,
	}
	var ahead *clock.AheadError
	if errors.As(why, &ahead) {
		r.Reading = ahead.Now
	}
	g.core.out.Refusals = append(g.core.out.Refusals, r)
	g.core.metrics.messagesRefused.Inc()
	g.sendOn(Control, r.From, &nyalav1.GroupMessage{Kind: &nyalav1.GroupMessage_EntryRefused{EntryRefused: &nyalav1.EntryRefused{
		Term: m.GetTerm(), Index: uint64(index), Timestamp: uint64(ts), Reading: uint64(r.Reading),
	}}})
}

// receiveRefused notes at the leader that a follower refuses entries.
func (g *group) receiveRefused(from ident.ReplicaID, m *nyalav1.EntryRefused) {
	g.drain()
	index := ident.Index(m.GetIndex())
	if g.err != nil || g.role != raft.StateLeader || ident.Term(m.GetTerm()) != g.term || index > g.last || g.peer(from) == nil {
		return
	}
	g.core.metrics.refused[sideLeader].Inc()
	r := &refused{index: index, ts: hybridtime.Timestamp(m.GetTimestamp()), reading: hybridtime.Timestamp(m.GetReading())}
	if old := g.refusers[from]; old != nil && old.index < index {
		r.index, r.ts = old.index, old.ts
	}
	if old := g.refusers[from]; old != nil && old.index == r.index {
		r.lasts = old.lasts
	}
	if g.refusers == nil {
		g.refusers = make(map[ident.ReplicaID]*refused)
	}
	g.refusers[from] = r
	g.forgetRefused(0)
	if g.refusers[from] == nil {
		return // it has taken it since, or has to
	}
	g.core.touch(g)
	g.core.out.Refusals = append(g.core.out.Refusals, Refusal{
		Tablet: g.cfg.Tablet, From: g.cfg.Replica, By: from, Index: index, Timestamp: r.ts, Reading: r.reading,
	})
}

// forgetRefused ages what followers refuse, and forgets what they have taken, must take as it is committed, or haven't spoken
// of for long.
func (g *group) forgetRefused(ticks int) {
	if len(g.refusers) == 0 {
		return
	}
	for id, r := range g.refusers {
		r.lasts += ticks
		if r.age += ticks; r.index <= g.commit || r.age >= 2*g.core.cfg.ElectionTicks {
			delete(g.refusers, id)
		}
	}
	g.progress(func(id ident.ReplicaID, _ bool, pr progress) {
		if r := g.refusers[id]; r != nil && uint64(r.index) <= pr.Match {
			delete(g.refusers, id)
		}
	})
}

// holdBack takes out of an append what its follower has just refused, and says whether the rest isn't worth sending: what
// follows upon a refused entry would be rejected. Without it the two would go round as fast as the network lets them: a
// follower that misses the first of several appends rejects the others, raft then offers all of them anew.
func (g *group) holdBack(m *raftpb.Message) (drop bool) {
	r := g.refusers[ident.ReplicaID(m.GetTo())]
	if r == nil || r.age >= holdHeartbeats*g.core.cfg.HeartbeatTicks || ident.Index(m.GetCommit()) >= r.index {
		return false
	}
	if ident.Index(m.GetIndex()) >= r.index {
		return true
	}
	if n := uint64(r.index) - m.GetIndex() - 1; n < uint64(len(m.GetEntries())) {
		m.Entries = m.Entries[:n]
	}
	return false
}

// stalled says what keeps this leader from committing anything: so many voters refuse an entry of it that no majority can take
// it, or some do and nobody else has helped for as long as the entry is held back. "": nothing. It ends when the clocks agree,
// or when somebody is shown to be wrong and goes.
func (g *group) stalled() string {
	if len(g.refusers) == 0 || g.role != raft.StateLeader {
		return ""
	}
	votes := make(map[uint64]bool, len(g.refusers))
	var by []string
	var first *refused
	long := false
	for id, r := range g.refusers {
		if r.index <= g.commit {
			continue
		}
		votes[uint64(id)] = false
		long = long || r.lasts >= holdHeartbeats*g.core.cfg.HeartbeatTicks
		by = append(by, fmt.Sprint(id))
		if first == nil || r.index < first.index {
			first = r
		}
	}
	if first == nil || !long && g.voters.VoteResult(votes) != quorum.VoteLost {
		return ""
	}
	slices.Sort(by)
	return fmt.Sprintf("clocks: entry %d at %s is too far ahead of the clocks of replicas %s", first.index, first.ts, strings.Join(by, ", "))
}

func errStalled(tablet ident.TabletID, why string) error {
	return status.New(status.Clock, "tablet %s: %s; it takes no writes until the clocks agree", tablet, why)
}
