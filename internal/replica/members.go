package replica

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/consensus"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/tablet"
)

// ChangeConfig changes the tablet's members in one step, on its leader (see consensus.Host.ChangeConfig).
func (r *Replica) ChangeConfig(ctx context.Context, ch consensus.ConfigChange) (*nyalav1.RaftConfig, error) {
	if _, err := r.Tablet(); err != nil {
		return nil, err
	}
	config, err := r.m.host.ChangeConfig(ctx, r.id, ch)
	if err != nil {
		return nil, r.hostError(err)
	}
	return config, nil
}

// NeedsCopy is called by the host of a leader whose log doesn't reach a member.
func (m *Manager) NeedsCopy(id ident.TabletID, peer *nyalav1.Peer, config *nyalav1.RaftConfig) {
	m.copies.need(copyKey{id, ident.ReplicaID(peer.GetReplicaId())}, copyNeed{
		server: ident.ServerID(peer.GetServerId()), address: peer.GetAddress(), minIndex: ident.Index(config.GetOpidIndex()),
	})
}

// ReplicaRemoved is called by the host when the replica here is no member of its group any more.
func (m *Manager) ReplicaRemoved(id ident.TabletID, replica ident.ReplicaID) {
	m.cfg.Logger.Info("deleting a replica that was removed from its group", "tablet_id", string(id), "replica", uint64(replica))
	m.copies.removed(id, replica)
}

// GiveUpCopy ends a copy of a tablet that is being made here, if there is one. When it returns nil, nothing of the copy is left,
// or it has become a replica.
func (m *Manager) GiveUpCopy(ctx context.Context, id ident.TabletID) error {
	return m.copies.giveUp(ctx, id)
}

// replaceable says why a copy for a replica can't take the place of what is here of the tablet.
func (m *Manager) replaceable(id ident.TabletID, replica ident.ReplicaID) error {
	r, err := m.lookup(id)
	if err != nil {
		return nil //nolint:nilerr // nothing is in the way
	}
	return r.replaceableBy(replica)
}

func (r *Replica) replaceableBy(replica ident.ReplicaID) error {
	own := r.ReplicaID()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.creating, r.state == nyalav1.TabletState_TABLET_STATE_DELETING:
		return status.New(status.ServiceUnavailable, "tablet %s: a replica is being created or deleted here; try again when that is done", r.id)
	case r.state == nyalav1.TabletState_TABLET_STATE_STOPPED:
		return errStopping()
	case own > replica:
		return status.New(status.IllegalState, "tablet %s: replica %d is here, a copy for %d is out of date", r.id, own, replica)
	case own < replica:
		return nil // it was removed from the group, or its record is damaged
	case r.state == nyalav1.TabletState_TABLET_STATE_FAILED:
		return status.Wrap(status.TabletFailed, r.failure,
			"tablet %s: replica %d has failed and can't go on under its id: remove it from the group and add this server anew", r.id, replica)
	default:
		return nil
	}
}

// ReplicaID is the replica's id within its tablet; 0 where its record is damaged.
func (r *Replica) ReplicaID() ident.ReplicaID { return ident.ReplicaID(r.record.GetReplicaId()) }

// soundReplica is the id of the tablet's replica here that hasn't failed.
func (m *Manager) soundReplica(id ident.TabletID) (ident.ReplicaID, bool) {
	r, err := m.lookup(id)
	if err != nil {
		return 0, false
	}
	_, err = r.Tablet()
	return r.ReplicaID(), err == nil
}

// install makes a replica of a copy that the store holds durably, in the place of what is here of the tablet. There is one step
// that does it: the commit of the WAL that names the copy's number and drops the old one's. Before it the old replica is as it
// was, but for its group, which is started again if the install fails; after it the copy is the replica.
func (m *Manager) install(ctx context.Context, t *tablet.Tablet, h *nyalav1.TabletCopyHeader, at ident.OpID) error {
	record, err := proto.Marshal(t.Record())
	if err != nil {
		return status.Wrap(status.InvalidArgument, err, "tablet %s: encode the record", t.TabletID())
	}
	r := m.newReplica(t.Record(), t.TabletID())
	r.number, r.creating = t.Number(), true
	r.turn <- struct{}{}
	defer r.release()
	old, err := m.makeWay(ctx, r)
	if err != nil {
		return errors.Join(err, m.store.Delete(t.Number()))
	}
	in := consensus.CopyInstall{
		Tablet: r.id, Replica: r.ReplicaID(), Number: t.Number(), Record: record, Start: at,
		Timestamp: hybridtime.Timestamp(h.GetTimestamp()),
	}
	if old != nil {
		defer old.release()
		in.Old, in.OldReplica = old.Number(), old.ReplicaID()
	}
	if err := m.host.InstallCopy(ctx, in); err != nil {
		if old == nil {
			r.stop(nyalav1.TabletState_TABLET_STATE_DELETING, errDeleting(r.id))
			m.forget(r)
		} else {
			m.goOn(ctx, old)
		}
		if refusedInstall(err) {
			err = errors.Join(err, m.store.Delete(t.Number()))
		}
		return err
	}
	m.replace(old, r)
	if err := m.copies.faults.before(stepJoin); err != nil {
		return err
	}
	if err := m.join(ctx, r, t, false); err != nil {
		m.fail(r, err)
		return fmt.Errorf("tablet %s: %w", r.id, err)
	}
	if old != nil {
		// Scans of the old rows end with this: they go on elsewhere, or here from where they were.
		return m.store.Delete(old.Number())
	}
	return nil
}

// refusedInstall says whether an install was refused, so that the copy's rows are nobody's. After any other error the WAL may hold
// the replica after all, or be done for: then the next start sees what the rows are.
func refusedInstall(err error) bool {
	switch status.CodeOf(err) {
	case status.IllegalState, status.AlreadyPresent, status.NotFound, status.TabletAlreadyExists, status.InvalidArgument:
		return true
	default:
		return false
	}
}

// makeWay takes the tablet's place for r: the turn of the replica that is there, which it returns, or the place itself.
func (m *Manager) makeWay(ctx context.Context, r *Replica) (old *Replica, err error) {
	for {
		m.mu.Lock()
		old, stopping := m.replicas[r.id], m.stopping
		if old == nil && !stopping {
			m.replicas[r.id] = r
		}
		m.mu.Unlock()
		switch {
		case stopping:
			return nil, errStopping()
		case old == nil:
			return nil, nil
		}
		if err := old.replaceableBy(r.ReplicaID()); err != nil {
			return nil, err
		}
		if err := old.take(ctx); err != nil {
			return nil, err
		}
		if now, err := m.lookup(r.id); err == nil && now == old {
			if err = old.replaceableBy(r.ReplicaID()); err == nil {
				return old, nil
			}
			old.release()
			return nil, err
		}
		old.release() // it was deleted before its turn came
	}
}

// replace makes r the tablet's replica. The WAL has said so.
func (m *Manager) replace(old, r *Replica) {
	m.mu.Lock()
	m.replicas[r.id], m.byNumber[r.Number()] = r, r
	if old != nil {
		delete(m.byNumber, old.Number())
	}
	m.mu.Unlock()
	if old != nil {
		old.stop(nyalav1.TabletState_TABLET_STATE_STOPPED,
			status.New(status.TabletNotRunning, "tablet %s: this replica has just been brought up to date by a copy; try again", r.id))
	}
	r.created()
	m.changed(r.id)
}

// goOn starts a replica's group again that was to be replaced and wasn't.
func (m *Manager) goOn(ctx context.Context, r *Replica) {
	t, err := r.Tablet()
	if err != nil {
		return // it had ended before
	}
	if _, ok := m.host.Status(r.id); ok {
		return // it was never stopped
	}
	if err := m.startGroup(ctx, r, t, false); err != nil {
		m.fail(r, err)
	}
}
