package replica

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/consensus"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/tablet"
)

// newCopyRig is a rig of servers whose copies come in many messages and whose logs are kept for nobody.
func newCopyRig(t testing.TB, n int) *rig {
	t.Helper()
	r := newRig(t, n)
	for _, s := range r.servers {
		s.edit = func(c *NodeConfig) {
			c.Copy.ChunkBytes = 2 << 10
			c.Consensus.Limits.RetainBytes, c.Consensus.Limits.MinCutEntries = 1, 1
		}
	}
	return r
}

// change changes a tablet's members at its leader, whoever that is, and returns the config.
func (r *rig) change(id ident.TabletID, ch consensus.ConfigChange) *nyalav1.RaftConfig {
	r.t.Helper()
	var config *nyalav1.RaftConfig
	r.until("the config is changed", func() bool {
		var err error
		config, err = r.leader(id).replica(id).ChangeConfig(r.t.Context(), ch)
		if code := status.CodeOf(err); code == status.IllegalState || code == status.NotTheLeader {
			return false
		}
		require.NoError(r.t, err)
		return true
	})
	return config
}

// add makes a server a learner, and returns its replica's id.
func (r *rig) add(id ident.TabletID, s *server) ident.ReplicaID {
	r.t.Helper()
	c := r.change(id, consensus.ConfigChange{Add: []*nyalav1.Peer{{ServerId: string(s.n.ServerID()), Address: s.addr}}})
	return ident.ReplicaID(c.GetNextReplicaId() - 1)
}

// level waits until a server's replica runs and has applied all that stands in the leader's log.
func (r *rig) level(id ident.TabletID, s *server) {
	r.t.Helper()
	r.until(s.name+" is level", func() bool {
		rep, err := s.n.Replicas.Replica(id)
		if err != nil {
			return false
		}
		tab, err := rep.Tablet()
		if err != nil {
			return false
		}
		at, _ := tab.Applied()
		// A leader may have applied less than a follower has.
		st, ok := r.leader(id).n.host.Status(id)
		return ok && at >= st.LastIndex
	})
}

// sums wants the same rows on all servers.
func (r *rig) sums(id ident.TabletID, on ...*server) {
	r.t.Helper()
	var rows, sum uint64
	for i, s := range on {
		r.level(id, s)
		tab, err := s.replica(id).Tablet()
		require.NoError(r.t, err)
		n, c, err := tab.Checksum(r.t.Context(), hybridtime.Max)
		require.NoError(r.t, err)
		if i == 0 {
			rows, sum = n, c
		}
		require.Equal(r.t, []uint64{rows, sum}, []uint64{n, c}, s.name)
	}
}

// load writes n rows from first on.
func (r *rig) load(id ident.TabletID, c *requests, first, n int64) {
	r.t.Helper()
	for i := int64(0); i < n; i += 20 {
		var ids []int64
		for k := i; k < min(i+20, n); k++ {
			ids = append(ids, first+k)
		}
		req := c.insert(r.t, id, ids...)
		r.until("the rows are written", func() bool {
			resp, err := r.leader(id).replica(id).Write(r.t.Context(), req)
			if status.CodeOf(err).Retriable() {
				return false
			}
			require.NoError(r.t, err)
			require.Empty(r.t, resp.GetRowErrors())
			return true
		})
	}
}

// bare wants a server to hold nothing of any tablet.
func (s *server) bare() {
	s.rig.t.Helper()
	numbers, err := s.n.store.ListNumbers()
	require.NoError(s.rig.t, err)
	require.Empty(s.rig.t, numbers)
	require.Empty(s.rig.t, s.n.log.Groups())
	require.Empty(s.rig.t, s.n.Replicas.Statuses())
	files, err := filepath.Glob(filepath.Join(s.n.layout.StoreDir(), "imports", "*"))
	require.NoError(s.rig.t, err)
	require.Empty(s.rig.t, files)
}

// TestReplicaMoves to a fourth server by a copy while the tablet is written to: the learner comes up, becomes a voter, a voter
// is removed and deleted, and the newcomer leads and knows the first answers to old requests.
func TestReplicaMoves(t *testing.T) {
	r := newCopyRig(t, 4).startAll()
	last := r.servers[3]
	id := r.create(r.servers[:3]...)
	c := newRequests()
	r.load(id, c, 0, 1000)
	old := c.insert(t, id, 5, 5000)
	first, err := r.leader(id).replica(id).Write(t.Context(), old)
	require.NoError(t, err)
	require.Len(t, first.GetRowErrors(), 1)

	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for k := int64(10_000); !stop.Load(); k++ {
			req := c.insert(t, id, k)
			for {
				if _, err := r.servers[0].replica(id).Write(t.Context(), req); err == nil {
					break
				}
			}
		}
	})
	replica := r.add(id, last)
	require.EqualValues(t, 4, replica)
	r.level(id, last)
	require.Equal(t, nyalav1.Role_ROLE_LEARNER, last.replica(id).Status().GetRole())
	gone := r.servers[1]
	if r.leader(id) == gone {
		gone = r.servers[2]
	}
	config := r.change(id, consensus.ConfigChange{Promote: []ident.ReplicaID{replica}, Remove: []ident.ReplicaID{gone.replica(id).ReplicaID()}})
	require.Len(t, config.GetPeers(), 3)
	r.until("the removed replica is gone", func() bool { return len(gone.n.Replicas.Statuses()) == 0 })
	stop.Store(true)
	wg.Wait()
	gone.bare()

	var left []*server
	for _, s := range r.servers {
		if s != gone {
			left = append(left, s)
		}
	}
	r.sums(id, left...)
	r.until("the newcomer leads", func() bool {
		leader := r.leader(id)
		if leader != last {
			_ = leader.replica(id).StepDown(t.Context(), last.n.ServerID()) // an election may come first
		}
		return leader == last
	})
	again := last.replica(id)
	resp, err := again.Write(t.Context(), old)
	require.NoError(t, err)
	require.True(t, proto.Equal(first, resp), "%v, %v", first, resp)
	last.write(c.insert(t, id, 6000))
	r.sums(id, left...)
	last.kill()
	last.start()
	r.sums(id, left...)
	require.Zero(t, value(t, last.n.Replicas.copies.metrics.made), "it has not been copied again")
}

// TestFollowerBehindTheLog was away while the log was cut. It comes up by a copy under its id, its old number goes, and a scan of
// the old rows is told so.
func TestFollowerBehindTheLog(t *testing.T) {
	r := newCopyRig(t, 3).startAll()
	id := r.create(r.servers...)
	c := newRequests()
	r.load(id, c, 0, 100)
	away := r.followers(id)[0]
	r.level(id, away)
	number, replica := away.replica(id).Number(), away.replica(id).ReplicaID()
	has, _ := away.n.host.Status(id)
	away.stop()
	r.load(id, c, 100, 300)
	r.until("the logs are cut", func() bool { // of both: either may lead by the time the third is back
		cut := 0
		for _, s := range r.servers {
			if s != away {
				require.NoError(t, s.n.store.Flush())
				if st, _ := s.n.host.Status(id); st.FirstIndex > has.LastIndex+1 {
					cut++
				}
			}
		}
		return cut == 2
	})
	// The copy stands still until the old rows are being read.
	hold := make(chan struct{})
	away.open()
	away.n.Replicas.copies.faults.step = func(s copyStep) error {
		if s == stepFinish {
			<-hold
		}
		return nil
	}
	away.run()
	r.until("it is open", func() bool { ok, _ := away.n.Replicas.Ready(); return ok })
	before := away.replica(id)
	tab, err := before.Tablet()
	require.NoError(t, err)
	scan, err := tab.NewScanner(tablet.ScanSpec{Snapshot: hybridtime.Max})
	require.NoError(t, err)
	waiting := make(chan error, 1)
	last, _ := tab.Applied()
	go func() { waiting <- before.WaitApplied(context.Background(), last+1_000_000) }()
	r.until("a read waits", func() bool {
		before.mu.Lock()
		defer before.mu.Unlock()
		return len(before.appliedWaits) == 1
	})
	r.until("a copy comes in", func() bool { return len(away.n.Replicas.Copying()) == 1 })
	close(hold)
	r.sums(id, r.servers...)
	require.NotEqual(t, number, away.replica(id).Number())
	require.Equal(t, replica, away.replica(id).ReplicaID())
	err = <-waiting
	require.Equal(t, status.TabletNotRunning, status.CodeOf(err), "%v", err)
	r.until("the old rows are gone", func() bool {
		numbers, err := away.n.store.ListNumbers()
		return err == nil && len(numbers) == 1
	})
	_, _, err = scan.Next(t.Context(), 1)
	require.Equal(t, status.TabletNotFound, status.CodeOf(err), "%v", err)
	r.until("the copy has ended", func() bool { return len(away.n.Replicas.Copying()) == 0 })
	r.load(id, c, 1000, 40)
	r.sums(id, r.servers...)
}

var errInjected = errors.New("injected by the test")

// copyPair is a leader, and another server that it has made a learner and doesn't copy by itself.
func copyPair(t *testing.T) (r *rig, src, dst *server, id ident.TabletID) {
	t.Helper()
	r = newCopyRig(t, 2).startAll()
	src, dst = r.servers[0], r.servers[1]
	id = r.create(src)
	r.load(id, newRequests(), 0, 400)
	c := src.n.Replicas.copies
	c.mu.Lock()
	c.asked[copyKey{id, 2}] = struct{}{}
	c.mu.Unlock()
	require.EqualValues(t, 2, r.add(id, dst))
	return r, src, dst, id
}

// copyRequest asks dst for a copy of src's replica.
func copyRequest(id ident.TabletID, src, dst *server) *nyalav1.StartTabletCopyRequest {
	return &nyalav1.StartTabletCopyRequest{
		DestServerId: string(dst.n.ServerID()), TabletId: string(id), ReplicaId: 2,
		SourceServerId: string(src.n.ServerID()), SourceAddress: src.addr,
	}
}

// TestCopyFaults breaks a copy at each step, at either end. Nothing of it stays, and the next one comes to its end.
func TestCopyFaults(t *testing.T) {
	r, src, dst, id := copyPair(t)
	send := func(f func(m *nyalav1.FetchTabletResponse) error) func() {
		return func() { src.n.Replicas.copies.faults.send = f }
	}
	step := func(at copyStep) func() {
		return func() {
			dst.n.Replicas.copies.faults.step = func(s copyStep) error {
				if s == at {
					return errInjected
				}
				return nil
			}
		}
	}
	failAt := func(at func(m *nyalav1.FetchTabletResponse) bool) func() {
		return send(func(m *nyalav1.FetchTabletResponse) error {
			if at(m) {
				return errInjected
			}
			return nil
		})
	}
	header := func(f func(h *nyalav1.TabletCopyHeader)) func() {
		return send(func(m *nyalav1.FetchTabletResponse) error {
			if h := m.GetHeader(); h != nil {
				f(h)
			}
			return nil
		})
	}
	chunk := func(f func(c *nyalav1.TabletCopyChunk)) func() {
		return send(func(m *nyalav1.FetchTabletResponse) error {
			if c := m.GetChunk(); c.GetFirst() > 0 {
				f(c)
			}
			return nil
		})
	}
	for name, c := range map[string]struct {
		set  func()
		want status.Code
	}{
		"source fails before the header":  {failAt(func(*nyalav1.FetchTabletResponse) bool { return true }), status.Unknown},
		"source fails in the middle":      {failAt(func(m *nyalav1.FetchTabletResponse) bool { return m.GetChunk().GetFirst() > 0 }), status.Unknown},
		"source fails before the trailer": {failAt(func(m *nyalav1.FetchTabletResponse) bool { return m.GetTrailer() != nil }), status.Unknown},
		"another tablet":                  {header(func(h *nyalav1.TabletCopyHeader) { h.Record.TabletId = ident.New() }), status.Corruption},
		"another replica":                 {header(func(h *nyalav1.TabletCopyHeader) { h.Record.ReplicaId = 1 }), status.Corruption},
		"another format":                  {header(func(h *nyalav1.TabletCopyHeader) { h.Format = 2 }), status.NotSupported},
		"no entry":                        {header(func(h *nyalav1.TabletCopyHeader) { h.OpId = nil }), status.Corruption},
		"a record that can't be":          {header(func(h *nyalav1.TabletCopyHeader) { h.Record.Schema = nil }), status.InvalidArgument},
		"another server's replica": {header(func(h *nyalav1.TabletCopyHeader) {
			h.Config = proto.CloneOf(h.GetConfig())
			for _, p := range h.GetConfig().GetPeers() {
				p.ServerId = ident.New()
			}
			h.Record.Config = h.GetConfig()
		}), status.WrongServerID},
		"a voter that isn't here": {header(func(h *nyalav1.TabletCopyHeader) {
			h.Config = proto.CloneOf(h.GetConfig())
			for _, p := range h.GetConfig().GetPeers() {
				p.Learner = false
			}
			h.Record.Config = h.GetConfig()
		}), status.IllegalState},
		"a time far ahead": {header(func(h *nyalav1.TabletCopyHeader) {
			h.Timestamp = uint64(hybridtime.FromMicros(time.Now().Add(time.Hour).UnixMicro(), 0))
		}), status.Clock},
		"a changed byte":  {chunk(func(c *nyalav1.TabletCopyChunk) { c.Pairs[len(c.GetPairs())/2] ^= 1 }), status.Corruption},
		"a chunk's place": {chunk(func(c *nyalav1.TabletCopyChunk) { c.First++ }), status.Corruption},
		"no pairs":        {chunk(func(c *nyalav1.TabletCopyChunk) { c.Pairs, c.Crc32C = nil, 0 }), status.Corruption},
		"the totals": {send(func(m *nyalav1.FetchTabletResponse) error {
			if tr := m.GetTrailer(); tr != nil {
				tr.Crc32C ^= 1
			}
			return nil
		}), status.Corruption},
		"target fails at the header": {step(stepHeader), status.Unknown},
		"target fails in the middle": {step(stepChunk), status.Unknown},
		"target fails at the end":    {step(stepFinish), status.Unknown},
		"target fails to install":    {step(stepInstall), status.Unknown},
	} {
		src.n.Replicas.copies.faults, dst.n.Replicas.copies.faults = copyFaults{}, copyFaults{}
		c.set()
		_, err := dst.n.Replicas.copies.receive(t.Context(), copyRequest(id, src, dst))
		require.Error(t, err, name)
		require.Equal(t, c.want, status.CodeOf(err), "%s: %v", name, err)
		require.Empty(t, dst.n.Replicas.Copying(), name)
		dst.bare()
	}
	src.n.Replicas.copies.faults, dst.n.Replicas.copies.faults = copyFaults{}, copyFaults{}
	at, err := dst.n.Replicas.copies.receive(t.Context(), copyRequest(id, src, dst))
	require.NoError(t, err)
	require.NotZero(t, at.Index)
	r.sums(id, src, dst)
	_, err = dst.n.Replicas.copies.receive(t.Context(), copyRequest(id, src, dst))
	require.Equal(t, status.AlreadyPresent, status.CodeOf(err), "it is level: %v", err)
	r.load(id, newRequests(), 1000, 40)
	r.sums(id, src, dst)
	numbers, err := dst.n.store.ListNumbers()
	require.NoError(t, err)
	require.Len(t, numbers, 1)
}

// TestCopyIsGivenUp by a deletion on either side or for a source's silence, and leaves nothing.
func TestCopyIsGivenUp(t *testing.T) {
	_, src, dst, id := copyPair(t)
	reached, hold := make(chan struct{}), make(chan struct{})
	src.n.Replicas.copies.faults.send = func(m *nyalav1.FetchTabletResponse) error {
		if m.GetTrailer() != nil {
			reached <- struct{}{}
			<-hold
		}
		return nil
	}
	begin := func() chan error {
		failed := make(chan error, 1)
		go func() {
			_, err := dst.n.Replicas.copies.receive(t.Context(), copyRequest(id, src, dst))
			failed <- err
		}()
		<-reached
		return failed
	}
	failed := begin()
	_, err := dst.n.Replicas.copies.receive(t.Context(), copyRequest(id, src, dst))
	require.Equal(t, status.ServiceUnavailable, status.CodeOf(err), "one at a time: %v", err)
	require.NoError(t, dst.n.Replicas.GiveUpCopy(t.Context(), id))
	require.Equal(t, status.Aborted, status.CodeOf(<-failed))
	require.NoError(t, dst.n.Replicas.GiveUpCopy(t.Context(), id), "there is none")
	dst.bare()
	hold <- struct{}{}

	// A source that says nothing any more isn't waited for.
	idle := dst.n.Replicas.copies.cfg.IdleTimeout
	dst.n.Replicas.copies.cfg.IdleTimeout = 200 * time.Millisecond
	err = <-begin()
	require.Equal(t, status.TimedOut, status.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "has said nothing for 200ms")
	dst.n.Replicas.copies.cfg.IdleTimeout = idle
	dst.bare()
	hold <- struct{}{}

	src.n.Replicas.copies.faults.send = func(m *nyalav1.FetchTabletResponse) error {
		if m.GetHeader() != nil {
			reached <- struct{}{}
			<-hold
		}
		return nil
	}
	failed = begin()
	require.NoError(t, src.n.Replicas.Delete(t.Context(), id))
	hold <- struct{}{}
	require.Equal(t, status.TabletNotFound, status.CodeOf(<-failed))
	dst.bare()
}

// TestSourceIsKilled in the middle of a copy. The receiver keeps nothing of it, and the next leader brings it up.
func TestSourceIsKilled(t *testing.T) {
	r := newCopyRig(t, 4).startAll()
	id := r.create(r.servers[:3]...)
	c := newRequests()
	r.load(id, c, 0, 400)
	dst := r.servers[3]
	reached, hold := make(chan *server, 1), make(chan struct{})
	var once sync.Once
	for _, s := range r.servers[:3] {
		s.n.Replicas.copies.faults.send = func(m *nyalav1.FetchTabletResponse) error {
			if m.GetChunk().GetFirst() > 0 { // the second of several
				once.Do(func() {
					reached <- s
					<-hold
				})
			}
			return nil
		}
	}
	r.add(id, dst)
	src := <-reached
	killed := make(chan struct{})
	go func() {
		src.kill()
		close(killed)
	}()
	r.until("its replicas are stopped", func() bool {
		src.n.Replicas.mu.RLock()
		defer src.n.Replicas.mu.RUnlock()
		return src.n.Replicas.stopping
	})
	close(hold)
	<-killed
	r.load(id, c, 1000, 20)
	r.level(id, dst)
	require.Equal(t, 1, value(t, dst.n.Replicas.copies.metrics.failed))
	src.start()
	r.sums(id, r.servers...)
}

// TestCrashDuringCopy starts a server anew on its folders as they were at each step of a copy. Up to the commit that installs the
// copy nothing of it is there; from then on the replica is whole.
func TestCrashDuringCopy(t *testing.T) {
	r, src, dst, id := copyPair(t)
	images := map[copyStep]string{}
	dst.n.Replicas.copies.faults.step = func(s copyStep) error {
		if images[s] == "" {
			images[s] = copyDir(t, dst.dir)
		}
		return nil
	}
	_, err := dst.n.Replicas.copies.receive(t.Context(), copyRequest(id, src, dst))
	require.NoError(t, err)
	r.sums(id, src, dst)
	number := dst.replica(id).Number()
	require.Len(t, images, 5)
	for _, s := range []copyStep{stepHeader, stepChunk, stepFinish, stepInstall, stepJoin} {
		dst.kill()
		dst.dir = images[s]
		dst.start()
		if s == stepJoin {
			require.Equal(t, number, dst.replica(id).Number())
			// Entries that came after the image have been acknowledged, which no crash undoes: the leader must not know of them.
			src.kill()
			src.start()
		} else {
			dst.bare()
			if s == stepInstall {
				// Another replica gets the number, and a crash takes what its creation left in memory.
				other := r.create(dst)
				require.Equal(t, number, dst.replica(other).Number())
				image := copyDir(t, dst.dir)
				dst.kill()
				dst.dir = image
				dst.start()
				r.leader(other)
				dst.wantRows(other, latest, 0)
			}
			_, err := dst.n.Replicas.copies.receive(t.Context(), copyRequest(id, src, dst))
			require.NoError(t, err)
		}
		r.sums(id, src, dst)
	}
}

// copyDir copies a folder as it is.
func copyDir(t testing.TB, from string) string {
	t.Helper()
	to := t.TempDir()
	require.NoError(t, os.CopyFS(to, os.DirFS(from)))
	return to
}

// TestCopyIsRefused where it can't be right or there is no room for it.
func TestCopyIsRefused(t *testing.T) {
	r, src, dst, id := copyPair(t)
	receive := func(edit func(*nyalav1.StartTabletCopyRequest)) error {
		req := copyRequest(id, src, dst)
		edit(req)
		ctx := t.Context()
		if req.GetMinIndex() > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
		}
		_, err := dst.n.Replicas.copies.receive(ctx, req)
		require.Error(t, err)
		return err
	}
	for name, c := range map[string]struct {
		edit func(*nyalav1.StartTabletCopyRequest)
		want status.Code
	}{
		"another server": {func(q *nyalav1.StartTabletCopyRequest) { q.DestServerId = ident.New() }, status.WrongServerID},
		"tablet":         {func(q *nyalav1.StartTabletCopyRequest) { q.TabletId = "x" }, status.InvalidArgument},
		"replica":        {func(q *nyalav1.StartTabletCopyRequest) { q.ReplicaId = 0 }, status.InvalidArgument},
		"unknown tablet": {func(q *nyalav1.StartTabletCopyRequest) { q.TabletId = ident.New() }, status.TabletNotFound},
		"another source": {func(q *nyalav1.StartTabletCopyRequest) { q.SourceServerId = ident.New() }, status.WrongServerID},
		"no member":      {func(q *nyalav1.StartTabletCopyRequest) { q.ReplicaId = 3 }, status.IllegalState},
		"nobody there":   {func(q *nyalav1.StartTabletCopyRequest) { q.SourceAddress = "127.0.0.1:1" }, status.ServiceUnavailable},
		"never that far": {func(q *nyalav1.StartTabletCopyRequest) { q.MinIndex = 1 << 40 }, status.TimedOut},
	} {
		err := receive(c.edit)
		require.Equal(t, c.want, status.CodeOf(err), "%s: %v", name, err)
		dst.bare()
	}
	for _, s := range []*server{src, dst} {
		c := s.n.Replicas.copies
		atMost := func(n int) (before int) { // copies that were given up may be on their way out
			c.mu.Lock()
			defer c.mu.Unlock()
			before, c.cfg.AtOnce = c.cfg.AtOnce, n
			return before
		}
		before := atMost(0)
		require.Equal(t, status.TooBusy, status.CodeOf(receive(func(*nyalav1.StartTabletCopyRequest) {})))
		atMost(before)
	}
	_, err := dst.n.Replicas.copies.receive(t.Context(), copyRequest(id, src, dst))
	require.NoError(t, err)
	rep := dst.replica(id)
	require.Equal(t, status.IllegalState, status.CodeOf(receive(func(q *nyalav1.StartTabletCopyRequest) { q.ReplicaId = 1 })))
	dst.n.Replicas.fail(rep, errInjected)
	require.Equal(t, status.TabletFailed, status.CodeOf(receive(func(*nyalav1.StartTabletCopyRequest) {})))
	require.NoError(t, dst.n.Replicas.DeleteReplica(t.Context(), id, 9), "another one is here")
	require.Len(t, dst.n.Replicas.Statuses(), 1)

	// Under a new id the server has it anew, in the failed one's place.
	r.change(id, consensus.ConfigChange{Remove: []ident.ReplicaID{2}})
	require.EqualValues(t, 3, r.add(id, dst))
	r.level(id, dst)
	require.EqualValues(t, 3, dst.replica(id).ReplicaID())
	r.sums(id, src, dst)
}
