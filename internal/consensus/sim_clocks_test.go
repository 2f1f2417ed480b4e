package consensus_test

import (
	"time"

	"go.etcd.io/raft/v3/quorum"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/nyaladb/nyala/internal/consensus"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/wal"
)

// Clocks that step, and what servers say of each other's: the simulated cluster's part of docs/consensus.md, "A clock that is
// wrong".

// clocks lets a clock step, or be set right, or be judged by the others.
func (w *world) clocks(s *simServer) {
	switch w.rng.IntN(8) {
	case 0:
		s.clock.offset = time.Duration(30+w.rng.IntN(90)) * time.Second
		if w.rng.IntN(4) == 0 {
			s.clock.offset = -s.clock.offset
		}
		w.trace.add("clock of s%d off by %s", s.id, s.clock.offset)
	case 1:
		s.clock.offset = 0
		w.trace.add("clock of s%d right", s.id)
	case 2, 3:
		w.judge(s)
	case 4:
		// A leader that is ahead and writes is what all this is about.
		t := w.tablets[w.rng.IntN(len(w.tablets))]
		l := w.someLeader(t, s)
		if l.up {
			l.clock.offset = time.Duration(30+w.rng.IntN(90)) * time.Second
			w.trace.add("clock of s%d off by %s", l.id, l.clock.offset)
			w.ask(l, "propose", t, 0)
		}
	default:
		w.ask(w.someLeader(w.tablets[0], s), "propose", w.tablets[w.rng.IntN(len(w.tablets))], 0)
	}
}

// judge tells a server what most others say about its clock.
func (w *world) judge(s *simServer) {
	heard, off := 0, 0
	for _, o := range w.servers {
		if o == s || !o.up {
			continue
		}
		heard++
		if (s.clock.offset-o.clock.offset).Abs() > s.clock.bound && !o.fenced {
			off++
		}
	}
	s.blamed = heard >= 2 && 2*off > heard
	w.trace.add("s%d is blamed: %v", s.id, s.blamed)
	if s.up {
		s.core.SetBlamed(s.blamed)
		w.take(s)
	}
	if w.rng.IntN(2) == 0 {
		w.fence(s, s.blamed)
	}
}

// rightOnesGoOn sets all clocks right and lets a minority stay away. Where a majority of a tablet's voters have clocks that were
// right since before anything in their logs, it has to elect and write, whatever the others hold, and long before the wall
// clock is where another's was.
func (w *world) rightOnesGoOn() {
	if w.opts.servers > 1 && w.opts.members == 0 {
		for range w.rng.IntN(w.opts.servers/2 + 1) {
			s := w.servers[w.rng.IntN(len(w.servers))]
			if s.down = true; s.up {
				w.trace.add("s%d stays away", s.id)
				w.crash(s)
			}
		}
	}
	if w.rng.IntN(2) == 0 {
		w.flight = nil
	}
	for _, s := range w.servers {
		s.noSpace = false
		w.stall(s, false)
		s.log.FailNext(0)
		if !s.up && !s.down {
			w.boot(s)
		}
		s.clock.offset = 0
		s.blamed = false
		if s.up {
			s.core.SetBlamed(false)
			s.core.SetOutOfSpace(false)
		}
		w.fence(s, false)
	}
	w.settle(6, func() bool { return false }) // by then each has looked at its log again
	for _, t := range w.tablets {
		if w.opts.members > 0 || !w.rightMajority(t) {
			continue
		}
		w.trace.add("a majority of %s has right clocks", short(t))
		w.check.majorities++
		before := w.check.group(t).stamped
		if !w.settle(200, func() bool {
			if w.check.group(t).stamped > before {
				return true
			}
			if s := w.ready(t); s != nil {
				w.ask(s, "propose", t, 0)
			}
			return false
		}) {
			w.check.failf("%s: a majority whose clocks are right doesn't go on", t)
			return
		}
	}
}

// rightMajority says whether most of a tablet's voters, in both halves of a joint config, are up and have nothing ahead of the
// true time: in their logs, their clocks, their promises.
func (w *world) rightMajority(t ident.TabletID) bool {
	right := map[uint64]bool{}
	for _, s := range w.servers {
		if s.up {
			ahead := max(s.clock.last, s.clock.promise)
			right[uint64(s.stores[t].replica)] = s.status(t).Quarantined == "" && s.clock.CheckAhead(ahead) == nil
		}
	}
	in, out := quorum.MajorityConfig{}, quorum.MajorityConfig(nil)
	c := w.config()
	for _, p := range c.GetPeers() {
		if !p.GetLearner() {
			in[p.GetReplicaId()] = struct{}{}
		}
	}
	for _, id := range c.GetOutgoingVoters() {
		if out == nil {
			out = quorum.MajorityConfig{}
		}
		out[id] = struct{}{}
	}
	return quorum.JointConfig{in, out}.VoteResult(right) == quorum.VoteWon
}

// cutSuffix: a cut takes entries of the replica's own term alone, and none that it has counted as committed. A later leader may
// have counted one without this replica.
func (c *checker) cutSuffix(s *simServer, a consensus.Append) {
	g, st := c.group(a.Tablet), s.status(a.Tablet)
	c.cuts++
	if c.onlyWhole {
		return
	}
	if a.CutSuffix <= st.Commit {
		c.failf("server %d: %s: cuts from %d, counted is %d", s.id, a.Tablet, a.CutSuffix, st.Commit)
	}
	if g.leaders[st.Term] != st.Replica {
		c.failf("server %d: %s: cuts in term %d, which it never led in", s.id, a.Tablet, st.Term)
	}
	log := s.log.Log(a.Number)
	for i := a.CutSuffix; i <= log.LastOpID().Index; i++ {
		if term, err := log.Term(uint64(i)); err != nil || ident.Term(term) > st.Term {
			break
		} else if ident.Term(term) < st.Term && !supersedes(s.appends, a, i) {
			c.failf("server %d: %s: cuts entry %d.%d in term %d", s.id, a.Tablet, term, i, st.Term)
		}
	}
}

// supersedes says whether an append under way takes the place of a group's entry.
func supersedes(as []consensus.Append, of consensus.Append, i ident.Index) bool {
	for _, a := range as {
		if a.Number == of.Number && len(a.Entries) > 0 && ident.Index(a.Entries[0].GetIndex()) <= i {
			return true
		}
	}
	return false
}

// asked: who first asks another to campaign holds no entry of its own term, beyond what is committed, that the other lacks and
// that the clocks of both refuse: it would have to be cut first, or the other could not be elected.
func (c *checker) asked(s *simServer, t ident.TabletID, m *raftpb.Message) {
	to := c.w.serverOf(t, ident.ReplicaID(m.GetTo()))
	if to == nil {
		return
	}
	log := s.logOf(t)
	leadership := ident.OpID{Term: ident.Term(m.GetTerm()), Index: ident.Index(m.GetFrom())}
	if !to.up || c.group(t).asked[leadership] {
		return
	}
	c.group(t).asked[leadership] = true
	theirs := to.status(t)
	if theirs.Term > ident.Term(m.GetTerm()) {
		return
	}
	for i := max(ident.Index(len(c.group(t).committed)), theirs.LastIndex) + 1; i <= log.LastOpID().Index; i++ {
		ents, err := log.Entries(uint64(i), uint64(i)+1, 1)
		if err != nil || len(ents) == 0 || ents[0].GetTerm() != m.GetTerm() {
			continue
		}
		info, err := wal.DecodeEntry(ents[0])
		if err == nil && info.Timestamp != 0 && to.clock.CheckAhead(info.Timestamp) != nil && s.clock.CheckAhead(info.Timestamp) != nil {
			c.failf("server %d: %s: asks replica %d to campaign while its log holds %d.%d at %s, which both refuse", s.id, t, m.GetTo(),
				ents[0].GetTerm(), i, info.Timestamp)
		}
	}
}
