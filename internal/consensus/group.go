package consensus

import (
	"cmp"
	"fmt"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/quorum"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/invariant"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/wal"
)

// group is one replica's raft node and what the host keeps beside it.
type group struct {
	core *Core
	cfg  GroupConfig
	id   [16]byte // the tablet id; its bytes are shared by every message
	node *raft.RawNode
	log  GroupLog
	view View

	slot    int // in core.active; -1: not there
	dirty   bool
	stopped bool
	err     error // why the replica has failed

	voters quorum.JointConfig

	// What raft was after the last Ready: settle handles every Ready before it looks at these.
	role   raft.StateType
	lead   ident.ReplicaID
	term   ident.Term
	commit ident.Index
	last   ident.Index
	first  ident.Index
	// ownFirst is the first entry of the term that this replica leads in, or led in last since its start: ledTerm.
	ownFirst ident.Index
	ledTerm  ident.Term
	// frozen: the node has been given up, and the next one waits for the log. left says how that came.
	frozen bool
	left   resignation
	// outran is a timestamp that this server's clock gave out though it is beyond its own guard.
	outran     hybridtime.Timestamp
	quarantine quarantine

	stamps stamps
	// promised is the highest T this replica has promised to close; after a restart the server's durable mark.
	promised hybridtime.Timestamp
	// votes are the promises in the votes of voteTerm, and votePromised what they come to.
	votes        map[uint64]hybridtime.Timestamp
	votePromised hybridtime.Timestamp
	voteTerm     ident.Term

	outbox       outbox
	followers    []follower // of a leader
	acknowledged acknowledged
	lag          commitLag

	appends   appendQueue
	applying  []*raftpb.Message // the Applies under way: what raft is to hear of each
	foreign   int               // how many of them a node that was given up has handed on
	appliedTo ident.Index
	appliedTS hybridtime.Timestamp
	// appliedStamps are the highest timestamps of the Applies under way.
	appliedStamps []hybridtime.Timestamp

	membership membership
	// commitAtStart is the commit index that the log began with.
	commitAtStart ident.Index

	proposals []proposal
	reads     readQueue
	closing   closeQueue
	transfer  transferState
	// avoid is the voter that a hand-over to has failed last.
	avoid ident.ReplicaID
	// refusers are the followers that refuse entries of this leader; refusedAgo counts the ticks since this replica told its
	// leader that it does, in refusedIn.
	refusers   map[ident.ReplicaID]*refused
	refusedAgo int
	refusedIn  ident.Term
	// heartbeatSent is when the last heartbeat left, by the leader's clock.
	heartbeatSent int64
	// silence counts the ticks without word from a leader while the replica is barred from campaigning.
	silence int

	// durable is what the store holds durably, as far as it has said so: what it has applied at the start may not be, when
	// only the replica starts anew. heldByAll is what every member's log holds, as the leader last said.
	durable   ident.Index
	heldByAll ident.Index
	cutAge    int // ticks since a cut of any size was tried

	quiet quietState
	elect electionState
}

// prepareGroup makes a group ready to be adopted by a core. It reads the log behind what is applied, and so may take a
// while; it touches no core.
func prepareGroup(cc CoreConfig, clock Clock, cfg GroupConfig, log GroupLog) (*group, error) {
	id, err := ident.Bytes(string(cfg.Tablet))
	if err != nil {
		return nil, fmt.Errorf("start group: %w", err)
	}
	g := &group{
		cfg: cfg, id: id, log: log, slot: -1,
		appliedTo: cfg.Applied, appliedTS: cfg.AppliedTimestamp,
		promised:   clock.DurablePromise(),
		refusedAgo: cc.HeartbeatTicks,
		stamps:     stamps{base: stamp{cfg.Applied, cfg.AppliedTimestamp}},
	}
	if cfg.Replica == 0 || raft.IsLocalMsgTarget(uint64(cfg.Replica)) {
		return nil, fmt.Errorf("tablet %s: replica id %d", cfg.Tablet, cfg.Replica)
	}
	g.setConfig(cfg.Config)
	start := startLog{GroupLog: log, applied: cfg.Applied}
	if err := start.check(); err != nil {
		return nil, status.Wrap(status.Corruption, err, "tablet %s: start replica %d", cfg.Tablet, cfg.Replica)
	}
	if err := g.readLog(start); err != nil {
		return nil, err
	}
	if err := g.startNode(g.raftConfig(cc, start)); err != nil {
		return nil, status.Wrap(status.Corruption, err, "tablet %s: start replica %d", cfg.Tablet, cfg.Replica)
	}
	g.publish()
	return g, nil
}

// raftConfig is how a node on the log works.
func (g *group) raftConfig(cc CoreConfig, log startLog) *raft.Config {
	l := cc.Limits.withDefaults()
	return &raft.Config{
		ID:                        uint64(g.cfg.Replica),
		ElectionTick:              cc.ElectionTicks,
		HeartbeatTick:             cc.HeartbeatTicks,
		Storage:                   log,
		Applied:                   uint64(log.applied),
		AsyncStorageWrites:        true,
		MaxSizePerMsg:             uint64(l.MaxMessageBytes),
		MaxCommittedSizePerReady:  uint64(l.MaxApplyingBytes),
		MaxUncommittedEntriesSize: uint64(l.MaxUncommittedBytes),
		MaxInflightMsgs:           l.MaxInflightMessages,
		MaxInflightBytes:          uint64(l.MaxInflightBytes),
		CheckQuorum:               true,
		PreVote:                   cc.PreElection,
		ReadOnlyOption:            raft.ReadOnlySafe,
		Logger:                    silentLogger{},
		DisableProposalForwarding: !cc.planted(mistakeForwards),
		StepDownOnRemoval:         true,
	}
}

// readLog takes first and last index, term, vote and commit from the log, and the timestamps behind what is applied,
// which it checks (I3).
func (g *group) readLog(log startLog) error {
	first, err := log.FirstIndex()
	if err != nil {
		return fmt.Errorf("tablet %s: first index: %w", g.cfg.Tablet, err)
	}
	last, err := log.LastIndex()
	if err != nil {
		return fmt.Errorf("tablet %s: last index: %w", g.cfg.Tablet, err)
	}
	hs, _, err := log.InitialState()
	if err != nil {
		return fmt.Errorf("tablet %s: initial state: %w", g.cfg.Tablet, err)
	}
	g.first, g.last = ident.Index(first), ident.Index(last)
	g.term, g.commit = ident.Term(hs.GetTerm()), ident.Index(hs.GetCommit())
	g.commitAtStart = g.commit
	g.appends.given = hardState{hs.GetTerm(), hs.GetVote(), hs.GetCommit()}
	g.appends.now = g.appends.given
	for next := uint64(g.cfg.Applied) + 1; next <= last; {
		ents, err := log.Entries(next, last+1, 1<<20)
		if err != nil {
			return status.Wrap(status.Corruption, err, "tablet %s: read entries %d to %d", g.cfg.Tablet, next, last)
		}
		if len(ents) == 0 {
			return status.New(status.Corruption, "tablet %s: entry %d is missing", g.cfg.Tablet, next)
		}
		if _, err := g.takeStamps(ents); err != nil {
			return err
		}
		next += uint64(len(ents))
	}
	g.stamps.committed(g.commit)
	return nil
}

// takeStamps checks that the entries' timestamps rise with the index (I3), remembers them, and returns the highest.
func (g *group) takeStamps(ents []*raftpb.Entry) (hybridtime.Timestamp, error) {
	var highest hybridtime.Timestamp
	g.stamps.truncate(ident.Index(ents[0].GetIndex()))
	g.truncateConfigs(ident.Index(ents[0].GetIndex()), ents)
	for _, e := range ents {
		info, err := wal.DecodeEntry(e)
		if err != nil {
			return 0, status.Wrap(status.Corruption, err, "tablet %s: entry %d.%d", g.cfg.Tablet, e.GetTerm(), e.GetIndex())
		}
		if info.Kind == wal.KindConfig {
			g.membership.entries = append(g.membership.entries, ident.Index(e.GetIndex()))
		}
		if info.Timestamp == 0 {
			continue
		}
		last := g.stamps.last()
		if err := g.stamps.add(ident.Index(e.GetIndex()), info.Timestamp); err != nil {
			return 0, &StampOrderError{
				Tablet: g.cfg.Tablet, At: opID(e), Timestamp: info.Timestamp, Last: last,
			}
		}
		highest = info.Timestamp
	}
	return highest, nil
}

// settle handles everything raft has ready and every request that can go on, until nothing is left to do.
func (g *group) settle() {
	for g.err == nil {
		g.drain()
		if g.err != nil || !g.runRequests() {
			break
		}
	}
	g.flush()
	g.noteCloses()
	g.publish()
}

// drain handles what raft has ready. After it role, term, commit and last are raft's own.
func (g *group) drain() {
	for g.err == nil && !g.frozen && g.node.HasReady() {
		if rd, ok := g.nextReady(); ok {
			g.handleReady(rd)
		}
	}
}

// runRequests starts what waits and can go on; it says whether raft has been stepped, and so has more to handle. Closing
// looks at the log, so it has its turn only when nothing new stands in it that has not been handled.
func (g *group) runRequests() bool {
	if g.runProposals() || g.runReads() || g.runChanges() {
		return true
	}
	g.runCloses()
	return false
}

func (g *group) handleReady(rd raft.Ready) {
	wasLeader, wasTerm, wasLead := g.role == raft.StateLeader, g.term, g.lead
	if hs := rd.HardState; !raft.IsEmptyHardState(hs) {
		g.term = ident.Term(hs.GetTerm())
		g.commit = ident.Index(hs.GetCommit())
		g.appends.now = hardState{hs.GetTerm(), hs.GetVote(), hs.GetCommit()}
	}
	if ss := rd.SoftState; ss != nil {
		g.role, g.lead = ss.RaftState, ident.ReplicaID(ss.Lead)
	}
	var highest hybridtime.Timestamp
	if len(rd.Entries) > 0 {
		g.wake(wakeSend)
		var err error
		if highest, err = g.takeStamps(rd.Entries); err != nil {
			g.fail(err)
			return
		}
		g.last = ident.Index(rd.Entries[len(rd.Entries)-1].GetIndex())
	}
	g.stamps.committed(g.commit)
	g.lag.committed(g)
	g.readsConfirmed(rd.ReadStates)
	if isLeader := g.role == raft.StateLeader; wasLeader && (!isLeader || g.term != wasTerm) {
		g.leadershipLost()
	}
	if wasTerm != g.term || wasLead != g.lead {
		g.forgetAnswer()
		g.newLeader()
	}
	if g.role == raft.StateLeader && (!wasLeader || g.term != wasTerm) {
		g.leadershipWon(rd.Entries)
	}
	g.countRole(wasTerm)
	if isLeader := g.role == raft.StateLeader; wasTerm != g.term || wasLead != g.lead || wasLeader != isLeader {
		g.wake(wakeChange)
		if g.lead != 0 {
			g.core.elections.leave(g)
		}
	}
	g.handleMessages(rd, highest)
}

// leadershipWon finds the first entry of the new term: raft appends it in the step that makes it leader.
func (g *group) leadershipWon(ents []*raftpb.Entry) {
	g.ownFirst = 0
	for _, e := range ents {
		if e.GetTerm() == uint64(g.term) {
			g.ownFirst = ident.Index(e.GetIndex())
			break
		}
	}
	invariant.Check(g.ownFirst != 0, "tablet %s: leads term %d without a first entry", g.cfg.Tablet, g.term)
	g.ledTerm = g.term
	g.followers = nil
	if g.membership.proof = 0; len(g.membership.entries) == 0 {
		g.membership.proof = g.ownFirst
	}
	g.core.metrics.electionsWon.Inc()
}

func (g *group) countRole(wasTerm ident.Term) {
	if g.role == raft.StateCandidate && g.term != wasTerm {
		g.core.metrics.campaigns[cmp.Or(g.elect.cause, electionTimeout)].Inc()
		g.elect.cause = ""
	}
}

// ready says whether this replica leads and has committed an entry of its own term (I4).
func (g *group) ready() bool {
	return g.role == raft.StateLeader && g.commit >= g.ownFirst
}

// leadershipLost ends what only a leader can go on with. Close requests go on: another replica may answer them.
func (g *group) leadershipLost() {
	g.failReads(g.notLeader)
	g.closing.leadershipLost()
	g.followers = nil
	g.refusers = nil
	g.transferEnded(nil)
	if g.term == g.ledTerm {
		g.sayLeft() // in a later term somebody campaigns
	}
}

// handleMessages sorts what raft says: vote requests and the answers wait for the append, the rest goes out.
func (g *group) handleMessages(rd raft.Ready, highest hybridtime.Timestamp) {
	var held []*raftpb.Message
	var appendMsg *raftpb.Message
	if g.core.planted(mistakeCommitsOldTerm) && g.node.BasicStatus().RaftState == raft.StateLeader {
		g.plantCommit(rd.Messages)
	}
	for _, m := range rd.Messages {
		switch {
		case m.GetTo() == raft.LocalAppendThread:
			appendMsg = m
		case m.GetTo() == raft.LocalApplyThread:
			g.apply(m)
		case isVoteRequest(m) && !g.core.planted(mistakeVoteRequestEarly):
			held = append(held, m)
		default:
			g.send(m)
		}
		if g.err != nil {
			return
		}
	}
	if appendMsg != nil || len(held) > 0 {
		g.append(appendMsg, held, highest)
	}
}

// isVoteRequest: raft lets these leave at once. They claim a log, a term and a vote, and an answer to one outlives a
// crash, so they wait for the commit that holds all three (I1).
func isVoteRequest(m *raftpb.Message) bool {
	return m.GetType() == raftpb.MsgVote || m.GetType() == raftpb.MsgPreVote
}

// tick moves raft's time on.
func (g *group) tick() {
	if g.frozen {
		return
	}
	was := g.quarantine.why
	g.quarantine.age++
	if g.goIfMust() || g.err != nil {
		return
	}
	if g.barred() == causeNone {
		g.silence = 0
		if g.role == raft.StateLeader {
			g.tickLeader()
		} else {
			g.tickNode()
		}
	} else {
		g.drain() // what has come in this turn counts: it may lead by now, or no more
		if g.err == nil && g.role == raft.StateLeader {
			g.vacate()
			g.tickNode()
		} else if g.err == nil {
			g.tickBarred()
		}
	}
	if g.err != nil {
		return
	}
	g.refusedAgo++
	g.forgetRefused(1)
	g.leftTick()
	g.transferTick()
	g.pushTick()
	g.memberTick()
	g.cutTick()
	g.quietTick()
	if due := g.closeTick(); due || g.node.HasReady() || was != g.quarantine.why {
		g.core.touch(g)
	}
}

// fail ends the replica: it is stepped no more and says nothing more (I10).
func (g *group) fail(err error) {
	if g.err != nil {
		return
	}
	g.err = err
	if g.role == raft.StateLeader {
		g.sayLeft()
	}
	g.finishAll(errFailed(g.cfg.Tablet, err))
	g.applying, g.appends.pending = nil, nil
	g.endQuiet()
	g.core.elections.leave(g)
	g.core.deactivate(g)
	g.core.metrics.failed.Inc()
	g.core.out.Failures = append(g.core.out.Failures, Failure{g.cfg.Tablet, err})
	g.core.touch(g)
}

// finishAll answers every waiting request with err.
func (g *group) finishAll(err error) {
	for _, p := range g.proposals {
		g.core.done(Done{Ticket: p.ticket, Err: err})
	}
	g.proposals = nil
	g.failReads(func() error { return err })
	g.closing.fail(g.core, err)
	g.changeDone(err)
	g.transferEnded(err)
}

// cancel forgets a request that waits.
func (g *group) cancel(t Ticket) {
	for i, p := range g.proposals {
		if p.ticket == t {
			g.proposals = append(g.proposals[:i], g.proposals[i+1:]...)
			return
		}
	}
	if g.reads.cancel(t) || g.closing.cancel(t) || g.cancelChange(t) {
		return
	}
	if g.transfer.ticket == t {
		g.transfer.ticket = nil // the hand-over goes on
	}
}

func opID(e *raftpb.Entry) ident.OpID {
	return ident.OpID{Term: ident.Term(e.GetTerm()), Index: ident.Index(e.GetIndex())}
}

func jointConfig(cs *raftpb.ConfState) quorum.JointConfig {
	j := quorum.JointConfig{quorum.MajorityConfig{}, nil}
	for _, id := range cs.GetVoters() {
		j[0][id] = struct{}{}
	}
	for _, id := range cs.GetVotersOutgoing() {
		if j[1] == nil {
			j[1] = quorum.MajorityConfig{}
		}
		j[1][id] = struct{}{}
	}
	return j
}
