package consensus

import (
	"context"
	"sync/atomic"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
)

// worker steps one Core from one goroutine.
type worker struct {
	host *Host
	core *Core
	box  *inbox
	mail mail
	// out collects messages by server and channel for one call of the transport each.
	out map[route]*[]*nyalav1.GroupMessage
	hot []route
	// rests: no group of the core needs ticks.
	rests atomic.Bool
}

type route struct {
	to      ident.ServerID
	address string
	ch      Channel
}

// call is a request of a goroutine that waits.
type call struct {
	done   chan Done // holds one
	gone   atomic.Bool
	placed func(ident.OpID, hybridtime.Timestamp) // nil: nobody wants to know
}

func newCall(placed func(ident.OpID, hybridtime.Timestamp)) *call {
	return &call{done: make(chan Done, 1), placed: placed}
}

func newWorker(h *Host, cc CoreConfig) *worker {
	return &worker{
		host: h,
		core: newCore(cc, h.deps.Clock, h.metrics),
		box:  newInbox(cc.Limits),
		out:  make(map[route]*[]*nyalav1.GroupMessage),
	}
}

func (w *worker) run(ctx context.Context) error {
	for w.box.take(ctx, &w.mail) {
		w.step(&w.mail)
		w.dispatch(w.core.Take())
		w.rests.Store(w.core.Rests())
	}
	return nil
}

// step gives the core a turn's events: what the host had under way first (before the commands: what a group that was
// stopped left behind must not meet the one that is started after it), then messages, the urgent ones before the rest, then
// requests, and time last, so that a leader's word that has arrived counts before the election timer does.
func (w *worker) step(m *mail) {
	c := w.core
	c.At(w.host.heartbeats.now())
	for _, a := range m.appended {
		c.Appended(a.tablet, a.seq)
	}
	for _, a := range m.applied {
		for range a.count {
			c.Applied(a.tablet, a.err)
		}
	}
	for _, f := range m.commands {
		f(c)
	}
	for _, h := range m.beats { // before the offers to rest that came behind them
		w.ignored(c.Heartbeat(h))
	}
	for _, gm := range m.control {
		w.ignored(c.Receive(gm))
	}
	for _, gm := range m.data {
		w.ignored(c.Receive(gm))
	}
	for _, u := range m.unsent {
		c.Unreachable(u.tablet, u.from, u.to)
	}
	for i := range m.requests {
		w.request(&m.requests[i])
	}
	if m.tick {
		c.Tick()
	}
}

// ignored counts a message that was left alone for a reason.
func (w *worker) ignored(reason string) {
	if reason != "" {
		w.host.metrics.ignored[reason].Inc()
	}
}

func (w *worker) request(r *request) {
	if r.call.gone.Load() && r.kind != requestCancel {
		return
	}
	switch r.kind {
	case requestCancel:
		w.core.Cancel(r.tablet, r.call)
	case requestPropose:
		w.core.Propose(r.tablet, r.entry, r.payload, r.call)
	case requestRead:
		w.core.ReadIndex(r.tablet, r.call)
	case requestClose:
		w.core.CloseTimestamp(r.tablet, r.ts, r.call)
	case requestTransfer:
		w.core.Transfer(r.tablet, r.to, r.call)
	case requestChange:
		w.core.ChangeConfig(r.tablet, r.change, r.call)
	}
}

// dispatch does what the core has decided. Nothing in it blocks. Messages go first: appends to followers don't wait for
// the log here. Requests are answered before anything is applied, so that a proposer knows its entry's place by then.
func (w *worker) dispatch(d Decisions) {
	h := w.host
	w.send(d.Messages)
	h.heartbeats.send(d.Heartbeats)
	for _, done := range d.Done {
		c := done.Ticket.(*call)
		if done.Err == nil && c.placed != nil {
			c.placed(done.OpID, done.Timestamp)
		}
		c.done <- done
	}
	if len(d.Appends) > 0 {
		h.writer.add(w, d.Appends)
	}
	if len(d.Applies) > 0 {
		h.applies.add(w, d.Applies)
	}
	for _, r := range d.Refusals {
		h.refusals.put(r)
	}
	for _, n := range d.Needs {
		h.notifier.put(n.Tablet, func(w *news) { w.needs = append(w.needs, n) })
	}
	for _, r := range d.Removals {
		h.notifier.put(r.Tablet, func(w *news) { w.removed = &r })
	}
	if len(d.Questions) > 0 {
		h.stepServers(func(s *Servers) {
			for _, q := range d.Questions {
				s.Ask(q)
			}
		})
	}
	for _, s := range d.Changes {
		h.observeChange(s)
	}
	for _, f := range d.Failures {
		h.observeFailure(f)
	}
}

func (w *worker) send(msgs []Outgoing) {
	for _, m := range msgs {
		if m.Message.GetQuietOffer() != nil {
			w.host.heartbeats.sendNow(m.To) // one that came after it would wake the follower again
		}
		r := route{m.To, m.Address, m.Channel}
		q := w.out[r]
		if q == nil {
			q = new([]*nyalav1.GroupMessage)
			w.out[r] = q
		}
		if len(*q) == 0 {
			w.hot = append(w.hot, r)
		}
		*q = append(*q, m.Message)
	}
	for _, r := range w.hot {
		q := w.out[r]
		w.host.deps.Transport.Send(r.to, r.address, r.ch, *q)
		*q = nil // the messages and their slice are the transport's now
	}
	w.hot = w.hot[:0]
}
