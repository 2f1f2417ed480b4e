package consensus

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"go.etcd.io/raft/v3/raftpb"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/wal"
)

// ChangeConfig changes the tablet's members, on its leader, in one step, and returns the config that this has led to, committed
// and applied here, with any joint config left. One change goes on at a time. The errors' codes: NotTheLeader, with whom to
// ask; IllegalState while the leader has committed no entry of its own term, while another change is under way, if the config
// isn't the one expected, or if a learner to be promoted has not caught up; InvalidArgument and AlreadyPresent for a change that
// makes no sense; Aborted if another leader's log has overwritten it. After an error of ctx, or of a replica that stops, the
// change may come to pass all the same.
//
// A leader that removes itself answers and leads no more. A replica that is replaced on its server must be removed first: the
// new one gets another id.
func (h *Host) ChangeConfig(ctx context.Context, tablet ident.TabletID, ch ConfigChange) (*nyalav1.RaftConfig, error) {
	d, err := h.call(ctx, request{kind: requestChange, tablet: tablet, change: &ch})
	return d.Config, err
}

// Members returns what the tablet's leader, which must be here, knows of its members: by replica id.
func (h *Host) Members(ctx context.Context, tablet ident.TabletID) (ms []MemberStatus, err error) {
	err = h.command(ctx, tablet, func(c *Core) error {
		var err error
		ms, err = c.Members(tablet)
		return err
	})
	return ms, err
}

// command runs f on the tablet's core and waits for it.
func (h *Host) command(ctx context.Context, tablet ident.TabletID, f func(*Core) error) error {
	n := h.find(tablet)
	if n == nil {
		return errNoGroup(tablet)
	}
	done := make(chan error, 1)
	n.worker.box.put(func(m *mail) {
		m.commands = append(m.commands, func(c *Core) { done <- f(c) })
	})
	return wait(ctx, h, done)
}

// CopyInstall is a replica's contents as copied from another, ready to be gone on with.
type CopyInstall struct {
	Tablet  ident.TabletID
	Replica ident.ReplicaID
	// Old is the replica of the tablet that is here, and OldReplica its id; 0: none.
	Old        ident.LocalNumber
	OldReplica ident.ReplicaID
	// Number is what the copy is stored under: from AllocateNumber.
	Number ident.LocalNumber
	Record []byte
	// Start is the last entry that the copied state has applied, and Timestamp the last timestamp in it.
	Start     ident.OpID
	Timestamp hybridtime.Timestamp

	plants
}

// AllocateNumber returns a number for a replica that is to be installed by InstallCopy. A replica's rows may be written under it
// before: a number that the log doesn't know at a start names a half-made copy, which is to be deleted.
func (h *Host) AllocateNumber() ident.LocalNumber { return h.deps.Log.AllocateNumber() }

// InstallCopy puts a copied replica in the place of the one that is here, in one durable commit: the old group goes, and the new
// one's log begins after Start. The copied rows must be durable before. The old group is stopped first; afterwards neither is
// running: StartGroup starts the new one, or the old one again if this fails.
//
// A replica that goes on under its id keeps what it has promised: its term and vote (in a term of Start's or later), and the
// entries of its log behind Start, if it holds Start: it may have acknowledged them. A copy that isn't ahead of what the old
// replica knows committed is refused (AlreadyPresent), as is one for an id below the old replica's. Another id has promised
// nothing.
func (h *Host) InstallCopy(ctx context.Context, in CopyInstall) error {
	if _, err := ident.Bytes(string(in.Tablet)); err != nil {
		return status.Wrap(status.InvalidArgument, err, "install copy")
	}
	if in.Old != 0 {
		if n := h.find(in.Tablet); n != nil {
			if n.number != in.Old || n.replica != in.OldReplica {
				return status.New(status.IllegalState, "tablet %s: the replica here is %d under number %d, not %d under %d", in.Tablet,
					n.replica, n.number, in.OldReplica, in.Old)
			}
			if err := h.StopGroup(ctx, in.Tablet); err != nil {
				return err
			}
		}
	} else if h.find(in.Tablet) != nil {
		return status.New(status.TabletAlreadyExists, "tablet %s: its replica runs on this server already", in.Tablet)
	}
	var c Commit
	if err := in.Fill(&c, h.deps.Log); err != nil {
		return err
	}
	it := &installItem{commit: &c, tablet: in.Tablet, done: make(chan error, 1)}
	h.writer.put(logItem{install: it})
	if err := wait(ctx, h, it.done); err != nil {
		return fmt.Errorf("install the copy of tablet %s in the log: %w", in.Tablet, err)
	}
	return nil
}

// Fill adds the install to a commit, from what the log holds now: neither replica is running.
func (in *CopyInstall) Fill(c *Commit, log wal.Store) error {
	hs := hardState{term: uint64(in.Start.Term), commit: uint64(in.Start.Index)}
	var behind []*raftpb.Entry
	if in.Old != 0 {
		if in.OldReplica > in.Replica {
			return status.New(status.IllegalState, "tablet %s: replica %d is here, a copy for %d is out of date", in.Tablet, in.OldReplica, in.Replica)
		}
		at := slices.IndexFunc(log.Groups(), func(g wal.Group) bool { return g.Number == in.Old })
		switch {
		case at < 0:
			return status.New(status.NotFound, "tablet %s: the log holds no group %d", in.Tablet, in.Old)
		case in.OldReplica != in.Replica:
		case log.Groups()[at].Damaged != nil:
			return status.Wrap(status.IllegalState, log.Groups()[at].Damaged, "tablet %s: replica %d can't go on under its id", in.Tablet, in.Replica)
		default:
			var err error
			if hs, behind, err = in.keep(log.Log(in.Old), hs); err != nil {
				return err
			}
		}
		c.DeleteGroup(in.Old)
	}
	c.CreateGroup(in.Number, in.Tablet, in.Record, in.Start)
	c.Append(in.Number, behind)
	c.SetHardState(in.Number, &raftpb.HardState{Term: &hs.term, Vote: &hs.vote, Commit: &hs.commit})
	c.used = max(c.used, in.Timestamp)
	return nil
}

// keep is what a replica takes along into the copy of itself.
func (in *CopyInstall) keep(old *wal.Log, hs hardState) (hardState, []*raftpb.Entry, error) {
	had := old.HardState()
	last := old.LastOpID()
	if (had.GetCommit() >= uint64(in.Start.Index) || old.Start().Index >= in.Start.Index) && !in.planted(mistakeCopyOutOfDate) {
		return hs, nil, status.New(status.AlreadyPresent, "tablet %s: replica %d holds entry %d as committed already: it needs no copy of %s",
			in.Tablet, in.Replica, max(had.GetCommit(), uint64(old.Start().Index)), in.Start)
	}
	if had.GetTerm() >= hs.term && !in.planted(mistakeCopyForgetsVote) {
		hs.term, hs.vote = had.GetTerm(), had.GetVote()
	}
	if last.Index <= in.Start.Index || in.planted(mistakeCopyForgetsLog) {
		return hs, nil, nil
	}
	if term, err := old.TermOf(in.Start.Index); err != nil || term != in.Start.Term {
		return hs, nil, err // what lies behind has another history, which can't be committed
	}
	behind, err := old.Entries(uint64(in.Start.Index)+1, uint64(last.Index)+1, ^uint64(0))
	if err != nil {
		return hs, nil, status.Wrap(status.Corruption, err, "tablet %s: read the log behind %s", in.Tablet, in.Start)
	}
	return hs, behind, nil
}

// strangers bounds the answers to messages that find no replica, or come from one that is no member any more: one per tablet and
// heartbeat interval.
type strangers struct {
	mu   sync.Mutex
	told map[ident.TabletID]struct{}
}

// maxStrangers bounds the tablets that are told of in one heartbeat interval.
const maxStrangers = 4096

// may says whether the tablet's sender is to be told now.
func (s *strangers) may(tablet ident.TabletID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.told[tablet]; ok || len(s.told) >= maxStrangers {
		return false
	}
	if s.told == nil {
		s.told = map[ident.TabletID]struct{}{}
	}
	s.told[tablet] = struct{}{}
	return true
}

// pass begins the next interval.
func (s *strangers) pass() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.told)
}

// NoReplicaAnswer is the answer of a server to a message for a replica that it doesn't hold, if it needs one: a leader is told, unless
// a replica of a later id is here (0: none), and the message is out of date.
func NoReplicaAnswer(m *nyalav1.GroupMessage, here ident.ReplicaID) *nyalav1.GroupMessage {
	r, ok := m.GetKind().(*nyalav1.GroupMessage_Raft)
	if !ok || uint64(here) >= m.GetTo() {
		return nil
	}
	if t, ok := raftType(r.Raft); !ok || t != raftpb.MsgApp && t != raftpb.MsgHeartbeat {
		return nil
	}
	return &nyalav1.GroupMessage{
		TabletId: m.GetTabletId(), From: m.GetTo(), To: m.GetFrom(),
		Kind: &nyalav1.GroupMessage_NoReplica{NoReplica: &nyalav1.NoReplica{}},
	}
}

// RemovedAnswer is the answer of a replica with the given status to a message of one that has been removed, if it needs one: who asks
// for votes, or whether it is a member, is told by the leader.
func RemovedAnswer(m *nyalav1.GroupMessage, s *GroupStatus) *nyalav1.GroupMessage {
	if !s.ConfigProven || !s.Removed(ident.ReplicaID(m.GetFrom())) {
		return nil
	}
	if r, ok := m.GetKind().(*nyalav1.GroupMessage_Raft); ok {
		if t, ok := raftType(r.Raft); !ok || t != raftpb.MsgVote && t != raftpb.MsgPreVote {
			return nil
		}
	} else if !m.GetReplicaRemoved().GetAsked() {
		return nil
	}
	return &nyalav1.GroupMessage{
		TabletId: m.GetTabletId(), From: uint64(s.Replica), To: m.GetFrom(),
		Kind: &nyalav1.GroupMessage_ReplicaRemoved{ReplicaRemoved: &nyalav1.ReplicaRemoved{ConfigIndex: s.Config.GetOpidIndex()}},
	}
}

func (h *Host) answerAbsent(from ident.ServerID, m *nyalav1.GroupMessage) {
	if !h.opened.Load() {
		return // it may be on its way
	}
	var here ident.ReplicaID
	if n := h.findID([16]byte(m.GetTabletId())); n != nil {
		// One that has failed says nothing any more, and is as good as not held.
		if v := n.view.Load(); v == nil || v.p.Load().Err == nil {
			here = n.replica
		}
	}
	h.answer(from, NoReplicaAnswer(m, here))
}

func (h *Host) answerRemoved(from ident.ServerID, m *nyalav1.GroupMessage, n *handle) {
	if v := n.view.Load(); v != nil {
		h.answer(from, RemovedAnswer(m, v.p.Load()))
	}
}

// answer sends an answer, unless it is nil or the tablet has had its share.
func (h *Host) answer(to ident.ServerID, m *nyalav1.GroupMessage) {
	if m == nil || to == h.cfg.ServerID || !h.strangers.may(ident.TabletID(ident.FromBytes([16]byte(m.GetTabletId())))) {
		return
	}
	h.metrics.messagesOther.Inc()
	h.deps.Transport.Send(to, "", Control, []*nyalav1.GroupMessage{m})
}
