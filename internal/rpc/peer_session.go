package rpc

import (
	"sync"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
)

// session is one stream of a link while it is in use: a goroutine that sends and one that receives.
type session struct {
	l    *link
	wake chan struct{} // something is queued
	done chan struct{} // closed by close
	late beatDelay     // of the beats that come; under link.receiving

	once sync.Once
	err  error // why it ended; set before done is closed
}

func newSession(l *link) *session {
	return &session{l: l, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// close ends the session for a reason; the first one counts.
func (s *session) close(err error) {
	s.once.Do(func() {
		s.err = err
		close(s.done)
	})
}

func (s *session) closed() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// write sends what is queued until the session ends. Everything that waits leaves as one batch, whose stamp is read last.
func (s *session) write(send func(*nyalav1.PeerBatch) error) {
	t := s.l.p.t
	for !s.closed() {
		msgs, bytes, beat := s.l.take(s)
		if msgs == nil && beat == nil {
			select {
			case <-s.wake:
			case <-s.done:
			}
			continue
		}
		clock, fenced := t.cfg.Stamp()
		b := &nyalav1.PeerBatch{Clock: uint64(clock), Fenced: fenced, Messages: msgs}
		if beat != nil {
			b.Beat = beat.make()
		}
		if err := send(b); err != nil {
			t.drops.add(s.l.p.id, s.l.channel, dropStream, msgs)
			s.close(err)
			return
		}
		t.metrics.sent[s.l.channel].count(len(msgs), bytes)
		if beat != nil {
			t.metrics.beatsSent.Inc()
		}
		s.l.giveBack(msgs) // it was marshalled by the time send returned
	}
}

// read hands over what comes until the session ends. A nil batch is a frame of a kind that this version doesn't know.
func (s *session) read(recv func() (*nyalav1.PeerBatch, error)) {
	t := s.l.p.t
	for {
		b, err := recv()
		if err != nil {
			s.close(err)
			return
		}
		if b == nil {
			continue
		}
		bytes := 0
		for _, m := range b.GetMessages() {
			bytes += messageBytes(m)
		}
		t.metrics.received[s.l.channel].count(len(b.GetMessages()), bytes)
		if !s.deliver(b) {
			return
		}
	}
}

func (s *session) deliver(b *nyalav1.PeerBatch) bool {
	s.l.receiving.Lock()
	defer s.l.receiving.Unlock()
	if s.closed() {
		return false
	}
	t := s.l.p.t
	if beat := b.GetBeat(); beat != nil && s.l.channel == Control {
		t.metrics.beatsReceived.Inc()
		if late, ok := s.late.of(beat.GetDue(), time.Now()); ok {
			t.metrics.beatDelay.Observe(late.Seconds())
		}
		t.handler.HearBeat(s.l.p.id, beat)
	}
	t.handler.Receive(s.l.p.id, b)
	return true
}
