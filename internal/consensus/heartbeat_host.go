package consensus

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
)

// heartbeats is the shell of a host's batcher: the workers' heartbeats go in, and batches leave when they are full or their time
// has come.
type heartbeats struct {
	host  *Host
	start time.Time
	wake  chan struct{} // one token: something waits that didn't before

	mu      sync.Mutex
	batcher *HeartbeatBatcher
	until   time.Duration // run looks again then; 0: when it is woken
}

func newHeartbeats(h *Host) *heartbeats {
	var seed [8]byte
	_, _ = rand.Read(seed[:]) // it never fails
	return &heartbeats{host: h, start: time.Now(), wake: make(chan struct{}, 1), batcher: NewHeartbeatBatcher(BatcherConfig{
		Size: h.cfg.HeartbeatBatch, Window: h.cfg.heartbeatWindow(), Epoch: binary.LittleEndian.Uint64(seed[:]),
	})}
}

func (b *heartbeats) now() time.Duration { return time.Since(b.start) }

// send takes heartbeats from a worker. It doesn't block.
func (b *heartbeats) send(hs []OutgoingHeartbeat) {
	if len(hs) == 0 {
		return
	}
	if !b.host.cfg.BatchHeartbeats {
		b.sendSingly(hs)
		return
	}
	b.mu.Lock()
	full := b.batcher.Add(b.now(), hs)
	signal := b.waits()
	b.mu.Unlock()
	b.leave(full)
	if signal {
		b.signal()
	}
}

// sendNow lets what waits for a server leave.
func (b *heartbeats) sendNow(to ident.ServerID) {
	b.mu.Lock()
	now := b.batcher.FlushTo(b.now(), to)
	b.mu.Unlock()
	b.leave(now)
}

// waits says whether something waits that run doesn't know of. The lock is held.
func (b *heartbeats) waits() bool {
	at, ok := b.batcher.Due()
	return ok && (b.until == 0 || at < b.until)
}

func (b *heartbeats) signal() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// sendSingly sends each heartbeat as a message of its own.
func (b *heartbeats) sendSingly(hs []OutgoingHeartbeat) {
	for i := range hs {
		m, err := hs[i].Message()
		if err != nil {
			continue // it has no field that could fail; lost is what it would be
		}
		b.host.metrics.heartbeatBytes.Add(float64(proto.Size(m)))
		b.host.deps.Transport.Send(hs[i].To, hs[i].Address, Control, []*nyalav1.GroupMessage{m})
	}
}

func (b *heartbeats) leave(batches []HeartbeatBatch) {
	m := b.host.metrics
	for i := range batches {
		msg := batches[i].Message()
		m.heartbeatBytes.Add(float64(proto.Size(msg)))
		if n := len(batches[i].Heartbeats.GetNumber()); n > 0 {
			m.heartbeatBatches.Inc()
			m.heartbeatGroups.Observe(float64(n))
		}
		b.host.deps.Transport.Send(batches[i].To, batches[i].Address, Control, []*nyalav1.GroupMessage{msg})
	}
}

// run lets batches leave whose time has come, until ctx ends.
func (b *heartbeats) run(ctx context.Context) error {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		b.mu.Lock()
		due := b.batcher.Flush(b.now())
		b.until, _ = b.batcher.Due()
		until := b.until
		b.mu.Unlock()
		b.leave(due)
		if until != 0 {
			t.Reset(until - b.now())
		} else {
			t.Stop()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-b.wake:
		case <-t.C:
		}
	}
}

// receive reads a batch and gives the heartbeats to the workers of their groups.
func (b *heartbeats) receive(from ident.ServerID, m *nyalav1.Heartbeats) {
	h := b.host
	b.mu.Lock()
	hs, roundTrip, err := b.batcher.Receive(b.now(), from, m)
	signal := b.waits()
	b.mu.Unlock()
	if err != nil {
		h.metrics.ignored[ignoredMalformed].Inc()
		return
	}
	if signal {
		b.signal()
	}
	if roundTrip != 0 {
		h.metrics.heartbeatTrip.Observe(roundTrip.Seconds())
	}
	total := len(m.GetNumber()) + len(m.GetAnswerNumber())
	h.metrics.messagesReceived.Add(float64(total))
	h.metrics.heartbeatsLost.Add(float64(total - len(hs)))
	byWorker := make(map[*worker][]Heartbeat, len(h.workers))
	for _, hb := range hs {
		if n, ignored := b.addressee(from, &hb); ignored == "" {
			byWorker[n.worker] = append(byWorker[n.worker], hb)
		} else {
			h.metrics.ignored[ignored].Inc()
		}
	}
	for w, hs := range byWorker {
		if !w.box.heartbeats(hs) {
			h.metrics.ignored[ignoredQueueFull].Add(float64(len(hs)))
		}
	}
}

// addressee finds the replica that a heartbeat is for. A leader whose follower isn't here is told so.
func (b *heartbeats) addressee(from ident.ServerID, hb *Heartbeat) (n *handle, ignored string) {
	n, ignored = b.host.addressee(hb.Tablet, hb.To)
	if ignored == "" {
		return n, ""
	}
	if m, err := hb.Message(); err == nil {
		b.host.answerAbsent(from, m)
	}
	return nil, ignored
}

// lost says that a batch may not have reached a server.
func (b *heartbeats) lost(to ident.ServerID, m *nyalav1.Heartbeats) {
	b.mu.Lock()
	b.batcher.Lost(to, m)
	b.mu.Unlock()
}
