package consensus_test

import (
	"fmt"
	"hash/fnv"
	"strings"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/consensus"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/invariant"
)

// checker holds what must be true of the whole cluster at every moment. The first breach ends the run.
type checker struct {
	w     *world
	fault string
	// only limits what is checked to the whole: what must wait for the log is then seen by its consequences alone.
	onlyWhole bool
	groups    map[ident.TabletID]*groupFacts

	commits, closes, reads, elections, cuts, majorities, lists, configs, copies int
}

// groupFacts is what is known of one tablet's group.
type groupFacts struct {
	leaders   map[ident.Term]ident.ReplicaID
	entries   map[ident.OpID]uint64 // hash of each entry ever put in a log
	committed []consensus.CommittedEntry
	// committedIn is the term of the replica that knew first of each to be committed: no earlier one than that of the leader who
	// counted it.
	committedIn []ident.Term
	closed      []closedFact
	applied     ident.Index         // anywhere
	asked       map[ident.OpID]bool // by term and replica: it has asked another to campaign
	stamped     int                 // committed entries that carry a timestamp
	promised    map[ident.ReplicaID]hybridtime.Timestamp
	// mayPromise are the requests that reached a replica in their term.
	mayPromise map[promiseFact]bool
	// heartbeats are those ever sent, and the answers.
	heartbeats map[consensus.Heartbeat]bool
	members    memberFacts
}

type promiseFact struct {
	replica ident.ReplicaID
	term    ident.Term
	ts      hybridtime.Timestamp
}

type closedFact struct {
	ts    hybridtime.Timestamp
	index ident.Index
	term  ident.Term
}

func newChecker(w *world) *checker {
	return &checker{w: w, groups: map[ident.TabletID]*groupFacts{}}
}

func (c *checker) failf(format string, args ...any) {
	if c.fault == "" {
		c.fault = fmt.Sprintf(format, args...)
	}
}

func (c *checker) group(t ident.TabletID) *groupFacts {
	g := c.groups[t]
	if g == nil {
		g = &groupFacts{
			asked: map[ident.OpID]bool{}, leaders: map[ident.Term]ident.ReplicaID{}, entries: map[ident.OpID]uint64{},
			promised: map[ident.ReplicaID]hybridtime.Timestamp{}, mayPromise: map[promiseFact]bool{},
		}
		c.groups[t] = g
	}
	return g
}

func (c *checker) appliedAnywhere(t ident.TabletID) ident.Index { return c.group(t).applied }

// append: one (term, index) is one entry, in all logs; a log is cut behind what every other one holds.
func (c *checker) append(s *simServer, a consensus.Append) {
	g := c.group(a.Tablet)
	if cut := a.CutBehind; cut.Index != 0 {
		c.cutBehind(s, a.Tablet, cut)
	}
	if a.CutSuffix != 0 {
		c.cutSuffix(s, a)
	}
	c.proposedConfig(s, a)
	for _, e := range a.Entries {
		id := ident.OpID{Term: ident.Term(e.GetTerm()), Index: ident.Index(e.GetIndex())}
		h := fnv.New64a()
		h.Write(e.GetData())
		sum := h.Sum64()
		if old, ok := g.entries[id]; ok && old != sum {
			c.failf("two entries at %s of %s", id, a.Tablet)
		}
		g.entries[id] = sum
	}
}

// committed: what one replica takes as committed is what all do; timestamps rise; nothing appears at or below a closed one.
func (c *checker) committed(s *simServer, a consensus.Apply) {
	g := c.group(a.Tablet)
	for _, e := range a.Entries {
		if n := ident.Index(len(g.committed)); e.Index <= n {
			if old := g.committed[e.Index-1]; old.OpID != e.OpID || old.Timestamp != e.Timestamp || string(old.Payload) != string(e.Payload) {
				c.failf("server %d: %s: entry %s committed where %s was", s.id, a.Tablet, e.OpID, old.OpID)
			}
			continue
		} else if e.Index != n+1 {
			c.failf("server %d: %s: entry %s committed after %d", s.id, a.Tablet, e.OpID, n)
			return
		}
		if e.Timestamp != 0 {
			g.stamped++
			for i := len(g.committed) - 1; i >= 0; i-- {
				if last := g.committed[i]; last.Timestamp != 0 {
					if e.Timestamp <= last.Timestamp {
						c.failf("%s: entry %s has timestamp %s, %s has %s", a.Tablet, e.OpID, e.Timestamp, last.OpID, last.Timestamp)
					}
					break
				}
			}
			for _, cl := range g.closed {
				if e.Timestamp <= cl.ts && e.Index > cl.index {
					c.failf("%s: entry %s at %s is committed, though %s was closed through index %d in term %d", a.Tablet, e.OpID, e.Timestamp, cl.ts, cl.index, cl.term)
				}
			}
		}
		g.committed = append(g.committed, e)
		g.committedIn = append(g.committedIn, max(e.Term, s.status(a.Tablet).Term))
		c.commits++
		c.config(a.Tablet, e)
	}
}

// apply: in order, without gaps.
func (c *checker) apply(s *simServer, st *simStore, a consensus.Apply) {
	last := ident.Index(0)
	if n := len(st.entries); n > 0 {
		last = st.entries[n-1].Index
	}
	for _, e := range a.Entries {
		if e.Index != last+1 {
			c.failf("server %d: %s: applies %d after %d", s.id, a.Tablet, e.Index, last)
		}
		last = e.Index
	}
	c.group(a.Tablet).applied = max(c.group(a.Tablet).applied, last)
}

// change: one leader per term, and it has every committed entry.
func (c *checker) change(s *simServer, st consensus.GroupStatus) {
	if st.Role != nyalav1.Role_ROLE_LEADER {
		return
	}
	g := c.group(st.Tablet)
	if other, ok := g.leaders[st.Term]; ok {
		if other != st.Replica {
			c.failf("%s: replicas %d and %d lead in term %d", st.Tablet, other, st.Replica, st.Term)
		}
		return
	}
	g.leaders[st.Term] = st.Replica
	c.elections++
	if s.fenced && len(quorumOf(st.Config).IDs()) > 1 {
		c.failf("%s: replica %d is elected in term %d though its server is fenced", st.Tablet, st.Replica, st.Term)
	}
	if s.stalled && len(quorumOf(st.Config).IDs()) > 1 {
		c.failf("%s: replica %d is elected in term %d though its log stalls", st.Tablet, st.Replica, st.Term)
	}
	c.elected(st)
	log := s.logOf(st.Tablet)
	for i, e := range g.committed {
		if g.committedIn[i] > st.Term {
			break // an old leader that learns late that it was elected
		}
		if e.Index+1 < st.FirstIndex {
			continue
		}
		term, err := log.Term(uint64(e.Index))
		if err != nil || ident.Term(term) != e.Term {
			c.failf("%s: replica %d leads term %d without the committed entry %s (%d, %v)", st.Tablet, st.Replica, st.Term, e.OpID, term, err)
			return
		}
	}
}

// statuses: applied <= committed <= last.
func (c *checker) statuses(s *simServer) {
	c.sums(s)
	for t, v := range s.views {
		st := v.Status()
		c.counted(s, &st)
		if st.Err == nil && (st.Applied > st.Commit || st.Commit > st.LastIndex) {
			c.failf("server %d: %s: applied %d, committed %d, last %d", s.id, t, st.Applied, st.Commit, st.LastIndex)
		}
	}
}

// answered: what a request was told is true.
func (c *checker) answered(s *simServer, a *asked, d consensus.Done) {
	g := c.group(a.tablet)
	switch a.kind {
	case "propose":
		for _, cl := range g.closed {
			if d.OpID.Term >= cl.term && d.Timestamp <= cl.ts {
				c.failf("%s: term %d stamps %s, though %s was closed in term %d or before", a.tablet, d.OpID.Term, d.Timestamp, cl.ts, cl.term)
			}
		}
	case "read":
		c.reads++
		if d.OpID.Index < a.floor {
			c.failf("server %d: %s: read index %d, though %d was applied before the read", s.id, a.tablet, d.OpID.Index, a.floor)
		}
	case "close":
		c.closes++
		c.closed(a.tablet, closedFact{a.ts, d.OpID.Index, d.OpID.Term})
	}
}

// closed: what was said about a closed timestamp holds for what is committed, and for all that will be.
func (c *checker) closed(t ident.TabletID, cl closedFact) {
	g := c.group(t)
	for _, e := range g.committed {
		if e.Timestamp != 0 && e.Timestamp <= cl.ts && e.Index > cl.index {
			c.failf("%s: %s closed through %d, but entry %s at %s is committed", t, cl.ts, cl.index, e.OpID, e.Timestamp)
		}
	}
	for _, old := range g.closed {
		if old.ts >= cl.ts && old.index <= cl.index && old.term <= cl.term {
			return // says less
		}
	}
	g.closed = append(g.closed, cl)
}

// delivered notes the requests for a promise that find the replica in their term.
func (c *checker) delivered(s *simServer, m *nyalav1.GroupMessage) {
	r := m.GetCloseRequest()
	t := ident.TabletID(ident.FromBytes([16]byte(m.GetTabletId())))
	if st := s.status(t); r != nil && st.Term == ident.Term(r.GetTerm()) {
		c.group(t).mayPromise[promiseFact{st.Replica, st.Term, hybridtime.Timestamp(r.GetTimestamp())}] = true
	}
}

// message: what leaves rests on what is durable.
func (c *checker) message(s *simServer, o consensus.Outgoing) {
	m := o.Message
	t := ident.TabletID(ident.FromBytes([16]byte(m.GetTabletId())))
	g := c.group(t)
	from := ident.ReplicaID(m.GetFrom())
	if p := m.GetClosePromise(); p != nil && !p.GetRefused() {
		g.promised[from] = max(g.promised[from], hybridtime.Timestamp(p.GetTimestamp()))
		if !c.onlyWhole && !g.mayPromise[promiseFact{from, ident.Term(p.GetTerm()), hybridtime.Timestamp(p.GetTimestamp())}] {
			c.failf("server %d: promises for term %d, in which it was not when it was asked", s.id, p.GetTerm())
		}
		if !c.onlyWhole && decodeMark(s.log.Meta(consensus.MetaPromiseMark)) < hybridtime.Timestamp(p.GetTimestamp()) {
			c.failf("server %d: promises %d above its durable mark", s.id, p.GetTimestamp())
		}
		return
	}
	if cl := m.GetClosed(); cl != nil {
		c.closed(t, closedFact{hybridtime.Timestamp(cl.GetTimestamp()), ident.Index(cl.GetIndex()), ident.Term(cl.GetTerm())})
	}
	if n := m.GetCommitNotice(); n != nil && g.leaders[ident.Term(n.GetTerm())] != 0 && g.leaders[ident.Term(n.GetTerm())] != from {
		c.failf("server %d: replica %d speaks as leader of term %d", s.id, from, n.GetTerm())
	}
	if m.GetRaft() == nil {
		return
	}
	rm := new(raftpb.Message)
	if err := proto.Unmarshal(m.GetRaft(), rm); err != nil {
		invariant.Check(false, "%v", err)
	}
	c.voted(t, rm)
	if c.onlyWhole {
		return
	}
	log := s.logOf(t)
	hs, last := log.HardState(), log.LastOpID()
	switch rm.GetType() {
	case raftpb.MsgTimeoutNow:
		c.asked(s, t, rm)
	case raftpb.MsgVote:
		if hs.GetTerm() < rm.GetTerm() || hs.GetTerm() == rm.GetTerm() && hs.GetVote() != rm.GetFrom() {
			c.failf("server %d: asks for votes in term %d, durable are term %d and vote %d", s.id, rm.GetTerm(), hs.GetTerm(), hs.GetVote())
		}
		if hs.GetTerm() == rm.GetTerm() && uint64(last.Index) < rm.GetIndex() {
			c.failf("server %d: claims a log through %d, durable is %s", s.id, rm.GetIndex(), last)
		}
	case raftpb.MsgPreVote:
		if hs.GetTerm()+1 == rm.GetTerm() && uint64(last.Index) < rm.GetIndex() {
			c.failf("server %d: claims a log through %d, durable is %s", s.id, rm.GetIndex(), last)
		}
	case raftpb.MsgVoteResp:
		if rm.GetReject() {
			break
		}
		if hs.GetTerm() < rm.GetTerm() || hs.GetTerm() == rm.GetTerm() && hs.GetVote() != rm.GetTo() {
			c.failf("server %d: votes for %d in term %d, durable are term %d and vote %d", s.id, rm.GetTo(), rm.GetTerm(), hs.GetTerm(), hs.GetVote())
		}
		if p := g.promised[from]; hybridtime.Timestamp(m.GetPromised()) < p {
			c.failf("server %d: a vote carries promise %d, given was %d", s.id, m.GetPromised(), p)
		}
	case raftpb.MsgAppResp:
		if !rm.GetReject() && hs.GetTerm() == rm.GetTerm() && uint64(last.Index) < rm.GetIndex() {
			c.failf("server %d: acknowledges %d in term %d, durable is %s", s.id, rm.GetIndex(), rm.GetTerm(), last)
		}
	case raftpb.MsgApp, raftpb.MsgHeartbeat:
		if g.leaders[ident.Term(rm.GetTerm())] != 0 && g.leaders[ident.Term(rm.GetTerm())] != from {
			c.failf("server %d: replica %d speaks as leader of term %d", s.id, from, rm.GetTerm())
		}
	default:
	}
}

// trace keeps the last events of a run.
type trace struct {
	lines []string
	hash  uint64
	on    bool
}

func (t *trace) add(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	h := fnv.New64a()
	h.Write([]byte(line))
	t.hash = t.hash*31 + h.Sum64()
	if t.lines = append(t.lines, line); len(t.lines) > 400 && !t.on {
		t.lines = append(t.lines[:0], t.lines[200:]...)
	}
}

func (t *trace) String() string { return strings.Join(t.lines, "\n") }

func describe(m *nyalav1.GroupMessage) string {
	if hs := m.GetHeartbeats(); hs != nil {
		return describeHeartbeats(hs)
	}
	t := ident.TabletID(ident.FromBytes([16]byte(m.GetTabletId())))
	at := func(v uint64) string { return fmt.Sprintf("at %.6f", float64(hybridtime.Timestamp(v).Micros())/1e6) }
	switch k := m.GetKind().(type) {
	case *nyalav1.GroupMessage_CommitNotice:
		n := k.CommitNotice
		return fmt.Sprintf("%s CommitNotice term %d log %d.%d commit %d", short(t), n.GetTerm(), n.GetLogTerm(), n.GetIndex(), n.GetCommit())
	case *nyalav1.GroupMessage_CloseRequest:
		return fmt.Sprintf("%s CloseRequest term %d %s", short(t), k.CloseRequest.GetTerm(), at(k.CloseRequest.GetTimestamp()))
	case *nyalav1.GroupMessage_ClosePromise:
		return fmt.Sprintf("%s ClosePromise term %d %s refused %v", short(t), k.ClosePromise.GetTerm(), at(k.ClosePromise.GetTimestamp()), k.ClosePromise.GetRefused())
	case *nyalav1.GroupMessage_CloseQuestion:
		return fmt.Sprintf("%s CloseQuestion %s", short(t), at(k.CloseQuestion.GetTimestamp()))
	case *nyalav1.GroupMessage_Closed:
		return fmt.Sprintf("%s ClosedTimestamp term %d %s index %d", short(t), k.Closed.GetTerm(), at(k.Closed.GetTimestamp()), k.Closed.GetIndex())
	case *nyalav1.GroupMessage_EntryRefused:
		return fmt.Sprintf("%s EntryRefused term %d index %d %s reading %s", short(t), k.EntryRefused.GetTerm(), k.EntryRefused.GetIndex(),
			at(k.EntryRefused.GetTimestamp()), at(k.EntryRefused.GetReading()))
	}
	if s := describeQuiet(m); s != "" {
		return short(t) + " " + s
	}
	if m.GetRaft() == nil {
		return fmt.Sprintf("%s %v", short(t), m.GetKind())
	}
	rm := new(raftpb.Message)
	if err := proto.Unmarshal(m.GetRaft(), rm); err != nil {
		invariant.Check(false, "%v", err)
	}
	s := fmt.Sprintf("%s %s term %d log %d.%d commit %d entries %d", short(t), rm.GetType(), rm.GetTerm(), rm.GetLogTerm(), rm.GetIndex(), rm.GetCommit(), len(rm.GetEntries()))
	if rm.GetReject() {
		s += " reject"
	}
	if p := m.GetPromised(); p != 0 {
		s += fmt.Sprintf(" promised %s", hybridtime.Timestamp(p))
	}
	return s
}
