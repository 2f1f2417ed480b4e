package replica

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/fs"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/tablet"
)

// TestCreateDeleteRecreate takes a tablet away and makes it anew, with a restart at each step.
func TestCreateDeleteRecreate(t *testing.T) {
	r := newRig(t, 1).startAll()
	s := r.servers[0]
	id := r.create(s)
	rec := r.record(id, s, s)
	r.leader(id)
	s.write(newRequests().insert(t, id, 1))
	err := s.n.Replicas.Create(t.Context(), rec)
	require.Equal(t, status.TabletAlreadyExists, status.CodeOf(err), "%v", err)
	first := s.replica(id).Number()
	rep := s.replica(id)
	require.NoError(t, s.n.Replicas.Delete(t.Context(), id))
	require.NoError(t, s.n.Replicas.Delete(t.Context(), id), "gone is gone")
	_, err = s.n.Replicas.Replica(id)
	require.Equal(t, status.TabletNotFound, status.CodeOf(err))
	_, err = rep.Write(t.Context(), newRequests().insert(t, id, 2))
	require.Equal(t, status.TabletNotFound, status.CodeOf(err), "who still holds the replica is told")
	numbers, err := s.n.store.ListNumbers()
	require.NoError(t, err)
	require.Empty(t, numbers)
	s.stop()
	s.start()
	require.Empty(t, s.n.Replicas.Statuses())

	require.NoError(t, s.n.Replicas.Create(t.Context(), rec))
	require.Greater(t, s.replica(id).Number(), first)
	r.leader(id)
	s.wantRows(id, latest, 0)
	s.write(newRequests().insert(t, id, 7))
	s.kill()
	s.start()
	r.leader(id)
	s.wantRows(id, latest, 1)
}

// TestRefusedCreations: nothing of a record that can't be right reaches the log.
func TestRefusedCreations(t *testing.T) {
	r := newRig(t, 1).startAll()
	s := r.servers[0]
	good := r.record(ident.TabletID(ident.New()), s, s)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for name, edit := range map[string]func(*nyalav1.ReplicaRecord){
		"tablet id": func(r *nyalav1.ReplicaRecord) { r.TabletId = "x" },
		"schema":    func(r *nyalav1.ReplicaRecord) { r.Schema = nil },
		"partition": func(r *nyalav1.ReplicaRecord) {
			r.PartitionSchema = &nyalav1.PartitionSchema{RangeColumnIds: []uint32{9}}
		},
		"config": func(r *nyalav1.ReplicaRecord) { r.Config = nil },
		"member": func(r *nyalav1.ReplicaRecord) { r.ReplicaId = 5 },
	} {
		rec := proto.CloneOf(good)
		edit(rec)
		err := s.n.Replicas.Create(t.Context(), rec)
		require.Equal(t, status.InvalidArgument, status.CodeOf(err), "%s: %v", name, err)
	}
	require.Equal(t, status.TimedOut, status.CodeOf(s.n.Replicas.Create(gone, good)))
	require.Empty(t, s.n.log.Groups())
	require.Empty(t, s.n.Replicas.Statuses())
	require.NoError(t, s.n.Replicas.Create(t.Context(), good))
}

// TestCreateAndDeleteAtOnce lets creations, given up half-way, deletions and writes of one tablet meet, and then a restart
// finds just what the last call left.
func TestCreateAndDeleteAtOnce(t *testing.T) {
	r := newRig(t, 1).startAll()
	s := r.servers[0]
	rec := r.record(ident.TabletID(ident.New()), s, s)
	id := ident.TabletID(rec.GetTabletId())
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := range 15 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%4)*time.Millisecond)
				_ = s.n.Replicas.Create(ctx, rec)
				cancel()
				if rep, err := s.n.Replicas.Replica(id); err == nil {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					_, _ = rep.Write(ctx, newRequests().insert(t, id, int64(i)))
					cancel()
				}
				if worker%2 == 0 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%3)*time.Millisecond)
					_ = s.n.Replicas.Delete(ctx, id)
					cancel()
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, s.n.Replicas.Delete(t.Context(), id))
	require.Empty(t, s.n.Replicas.Statuses())
	require.Empty(t, s.n.log.Groups())
	numbers, err := s.n.store.ListNumbers()
	require.NoError(t, err)
	require.Empty(t, numbers)
	require.NoError(t, s.n.Replicas.Create(t.Context(), rec))
	s.stop()
	s.start()
	require.Len(t, s.n.Replicas.Statuses(), 1)
	r.leader(id)
	s.wantRows(id, latest, 0)
}

// TestDeleteDuringBootstrap deletes replicas while they are being opened.
func TestDeleteDuringBootstrap(t *testing.T) {
	r := newRig(t, 1).startAll()
	s := r.servers[0]
	var ids []ident.TabletID
	for range 24 {
		ids = append(ids, r.create(s))
	}
	s.stop()
	s.edit = func(c *NodeConfig) { c.OpenParallel = 1 }
	s.open()
	s.run()
	var wg sync.WaitGroup
	for _, id := range ids[1:] {
		wg.Go(func() { require.NoError(t, s.n.Replicas.Delete(t.Context(), id)) })
	}
	wg.Wait()
	r.leader(ids[0])
	require.Len(t, s.n.Replicas.Statuses(), 1)
	require.Len(t, s.n.log.Groups(), 1)
	s.stop()
	s.start()
	require.Len(t, s.n.Replicas.Statuses(), 1)
	numbers, err := s.n.store.ListNumbers()
	require.NoError(t, err)
	require.Len(t, numbers, 1)
}

// TestStopDuringBootstrap stops a server while it opens its replicas: it ends soon and cleanly, and opens them the next time.
func TestStopDuringBootstrap(t *testing.T) {
	r := newRig(t, 1).startAll()
	s := r.servers[0]
	for range 24 {
		r.create(s)
	}
	s.stop()
	s.edit = func(c *NodeConfig) { c.OpenParallel = 1 }
	for _, opened := range []int{0, 1, 5} {
		s.open()
		ok, why := s.n.Replicas.Ready()
		require.False(t, ok)
		require.Equal(t, "24 of 24 replicas still to open", why)
		s.run()
		r.until("some are open", func() bool { return s.n.Replicas.count(nyalav1.TabletState_TABLET_STATE_RUNNING) >= opened })
		begin := time.Now()
		s.stop()
		require.Less(t, time.Since(begin), 5*time.Second)
	}
	s.start()
	require.Equal(t, 24, s.n.Replicas.count(nyalav1.TabletState_TABLET_STATE_RUNNING))
}

// loseInStore makes a stopped server's store forget replicas, as a crash does whose memtable held them.
func (s *server) loseInStore(edit func(*tablet.Store, ident.LocalNumber)) {
	s.rig.t.Helper()
	layout, err := fs.Open(fs.Config{WALDir: s.dir, Role: fs.TabletServer})
	require.NoError(s.rig.t, err)
	dir := layout.StoreDir()
	require.NoError(s.rig.t, layout.Close())
	store, err := tablet.Open(tablet.Options{Dir: dir, FS: vfs.Default})
	require.NoError(s.rig.t, err)
	numbers, err := store.ListNumbers()
	require.NoError(s.rig.t, err)
	for _, n := range numbers {
		edit(store, n)
	}
	require.NoError(s.rig.t, store.Close())
}

// TestStoreLostItsCreation: a replica that the store knows nothing of is filled from the WAL, its request records too.
func TestStoreLostItsCreation(t *testing.T) {
	r := newRig(t, 1).startAll()
	s := r.servers[0]
	id := r.create(s)
	r.leader(id)
	req := newRequests().insert(t, id, 1, 2)
	first := s.write(req)
	s.stop()
	s.loseInStore(func(st *tablet.Store, n ident.LocalNumber) { require.NoError(t, st.Delete(n)) })
	s.start()
	r.leader(id)
	s.wantRows(id, latest, 2)
	require.True(t, proto.Equal(first, s.write(req)))
}

// TestDamagedReplicaFailsAlone: a replica whose store is another one's fails and says why; others on the server and its own
// group go on.
func TestDamagedReplicaFailsAlone(t *testing.T) {
	r := newRig(t, 3).startAll()
	bad, good := r.create(r.servers...), r.create(r.servers...)
	c := newRequests()
	r.leader(bad).write(c.insert(t, bad, 1))
	r.leader(good).write(c.insert(t, good, 1))
	s := r.servers[0]
	n := s.replica(bad).Number()
	s.kill()
	other := r.record(ident.TabletID(ident.New()), r.servers[1], r.servers[1])
	s.loseInStore(func(st *tablet.Store, have ident.LocalNumber) {
		if have == n {
			require.NoError(t, st.Delete(n))
			_, err := st.Create(n, other)
			require.NoError(t, err)
		}
	})
	s.start()
	st := s.replica(bad).Status()
	require.Equal(t, nyalav1.TabletState_TABLET_STATE_FAILED, st.GetState())
	require.Contains(t, st.GetError(), other.GetTabletId())
	_, err := s.replica(bad).Write(t.Context(), c.insert(t, bad, 2))
	require.Equal(t, status.TabletFailed, status.CodeOf(err), "%v", err)
	_, err = s.count(t.Context(), bad, atSnapshot, 0, 0)
	require.Equal(t, status.TabletFailed, status.CodeOf(err), "%v", err)
	require.Equal(t, 1, s.n.Replicas.count(nyalav1.TabletState_TABLET_STATE_FAILED))
	r.leader(bad).write(c.insert(t, bad, 2))
	r.leader(good).write(c.insert(t, good, 2))
	s.wantRows(good, atSnapshot, 2)
	require.NoError(t, s.n.Replicas.Delete(t.Context(), bad), "a failed replica can be deleted")
}

// TestApplyFailureIsItsOwn: in one call of Apply the entries that were applied before the one that fails are answered, and
// other groups don't notice.
func TestApplyFailureIsItsOwn(t *testing.T) {
	r := newRig(t, 1).startAll()
	s := r.servers[0]
	bad, good := r.create(s), r.create(s)
	for _, id := range []ident.TabletID{bad, good} {
		r.leader(id)
		require.NoError(t, s.replica(id).WaitApplied(t.Context(), 1), "the entry that the leader began with")
	}
	rep := s.replica(bad)
	tab, err := rep.Tablet()
	require.NoError(t, err)
	rep.mu.Lock()
	applied := rep.proposals.begin(requestKey{}, false, nil)
	failed := rep.proposals.begin(requestKey{seq: 1}, true, nil)
	index, _ := tab.Applied()
	rep.proposals.place(applied, op(1, index+1))
	rep.proposals.place(failed, op(1, index+2))
	rep.mu.Unlock()
	groups := applyGroups(t, s, bad, good)
	s.n.Replicas.Apply(groups)
	require.ErrorContains(t, groups[0].Err, "decode the write")
	require.NoError(t, groups[1].Err)
	wantEnd(t, applied, nil)
	wantOpen(t, failed)
	s.n.Replicas.fail(rep, groups[0].Err)
	<-failed.done
	require.Equal(t, status.TabletFailed, status.CodeOf(failed.err))
	s.wantRows(good, latest, 1)
}

// TestGracefulStop: leaderships are with other servers when a server that was asked to stop has stopped; no election
// timeout passes.
func TestGracefulStop(t *testing.T) {
	r := newRig(t, 3)
	r.heartbeat = 2 * time.Second // an election would take six seconds at least
	r.startAll()
	ids := []ident.TabletID{r.create(r.servers...), r.create(r.servers...)}
	begin := time.Now()
	leader := r.servers[2] // the first of the configs: it has asked for votes at its creation
	for _, id := range ids {
		require.Same(t, leader, r.leader(id))
		leader.write(newRequests().insert(t, id, 1))
	}
	leader.stop()
	for _, id := range ids {
		next := r.leader(id)
		require.NotSame(t, leader, next)
		next.write(newRequests().insert(t, id, 2))
	}
	require.Less(t, time.Since(begin), 6*time.Second)
}

// TestStopEndsWaits: a server that stops lets nobody wait, and doesn't wait for who waits.
func TestStopEndsWaits(t *testing.T) {
	r := newRig(t, 3).startAll()
	id := r.create(r.servers...)
	leader := r.leader(id)
	before, _ := leader.n.host.Status(id)
	for _, s := range r.followers(id) {
		s.kill()
	}
	rep := leader.replica(id)
	errs := make(chan error, 3)
	row := inserts(t, 1)
	go func() {
		_, err := rep.Write(context.Background(), &nyalav1.WriteRequest{TabletId: string(id), RowOperations: row})
		errs <- err
	}()
	go func() { errs <- rep.WaitApplied(context.Background(), before.LastIndex+1000) }()
	go func() {
		_, _, err := rep.ReadPoint(context.Background(), atSnapshot, 0, 0)
		errs <- err
	}()
	r.until("all wait", func() bool {
		rep.mu.Lock()
		defer rep.mu.Unlock()
		return rep.proposals.n == 1 && len(rep.proposals.placed) == 1 && len(rep.appliedWaits) == 1
	})
	leader.kill()
	for range cap(errs) {
		err := <-errs
		code := status.CodeOf(err)
		require.True(t, code == status.ServiceUnavailable || code == status.TabletNotRunning, "%v", err)
	}
	_, err := rep.Write(t.Context(), newRequests().insert(t, id, 1))
	require.Error(t, err)
}
