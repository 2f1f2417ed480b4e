package consensus_test

import (
	"fmt"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/consensus"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/invariant"
)

// Heartbeats in the simulated cluster: they go through the batcher that production has, in small batches; or, in some seeds and
// in the scripts, each by itself.

// simWindow is how long heartbeats wait for others; small next to a run, as is a batch.
const (
	simWindow = 2 * time.Millisecond
	simBatch  = 3
)

func (w *world) newBatcher() *consensus.HeartbeatBatcher {
	w.epochs += 1 << 32 // at random where it matters: no two are the same
	return consensus.NewHeartbeatBatcher(consensus.BatcherConfig{Size: simBatch, Window: simWindow, Epoch: w.epochs})
}

// heartbeats sends what a core has for others.
func (w *world) heartbeats(s *simServer, hs []consensus.OutgoingHeartbeat) {
	for i := range hs {
		w.check.heartbeat(s, hs[i].Heartbeat)
		if !w.opts.batched {
			m, err := hs[i].Message()
			if err != nil {
				invariant.Check(false, "%v", err)
			}
			w.transmit(s, consensus.Outgoing{To: hs[i].To, Address: hs[i].Address, Channel: consensus.Control, Message: m})
		}
	}
	if w.opts.batched {
		w.sendBatches(s, s.batcher.Add(w.now, hs))
	}
}

// flushHeartbeats lets batches leave whose time has come; when everything runs in good order it says whether any did.
func (w *world) flushHeartbeats(s *simServer) (left bool) {
	if !s.up || s.paused {
		return false
	}
	now := w.now
	if w.calm || w.orderly {
		now += simWindow
	}
	due := s.batcher.Flush(now)
	w.sendBatches(s, due)
	return len(due) > 0
}

func (w *world) sendBatches(s *simServer, batches []consensus.HeartbeatBatch) {
	for i := range batches {
		w.transmit(s, consensus.Outgoing{To: batches[i].To, Address: batches[i].Address, Channel: consensus.Control, Message: batches[i].Message()})
	}
}

// receiveBatch gives a server what it can read of a batch.
func (w *world) receiveBatch(s *simServer, from int, m *nyalav1.Heartbeats) {
	hs, _, err := s.batcher.Receive(w.now, ident.ServerID(serverName(from)), m)
	if err != nil {
		w.check.failf("server %d: can't read a batch of server %d: %v", s.id, from, err)
		return
	}
	for _, h := range hs {
		w.check.heartbeatRead(s, h)
		if m, err := h.Message(); err == nil && w.opts.members > 0 {
			w.answerStranger(s, from, m)
		}
		s.core.Heartbeat(h)
	}
}

// heartbeat: only a term's leader sends them.
func (c *checker) heartbeat(s *simServer, h consensus.Heartbeat) {
	t := ident.TabletID(ident.FromBytes(h.Tablet))
	g := c.group(t)
	if leader := g.leaders[h.Term]; !h.Answer && leader != 0 && leader != h.From {
		c.failf("server %d: replica %d speaks as leader of term %d", s.id, h.From, h.Term)
	}
	if g.heartbeats == nil {
		g.heartbeats = map[consensus.Heartbeat]bool{}
	}
	h.Sent = 0
	g.heartbeats[h] = true
}

// heartbeatRead: a batch says nothing that wasn't put in.
func (c *checker) heartbeatRead(s *simServer, h consensus.Heartbeat) {
	h.Sent = 0
	if !c.group(ident.TabletID(ident.FromBytes(h.Tablet))).heartbeats[h] {
		c.failf("server %d: reads a heartbeat that nobody sent: %+v", s.id, h)
	}
}

func describeHeartbeats(m *nyalav1.Heartbeats) string {
	return fmt.Sprintf("Heartbeats of %d groups, %d answers, %d numbers told, %d asked for", len(m.GetNumber()), len(m.GetAnswerNumber()), len(m.GetGroups()), len(m.GetUnknown()))
}
