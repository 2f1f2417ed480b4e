package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/clock"
	"github.com/nyaladb/nyala/internal/consensus"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/tablet"
	"github.com/nyaladb/nyala/internal/wal"
)

// ManagerConfig says whose replicas these are.
type ManagerConfig struct {
	ServerID ident.ServerID
	// OpenParallel is how many replicas are bootstrapped at once.
	OpenParallel int
	Logger       *slog.Logger
}

// Manager holds the replicas of one server. It is what consensus applies to.
type Manager struct {
	cfg   ManagerConfig
	host  *consensus.Host
	store *tablet.Store
	log   wal.Store
	clock *clock.Clock

	mu       sync.RWMutex
	replicas map[ident.TabletID]*Replica
	byNumber map[ident.LocalNumber]*Replica
	opened   bool // all replicas found at the start have been tried

	subscribers []*Changes
}

// open starts the replicas that the WAL knows, in parallel. A replica that can't be started is failed, alone.
func (m *Manager) open(ctx context.Context) error {
	// What the store holds of replicas that the WAL no longer knows was left by a deletion that a crash cut short.
	numbers, err := m.store.ListNumbers()
	if err != nil {
		return fmt.Errorf("list the store's replicas: %w", err)
	}
	for _, n := range numbers {
		if m.known(n) {
			continue
		}
		m.cfg.Logger.Info("removing the rows of a deleted replica", "number", uint64(n))
		if err := m.store.Delete(n); err != nil {
			return fmt.Errorf("delete rows of replica %d: %w", n, err)
		}
	}
	eg, ctx := errgroup.WithContext(ctx)
	eg.SetLimit(m.cfg.OpenParallel)
	for _, r := range m.all() {
		eg.Go(func() error {
			if err := m.bootstrap(ctx, r); err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				m.fail(r, err)
			}
			return nil
		})
	}
	if err := eg.Wait(); err != nil {
		return err
	}
	m.mu.Lock()
	m.opened = true
	m.mu.Unlock()
	return nil
}

// known says whether a replica with the number is here.
func (m *Manager) known(n ident.LocalNumber) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.byNumber[n] != nil
}

// register makes the replica of a group of the WAL known, before it can answer.
func (m *Manager) register(g wal.Group) {
	rec := &nyalav1.ReplicaRecord{}
	err := proto.Unmarshal(g.Record, rec)
	if err == nil && g.Damaged != nil {
		err = g.Damaged
	}
	r := m.newReplica(rec, g.TabletID, g.Number)
	if err != nil {
		r.failure, r.state = err, nyalav1.TabletState_TABLET_STATE_FAILED
		r.logger.Error("replica failed", "err", err)
	}
	m.mu.Lock()
	m.replicas[g.TabletID], m.byNumber[g.Number] = r, r
	m.mu.Unlock()
	m.changed(g.TabletID)
}

func (m *Manager) newReplica(rec *nyalav1.ReplicaRecord, id ident.TabletID, n ident.LocalNumber) *Replica {
	return &Replica{
		m: m, record: rec, id: id, number: n,
		logger:   m.cfg.Logger.With("tablet_id", string(id)),
		state:    nyalav1.TabletState_TABLET_STATE_BOOTSTRAPPING,
		inFlight: map[requestKey]*proposal{},
		byIndex:  map[ident.Index]*proposal{},
	}
}

// bootstrap loads what the store holds of r, or fills it from the creation record where the store lost its first batch in a
// crash, and joins the group: the host applies again what lies between the store's applied index and the log's end.
func (m *Manager) bootstrap(ctx context.Context, r *Replica) error {
	if r.failed() {
		return nil
	}
	t, found, err := m.store.Load(r.number)
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	if !found {
		if t, err = m.store.Create(r.number, r.record); err != nil {
			return fmt.Errorf("fill from the creation record: %w", err)
		}
	}
	return m.join(ctx, r, t)
}

func (m *Manager) join(ctx context.Context, r *Replica, t *tablet.Tablet) error {
	// Running before the group starts: its first entries may be applied before StartGroup returns.
	r.running(t)
	index, ts := t.Applied()
	err := m.host.StartGroup(ctx, consensus.GroupConfig{
		Number:           r.number,
		Tablet:           r.id,
		Replica:          ident.ReplicaID(r.record.GetReplicaId()),
		Applied:          index,
		AppliedTimestamp: ts,
		Config:           t.Config(),
		CampaignNow:      len(t.Config().GetPeers()) == 1,
	})
	if err != nil {
		return fmt.Errorf("start the group: %w", err)
	}
	return nil
}

// Create makes a new replica from rec, durable when it returns.
func (m *Manager) Create(ctx context.Context, rec *nyalav1.ReplicaRecord) error {
	id := ident.TabletID(rec.GetTabletId())
	if _, err := ident.Bytes(string(id)); err != nil {
		return status.Wrap(status.InvalidArgument, err, "create replica")
	}
	m.mu.Lock()
	if other, ok := m.replicas[id]; ok {
		m.mu.Unlock()
		return status.New(status.TabletAlreadyExists, "tablet %s: a replica with id %d is here already", id, other.record.GetReplicaId())
	}
	r := m.newReplica(rec, id, 0)
	m.replicas[id] = r
	m.mu.Unlock()

	if err := m.create(ctx, r); err != nil {
		m.mu.Lock()
		delete(m.replicas, id)
		delete(m.byNumber, r.number)
		m.mu.Unlock()
		return err
	}
	return nil
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
	m.mu.Lock()
	r.number, m.byNumber[n] = n, r
	m.mu.Unlock()
	t, err := m.store.Create(n, r.record)
	if err == nil {
		err = m.join(ctx, r, t)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("tablet %s: %w", r.id, err), m.host.DeleteGroup(context.WithoutCancel(ctx), r.id))
	}
	return nil
}

// Delete removes a replica and all it holds. Once it returns, the replica is gone for good; a replica that isn't here is
// no error.
func (m *Manager) Delete(ctx context.Context, id ident.TabletID) error {
	r, err := m.lookup(id)
	if err != nil {
		return nil
	}
	r.stop(nyalav1.TabletState_TABLET_STATE_DELETING, status.New(status.TabletNotFound, "tablet %s: this replica is being deleted", id))
	if err := m.host.DeleteGroup(ctx, id); err != nil {
		return fmt.Errorf("tablet %s: delete the group: %w", id, err)
	}
	m.mu.Lock()
	delete(m.replicas, id)
	delete(m.byNumber, r.number)
	m.mu.Unlock()
	m.changed(id)
	// The log no longer knows the replica: what is left of its rows is swept at the next start if this fails.
	if err := m.store.Delete(r.number); err != nil {
		return fmt.Errorf("tablet %s: delete the rows: %w", id, err)
	}
	return nil
}

// Replica returns the replica of a tablet.
func (m *Manager) Replica(id ident.TabletID) (*Replica, error) { return m.lookup(id) }

func (m *Manager) lookup(id ident.TabletID) (*Replica, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	r, ok := m.replicas[id]
	if !ok {
		return nil, status.New(status.TabletNotFound, "tablet %s: no replica of it on %s", id, m.cfg.ServerID)
	}
	return r, nil
}

// all returns the replicas in the order of their tablets' ids.
func (m *Manager) all() []*Replica {
	m.mu.RLock()
	defer m.mu.RUnlock()
	ids := slices.Sorted(maps.Keys(m.replicas))
	rs := make([]*Replica, len(ids))
	for i, id := range ids {
		rs[i] = m.replicas[id]
	}
	return rs
}

// Statuses describes all replicas, in the order of their tablets' ids.
func (m *Manager) Statuses() []*nyalav1.ReplicaStatus {
	rs := m.all()
	out := make([]*nyalav1.ReplicaStatus, len(rs))
	for i, r := range rs {
		out[i] = r.Status()
	}
	return out
}

// Ready says whether every replica found at the start has been tried, and if not, how many are left.
func (m *Manager) Ready() (bool, string) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.opened {
		return true, ""
	}
	left := 0
	for _, r := range m.replicas {
		if r.bootstrapping() {
			left++
		}
	}
	return false, fmt.Sprintf("%d of %d replicas still to open", left, len(m.replicas))
}

// Subscribe returns a set that gathers the tablets whose replicas change here from now on. It lives as long as the manager.
func (m *Manager) Subscribe() *Changes {
	c := &Changes{dirty: map[ident.TabletID]struct{}{}, wake: make(chan struct{}, 1)}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.subscribers = append(m.subscribers, c)
	return c
}

func (m *Manager) changed(id ident.TabletID) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, c := range m.subscribers {
		c.add(id)
	}
}

var _ consensus.Observer = (*Manager)(nil)

// LeadershipChanged is called by the host when a group's role, term or leader changed here.
func (m *Manager) LeadershipChanged(id ident.TabletID, st consensus.GroupStatus) {
	r, err := m.lookup(id)
	if err != nil {
		return
	}
	if st.Role != nyalav1.Role_ROLE_LEADER {
		r.leadershipLost()
	}
	m.changed(id)
}

// ReplicaFailed is called by the host when a replica can take no further part in its group.
func (m *Manager) ReplicaFailed(id ident.TabletID, err error) {
	if r, lerr := m.lookup(id); lerr == nil {
		m.fail(r, err)
	}
}

func (m *Manager) fail(r *Replica, err error) {
	r.logger.Error("replica failed", "err", err)
	r.stop(nyalav1.TabletState_TABLET_STATE_FAILED, err)
}

// durable is told by the store through which index each replica is safe in it: the log behind that may go.
func (m *Manager) durable(through map[ident.LocalNumber]ident.Index) {
	for n, index := range through {
		m.mu.RLock()
		r := m.byNumber[n]
		m.mu.RUnlock()
		if r != nil {
			m.host.Compact(r.id, index)
		}
	}
}

func (r *Replica) failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state == nyalav1.TabletState_TABLET_STATE_FAILED
}

func (r *Replica) bootstrapping() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state == nyalav1.TabletState_TABLET_STATE_BOOTSTRAPPING
}
