package consensus

import (
	"context"
	"sync"

	"go.etcd.io/raft/v3/raftpb"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

// Receive takes a batch from another server. It never blocks: what finds no room is dropped and counted, as if lost on the
// way. The messages belong to the host.
//
// The sender's clock is taken over within the guard; beyond it, or from a fenced server, it is left alone. The messages
// are read all the same.
func (h *Host) Receive(from ident.ServerID, batch *nyalav1.PeerBatch) {
	if c := hybridtime.Timestamp(batch.GetClock()); c != 0 && !batch.GetFenced() {
		if h.deps.Clock.Update(c) != nil {
			h.metrics.clockIgnored.Inc()
		}
	}
	h.stepServers(func(s *Servers) { s.Heard(from) })
	logFull := h.writer.full.Load() || h.writer.bytes.Load() > int64(h.cfg.Limits.MaxLogQueueBytes)
	for _, m := range batch.GetMessages() {
		if hs := m.GetHeartbeats(); hs != nil {
			h.heartbeats.receive(from, hs)
			continue
		}
		h.metrics.messagesReceived.Inc()
		if sm := m.GetServer(); sm != nil {
			h.stepServers(func(s *Servers) { s.Receive(from, sm) })
			continue
		}
		if reason := h.receive(from, m, logFull); reason != "" {
			h.metrics.ignored[reason].Inc()
		}
	}
}

func (h *Host) receive(from ident.ServerID, m *nyalav1.GroupMessage, logFull bool) (ignored string) {
	if len(m.GetTabletId()) != 16 {
		return ignoredMalformed
	}
	n, ignored := h.addressee([16]byte(m.GetTabletId()), ident.ReplicaID(m.GetTo()))
	if ignored != "" {
		h.answerAbsent(from, m)
		return ignored
	}
	h.answerRemoved(from, m, n)
	_, data := m.GetKind().(*nyalav1.GroupMessage_CommitNotice)
	if r, ok := m.GetKind().(*nyalav1.GroupMessage_Raft); ok {
		t, ok := raftType(r.Raft)
		if !ok {
			return ignoredMalformed
		}
		data = t == raftpb.MsgApp || t == raftpb.MsgAppResp
		if logFull && t == raftpb.MsgApp {
			// Entries would only gather in memory. The leader is heard by its heartbeats and sends them again.
			return ignoredLogFull
		}
	}
	if !n.worker.box.message(m, data) {
		return ignoredQueueFull
	}
	return ""
}

// addressee finds the replica that a message is for; ignored says why it is left alone, if it is.
func (h *Host) addressee(tablet [16]byte, to ident.ReplicaID) (n *handle, ignored string) {
	n = h.findID(tablet)
	if n == nil {
		return nil, ignoredNoGroup
	}
	switch v := n.view.Load(); {
	case v == nil:
		return nil, ignoredNoGroup
	case n.replica != to:
		return nil, ignoredWrongReplica
	case v.p.Load().Err != nil:
		return nil, ignoredFailed
	}
	return n, ""
}

// Unreachable says that messages to another server were dropped. Leaders go back to probing the followers whose appends
// were among them.
func (h *Host) Unreachable(to ident.ServerID, dropped []*nyalav1.GroupMessage) {
	h.metrics.unreachable.Add(float64(len(dropped)))
	type target struct {
		group *handle
		to    ident.ReplicaID
	}
	var last target
	for _, m := range dropped {
		if hs := m.GetHeartbeats(); hs != nil {
			h.heartbeats.lost(to, hs)
			continue
		}
		r, ok := m.GetKind().(*nyalav1.GroupMessage_Raft)
		if !ok || len(m.GetTabletId()) != 16 {
			continue
		}
		if t, ok := raftType(r.Raft); !ok || t != raftpb.MsgApp {
			continue
		}
		n := h.findID([16]byte(m.GetTabletId()))
		if n == nil {
			continue
		}
		now := target{n, ident.ReplicaID(m.GetTo())}
		if now == last {
			continue
		}
		last = now
		n.worker.box.put(func(b *mail) {
			b.unsent = append(b.unsent, unsentMail{n.tablet, ident.ReplicaID(m.GetFrom()), now.to})
		})
	}
}

// stepDownAtOnce is how many hand-overs StepDownAll has under way.
const stepDownAtOnce = 256

// StepDownAll hands every leadership of this server to another voter, as a graceful stop does. Groups without another
// voter keep theirs. It returns when none is left or ctx ends; then it says how many are.
func (h *Host) StepDownAll(ctx context.Context) error {
	for {
		led := h.leaderships()
		if len(led) == 0 {
			return nil
		}
		var wg sync.WaitGroup
		slots := make(chan struct{}, stepDownAtOnce)
		for _, tablet := range led {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				// What went wrong shows by the leadership that is still there in the next round.
				_ = h.TransferLeadership(ctx, tablet, 0)
			})
		}
		wg.Wait()
		if led = h.leaderships(); len(led) == 0 {
			return nil
		}
		pause(ctx, h.cfg.HeartbeatInterval/ticksPerHeartbeat)
		select {
		case <-h.stopped:
			return errHostStopped()
		default:
		}
		if ctx.Err() != nil {
			return status.New(status.TimedOut, "%d leaderships could not be handed over in time, tablet %s among them", len(led), led[0])
		}
	}
}

// leaderships returns the tablets led here that have another voter.
func (h *Host) leaderships() (led []ident.TabletID) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for _, n := range h.groups {
		v := n.view.Load()
		if v == nil {
			continue
		}
		s := v.Status()
		if s.Role != nyalav1.Role_ROLE_LEADER {
			continue
		}
		for _, p := range s.Config.GetPeers() {
			if !p.GetLearner() && p.GetReplicaId() != uint64(s.Replica) {
				led = append(led, n.tablet)
				break
			}
		}
	}
	return led
}
