package replica

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/clock"
	"github.com/nyaladb/nyala/internal/consensus"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/memory"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/tablet"
	"github.com/nyaladb/nyala/internal/wal"
)

// ManagerConfig says whose replicas these are.
type ManagerConfig struct {
	ServerID ident.ServerID
	// OpenParallel is how many replicas are bootstrapped at once.
	OpenParallel int
	// RememberResponses and RememberClients are how long the answers to writes proposed here, and their clients, are
	// remembered by all replicas; 0: the format's defaults.
	RememberResponses, RememberClients time.Duration
	// MaxEntryBytes bounds a write's log entry: one that fits into no message to another replica would hold up its group for good.
	MaxEntryBytes int
	Logger        *slog.Logger
}

func (c *ManagerConfig) rememberUsec() (responses, clients uint64) {
	return uint64(c.RememberResponses.Microseconds()), uint64(c.RememberClients.Microseconds())
}

// Manager holds the replicas of one server. It is what consensus applies to.
type Manager struct {
	cfg   ManagerConfig
	host  *consensus.Host
	store *tablet.Store
	log   wal.Store
	clock *clock.Clock
	// memory is the process's; nil: no limit.
	memory *memory.Limit

	metrics  *metrics
	forwards *forwards
	copies   *copier

	// found are the replicas that the WAL held at the start.
	found []*Replica

	mu       sync.RWMutex
	replicas map[ident.TabletID]*Replica
	byNumber map[ident.LocalNumber]*Replica
	opened   bool // all that were found have been tried
	stopping bool // nothing is created or opened any more

	subscribers []*Changes
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

// Statuses describes all replicas, in the order of their tablets' ids, but those whose creation is still under way.
func (m *Manager) Statuses() []*nyalav1.ReplicaStatus {
	rs := m.all()
	out := make([]*nyalav1.ReplicaStatus, 0, len(rs))
	for _, r := range rs {
		if !r.beingCreated() {
			out = append(out, r.Status())
		}
	}
	return out
}

// Status describes one replica. None is here if there is neither a status nor creating, which says that one may be soon.
func (m *Manager) Status(id ident.TabletID) (s *nyalav1.ReplicaStatus, creating bool) {
	r, err := m.lookup(id)
	switch {
	case err != nil:
		return nil, false
	case r.beingCreated():
		return nil, true
	}
	return r.Status(), false
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
	if err != nil || r.Number() != st.Number {
		return
	}
	r.deposed(st.Term, st.Role == nyalav1.Role_ROLE_LEADER)
	m.changed(id)
}

// ReplicaFailed is called by the host when a replica can take no further part in its group. It may come late: only a group
// that is still there and has failed counts, not one that was created in its place.
func (m *Manager) ReplicaFailed(id ident.TabletID, err error) {
	r, lerr := m.lookup(id)
	if st, ok := m.host.Status(id); lerr == nil && ok && st.Err != nil {
		m.fail(r, err)
	}
}

func (m *Manager) fail(r *Replica, err error) {
	r.logger.Error("replica failed", "err", err)
	r.stop(nyalav1.TabletState_TABLET_STATE_FAILED, err)
	m.changed(r.id)
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

func (r *Replica) beingCreated() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.creating
}

// ending says whether the replica is being deleted or stopped.
func (r *Replica) ending() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return finality(r.state) > finality(nyalav1.TabletState_TABLET_STATE_FAILED)
}

func (r *Replica) bootstrapping() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state == nyalav1.TabletState_TABLET_STATE_BOOTSTRAPPING
}
