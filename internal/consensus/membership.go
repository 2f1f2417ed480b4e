package consensus

import (
	"errors"
	"fmt"
	"slices"
	"sort"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/wal"
)

// Membership. The config that counts here (who votes, whose logs make a majority) is that of the last config entry that was
// handed to the state machine, which is committed; raft is told of it in that same step. After a restart it is the one that
// the state machine holds, and entries behind it make it what it was. An entry that isn't committed means nothing: when
// another leader's log overwrites it, it leaves nothing behind.
//
// A config entry holds the whole config that it makes, and is proposed by a leader that has applied an entry of its own term and
// each config entry in its log. So a log with a config entry in it is known committed through the one before, and any two
// leaders' configs are the same, or neighbours, or the later one has a config entry between in its log (docs/consensus.md).

// membership is what a replica knows of its group's config beyond the config itself.
type membership struct {
	// entries are the places of the config entries in the log that aren't handed out yet, rising: they may still be
	// overwritten, where they aren't known committed.
	entries []ident.Index
	change  changeState
	// gone are members that a config has dropped, to be told so.
	gone []goneMember
	// away is what the leader knows of members that it can't bring up from its log.
	away map[ident.ReplicaID]*awayMember
	// proof is an entry that this leader has appended since the config counts; 0: none yet (see proven).
	proof ident.Index
	// said: this replica is no member any more, and its server was told so.
	said  bool
	holds []*logHold
	age   int // ticks since members were looked after
	// unheard counts the ticks since a leader was heard.
	unheard int
}

// changeState is a change that somebody waits for: first until it may be proposed, then for its entry (index), then for the
// config that it ends in (final), which is the same entry or the one that leaves the joint config.
type changeState struct {
	ticket       Ticket // nil: nobody waits
	request      *ConfigChange
	term         ident.Term
	index, final ident.Index
}

type goneMember struct {
	peer *nyalav1.Peer
	left int // how often it is still to be told
}

// tellGone is how often a member that has been removed is told so, once per heartbeat interval.
const tellGone = 10

// truncateConfigs forgets the config entries at and above from, where by comes to stand (nil: nothing does).
func (g *group) truncateConfigs(from ident.Index, by []*raftpb.Entry) {
	m := &g.membership
	if g.core != nil && g.core.planted(mistakeChangeStaysPending) {
		return
	}
	n := sort.Search(len(m.entries), func(i int) bool { return m.entries[i] >= from })
	m.entries = m.entries[:n]
	c := &m.change
	if c.index < from || c.index <= ident.Index(g.cfg.Config.GetOpidIndex()) {
		return
	}
	if at := int(c.index - from); at >= len(by) || by[at].GetTerm() != uint64(c.term) {
		g.changeDone(status.New(status.Aborted, "tablet %s: the change of the config at entry %d was overwritten by another leader's log",
			g.cfg.Tablet, c.index))
	}
}

// changing says whether the config is joint, or about to change: somebody has to go on with it.
func (g *group) changing() bool {
	m := &g.membership
	return isJoint(g.cfg.Config) || len(m.entries) > 0 || m.change.request != nil
}

// configSettled says whether every config entry that is known committed counts here already.
func (g *group) configSettled() bool {
	es := g.membership.entries
	return len(es) == 0 || es[0] > g.commit
}

// changeConfig takes a request.
func (g *group) changeConfig(ch *ConfigChange, t Ticket) {
	g.drain()
	err := g.refusesProposals()
	m := &g.membership
	switch {
	case g.err != nil:
		err = errFailed(g.cfg.Tablet, g.err)
	case g.role == raft.StateLeader && !g.ready():
		err = status.New(status.IllegalState, "tablet %s: its leader has not committed an entry of its own term %d yet: no change of the config before that",
			g.cfg.Tablet, g.term)
	case err != nil:
	case g.changing() || m.change.ticket != nil:
		err = status.New(status.IllegalState, "tablet %s: another change of the config is under way", g.cfg.Tablet)
	case g.transfer.to != 0:
		err = status.New(status.ServiceUnavailable, "tablet %s: leadership is being handed over; try again", g.cfg.Tablet)
	}
	if err != nil {
		g.core.done(Done{Ticket: t, Err: err})
		return
	}
	m.change = changeState{ticket: t, request: ch}
	g.core.touch(g)
}

// runChanges proposes the change that waits, or the entry that leaves a joint config, if that may be; it says whether raft has
// been stepped. Raft wants the own term's entry and the last config entry applied here.
func (g *group) runChanges() bool {
	m := &g.membership
	if m.change.request == nil && !isJoint(g.cfg.Config) && (m.proof != 0 || g.role != raft.StateLeader) {
		return false
	}
	early := g.core.planted(mistakeChangeBeforeOwnTerm)
	if g.role != raft.StateLeader || !g.ready() && !early {
		if m.change.request != nil {
			g.changeDone(g.notLeader())
		}
		return false
	}
	if len(m.entries) > 0 && m.entries[0] > g.commit {
		return false // the entry that leaves is on its way
	}
	if len(m.entries) > 0 || (g.appliedTo < g.ownFirst && !early) || g.appliedTo < ident.Index(g.cfg.Config.GetOpidIndex()) {
		return false
	}
	if g.barred() != causeNone || g.core.outOfSpace || g.transferee() != 0 {
		return false // a tick tries again
	}
	if isJoint(g.cfg.Config) {
		return g.proposeConfig(planLeave(g.cfg.Config)) == nil
	}
	if m.proof == 0 {
		if g.proposeStamped(wal.KindNoop, nil, nil) != nil {
			return false
		}
		m.proof = g.last + 1
		return true
	}
	ch := m.change.request
	p, err := g.plan(ch)
	if err == nil {
		err = g.proposeConfig(p)
	}
	if err != nil {
		g.changeDone(err)
		return false
	}
	m.change.request, m.change.term, m.change.index = nil, g.term, g.last+1
	return true
}

// plan turns a request into an entry, if the config and the members' logs allow it.
func (g *group) plan(ch *ConfigChange) (plannedChange, error) {
	c := g.cfg.Config
	if ch.ExpectIndex != nil && uint64(*ch.ExpectIndex) != c.GetOpidIndex() {
		return plannedChange{}, status.New(status.IllegalState, "tablet %s: its config is the one of entry %d, not of %d, on which the change was decided",
			g.cfg.Tablet, c.GetOpidIndex(), *ch.ExpectIndex)
	}
	p, err := planChange(g.cfg.Tablet, c, ch)
	if err != nil {
		return p, err
	}
	for _, id := range ch.Promote {
		if err := g.caughtUp(id); err != nil && !g.core.planted(mistakePromotesEarly) {
			return p, err
		}
	}
	return p, nil
}

// caughtUp says why a learner may not become a voter yet: it must answer, take entries as they come, and lack no more than
// Limits.PromoteLag of the committed ones. So a majority that counts it goes on at once.
func (g *group) caughtUp(id ident.ReplicaID) error {
	why := "nothing is known of it"
	lag := uint64(g.core.cfg.Limits.PromoteLag)
	g.progress(func(other ident.ReplicaID, _ bool, pr progress) {
		switch {
		case other != id:
		case !pr.RecentActive:
			why = "it hasn't answered of late"
		case pr.Match+lag < uint64(g.commit) || pr.Match == 0:
			why = fmt.Sprintf("its log is known to hold entry %d, committed is %d", pr.Match, g.commit)
		default:
			why = ""
		}
	})
	if why == "" {
		return nil
	}
	return status.New(status.IllegalState, "tablet %s: learner %d has not caught up: %s", g.cfg.Tablet, id, why)
}

// proven says whether this leader's config can be relied on to be known: a majority of its voters know durably that it is
// committed, as they hold an entry that was appended, and so sent with the commit index, after it was. Until then voters of a
// joint config that has been left may still be needed by those who don't know, for their votes: none is told that it is gone.
func (g *group) proven() bool {
	return g.role == raft.StateLeader && !isJoint(g.cfg.Config) && g.membership.proof != 0 && g.commit >= g.membership.proof
}

// proposeConfig gives raft a config entry.
func (g *group) proposeConfig(p plannedChange) error {
	payload, err := proto.Marshal(p.config)
	if err != nil {
		return fmt.Errorf("tablet %s: encode the config: %w", g.cfg.Tablet, err)
	}
	return g.proposeStamped(wal.KindConfig, payload, p.raft)
}

// proposeStamped stamps an entry of the host's own and gives it to raft.
func (g *group) proposeStamped(kind wal.Kind, payload []byte, cc *raftpb.ConfChangeV2) error {
	ts, err := g.stampAbove(g.floor())
	if err != nil {
		return err
	}
	e := &raftpb.Entry{Data: wal.EncodePayload(kind, ts, payload)}
	if cc != nil {
		cc.Context = e.Data
		if e.Data, err = proto.Marshal(cc); err != nil {
			return fmt.Errorf("tablet %s: encode the change of the config: %w", g.cfg.Tablet, err)
		}
		e.Type = raftpb.EntryConfChangeV2.Enum()
	}
	err = g.step(&raftpb.Message{Type: raftpb.MsgProp.Enum(), From: new(uint64(g.cfg.Replica)), Entries: []*raftpb.Entry{e}})
	switch {
	case g.err != nil:
		return errFailed(g.cfg.Tablet, g.err)
	case errors.Is(err, raft.ErrProposalDropped):
		return errTooBusy(g.cfg.Tablet, "too much is written and not applied yet")
	case err != nil:
		return status.Wrap(status.ServiceUnavailable, err, "tablet %s: change the config", g.cfg.Tablet)
	}
	return nil
}

// decodeConfig reads the config that an entry makes, and checks what is relied on.
func decodeConfig(payload []byte) (*nyalav1.RaftConfig, error) {
	c := new(nyalav1.RaftConfig)
	if err := proto.Unmarshal(payload, c); err != nil {
		return nil, err
	}
	ids, servers := map[uint64]bool{}, map[string]bool{}
	for _, p := range members(c) {
		if id := p.GetReplicaId(); id == 0 || id >= c.GetNextReplicaId() || ids[id] || p.GetServerId() == "" || servers[p.GetServerId()] {
			return nil, fmt.Errorf("a config with the member %d on server %q: there is another, or it can't be one", id, p.GetServerId())
		}
		ids[p.GetReplicaId()], servers[p.GetServerId()] = true, true
	}
	for _, id := range c.GetOutgoingVoters() {
		if !ids[id] {
			return nil, fmt.Errorf("a config with an outgoing voter %d that is no member", id)
		}
	}
	if len(voterIDs(c)) == 0 {
		return nil, errors.New("a config without a voter")
	}
	return c, nil
}

// adoptConfig makes the config of a committed entry the one that counts.
func (g *group) adoptConfig(e *raftpb.Entry, payload []byte) (*nyalav1.RaftConfig, error) {
	index := ident.Index(e.GetIndex())
	c, err := decodeConfig(payload)
	if err != nil {
		return nil, err
	}
	cc := new(raftpb.ConfChangeV2)
	if err := proto.Unmarshal(e.GetData(), cc); err != nil {
		return nil, err
	}
	c.OpidIndex = e.GetIndex()
	m := &g.membership
	m.entries = m.entries[sort.Search(len(m.entries), func(i int) bool { return m.entries[i] > index }):]
	if g.core.planted(mistakeConfigBeforeRestart) && index <= g.commitAtStart {
		return c, nil
	}
	if g.core.planted(mistakeLearnerVotes) {
		makeVoters(cc)
	}
	successor := g.successor(c) // raft forgets what it knows of the others when it steps down
	cs := g.applyConfChange(cc)
	if g.err != nil {
		return nil, g.err
	}
	if err := cs.Equivalent(confState(c)); err != nil && !g.core.planted(mistakeLearnerVotes) {
		return nil, fmt.Errorf("the config isn't what its change makes of the one before: %w", err)
	}
	g.dropMembers(c)
	g.setConfig(c)
	if ch := &m.change; ch.index != 0 && index >= ch.index && ch.final == 0 && !isJoint(c) {
		ch.final = index
	}
	m.proof = 0
	g.reads.again()
	if successor != 0 {
		// This leader is no member any more and steps down; without a word the others would wait for an election timeout.
		g.send(&raftpb.Message{
			Type: raftpb.MsgTimeoutNow.Enum(), From: new(uint64(g.cfg.Replica)), To: new(uint64(successor)), Term: new(uint64(g.term)),
		})
	}
	return c, nil
}

// makeVoters is a mistake that tests plant: learners are counted among the voters.
func makeVoters(cc *raftpb.ConfChangeV2) {
	for _, s := range cc.GetChanges() {
		if s.GetType() == raftpb.ConfChangeAddLearnerNode {
			s.Type = raftpb.ConfChangeAddNode.Enum()
		}
	}
}

// setConfig takes a config over that raft has, or is to begin with.
func (g *group) setConfig(c *nyalav1.RaftConfig) {
	cs := confState(c)
	g.cfg.Config = c
	g.voters = jointConfig(cs)
	g.log.SetConfState(cs)
}

// successor is the voter of the next config that holds most of the log, if this replica leads and is no member of it; 0: nobody.
func (g *group) successor(next *nyalav1.RaftConfig) (best ident.ReplicaID) {
	if g.role != raft.StateLeader || memberOf(next, g.cfg.Replica) != nil {
		return 0
	}
	voters := voterIDs(next)
	var match uint64
	g.progress(func(id ident.ReplicaID, _ bool, pr progress) {
		if slices.Contains(voters, uint64(id)) && (best == 0 || pr.Match > match) {
			best, match = id, pr.Match
		}
	})
	return best
}

// dropMembers notes at the leader whom the next config drops.
func (g *group) dropMembers(next *nyalav1.RaftConfig) {
	m := &g.membership
	for _, p := range members(g.cfg.Config) {
		id := ident.ReplicaID(p.GetReplicaId())
		if memberOf(next, id) != nil {
			continue
		}
		delete(m.away, id)
		if g.role == raft.StateLeader && id != g.cfg.Replica && len(m.gone) < maxMembers {
			m.gone = append(m.gone, goneMember{p, tellGone})
		}
	}
}

// configApplied answers who waits for a config that the state machine holds by now.
func (g *group) configApplied() {
	if final := g.membership.change.final; final != 0 && final <= g.appliedTo {
		g.changeDone(nil)
	}
}

// changeDone answers who waits for a change.
func (g *group) changeDone(err error) {
	m := &g.membership
	t := m.change.ticket
	m.change = changeState{}
	if t == nil {
		return
	}
	d := Done{Ticket: t, Err: err}
	if err == nil {
		d.OpID, d.Config = ident.OpID{Term: g.term, Index: ident.Index(g.cfg.Config.GetOpidIndex())}, g.cfg.Config
	}
	g.core.done(d)
}

// cancelChange forgets who waits; a change that stands in the log goes on.
func (g *group) cancelChange(t Ticket) bool {
	ch := &g.membership.change
	if ch.ticket == nil || ch.ticket != t {
		return false
	}
	if ch.ticket = nil; ch.request != nil {
		*ch = changeState{}
	}
	return true
}
