package rpc

import (
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

// Exchange serves a peer that dialed: the PeerService.
func (t *PeerTransport) Exchange(stream nyalav1.PeerService_ExchangeServer) error {
	if !t.enter() {
		return status.New(status.ServiceUnavailable, "server %s is starting or stopping", t.cfg.ServerID)
	}
	defer t.handlers.Done()
	h, err := t.awaitHello(stream)
	if err != nil {
		return err
	}
	if err := t.checkHello(h); err != nil {
		t.refused(h, err)
		return err
	}
	shouldKnock := string(t.cfg.ServerID) < h.GetServerId()
	if knocks := h.GetChannel() == nyalav1.PeerChannel_PEER_CHANNEL_UNSPECIFIED; knocks != shouldKnock {
		return status.New(status.InvalidArgument, "between servers %s and %s the lower id dials and the higher knocks", t.cfg.ServerID, h.GetServerId())
	}
	p := t.peer(ident.ServerID(h.GetServerId()))
	if p == nil {
		return status.New(status.TooBusy, "server %s knows %d peers already", t.cfg.ServerID, maxPeers)
	}
	if err := stream.Send(&nyalav1.ExchangeResponse{Frame: &nyalav1.ExchangeResponse_Hello{Hello: t.hello(h.GetChannel())}}); err != nil {
		return err
	}
	p.hello(h)
	switch ch := h.GetChannel(); ch {
	case nyalav1.PeerChannel_PEER_CHANNEL_UNSPECIFIED:
		for _, l := range p.links {
			l.knocked()
		}
		return nil
	case Control, Data:
		return t.serve(stream, p.link(ch))
	default:
		return status.New(status.NotSupported, "peer channel %d is not known to this version", ch)
	}
}

// refused logs a refusal, but not each time that the same server tries again.
func (t *PeerTransport) refused(h *nyalav1.PeerHello, err error) {
	const again = time.Minute
	t.mu.Lock()
	news := err.Error() != t.lastRefusal || time.Since(t.lastRefused) > again
	if news {
		t.lastRefusal, t.lastRefused = err.Error(), time.Now()
	}
	t.mu.Unlock()
	if news {
		t.log.Warn("peer refused", "peer", h.GetServerId(), "address", h.GetAddress(), "error", err)
	}
}

// serve uses the stream until it breaks, a newer one takes its place or the transport stops. It doesn't wait for its two
// goroutines, since what they are blocked in ends only when the handler has returned; Run waits for them.
func (t *PeerTransport) serve(stream nyalav1.PeerService_ExchangeServer, l *link) error {
	s := newSession(l)
	l.attach(s)
	defer l.detach(s)
	t.handlers.Go(func() {
		s.write(func(b *nyalav1.PeerBatch) error {
			return stream.Send(&nyalav1.ExchangeResponse{Frame: &nyalav1.ExchangeResponse_Batch{Batch: b}})
		})
	})
	t.handlers.Go(func() {
		s.read(func() (*nyalav1.PeerBatch, error) {
			m, err := stream.Recv()
			return m.GetBatch(), err
		})
	})
	select {
	case <-s.done:
	case <-t.stopping:
		s.close(errStopping)
	case <-stream.Context().Done():
		s.close(stream.Context().Err())
	}
	return status.Wrap(status.Aborted, s.err, "stream to server %s", t.cfg.ServerID)
}

// enter counts a handler in, unless Run isn't there to wait for it.
func (t *PeerTransport) enter() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.running || t.stopped {
		return false
	}
	t.handlers.Add(1)
	return true
}

// awaitHello waits for the first frame, within the bound.
func (t *PeerTransport) awaitHello(stream nyalav1.PeerService_ExchangeServer) (*nyalav1.PeerHello, error) {
	type frame struct {
		m   *nyalav1.ExchangeRequest
		err error
	}
	first := make(chan frame, 1)
	t.handlers.Go(func() {
		m, err := stream.Recv()
		first <- frame{m, err}
	})
	limit := time.NewTimer(t.cfg.HelloTimeout)
	defer limit.Stop()
	select {
	case f := <-first:
		if f.err != nil {
			return nil, f.err
		}
		if h := f.m.GetHello(); h != nil {
			return h, nil
		}
		return nil, status.New(status.InvalidArgument, "the first frame of a peer's stream must be a hello")
	case <-limit.C:
		return nil, status.New(status.TimedOut, "no hello within %v", t.cfg.HelloTimeout)
	case <-t.stopping:
		return nil, status.Wrap(status.ServiceUnavailable, errStopping, "server %s", t.cfg.ServerID)
	}
}
