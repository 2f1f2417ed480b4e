package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

// hello is what this server says of itself.
func (t *PeerTransport) hello(ch nyalav1.PeerChannel) *nyalav1.PeerHello {
	return &nyalav1.PeerHello{
		ServerId:    string(t.cfg.ServerID),
		ClusterId:   string(t.cfg.ClusterID()),
		Incarnation: t.cfg.Incarnation,
		Channel:     ch,
		Address:     t.cfg.Address(),
	}
}

// checkHello refuses a server of another cluster, and one that isn't who it should be.
func (t *PeerTransport) checkHello(h *nyalav1.PeerHello) error {
	if _, err := ident.Bytes(h.GetServerId()); err != nil {
		return status.Wrap(status.InvalidArgument, err, "peer's hello: server")
	}
	own := t.cfg.ClusterID()
	if theirs := h.GetClusterId(); own != "" && theirs != "" && theirs != string(own) {
		return status.New(status.ClusterIDMismatch, "server %s belongs to cluster %s, server %s at %s to cluster %.64q: one of them was given the wrong addresses; nothing was changed",
			t.cfg.ServerID, own, h.GetServerId(), h.GetAddress(), theirs)
	}
	if h.GetServerId() == string(t.cfg.ServerID) {
		return status.New(status.WrongServerID, "two servers have the id %s: one at %s, one at %s: was a data folder copied?",
			t.cfg.ServerID, t.cfg.Address(), h.GetAddress())
	}
	return nil
}

// connect dials the peer and serves the stream until it ends. It returns whether there was one.
func (l *link) connect(ctx context.Context) (established bool) {
	address := l.p.address()
	if address == "" {
		l.connectFailed(ctx, address, errors.New("its address is not known"))
		return false
	}
	err := l.open(ctx, address, l.channel, func(stream nyalav1.PeerService_ExchangeClient, cancel context.CancelFunc) {
		established = true
		l.p.t.log.Info("connected to peer", "peer", l.p.id, "address", address, "channel", channelName(l.channel))
		s := newSession(l)
		l.attach(s)
		var wg sync.WaitGroup
		wg.Go(func() {
			s.write(func(b *nyalav1.PeerBatch) error {
				return stream.Send(&nyalav1.ExchangeRequest{Frame: &nyalav1.ExchangeRequest_Batch{Batch: b}})
			})
		})
		wg.Go(func() {
			s.read(func() (*nyalav1.PeerBatch, error) {
				m, err := stream.Recv()
				return m.GetBatch(), err
			})
		})
		select {
		case <-s.done:
		case <-ctx.Done():
			s.close(errStopping)
		}
		cancel()
		wg.Wait()
		l.detach(s)
		if ctx.Err() == nil {
			l.p.t.log.Info("connection to peer lost", "peer", l.p.id, "address", address, "channel", channelName(l.channel), "error", s.err)
		}
	})
	if err != nil {
		l.connectFailed(ctx, address, err)
	}
	return established
}

func (l *link) connectFailed(ctx context.Context, address string, err error) {
	if ctx.Err() != nil {
		return
	}
	l.p.t.metrics.failures[l.channel].Inc()
	if l.p.failed(address, err) {
		l.p.t.log.Warn("can't reach peer; trying on", "peer", l.p.id, "address", address, "error", err)
	}
}

// knock tells a peer that must dial where this server is, and that it should.
func (l *link) knock(ctx context.Context) error {
	address := l.p.address()
	err := errors.New("its address is not known")
	if address != "" {
		err = l.open(ctx, address, nyalav1.PeerChannel_PEER_CHANNEL_UNSPECIFIED, nil)
	}
	if err != nil {
		l.connectFailed(ctx, address, err)
	}
	return err
}

// open dials, swaps hellos and calls use with the stream, which ends when use returns or calls its cancel function. An
// error means that it didn't come to that.
func (l *link) open(ctx context.Context, address string, ch nyalav1.PeerChannel, use func(nyalav1.PeerService_ExchangeClient, context.CancelFunc)) error {
	t := l.p.t
	conn, err := Dial(address, DialOptions{MaxMessageSize: t.cfg.MaxMessageSize, ClusterID: t.cfg.ClusterID, ConnectTimeout: t.cfg.HelloTimeout})
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	limit := time.AfterFunc(t.cfg.HelloTimeout, cancel)
	defer limit.Stop()
	stream, h, err := l.swapHellos(ctx, nyalav1.NewPeerServiceClient(conn), ch)
	if !limit.Stop() {
		return fmt.Errorf("no hello from %s within %v", address, t.cfg.HelloTimeout)
	}
	if err != nil {
		return err
	}
	l.p.hello(h)
	if use != nil {
		use(stream, cancel)
	}
	return nil
}

func (l *link) swapHellos(ctx context.Context, c nyalav1.PeerServiceClient, ch nyalav1.PeerChannel) (nyalav1.PeerService_ExchangeClient, *nyalav1.PeerHello, error) {
	t := l.p.t
	stream, err := c.Exchange(ctx)
	if err != nil {
		return nil, nil, err
	}
	// An error of Send is io.EOF; the reason comes with Recv.
	_ = stream.Send(&nyalav1.ExchangeRequest{Frame: &nyalav1.ExchangeRequest_Hello{Hello: t.hello(ch)}})
	first, err := stream.Recv()
	if err != nil {
		return nil, nil, err
	}
	h := first.GetHello()
	if h == nil {
		return nil, nil, status.New(status.InvalidArgument, "the first frame was no hello")
	}
	if err := t.checkHello(h); err != nil {
		return nil, nil, err
	}
	if h.GetServerId() != string(l.p.id) {
		return nil, nil, status.New(status.WrongServerID, "at this address is server %s, not %s", h.GetServerId(), l.p.id)
	}
	return stream, h, nil
}
