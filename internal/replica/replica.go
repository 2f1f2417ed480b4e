package replica

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/tablet"
)

// Replica is this server's copy of one tablet.
type Replica struct {
	m      *Manager
	record *nyalav1.ReplicaRecord // as it was created
	id     ident.TabletID
	number ident.LocalNumber
	logger *slog.Logger

	// mu guards what follows.
	mu      sync.Mutex
	state   nyalav1.TabletState
	failure error
	tablet  *tablet.Tablet // nil until bootstrapped
	applied ident.Index
	// inFlight holds the tracked requests whose outcome isn't known yet, byIndex every proposal by its place in the log.
	inFlight map[requestKey]*proposal
	byIndex  map[ident.Index]*proposal
	// appliedWaits are sorted by index.
	appliedWaits []appliedWait
}

type appliedWait struct {
	index ident.Index
	done  chan struct{}
}

// TabletID returns the tablet that this is a replica of.
func (r *Replica) TabletID() ident.TabletID { return r.id }

// Number returns the replica's number on this server.
func (r *Replica) Number() ident.LocalNumber { return r.number }

// Record returns what the replica was created from. It must not be changed.
func (r *Replica) Record() *nyalav1.ReplicaRecord { return r.record }

// Tablet returns the replica's rows, or an error that says why there are none: still bootstrapping, failed, going away.
func (r *Replica) Tablet() (*tablet.Tablet, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tabletLocked()
}

func (r *Replica) tabletLocked() (*tablet.Tablet, error) {
	switch r.state {
	case nyalav1.TabletState_TABLET_STATE_RUNNING:
		return r.tablet, nil
	case nyalav1.TabletState_TABLET_STATE_FAILED:
		return nil, status.Wrap(status.TabletFailed, r.failure, "tablet %s: this replica has failed", r.id)
	case nyalav1.TabletState_TABLET_STATE_DELETING:
		return nil, status.New(status.TabletNotFound, "tablet %s: this replica is being deleted", r.id)
	default:
		return nil, status.New(status.TabletNotRunning, "tablet %s: this replica is %s", r.id, StateName(r.state))
	}
}

// StateName is a replica's state in words.
func StateName(s nyalav1.TabletState) string {
	switch s {
	case nyalav1.TabletState_TABLET_STATE_BOOTSTRAPPING:
		return "bootstrapping"
	case nyalav1.TabletState_TABLET_STATE_STOPPED:
		return "stopping"
	case nyalav1.TabletState_TABLET_STATE_FAILED:
		return "failed"
	case nyalav1.TabletState_TABLET_STATE_DELETING:
		return "being deleted"
	case nyalav1.TabletState_TABLET_STATE_RUNNING:
		return "running"
	default:
		return "in no known state"
	}
}

// RoleName is a replica's role in words.
func RoleName(r nyalav1.Role) string {
	switch r {
	case nyalav1.Role_ROLE_LEADER:
		return "leader"
	case nyalav1.Role_ROLE_FOLLOWER:
		return "follower"
	case nyalav1.Role_ROLE_LEARNER:
		return "learner"
	default:
		return "none"
	}
}

// running makes a bootstrapped replica answer.
func (r *Replica) running(t *tablet.Tablet) {
	index, _ := t.Applied()
	r.mu.Lock()
	r.tablet, r.applied, r.state = t, index, nyalav1.TabletState_TABLET_STATE_RUNNING
	r.mu.Unlock()
	r.m.changed(r.id)
}

// stop ends every wait with err and leaves the replica in state s. A failed replica stays failed unless it is deleted.
func (r *Replica) stop(s nyalav1.TabletState, err error) {
	r.mu.Lock()
	if r.state != nyalav1.TabletState_TABLET_STATE_FAILED || s == nyalav1.TabletState_TABLET_STATE_DELETING {
		r.state = s
	}
	if s == nyalav1.TabletState_TABLET_STATE_FAILED && r.failure == nil {
		r.failure = err
	}
	for _, p := range r.byIndex {
		p.finish(tablet.Result{}, err)
	}
	for _, p := range r.inFlight {
		p.finish(tablet.Result{}, err)
	}
	clear(r.byIndex)
	clear(r.inFlight)
	for _, w := range r.appliedWaits {
		close(w.done)
	}
	r.appliedWaits = nil
	r.mu.Unlock()
	r.m.changed(r.id)
}

// WaitApplied returns once the replica has applied index.
func (r *Replica) WaitApplied(ctx context.Context, index ident.Index) error {
	r.mu.Lock()
	if _, err := r.tabletLocked(); err != nil {
		r.mu.Unlock()
		return err
	}
	if r.applied >= index {
		r.mu.Unlock()
		return nil
	}
	w := appliedWait{index: index, done: make(chan struct{})}
	at, _ := slices.BinarySearchFunc(r.appliedWaits, index, func(w appliedWait, i ident.Index) int {
		if w.index <= i {
			return -1
		}
		return 1
	})
	r.appliedWaits = slices.Insert(r.appliedWaits, at, w)
	r.mu.Unlock()

	select {
	case <-w.done:
		r.mu.Lock()
		defer r.mu.Unlock()
		_, err := r.tabletLocked()
		return err
	case <-ctx.Done():
		r.mu.Lock()
		r.appliedWaits = slices.DeleteFunc(r.appliedWaits, func(o appliedWait) bool { return o.done == w.done })
		at := r.applied
		r.mu.Unlock()
		return status.Wrap(status.TimedOut, ctx.Err(), "tablet %s: waiting for entry %d to be applied, now at %d", r.id, index, at)
	}
}

// deliveredLocked moves the applied index to index and wakes whoever waited for that.
func (r *Replica) deliveredLocked(index ident.Index) {
	r.applied = index
	n := 0
	for n < len(r.appliedWaits) && r.appliedWaits[n].index <= index {
		close(r.appliedWaits[n].done)
		n++
	}
	r.appliedWaits = slices.Delete(r.appliedWaits, 0, n)
}

// notTheLeader is the answer of a replica that doesn't lead, with the leader as far as it is known.
func (r *Replica) notTheLeader() error {
	e := status.New(status.NotTheLeader, "tablet %s: the replica on %s doesn't lead", r.id, r.m.cfg.ServerID)
	if st, ok := r.m.host.Status(r.id); ok {
		e.Term = uint64(st.Term)
		for _, p := range st.Config.GetPeers() {
			if ident.ReplicaID(p.GetReplicaId()) == st.Leader && st.Leader != st.Replica {
				e.Leader = p
				e.Msg = fmt.Sprintf("%s; %s at %s does", e.Msg, p.GetServerId(), p.GetAddress())
			}
		}
	}
	return e
}

// Status describes the replica for masters and tools.
func (r *Replica) Status() *nyalav1.ReplicaStatus {
	r.mu.Lock()
	s := &nyalav1.ReplicaStatus{
		TabletId:      string(r.id),
		TableId:       r.record.GetTableId(),
		TableName:     r.record.GetTableName(),
		ReplicaId:     r.record.GetReplicaId(),
		Partition:     r.record.GetPartition(),
		Config:        r.record.GetConfig(),
		SchemaVersion: r.record.GetSchema().GetVersion(),
		State:         r.state,
		AppliedIndex:  uint64(r.applied),
	}
	if r.failure != nil {
		s.Error = r.failure.Error()
	}
	t := r.tablet
	r.mu.Unlock()
	if t != nil {
		var ts hybridtime.Timestamp
		_, ts = t.Applied()
		s.AppliedTimestamp = uint64(ts)
		s.SchemaVersion = t.Schema().Version()
	}
	if st, ok := r.m.host.Status(r.id); ok {
		s.Role = st.Role
		s.Term = uint64(st.Term)
		s.LeaderReplicaId = uint64(st.Leader)
		s.LastIndex = uint64(st.LastIndex)
		s.FirstIndex = uint64(st.FirstIndex)
		s.CommitIndex = uint64(st.Commit)
		if st.Config != nil {
			s.Config = st.Config
		}
	}
	return s
}
