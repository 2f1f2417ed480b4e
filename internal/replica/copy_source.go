package replica

import (
	"context"
	"fmt"
	"slices"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/tablet"
)

// copyService is what servers call on each other for copies.
type copyService struct {
	nyalav1.UnimplementedTabletCopyServiceServer
	c *copier
}

var _ nyalav1.TabletCopyServiceServer = (*copyService)(nil)

// StartTabletCopy makes a replica here by a copy from another server.
func (s *copyService) StartTabletCopy(ctx context.Context, req *nyalav1.StartTabletCopyRequest) (*nyalav1.StartTabletCopyResponse, error) {
	at, err := s.c.receive(ctx, req)
	if err != nil {
		return nil, err
	}
	return &nyalav1.StartTabletCopyResponse{OpId: &nyalav1.OpId{Term: uint64(at.Term), Index: uint64(at.Index)}}, nil
}

// FetchTablet sends what a replica here holds.
func (s *copyService) FetchTablet(req *nyalav1.FetchTabletRequest, stream nyalav1.TabletCopyService_FetchTabletServer) error {
	return s.c.send(stream.Context(), req, stream.Send)
}

// forUs refuses a call that was meant for another server, as after an address changed hands.
func (c *copier) forUs(dest string) error {
	if own := c.m.cfg.ServerID; dest != string(own) {
		return status.New(status.WrongServerID, "this is server %s, the call is for %s", own, dest)
	}
	return nil
}

// beginOutgoing takes one of the places for copies that go out; end gives it back.
func (c *copier) beginOutgoing() (end func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.stopped:
		return nil, errStopping()
	case c.outgoing >= c.cfg.AtOnce:
		return nil, &status.Error{
			Code: status.TooBusy, RetryAfter: busyRetry,
			Msg: fmt.Sprintf("%d copies are going out, no more are begun (--num_tablets_to_copy_simultaneously)", c.outgoing),
		}
	}
	c.outgoing++
	c.running.Add(1)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.outgoing--
		c.running.Done()
	}, nil
}

// send sends a replica's contents as of one moment.
func (c *copier) send(ctx context.Context, req *nyalav1.FetchTabletRequest, send func(*nyalav1.FetchTabletResponse) error) error {
	if err := c.forUs(req.GetDestServerId()); err != nil {
		return err
	}
	end, err := c.beginOutgoing()
	if err != nil {
		return err
	}
	defer end()
	r, err := c.m.lookup(ident.TabletID(req.GetTabletId()))
	if err != nil {
		return err
	}
	if err := r.WaitApplied(ctx, ident.Index(req.GetMinIndex())); err != nil {
		return err
	}
	t, err := r.Tablet()
	if err != nil {
		return err
	}
	e, err := t.NewExport()
	if err != nil {
		return err
	}
	if err := c.sendExport(ctx, r, t, e, req, send); err != nil {
		_ = e.Close()
		return err
	}
	return e.Close()
}

func (c *copier) sendExport(ctx context.Context, r *Replica, t *tablet.Tablet, e *tablet.Export, req *nyalav1.FetchTabletRequest,
	send func(*nyalav1.FetchTabletResponse) error,
) error {
	if f := c.faults.send; f != nil {
		whole := send
		send = func(m *nyalav1.FetchTabletResponse) error {
			if err := f(m); err != nil {
				return err
			}
			return whole(m)
		}
	}
	id := req.GetReplicaId()
	if !slices.ContainsFunc(e.Config().GetPeers(), func(p *nyalav1.Peer) bool { return p.GetReplicaId() == id }) {
		return status.New(status.IllegalState, "tablet %s: replica %d, for which a copy is asked, is no member by the config of entry %d",
			r.id, id, e.Config().GetOpidIndex())
	}
	at, ts, err := c.exported(r, t, e)
	if err != nil {
		return err
	}
	if err := send(copyHeader(e.Record(ident.ReplicaID(id)), e.Config(), at, uint64(ts))); err != nil {
		return err
	}
	var totals copyTotals
	for more := true; more; {
		// A replica that is stopped, deleted or has failed meanwhile is no source any more.
		if _, err := r.Tablet(); err != nil {
			return err
		}
		var pairs []byte
		var n int
		if pairs, n, more, err = c.read(ctx, e); err != nil {
			return err
		}
		if n == 0 {
			continue
		}
		if err := send(totals.chunk(pairs, n)); err != nil {
			return err
		}
		c.metrics.sent.Add(float64(len(pairs)))
	}
	return send(totals.trailer())
}

// read reads the next pairs, in one step.
func (c *copier) read(ctx context.Context, e *tablet.Export) (pairs []byte, n int, more bool, err error) {
	leave, err := c.step(ctx)
	if err != nil {
		return nil, 0, true, err
	}
	defer leave()
	return e.Next(ctx, make([]byte, 0, c.cfg.ChunkBytes+c.cfg.ChunkBytes/8), c.cfg.ChunkBytes)
}

// exported is the last entry in an export, with the term that the log has for it.
func (c *copier) exported(r *Replica, t *tablet.Tablet, e *tablet.Export) (at ident.OpID, ts hybridtime.Timestamp, err error) {
	index, ts := e.Applied()
	log := c.m.log.Log(t.Number())
	if log == nil {
		return at, 0, errDeleting(r.id)
	}
	term, err := log.TermOf(index)
	if err != nil {
		return at, 0, status.Wrap(status.ServiceUnavailable, err, "tablet %s: the term of entry %d, the last in the copy", r.id, index)
	}
	return ident.OpID{Term: term, Index: index}, ts, nil
}
