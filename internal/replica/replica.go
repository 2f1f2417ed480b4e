package replica

import (
	"cmp"
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
	logger *slog.Logger
	// turn holds one token while the replica is being created, opened or deleted: one at a time.
	turn chan struct{}

	// mu guards what follows.
	mu     sync.Mutex
	number ident.LocalNumber // 0 until its creation is durable
	state  nyalav1.TabletState
	// creating: its creation hasn't succeeded so far, and nobody is told of it.
	creating  bool
	failure   error
	tablet    *tablet.Tablet // nil until bootstrapped
	applied   ident.Index
	proposals proposals
	// appliedWaits are sorted by index.
	appliedWaits []appliedWait
}

// maxAppliedWaits bounds the reads that wait at one replica for an entry to be applied.
const maxAppliedWaits = 10_000

type appliedWait struct {
	index ident.Index
	done  chan struct{}
}

// TabletID returns the tablet that this is a replica of.
func (r *Replica) TabletID() ident.TabletID { return r.id }

// Number returns the replica's number on this server; 0 while it is being created.
func (r *Replica) Number() ident.LocalNumber {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.number
}

func (r *Replica) setNumber(n ident.LocalNumber) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.number = n
}

// take waits for the replica's turn to be created, opened or deleted.
func (r *Replica) take(ctx context.Context) error {
	select {
	case r.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return status.Wrap(status.TimedOut, ctx.Err(), "tablet %s: this replica is busy being opened, created or deleted", r.id)
	}
}

func (r *Replica) release() { <-r.turn }

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
		return nil, r.failedLocked()
	case nyalav1.TabletState_TABLET_STATE_DELETING:
		return nil, errDeleting(r.id)
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
	case nyalav1.TabletState_TABLET_STATE_COPYING:
		return "being copied here"
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

func (r *Replica) failedLocked() error {
	return status.Wrap(status.TabletFailed, r.failure, "tablet %s: this replica has failed", r.id)
}

func errDeleting(id ident.TabletID) error {
	return status.New(status.TabletNotFound, "tablet %s: this replica is being deleted", id)
}

// applies returns the tablet that committed entries are applied to. A replica that is being stopped or deleted still takes
// them until its group has ended.
func (r *Replica) applies() (*tablet.Tablet, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tablet == nil || r.state == nyalav1.TabletState_TABLET_STATE_FAILED {
		_, err := r.tabletLocked()
		return nil, err
	}
	return r.tablet, nil
}

// leads says whether this replica is the leader, as far as is known here.
func (r *Replica) leads() bool {
	st, ok := r.m.host.Status(r.id)
	return ok && st.Role == nyalav1.Role_ROLE_LEADER
}

// running makes a bootstrapped replica answer, unless it was stopped meanwhile.
func (r *Replica) running(t *tablet.Tablet) error {
	index, _ := t.Applied()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != nyalav1.TabletState_TABLET_STATE_BOOTSTRAPPING {
		_, err := r.tabletLocked()
		return err
	}
	r.tablet, r.applied, r.state = t, index, nyalav1.TabletState_TABLET_STATE_RUNNING
	return nil
}

// created lets others be told of a new replica.
func (r *Replica) created() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.creating = false
}

// stop ends every wait with err and leaves the replica in state s, or in the one it has if that is further on: deleting,
// stopped, failed.
func (r *Replica) stop(s nyalav1.TabletState, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if finality(s) > finality(r.state) {
		r.state = s
	}
	if s == nyalav1.TabletState_TABLET_STATE_FAILED {
		if r.failure == nil {
			r.failure = err
		}
		err = r.failedLocked()
	}
	r.endLocked(func(ps *proposals) { ps.endAll(err) })
	for _, w := range r.appliedWaits {
		close(w.done)
	}
	r.appliedWaits = nil
}

// finality orders the states that end a replica.
func finality(s nyalav1.TabletState) int {
	switch s {
	case nyalav1.TabletState_TABLET_STATE_FAILED:
		return 1
	case nyalav1.TabletState_TABLET_STATE_STOPPED:
		return 2
	case nyalav1.TabletState_TABLET_STATE_DELETING:
		return 3
	default:
		return 0
	}
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
	if len(r.appliedWaits) >= maxAppliedWaits {
		r.mu.Unlock()
		return &status.Error{Code: status.TooBusy, RetryAfter: busyRetry, Msg: fmt.Sprintf("tablet %s: too many reads wait for entries to be applied", r.id)}
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

// DiskBytes is about what the replica takes, in files and in memory, without its log; 0 where it has no tablet.
func (r *Replica) DiskBytes() (uint64, error) {
	r.mu.Lock()
	t := r.tablet
	r.mu.Unlock()
	if t == nil {
		return 0, nil
	}
	return t.DiskBytes()
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
		s.TableName = t.TableName()
	}
	if st, ok := r.m.host.Status(r.id); ok {
		s.Role = st.Role
		s.Term = uint64(st.Term)
		s.LeaderReplicaId = uint64(st.Leader)
		s.LastIndex = uint64(st.LastIndex)
		s.FirstIndex = uint64(st.FirstIndex)
		s.CommitIndex = uint64(st.Commit)
		s.Clocks = cmp.Or(st.Quarantined, st.Stalled)
		if st.Config != nil {
			s.Config = st.Config
		}
	}
	return s
}
