package rpc

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
)

// link is one channel to one peer: a queue, and the stream that empties it while there is one.
type link struct {
	p       *peer
	channel nyalav1.PeerChannel
	limit   int // bytes that may wait

	wake  chan struct{} // while there is no stream: something is queued, or a stream came or went
	retry chan struct{} // don't wait out the backoff

	receiving sync.Mutex // held while Receive is called: one at a time, whatever the streams (I3)

	mu      sync.Mutex
	queue   []*nyalav1.GroupMessage
	queued  int          // bytes in queue
	beat    *pendingBeat // the one that waits; nil: none
	spare   []*nyalav1.GroupMessage
	session *session  // the stream in use; nil: none
	wanted  time.Time // until then a lost connection is sought
}

func newLink(p *peer, ch nyalav1.PeerChannel) *link {
	limit := p.t.cfg.DataQueueBytes
	if ch == Control {
		limit = p.t.cfg.ControlQueueBytes
	}
	return &link{p: p, channel: ch, limit: limit, wake: make(chan struct{}, 1), retry: make(chan struct{}, 1)}
}

// batchSlack is what a batch's own fields and one message's framing need at most.
const batchSlack = 64

// messageBytes is about what a message weighs on the wire and in memory. It is cheap, unlike proto.Size, and exact
// enough for bounds: the fields of any length count in full.
func messageBytes(m *nyalav1.GroupMessage) int {
	n := len(m.GetRaft()) + 64
	if hs := m.GetHeartbeats(); hs != nil {
		n += 64*len(hs.GetGroups()) + 16*(len(hs.GetNumber())+len(hs.GetAnswerNumber())+len(hs.GetUnknown()))
	}
	return n
}

// enqueue takes what finds room and drops the rest.
func (l *link) enqueue(msgs []*nyalav1.GroupMessage) {
	cfg := &l.p.t.cfg
	var full, large []*nyalav1.GroupMessage
	l.mu.Lock()
	before := l.queued
	for _, m := range msgs {
		n := messageBytes(m)
		switch {
		case n > cfg.MaxMessageSize-batchSlack:
			large = append(large, m)
		case l.queued+n > l.limit && len(l.queue) > 0:
			full = append(full, m)
		default:
			l.queue = append(l.queue, m)
			l.queued += n
		}
	}
	added := l.queued - before
	l.wanted = time.Now().Add(cfg.Linger)
	s := l.session
	l.mu.Unlock()

	t := l.p.t
	t.metrics.queueBytes[l.channel].Add(float64(added))
	l.wakeSender(s)
	t.drops.add(l.p.id, l.channel, dropFull, full)
	if len(large) > 0 {
		t.drops.add(l.p.id, l.channel, dropTooLarge, large)
		t.log.Warn("message to a peer is over --rpc_max_message_size and was dropped", "peer", l.p.id, "limit", cfg.MaxMessageSize)
	}
}

// wakeSender tells the stream in use, or where there is none who makes one, that there is something to send.
func (l *link) wakeSender(s *session) {
	if s != nil {
		signal(s.wake)
	} else {
		signal(l.wake)
	}
}

// setBeat has a beat sent with the next batch, in the place of one that still waits, as late as that would be.
func (l *link) setBeat(due time.Time, stamp func() *nyalav1.Beat) {
	l.mu.Lock()
	if l.beat != nil {
		due = l.beat.due
	}
	l.beat = &pendingBeat{due, stamp}
	l.wanted = time.Now().Add(l.p.t.cfg.Linger)
	s := l.session
	l.mu.Unlock()
	l.wakeSender(s)
}

// take returns the next batch for s: all that is queued, up to the batch limit, and the beat that waits. Neither when
// nothing is queued or s is no longer the stream in use.
func (l *link) take(s *session) (msgs []*nyalav1.GroupMessage, bytes int, beat *pendingBeat) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session != s {
		return nil, 0, nil
	}
	beat, l.beat = l.beat, nil
	if len(l.queue) == 0 {
		return nil, 0, beat
	}
	limit := l.p.t.cfg.BatchBytes
	if l.channel == Control && l.p.t.cfg.ControlSingly {
		limit = 0
	}
	n := 0
	for n < len(l.queue) {
		size := messageBytes(l.queue[n])
		if n > 0 && bytes+size > limit {
			break
		}
		bytes += size
		n++
	}
	if n == len(l.queue) {
		msgs, l.queue, l.spare = l.queue, l.spare, nil
	} else {
		// The rest moves to the front, so that the array doesn't creep along and grow.
		msgs = append(l.spare, l.queue[:n]...)
		l.spare = nil
		rest := copy(l.queue, l.queue[n:])
		clear(l.queue[rest:])
		l.queue = l.queue[:rest]
	}
	l.queued -= bytes
	l.p.t.metrics.queueBytes[l.channel].Sub(float64(bytes))
	return msgs, bytes, beat
}

// giveBack returns a batch's slice for the next one.
func (l *link) giveBack(msgs []*nyalav1.GroupMessage) {
	const keep = 4096 // entries; a larger one was an exception and goes
	if cap(msgs) == 0 || cap(msgs) > keep {
		return
	}
	clear(msgs)
	l.mu.Lock()
	if l.spare == nil {
		l.spare = msgs[:0]
	}
	l.mu.Unlock()
}

// dropQueue gives up what is queued.
func (l *link) dropQueue(reason dropReason) {
	l.mu.Lock()
	msgs, bytes := l.queue, l.queued
	if l.session != nil {
		msgs, bytes = nil, 0 // a stream came meanwhile and takes them
	} else {
		l.queue, l.queued, l.beat = nil, 0, nil
	}
	l.mu.Unlock()
	l.p.t.metrics.queueBytes[l.channel].Sub(float64(bytes))
	l.p.t.drops.add(l.p.id, l.channel, reason, msgs)
}

// attach makes s the stream in use; the one before it is closed (I3).
func (l *link) attach(s *session) {
	l.mu.Lock()
	old := l.session
	l.session = s
	l.mu.Unlock()
	if old != nil {
		old.close(errSuperseded)
	}
	signal(l.wake)
	signal(s.wake)
	l.p.t.metrics.connects[l.channel].Inc()
}

// detach ends the use of s, if it still is in use.
func (l *link) detach(s *session) {
	l.mu.Lock()
	if l.session == s {
		l.session = nil
	}
	l.mu.Unlock()
	signal(l.wake)
}

func (l *link) state() (connected, queued, wanted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.session != nil, len(l.queue) > 0 || l.beat != nil, time.Now().Before(l.wanted)
}

// knocked notes that the peer, which can't dial, wants to be dialed.
func (l *link) knocked() {
	l.mu.Lock()
	l.wanted = time.Now().Add(l.p.t.cfg.Linger)
	l.mu.Unlock()
	signal(l.wake)
	signal(l.retry)
}

// run sees to it that there is a stream while one is wanted, until ctx ends.
func (l *link) run(ctx context.Context) {
	defer l.dropQueue(dropStopped)
	if l.p.dials {
		l.runDialing(ctx)
	} else {
		l.runKnocking(ctx)
	}
}

// stable is how long a stream must have lasted for the next attempt to come soon.
const stable = 5 * time.Second

func (l *link) runDialing(ctx context.Context) {
	b := pacer{min: l.p.t.cfg.BackoffMin, max: l.p.t.cfg.BackoffMax}
	for ctx.Err() == nil {
		if _, queued, wanted := l.state(); !queued && !wanted {
			select {
			case <-l.wake:
			case <-ctx.Done():
			}
			continue
		}
		start := time.Now()
		if established := l.connect(ctx); !established && ctx.Err() == nil {
			l.dropQueue(dropUnreachable)
		} else if time.Since(start) > stable {
			b.reset() // one that breaks at once, again and again, is paced like one that doesn't come up
		}
		l.pause(ctx, b.next())
	}
}

// runKnocking asks the peer to dial while something is queued and no stream there.
func (l *link) runKnocking(ctx context.Context) {
	cfg := &l.p.t.cfg
	b := pacer{min: cfg.BackoffMin, max: cfg.BackoffMax}
	for ctx.Err() == nil {
		connected, queued, _ := l.state()
		if connected || !queued {
			b.reset()
			select {
			case <-l.wake:
			case <-ctx.Done():
			}
			continue
		}
		if err := l.knock(ctx); (err != nil || !l.awaitSession(ctx, cfg.QueueWait)) && ctx.Err() == nil {
			l.dropQueue(dropUnreachable)
		}
		l.pause(ctx, b.next())
	}
}

// awaitSession waits for a stream, at most for d.
func (l *link) awaitSession(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		if connected, _, _ := l.state(); connected {
			return true
		}
		select {
		case <-l.wake:
		case <-t.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// pause waits for d, or less when the peer is heard or has a new address.
func (l *link) pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.retry:
	case <-ctx.Done():
	}
}

// pacer doubles the time between attempts from min to max, each time with up to a fifth less, so that many servers don't knock in step.
type pacer struct{ min, max, last time.Duration }

func (b *pacer) reset() { b.last = 0 }

func (b *pacer) next() time.Duration {
	b.last = min(max(2*b.last, b.min), b.max)
	return b.last - rand.N(b.last/5+1)
}
