package consensus

import (
	"context"
	"sync"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/wal"
)

// inbox is what has come for a worker and is not stepped yet. Messages and requests come from outside and are bounded: they
// are refused when it is full. The rest is work of the host's own that has ended, bounded by what is under way.
type inbox struct {
	signal chan struct{} // one token: something may be there

	mu        sync.Mutex
	in        mail
	dataBytes int
	maxBytes  int
	maxMsgs   int
	maxReqs   int
}

// mail is what one turn of a worker takes in.
type mail struct {
	commands []func(*Core)
	appended []appendedMail
	applied  []appliedMail
	control  []*nyalav1.GroupMessage
	beats    []Heartbeat
	data     []*nyalav1.GroupMessage
	unsent   []unsentMail
	requests []request
	tick     bool
}

type appendedMail struct {
	tablet ident.TabletID
	seq    uint64
}

type appliedMail struct {
	tablet ident.TabletID
	count  int
	err    error
}

type unsentMail struct {
	tablet   ident.TabletID
	from, to ident.ReplicaID
}

type requestKind uint8

const (
	requestPropose requestKind = iota
	requestRead
	requestClose
	requestTransfer
	requestChange
	requestCancel
)

type request struct {
	kind    requestKind
	tablet  ident.TabletID
	entry   wal.Kind
	payload []byte
	ts      hybridtime.Timestamp
	to      ident.ReplicaID
	change  *ConfigChange
	placed  func(ident.OpID, hybridtime.Timestamp)
	call    *call
}

// turnMessages is how many data messages a worker takes at once, so that what is urgent never waits behind many.
const turnMessages = 256

func newInbox(l Limits) *inbox {
	return &inbox{signal: make(chan struct{}, 1), maxBytes: l.MaxQueuedBytes, maxMsgs: l.MaxQueuedMessages, maxReqs: l.MaxQueuedRequests}
}

func (b *inbox) wake() {
	select {
	case b.signal <- struct{}{}:
	default:
	}
}

// message queues a message; false: there is no room.
func (b *inbox) message(m *nyalav1.GroupMessage, data bool) bool {
	size := len(m.GetRaft())
	b.mu.Lock()
	q := &b.in.control
	if data {
		q = &b.in.data
	}
	ok := len(*q) < b.maxMsgs && (!data || b.dataBytes == 0 || b.dataBytes+size <= b.maxBytes)
	if ok {
		*q = append(*q, m)
		if data {
			b.dataBytes += size
		}
	}
	b.mu.Unlock()
	if ok {
		b.wake()
	}
	return ok
}

// heartbeats queues heartbeats; false: there is no room for them.
func (b *inbox) heartbeats(hs []Heartbeat) bool {
	b.mu.Lock()
	ok := len(b.in.beats)+len(hs) <= b.maxMsgs
	if ok {
		b.in.beats = append(b.in.beats, hs...)
	}
	b.mu.Unlock()
	if ok {
		b.wake()
	}
	return ok
}

// request queues a request; false: there is no room. Cancels always have room: each follows a request.
func (b *inbox) request(r request) bool {
	b.mu.Lock()
	ok := len(b.in.requests) < b.maxReqs || r.kind == requestCancel
	if ok {
		b.in.requests = append(b.in.requests, r)
	}
	b.mu.Unlock()
	if ok {
		b.wake()
	}
	return ok
}

// put lets f add work of the host's own.
func (b *inbox) put(f func(*mail)) {
	b.mu.Lock()
	f(&b.in)
	b.mu.Unlock()
	b.wake()
}

// take moves what is there into m, whose slices are used again; false: ctx has ended.
func (b *inbox) take(ctx context.Context, m *mail) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-b.signal:
		}
		if b.swap(m) {
			return true
		}
	}
}

func (b *inbox) swap(m *mail) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	in := &b.in
	m.commands, in.commands = in.commands, reset(m.commands)
	m.appended, in.appended = in.appended, reset(m.appended)
	m.applied, in.applied = in.applied, reset(m.applied)
	m.control, in.control = in.control, reset(m.control)
	m.beats, in.beats = in.beats, reset(m.beats)
	m.unsent, in.unsent = in.unsent, reset(m.unsent)
	m.requests, in.requests = in.requests, reset(m.requests)
	m.tick, in.tick = in.tick, false
	if len(in.data) <= turnMessages {
		m.data, in.data = in.data, reset(m.data)
		b.dataBytes = 0
	} else {
		m.data = append(reset(m.data), in.data[:turnMessages]...)
		for _, d := range m.data {
			b.dataBytes -= len(d.GetRaft())
		}
		n := copy(in.data, in.data[turnMessages:])
		clear(in.data[n:])
		in.data = in.data[:n]
		b.wake()
	}
	return len(m.commands)+len(m.appended)+len(m.applied)+len(m.control)+len(m.beats)+len(m.data)+len(m.unsent)+len(m.requests) > 0 || m.tick
}

func reset[T any](s []T) []T {
	clear(s)
	return s[:0]
}
