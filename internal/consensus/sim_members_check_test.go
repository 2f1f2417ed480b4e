package consensus_test

import (
	"slices"
	"strconv"
	"strings"

	"go.etcd.io/raft/v3/quorum"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/consensus"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/invariant"
	"github.com/nyaladb/nyala/internal/wal"
)

// memberFacts is what is known of one group's members.
type memberFacts struct {
	configs []*nyalav1.RaftConfig // committed, in order
	servers map[uint64]string     // of replica ids
	votes   map[ident.OpID]ident.ReplicaID
	grants  map[ident.OpID]map[uint64]bool          // by term and candidate
	counted map[ident.ReplicaID]ident.Index         // by leaders
	config  map[ident.ReplicaID]*nyalav1.RaftConfig // that leaders counted by last
}

func serverNumber(name string) int {
	n, err := strconv.Atoi(strings.TrimPrefix(name, "s"))
	if err != nil {
		invariant.Check(false, "%v", err)
	}
	return n
}

// lastConfig is the last config that is committed.
func (c *checker) lastConfig(t ident.TabletID) *nyalav1.RaftConfig {
	if cs := c.group(t).members.configs; len(cs) > 0 {
		return cs[len(cs)-1]
	}
	return c.w.config()
}

func quorumOf(c *nyalav1.RaftConfig) quorum.JointConfig {
	j := quorum.JointConfig{quorum.MajorityConfig{}, nil}
	for _, p := range c.GetPeers() {
		if !p.GetLearner() {
			j[0][p.GetReplicaId()] = struct{}{}
		}
	}
	for _, id := range c.GetOutgoingVoters() {
		if j[1] == nil {
			j[1] = quorum.MajorityConfig{}
		}
		j[1][id] = struct{}{}
	}
	return j
}

// config: a committed config follows upon the one before: voters change by way of a joint one that is left by the next; ids are
// new, and stay with their servers; it is stamped and knows its place.
func (c *checker) config(t ident.TabletID, e consensus.CommittedEntry) {
	if e.Kind != wal.KindConfig {
		return
	}
	old, now, m := c.lastConfig(t), e.Config, &c.group(t).members
	was, is := quorumOf(old), quorumOf(now)
	same := func(a, b quorum.MajorityConfig) bool { return slices.Equal(a.Slice(), b.Slice()) }
	switch {
	case e.Timestamp == 0 || now.GetOpidIndex() != uint64(e.Index):
		c.failf("%s: config entry %s has timestamp %s and calls itself %d", t, e.OpID, e.Timestamp, now.GetOpidIndex())
	case len(was[1]) > 0 && (len(is[1]) > 0 || !same(was[0], is[0])):
		c.failf("%s: the joint config %v is followed by %v", t, old, now)
	case len(was[1]) == 0 && len(is[1]) > 0 && !same(was[0], is[1]):
		c.failf("%s: the config %v is followed by %v", t, old, now)
	case len(was[1]) == 0 && len(is[1]) == 0 && !same(was[0], is[0]):
		c.failf("%s: voters change from %v to %v in one step", t, old, now)
	}
	if m.servers == nil {
		m.servers = map[uint64]string{}
	}
	for _, p := range everybody(old) {
		m.servers[p.GetReplicaId()] = p.GetServerId()
	}
	for _, p := range everybody(now) {
		known, ok := m.servers[p.GetReplicaId()]
		if ok && known != p.GetServerId() || !ok && p.GetReplicaId() < old.GetNextReplicaId() {
			c.failf("%s: id %d is given to server %s; it was of %q", t, p.GetReplicaId(), p.GetServerId(), known)
		}
	}
	m.configs = append(m.configs, now)
	c.configs++
}

// voted: a replica votes for one candidate in a term. It notes who was given votes.
func (c *checker) voted(t ident.TabletID, m *raftpb.Message) {
	to := m.GetTo()
	switch {
	case m.GetType() == raftpb.MsgVote:
		to = m.GetFrom()
	case m.GetType() != raftpb.MsgVoteResp || m.GetReject():
		return
	}
	f := &c.group(t).members
	if f.votes == nil {
		f.votes, f.grants = map[ident.OpID]ident.ReplicaID{}, map[ident.OpID]map[uint64]bool{}
	}
	vote := ident.OpID{Term: ident.Term(m.GetTerm()), Index: ident.Index(m.GetFrom())}
	if other, ok := f.votes[vote]; ok && uint64(other) != to && !c.onlyWhole {
		c.failf("%s: replica %d votes for %d and %d in term %d", t, m.GetFrom(), other, to, m.GetTerm())
	}
	f.votes[vote] = ident.ReplicaID(to)
	candidate := ident.OpID{Term: vote.Term, Index: ident.Index(to)}
	if f.grants[candidate] == nil {
		f.grants[candidate] = map[uint64]bool{}
	}
	f.grants[candidate][m.GetFrom()] = true
}

// elected: a leader has the votes of a majority of the voters, of both halves of a joint config, that count for it.
func (c *checker) elected(st consensus.GroupStatus) {
	grants := map[uint64]bool{uint64(st.Replica): true}
	for id := range c.group(st.Tablet).members.grants[ident.OpID{Term: st.Term, Index: ident.Index(st.Replica)}] {
		grants[id] = true
	}
	if quorumOf(st.Config).VoteResult(grants) != quorum.VoteWon {
		c.failf("%s: replica %d leads term %d by the votes of %v; its config is %v", st.Tablet, st.Replica, st.Term, grants, st.Config)
	}
}

// counted: what a leader counts as committed is durable at a majority of the voters of its config, or of the one before.
func (c *checker) counted(s *simServer, st *consensus.GroupStatus) {
	if st.Role != nyalav1.Role_ROLE_LEADER || st.Err != nil {
		return
	}
	f := &c.group(st.Tablet).members
	if f.counted == nil {
		f.counted, f.config = map[ident.ReplicaID]ident.Index{}, map[ident.ReplicaID]*nyalav1.RaftConfig{}
	}
	before := f.config[st.Replica]
	f.config[st.Replica] = st.Config
	if st.Commit <= f.counted[st.Replica] {
		return
	}
	f.counted[st.Replica] = st.Commit
	own := s.logOf(st.Tablet)
	if term, err := own.Term(uint64(st.Commit)); err == nil && ident.Term(term) != st.Term {
		return // an earlier leader's count
	}
	for _, config := range []*nyalav1.RaftConfig{st.Config, before} {
		if config == nil {
			continue
		}
		q, holds := quorumOf(config), map[uint64]bool{}
		for id := range q.IDs() {
			holds[id] = c.holds(st, ident.ReplicaID(id))
		}
		if q.VoteResult(holds) == quorum.VoteWon {
			return
		}
	}
	c.failf("%s: replica %d counts entry %d.%d as committed, which no majority holds; its config is %v", st.Tablet, st.Replica, st.Term, st.Commit, st.Config)
}

// holds says whether a replica's log holds what a leader has counted, or held it: a replica that was deleted since may have.
func (c *checker) holds(st *consensus.GroupStatus, id ident.ReplicaID) bool {
	s := c.w.serverOf(st.Tablet, id)
	if s == nil {
		return true
	}
	log := s.logOf(st.Tablet)
	if log.Start().Index >= st.Commit {
		return true
	}
	term, err := log.Term(uint64(st.Commit))
	return err == nil && ident.Term(term) == st.Term
}

// proposedConfig: a leader changes the config when an entry of its own term is committed, and promotes who has caught up.
func (c *checker) proposedConfig(s *simServer, a consensus.Append) {
	st := s.status(a.Tablet)
	for _, e := range a.Entries {
		if e.GetType() != raftpb.EntryConfChangeV2 || c.onlyWhole || st.Role != nyalav1.Role_ROLE_LEADER || ident.Term(e.GetTerm()) != st.Term {
			continue
		}
		if !st.Ready {
			c.failf("%s: replica %d changes the config in term %d, in which it has committed nothing", a.Tablet, st.Replica, e.GetTerm())
		}
		info, err := wal.DecodeEntry(e)
		next := new(nyalav1.RaftConfig)
		if err != nil || proto.Unmarshal(info.Payload, next) != nil {
			c.failf("%s: config entry %d.%d can't be read", a.Tablet, e.GetTerm(), e.GetIndex())
			return
		}
		now := quorumOf(st.Config)[0]
		for id := range quorumOf(next)[0] {
			if _, voter := now[id]; voter {
				continue
			}
			to := c.w.serverOf(a.Tablet, ident.ReplicaID(id))
			if to == nil || to.logOf(a.Tablet).LastOpID().Index+4 < st.Commit {
				c.failf("%s: replica %d is promoted, but its log doesn't reach near %d", a.Tablet, id, st.Commit)
			}
		}
	}
}

// cutBehind: a log is cut behind what every member's holds, unless more lies behind than is kept for others.
func (c *checker) cutBehind(s *simServer, t ident.TabletID, cut ident.OpID) {
	config := s.status(t).Config
	if config == nil {
		config = c.w.config()
	}
	if retain := int64(c.w.limits().RetainBytes); retain != 0 && s.logOf(t).Behind(retain, cut.Index) >= cut.Index {
		return
	}
	for _, p := range everybody(config) {
		other := c.w.serverOf(t, ident.ReplicaID(p.GetReplicaId()))
		if other == nil || !c.w.mustHold(other, t) {
			continue // it begins with a copy, or its leader counts it no more
		}
		if last := other.logOf(t).LastOpID(); last.Index < cut.Index {
			c.failf("server %d: cuts the log of %s behind %s, replica %d's ends at %s", s.id, t, cut, p.GetReplicaId(), last)
		}
	}
}

// removed: only who is in no committed config any more is told so.
func (c *checker) removed(s *simServer, r consensus.Removal) {
	config := c.lastConfig(r.Tablet)
	if slices.ContainsFunc(everybody(config), func(p *nyalav1.Peer) bool { return p.GetReplicaId() == uint64(r.Replica) }) ||
		uint64(r.Replica) >= config.GetNextReplicaId() {
		c.failf("server %d: replica %d of %s is told that it was removed; the config is %v", s.id, r.Replica, r.Tablet, config)
	}
}

// kept: a replica that goes on as a copy of itself keeps its vote and what it has acknowledged.
func (c *checker) kept(s *simServer, in *consensus.CopyInstall, was *raftpb.HardState, last ident.OpID) {
	log := s.log.Log(in.Number)
	hs := log.HardState()
	switch {
	case c.onlyWhole:
	case hs.GetTerm() < was.GetTerm() || hs.GetTerm() == was.GetTerm() && hs.GetVote() != was.GetVote():
		c.failf("server %d: replica %d of %s had voted for %d in term %d; after its copy, for %d in term %d", s.id, in.Replica, in.Tablet,
			was.GetVote(), was.GetTerm(), hs.GetVote(), hs.GetTerm())
	case log.LastOpID().Index < last.Index:
		c.failf("server %d: replica %d of %s held entries through %s; after its copy, through %s", s.id, in.Replica, in.Tablet, last, log.LastOpID())
	}
}

// installed: no replica is set back.
func (c *checker) installed(s *simServer, in *consensus.CopyInstall, before *wal.Log) {
	if hs := before.HardState(); hs.GetCommit() > uint64(in.Start.Index) && !c.onlyWhole {
		c.failf("server %d: replica %d of %s has committed %d and is replaced by a copy of %s", s.id, in.Replica, in.Tablet, hs.GetCommit(), in.Start)
	}
}
