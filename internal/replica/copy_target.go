package replica

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/tablet"
)

// receive makes a replica here by a copy. It returns the entry after which the replica's state is, once it is installed.
func (c *copier) receive(ctx context.Context, req *nyalav1.StartTabletCopyRequest) (at ident.OpID, err error) {
	if err := c.forUs(req.GetDestServerId()); err != nil {
		return at, err
	}
	id, replica := ident.TabletID(req.GetTabletId()), ident.ReplicaID(req.GetReplicaId())
	if _, err := ident.Bytes(string(id)); err != nil || replica == 0 {
		return at, status.New(status.InvalidArgument, "a copy of tablet %q as replica %d: an id is wrong", id, replica)
	}
	if ok, why := c.m.Ready(); !ok {
		return at, status.New(status.ServiceUnavailable, "tablet %s: no copy is begun while this server opens its replicas: %s", id, why)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in, err := c.beginIncoming(copyKey{id, replica}, cancel)
	if err != nil {
		return at, err
	}
	defer c.endIncoming(in)
	if err := c.m.replaceable(id, replica); err != nil {
		return at, err
	}
	began := time.Now()
	log := c.m.cfg.Logger.With("tablet_id", string(id), "replica", uint64(replica), "source", req.GetSourceAddress())
	log.Info("copying a tablet")
	if at, err = c.fetch(ctx, req, in); err != nil {
		c.metrics.failed.Inc()
		log.Warn("copying a tablet failed; nothing of it is kept", "err", err)
		return at, err
	}
	c.metrics.made.Inc()
	log.Info("copied a tablet", "entry", at.String(), "bytes", in.bytes.Load(), "took", time.Since(began).Round(time.Millisecond))
	return at, nil
}

func (c *copier) beginIncoming(k copyKey, cancel context.CancelFunc) (*incomingCopy, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.stopped:
		return nil, errStopping()
	case c.incoming[k.tablet] != nil:
		return nil, status.New(status.ServiceUnavailable, "tablet %s: a copy of it is being made here", k.tablet)
	case len(c.incoming) >= c.cfg.AtOnce:
		return nil, &status.Error{
			Code: status.TooBusy, RetryAfter: busyRetry,
			Msg: fmt.Sprintf("%d copies are coming in, no more are begun (--num_tablets_to_copy_simultaneously)", len(c.incoming)),
		}
	}
	in := &incomingCopy{copyKey: k, cancel: cancel, done: make(chan struct{})}
	c.incoming[k.tablet] = in
	c.running.Add(1)
	return in, nil
}

func (c *copier) endIncoming(in *incomingCopy) {
	c.mu.Lock()
	delete(c.incoming, in.tablet)
	c.mu.Unlock()
	close(in.done)
	c.running.Done()
}

// giveUp ends a copy that is coming in, and returns when nothing of it is left or it is a replica.
func (c *copier) giveUp(ctx context.Context, id ident.TabletID) error {
	c.mu.Lock()
	in := c.incoming[id]
	c.mu.Unlock()
	if in == nil {
		return nil
	}
	in.cancel()
	select {
	case <-in.done:
		return nil
	case <-ctx.Done():
		return status.Wrap(status.TimedOut, ctx.Err(), "tablet %s: a copy that comes in is being given up", id)
	}
}

// fetch gets the stream, writes what comes under a new number, and installs it.
func (c *copier) fetch(ctx context.Context, req *nyalav1.StartTabletCopyRequest, in *incomingCopy) (at ident.OpID, err error) {
	conn, err := c.dialNew(req.GetSourceAddress())
	if err != nil {
		return at, err
	}
	defer func() { _ = conn.Close() }()
	// Ended when it is no longer needed: a source whose receiver has failed must not go on sending.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	idle := time.AfterFunc(c.cfg.IdleTimeout, func() {
		cancel(status.New(status.TimedOut, "the source of the copy has said nothing for %v", c.cfg.IdleTimeout))
	})
	defer idle.Stop()
	stream, err := nyalav1.NewTabletCopyServiceClient(conn).FetchTablet(ctx, &nyalav1.FetchTabletRequest{
		DestServerId: req.GetSourceServerId(), TabletId: string(in.tablet), ReplicaId: uint64(in.replica), MinIndex: req.GetMinIndex(),
	})
	if err != nil {
		return at, err
	}
	r := copyReader{recv: func() (*nyalav1.FetchTabletResponse, error) {
		m, err := stream.Recv()
		if cause := context.Cause(ctx); err != nil && ctx.Err() != nil && cause != ctx.Err() { //nolint:errorlint // whether one was given
			return nil, cause
		}
		idle.Reset(c.cfg.IdleTimeout)
		return m, err
	}}
	return c.take(ctx, &r, req, in)
}

// take reads the stream into the store and installs what it has read.
func (c *copier) take(ctx context.Context, r *copyReader, req *nyalav1.StartTabletCopyRequest, in *incomingCopy) (at ident.OpID, err error) {
	h, err := r.header()
	if err == nil {
		err = c.checkHeader(h, req)
	}
	if err == nil {
		err = c.faults.before(stepHeader)
	}
	if err != nil {
		return at, err
	}
	at = ident.OpID{Term: ident.Term(h.GetOpId().GetTerm()), Index: ident.Index(h.GetOpId().GetIndex())}
	in.record.Store(h.GetRecord())
	number := c.m.host.AllocateNumber()
	im, err := c.m.store.NewImport(number, tablet.ImportState{
		Record: h.GetRecord(), Config: h.GetConfig(), Applied: at.Index, Timestamp: hybridtime.Timestamp(h.GetTimestamp()),
	})
	if err != nil {
		return at, err
	}
	if err := c.takePairs(ctx, r, im, in); err != nil {
		return at, errors.Join(err, im.Abort())
	}
	t, err := im.Finish(ctx)
	if err != nil {
		return at, err
	}
	if err = c.faults.before(stepInstall); err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return at, errors.Join(err, c.m.store.Delete(number))
	}
	return at, c.m.install(context.WithoutCancel(ctx), t, h, at)
}

func (c *copier) takePairs(ctx context.Context, r *copyReader, im *tablet.Import, in *incomingCopy) error {
	for {
		pairs, err := r.next()
		if err != nil {
			return err
		}
		if len(pairs) == 0 {
			return c.faults.before(stepFinish)
		}
		n, err := c.write(ctx, im, pairs)
		if err != nil {
			return err
		}
		r.took(pairs, n)
		in.bytes.Add(uint64(len(pairs)))
		c.metrics.fetched.Add(float64(len(pairs)))
		if err := c.faults.before(stepChunk); err != nil {
			return err
		}
		if c.cfg.InjectLatency > 0 && !sleep(ctx, c.cfg.InjectLatency) {
			return ctx.Err()
		}
	}
}

// write writes a chunk's pairs, in one step.
func (c *copier) write(ctx context.Context, im *tablet.Import, pairs []byte) (int, error) {
	leave, err := c.step(ctx)
	if err != nil {
		return 0, err
	}
	defer leave()
	return im.Add(pairs)
}

// checkHeader says why a copy can't become the replica that was asked for.
func (c *copier) checkHeader(h *nyalav1.TabletCopyHeader, req *nyalav1.StartTabletCopyRequest) error {
	rec := h.GetRecord()
	switch {
	case rec.GetTabletId() != req.GetTabletId() || rec.GetReplicaId() != req.GetReplicaId():
		return errCopyStream("it is of replica %d of tablet %s, asked for was %d of %s", rec.GetReplicaId(), rec.GetTabletId(),
			req.GetReplicaId(), req.GetTabletId())
	case h.GetOpId().GetIndex() < req.GetMinIndex():
		return errCopyStream("it ends at entry %d, asked for was %d at least", h.GetOpId().GetIndex(), req.GetMinIndex())
	case !proto.Equal(rec.GetConfig(), h.GetConfig()):
		return errCopyStream("its record has another config than its header")
	}
	if err := checkRecord(rec); err != nil {
		return err
	}
	i := slices.IndexFunc(h.GetConfig().GetPeers(), func(p *nyalav1.Peer) bool { return p.GetReplicaId() == rec.GetReplicaId() })
	if p := h.GetConfig().GetPeers()[i]; p.GetServerId() != string(c.m.cfg.ServerID) {
		return status.New(status.WrongServerID, "tablet %s: replica %d is %s's, this is server %s", rec.GetTabletId(), rec.GetReplicaId(),
			p.GetServerId(), c.m.cfg.ServerID)
	} else if !p.GetLearner() {
		// What a voter has promised stands in its WAL alone: made anew it could take it back.
		if own, ok := c.m.soundReplica(ident.TabletID(rec.GetTabletId())); !ok || own != ident.ReplicaID(rec.GetReplicaId()) {
			return status.New(status.IllegalState, "tablet %s: replica %d is a voter and is not here any more: remove it from the group and add this server anew",
				rec.GetTabletId(), rec.GetReplicaId())
		}
	}
	if ts := hybridtime.Timestamp(h.GetTimestamp()); ts != 0 {
		if err := c.m.clock.Update(ts); err != nil {
			return status.Wrap(status.Clock, err, "tablet %s: the copy's last timestamp", rec.GetTabletId())
		}
	}
	return nil
}

// Copying describes the copies that are coming in, in the order of their tablets' ids. They are no replicas yet, or replace
// some that are.
func (m *Manager) Copying() []*nyalav1.ReplicaStatus {
	c := m.copies
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]*nyalav1.ReplicaStatus, 0, len(c.incoming))
	for _, in := range c.incoming {
		rec := in.record.Load()
		out = append(out, &nyalav1.ReplicaStatus{
			TabletId: string(in.tablet), ReplicaId: uint64(in.replica), TableId: rec.GetTableId(), TableName: rec.GetTableName(),
			Partition: rec.GetPartition(), Config: rec.GetConfig(), State: nyalav1.TabletState_TABLET_STATE_COPYING,
			Role: nyalav1.Role_ROLE_NON_PARTICIPANT, CopiedBytes: in.bytes.Load(),
		})
	}
	slices.SortFunc(out, func(a, b *nyalav1.ReplicaStatus) int { return cmp.Compare(a.GetTabletId(), b.GetTabletId()) })
	return out
}
