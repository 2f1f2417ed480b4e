package consensus

import (
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
)

// HeartbeatBatcher puts the heartbeats of all groups to one server, and the answers to its own, into batches. It is pure: time
// is what it is told, as the time since its owner's start. One goroutine at a time may use it.
//
// A batch leaves when it holds Size heartbeats, when the first thing in it has waited for Window, or before an offer to rest, which
// must not overtake a heartbeat. Answers ride with what leaves. In a batch a group is a number of a few bits instead of a tablet id
// and two replicas (docs/consensus.md).
type HeartbeatBatcher struct {
	cfg   BatcherConfig
	epoch uint64 // of the next numbering
	peers map[ident.ServerID]*heartbeatPeer
	order []*heartbeatPeer // the same, in a fixed order

	plants
}

// BatcherConfig says when batches leave.
type BatcherConfig struct {
	// Size is how many heartbeats a batch holds at most (multi_raft_batch_size).
	Size int
	// Window is how long a heartbeat waits for others at most (multi_raft_heartbeat_window_ms).
	Window time.Duration
	// Epoch tells this batcher's numbers from those of any other, before a restart above all: it must be drawn at random.
	Epoch uint64
}

// maxAnswers is how many answers ride in one batch at most.
const maxAnswers = 1024

// HeartbeatBatch is a batch that leaves.
type HeartbeatBatch struct {
	To         ident.ServerID
	Address    string
	Heartbeats *nyalav1.Heartbeats
}

// Message wraps the batch for the transport.
func (b *HeartbeatBatch) Message() *nyalav1.GroupMessage {
	return &nyalav1.GroupMessage{Kind: &nyalav1.GroupMessage_Heartbeats{Heartbeats: b.Heartbeats}}
}

// heartbeatPeer is another server: what waits to go there, and what either side's numbers mean.
type heartbeatPeer struct {
	id      ident.ServerID
	address string

	waiting []Heartbeat
	answers []Heartbeat
	unknown []uint64      // numbers of the peer's that this side can't read
	since   time.Duration // when the first of these came, if there are any
	// echo is the least Sent of the answers, if not zero, and echoSince when that answer came.
	echo      int64
	echoSince time.Duration

	given numbering
	taken readings
}

// NewHeartbeatBatcher returns a batcher that holds nothing.
func NewHeartbeatBatcher(cfg BatcherConfig) *HeartbeatBatcher {
	return &HeartbeatBatcher{cfg: cfg, epoch: cfg.Epoch, peers: make(map[ident.ServerID]*heartbeatPeer)}
}

// Add takes heartbeats in, and returns the batches that are full.
func (b *HeartbeatBatcher) Add(now time.Duration, hs []OutgoingHeartbeat) (full []HeartbeatBatch) {
	for i := range hs {
		h := &hs[i]
		p := b.peer(h.To)
		p.address = h.Address
		p.begin(now)
		if h.Answer {
			p.addAnswer(now, h.Heartbeat)
		} else {
			p.waiting = append(p.waiting, h.Heartbeat)
		}
		if len(p.waiting) >= b.cfg.Size || len(p.answers) >= maxAnswers {
			full = append(full, b.leave(now, p))
		}
	}
	return full
}

// Due says when the next batch has to leave; false: nothing waits.
func (b *HeartbeatBatcher) Due() (at time.Duration, ok bool) {
	for _, p := range b.order {
		if !p.empty() && (!ok || p.since+b.cfg.Window < at) {
			at, ok = p.since+b.cfg.Window, true
		}
	}
	return at, ok
}

// Flush returns the batches that have to leave by now.
func (b *HeartbeatBatcher) Flush(now time.Duration) (due []HeartbeatBatch) {
	for _, p := range b.order {
		if !p.empty() && p.since+b.cfg.Window <= now {
			due = append(due, b.leave(now, p))
		}
	}
	return due
}

// FlushTo returns what waits for a server, if anything does.
func (b *HeartbeatBatcher) FlushTo(now time.Duration, to ident.ServerID) []HeartbeatBatch {
	if p := b.peers[to]; p != nil && !p.empty() {
		return []HeartbeatBatch{b.leave(now, p)}
	}
	return nil
}

// Receive reads a batch from another server. What it can't read it leaves out, and the sender is told. roundTrip is how long
// the slowest of the heartbeats that are answered took there, into its group and back, without the wait for others on the way
// back; 0: unknown.
func (b *HeartbeatBatcher) Receive(now time.Duration, from ident.ServerID, m *nyalav1.Heartbeats) (hs []Heartbeat, roundTrip time.Duration, err error) {
	p := b.peer(from)
	p.given.forget(m.GetUnknownEpoch(), m.GetUnknown())
	hs, unknown, err := p.taken.read(m)
	if err != nil {
		return nil, 0, err
	}
	if len(unknown) > 0 {
		if p.unknown = append(p.unknown, unknown...); len(p.unknown) > maxAnswers {
			p.unknown = p.unknown[:maxAnswers] // the rest is asked for when it comes by again
		}
		p.begin(now)
	}
	if m.GetEcho() != 0 {
		roundTrip = max(now-time.Duration(m.GetEcho())-time.Duration(m.GetEchoWait()), 0)
	}
	return hs, roundTrip, nil
}

// Lost says that a batch didn't reach a server, or may not have: what its numbers mean is said again.
func (b *HeartbeatBatcher) Lost(to ident.ServerID, m *nyalav1.Heartbeats) {
	var numbers []uint64
	for _, g := range m.GetGroups() {
		numbers = append(numbers, g.GetNumber())
	}
	b.peer(to).given.forget(m.GetEpoch(), numbers)
}

// peer returns a server. There are as many as servers share groups with this one.
func (b *HeartbeatBatcher) peer(id ident.ServerID) *heartbeatPeer {
	p := b.peers[id]
	if p == nil {
		p = &heartbeatPeer{id: id, given: numbering{epoch: b.nextEpoch()}}
		b.peers[id] = p
		b.order = append(b.order, p)
	}
	return p
}

func (b *HeartbeatBatcher) nextEpoch() uint64 {
	if b.epoch++; b.epoch == 0 {
		b.epoch++ // 0 is what a message says that names none
	}
	return b.epoch
}

func (p *heartbeatPeer) empty() bool { return len(p.waiting)+len(p.answers)+len(p.unknown) == 0 }

// begin notes when the first thing came that waits.
func (p *heartbeatPeer) begin(now time.Duration) {
	if p.empty() {
		p.since = now
	}
}

func (p *heartbeatPeer) addAnswer(now time.Duration, h Heartbeat) {
	if h.Sent != 0 && (p.echo == 0 || h.Sent < p.echo) {
		p.echo, p.echoSince = h.Sent, now
	}
	p.answers = append(p.answers, h)
}

// leave makes a batch of everything that waits for a server.
func (b *HeartbeatBatcher) leave(now time.Duration, p *heartbeatPeer) HeartbeatBatch {
	if p.given.worn(now) {
		p.given = numbering{epoch: b.nextEpoch(), looked: now}
	}
	if n := len(p.waiting); n > 1 && b.planted(mistakeBatchLosesOne) {
		p.waiting = p.waiting[:n-1]
	}
	m := &nyalav1.Heartbeats{Epoch: p.given.epoch, Sent: int64(now)}
	p.given.write(m, p.waiting, p.answers)
	if len(p.unknown) > 0 {
		m.UnknownEpoch, m.Unknown = p.taken.epoch, p.unknown
	}
	if p.echo != 0 {
		m.Echo, m.EchoWait = p.echo, int64(now-p.echoSince)
	}
	p.waiting, p.answers, p.unknown, p.echo = p.waiting[:0], p.answers[:0], nil, 0
	return HeartbeatBatch{To: p.id, Address: p.address, Heartbeats: m}
}
