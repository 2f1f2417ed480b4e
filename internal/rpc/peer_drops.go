package rpc

import (
	"context"
	"sync"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
)

// dropReason is a label of a metric.
type dropReason string

const (
	dropFull        = dropReason("queue_full")
	dropTooLarge    = dropReason("too_large")
	dropUnreachable = dropReason("unreachable")
	dropStream      = dropReason("stream_lost") // on their way when the stream broke: lost, or not
	dropRefused     = dropReason("no_such_peer")
	dropStopped     = dropReason("stopping")
)

var dropReasons = [...]dropReason{dropFull, dropTooLarge, dropUnreachable, dropStream, dropRefused, dropStopped}

// dropReports hands lost messages to the handler from a goroutine of its own (I1). What waits there is bounded; beyond
// that losses are only counted, and the handler finds out as it would about a message lost on the wire.
type dropReports struct {
	limit   int
	metrics *peerMetrics
	wake    chan struct{}

	mu      sync.Mutex
	pending map[ident.ServerID][]*nyalav1.GroupMessage
	bytes   int
}

func (d *dropReports) init(limit int, m *peerMetrics) {
	d.limit, d.metrics, d.wake = limit, m, make(chan struct{}, 1)
	d.pending = map[ident.ServerID][]*nyalav1.GroupMessage{}
}

// add notes lost messages; the slice may be used again.
func (d *dropReports) add(to ident.ServerID, ch nyalav1.PeerChannel, reason dropReason, msgs []*nyalav1.GroupMessage) {
	if len(msgs) == 0 {
		return
	}
	d.metrics.dropped[ch][reason].Add(float64(len(msgs)))
	if reason == dropStopped {
		return // nobody is there any more to hear of it
	}
	unreported := 0
	d.mu.Lock()
	for _, m := range msgs {
		n := messageBytes(m)
		if d.bytes+n > d.limit && d.bytes > 0 {
			unreported++
			continue
		}
		d.bytes += n
		d.pending[to] = append(d.pending[to], m)
	}
	d.mu.Unlock()
	d.metrics.unreported.Add(float64(unreported))
	signal(d.wake)
}

func (d *dropReports) run(ctx context.Context, h PeerHandler) {
	for {
		select {
		case <-d.wake:
		case <-ctx.Done():
			return
		}
		d.mu.Lock()
		pending := d.pending
		d.pending, d.bytes = map[ident.ServerID][]*nyalav1.GroupMessage{}, 0
		d.mu.Unlock()
		for to, msgs := range pending {
			h.Unreachable(to, msgs)
		}
	}
}
