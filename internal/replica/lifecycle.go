package replica

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/consensus"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/tablet"
	"github.com/nyaladb/nyala/internal/wal"
)

// A replica's life on this server. Creation: the WAL gets the creation record, then the store the replica's first state
// (which a crash may lose: it is filled again from the record), then the group starts. Deletion goes the other way: the
// group stops, the WAL forgets it, durably, and then the rows go; what a crash leaves of them is swept at the next start.
// So the WAL alone says which replicas there are.

// register makes the replica of a group of the WAL known, before it can answer.
func (m *Manager) register(g wal.Group) {
	rec := &nyalav1.ReplicaRecord{}
	err := g.Damaged
	if err == nil {
		err = proto.Unmarshal(g.Record, rec)
	}
	r := m.newReplica(rec, g.TabletID)
	r.number = g.Number
	if err != nil {
		r.failure, r.state = err, nyalav1.TabletState_TABLET_STATE_FAILED
		r.logger.Error("replica failed", "err", err)
	}
	m.mu.Lock()
	m.replicas[g.TabletID], m.byNumber[g.Number] = r, r
	m.found = append(m.found, r)
	m.mu.Unlock()
	m.changed(g.TabletID)
}

func (m *Manager) newReplica(rec *nyalav1.ReplicaRecord, id ident.TabletID) *Replica {
	return &Replica{
		m: m, record: rec, id: id,
		logger:    m.cfg.Logger.With("tablet_id", string(id)),
		turn:      make(chan struct{}, 1),
		state:     nyalav1.TabletState_TABLET_STATE_BOOTSTRAPPING,
		proposals: newProposals(),
	}
}

// open starts the replicas that the WAL held at the start, in parallel. One that can't be started fails alone.
func (m *Manager) open(ctx context.Context) error {
	var eg errgroup.Group
	eg.SetLimit(m.cfg.OpenParallel)
	for _, r := range m.found {
		if ctx.Err() != nil {
			break
		}
		eg.Go(func() error {
			if err := m.bootstrap(ctx, r); err != nil && ctx.Err() == nil {
				m.fail(r, err)
			}
			return nil
		})
	}
	if err := errors.Join(eg.Wait(), ctx.Err()); err != nil {
		return err
	}
	m.mu.Lock()
	m.opened, m.found = true, nil
	m.mu.Unlock()
	m.host.Opened()
	return nil
}

// sweep removes what the store holds of replicas that the WAL doesn't know: a crash cut their deletion short, or a copy that
// wasn't installed yet. It comes before any number is given out, and what it removed is gone for good when it returns: the
// number of a copy that came to nothing may be given again.
func (m *Manager) sweep() error {
	numbers, err := m.store.ListNumbers()
	if err != nil {
		return fmt.Errorf("list the store's replicas: %w", err)
	}
	swept := false
	for _, n := range numbers {
		if m.known(n) {
			continue
		}
		m.cfg.Logger.Info("removing the rows of a deleted replica, or of a copy that wasn't finished", "number", uint64(n))
		if err := m.store.Delete(n); err != nil {
			return fmt.Errorf("delete rows of replica %d: %w", n, err)
		}
		swept = true
	}
	if swept {
		return m.store.Flush()
	}
	return nil
}

// known says whether a replica with the number is here.
func (m *Manager) known(n ident.LocalNumber) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.byNumber[n] != nil
}

// bootstrap loads what the store holds of r, or fills it from the creation record where the store lost its first batch in a
// crash, and joins the group: the host applies again what lies between the store's applied index and the log's end.
func (m *Manager) bootstrap(ctx context.Context, r *Replica) error {
	if err := r.take(ctx); err != nil {
		return err
	}
	defer r.release()
	if !r.bootstrapping() {
		return nil // its log is damaged, or it was deleted before its turn came
	}
	n := r.Number()
	t, found, err := m.store.Load(n)
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	if !found {
		if t, err = m.store.Create(n, r.record); err != nil {
			return fmt.Errorf("fill from the creation record: %w", err)
		}
	}
	if t.TabletID() != r.id {
		return status.New(status.Corruption, "the store's replica %d is of tablet %s, the log's of tablet %s", n, t.TabletID(), r.id)
	}
	return m.join(ctx, r, t, len(t.Config().GetPeers()) == 1)
}

// join makes r answer and starts its group. It answers first: the group's first entries may be applied before StartGroup
// returns. That it was deleted or stopped meanwhile is no failure.
func (m *Manager) join(ctx context.Context, r *Replica, t *tablet.Tablet, campaign bool) error {
	if err := r.running(t); err != nil {
		return nil //nolint:nilerr // it ended before it began: its end was said where it was asked for
	}
	if err := m.startGroup(ctx, r, t, campaign); err != nil {
		return err
	}
	m.changed(r.id)
	return nil
}

// startGroup starts a replica's group behind what its tablet has applied.
func (m *Manager) startGroup(ctx context.Context, r *Replica, t *tablet.Tablet, campaign bool) error {
	index, ts := t.Applied()
	err := m.host.StartGroup(context.WithoutCancel(ctx), consensus.GroupConfig{
		Number:           r.Number(),
		Tablet:           r.id,
		Replica:          ident.ReplicaID(r.record.GetReplicaId()),
		Applied:          index,
		AppliedTimestamp: ts,
		Config:           t.Config(),
		CampaignNow:      campaign,
	})
	if err != nil {
		return fmt.Errorf("start the group: %w", err)
	}
	return nil
}

// Create makes a new replica from rec, durable when it returns. Once begun it isn't given up with ctx: a replica in the log
// that nobody knows of would be there again after the next start.
func (m *Manager) Create(ctx context.Context, rec *nyalav1.ReplicaRecord) error {
	if err := checkRecord(rec); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return status.Wrap(status.TimedOut, err, "tablet %s: its creation was not begun", rec.GetTabletId())
	}
	r, err := m.reserve(rec)
	if err != nil {
		return err
	}
	defer r.release()
	if err := m.create(context.WithoutCancel(ctx), r); err != nil {
		r.stop(nyalav1.TabletState_TABLET_STATE_DELETING, errDeleting(r.id))
		m.forget(r)
		return err
	}
	r.created()
	m.changed(r.id)
	return nil
}

// checkRecord says what is wrong with a creation record, before anything of it is made durable.
func checkRecord(rec *nyalav1.ReplicaRecord) error {
	id := rec.GetTabletId()
	if _, err := ident.Bytes(id); err != nil {
		return status.Wrap(status.InvalidArgument, err, "create replica")
	}
	s, err := schema.FromProto(rec.GetSchema())
	if err != nil {
		return status.Wrap(status.InvalidArgument, err, "create replica of tablet %s", id)
	}
	if err := schema.PartitionSchemaFromProto(rec.GetPartitionSchema()).Validate(s); err != nil {
		return status.Wrap(status.InvalidArgument, err, "create replica of tablet %s", id)
	}
	for _, p := range rec.GetConfig().GetPeers() {
		if p.GetReplicaId() == rec.GetReplicaId() && p.GetReplicaId() != 0 {
			return nil
		}
	}
	return status.New(status.InvalidArgument, "create replica of tablet %s: its config has no replica %d", id, rec.GetReplicaId())
}

// reserve takes the tablet's place for a new replica, whose turn it is then.
func (m *Manager) reserve(rec *nyalav1.ReplicaRecord) (*Replica, error) {
	id := ident.TabletID(rec.GetTabletId())
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopping {
		return nil, errStopping()
	}
	if other := m.replicas[id]; other != nil {
		return nil, other.inTheWay()
	}
	r := m.newReplica(rec, id)
	r.creating = true
	r.turn <- struct{}{}
	m.replicas[id] = r
	return r, nil
}

// inTheWay says why no other replica of the tablet can be created here.
func (r *Replica) inTheWay() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.state == nyalav1.TabletState_TABLET_STATE_DELETING:
		return status.New(status.ServiceUnavailable, "tablet %s: a replica is being deleted here; try again when it is gone", r.id)
	case r.creating:
		return status.New(status.ServiceUnavailable, "tablet %s: a replica is being created here; try again to see how that ended", r.id)
	default:
		return status.New(status.TabletAlreadyExists, "tablet %s: a replica with id %d is here already", r.id, r.record.GetReplicaId())
	}
}

func (m *Manager) create(ctx context.Context, r *Replica) error {
	record, err := proto.Marshal(r.record)
	if err != nil {
		return status.Wrap(status.InvalidArgument, err, "tablet %s: encode the record", r.id)
	}
	n, err := m.host.CreateGroup(ctx, r.id, record, ident.OpID{})
	if err != nil {
		return fmt.Errorf("tablet %s: create the group: %w", r.id, err)
	}
	r.setNumber(n)
	m.mu.Lock()
	m.byNumber[n] = r
	m.mu.Unlock()
	t, err := m.store.Create(n, r.record)
	if err == nil {
		// The first of its config asks for votes at once, so that a new tablet has a leader soon, and it is another server's
		// for the next tablet.
		err = m.join(ctx, r, t, r.record.GetConfig().GetPeers()[0].GetReplicaId() == r.record.GetReplicaId())
	}
	if err == nil && r.ending() {
		err = errDeleting(r.id)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("tablet %s: %w", r.id, err), m.remove(ctx, r))
	}
	return nil
}

// Delete removes a replica and all it holds. Once it returns nil the replica is gone for good; a replica that isn't here is
// no error. One that is being opened or created is waited for. After an error it may be called again.
func (m *Manager) Delete(ctx context.Context, id ident.TabletID) error {
	return m.DeleteReplica(ctx, id, 0)
}

// DeleteReplica is Delete of the replica with the given id alone; 0: of whichever is here.
func (m *Manager) DeleteReplica(ctx context.Context, id ident.TabletID, replica ident.ReplicaID) error {
	r, err := m.lookup(id)
	if err != nil || replica != 0 && replica != r.ReplicaID() {
		return nil //nolint:nilerr // it isn't here
	}
	r.stop(nyalav1.TabletState_TABLET_STATE_DELETING, errDeleting(id))
	if err := r.take(ctx); err != nil {
		return err
	}
	defer r.release()
	if now, err := m.lookup(id); err != nil || now != r {
		return nil //nolint:nilerr // another call has deleted it, or its creation failed
	}
	return m.remove(ctx, r)
}

// remove takes a replica out of the WAL, the maps, and the store. It is the replica's turn.
func (m *Manager) remove(ctx context.Context, r *Replica) error {
	// The log may know nothing of it any more: an earlier call was cut off after that.
	if err := m.host.DeleteGroup(ctx, r.id); err != nil && status.CodeOf(err) != status.TabletNotFound {
		return fmt.Errorf("tablet %s: delete the group: %w", r.id, err)
	}
	m.forget(r)
	if err := m.store.Delete(r.Number()); err != nil {
		return fmt.Errorf("tablet %s: delete the rows (what is left goes at the next start): %w", r.id, err)
	}
	return nil
}

// forget takes a replica out of the maps.
func (m *Manager) forget(r *Replica) {
	n := r.Number()
	m.mu.Lock()
	if m.replicas[r.id] == r {
		delete(m.replicas, r.id)
	}
	if m.byNumber[n] == r {
		delete(m.byNumber, n)
	}
	m.mu.Unlock()
	m.changed(r.id)
}

// stop ends every wait at every replica, before the parts that would end them are stopped. Nothing is created after it.
func (m *Manager) stop() {
	m.mu.Lock()
	m.stopping = true
	m.mu.Unlock()
	m.copies.stop()
	for _, r := range m.all() {
		r.stop(nyalav1.TabletState_TABLET_STATE_STOPPED, errStopping())
	}
}

func errStopping() error {
	return status.New(status.ServiceUnavailable, "this server is stopping")
}
