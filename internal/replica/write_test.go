package replica

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// TestWriteAndRead writes through three servers and reads in every mode, on each of them.
func TestWriteAndRead(t *testing.T) {
	r := newRig(t, 3).startAll()
	id := r.create(r.servers...)
	leader := r.leader(id)
	c := newRequests()
	resp := leader.write(c.insert(t, id, 1, 2, 3))
	leader.wantRows(id, latest, 3)
	for _, s := range r.servers {
		s.wantRows(id, atSnapshot, 3)
		s.wantRows(id, yourWrites, 3)
		rows, err := s.count(t.Context(), id, yourWrites, 0, hybridtime.Timestamp(resp.GetTimestamp()))
		require.NoError(t, err)
		require.Equal(t, 3, rows)
		rows, err = s.count(t.Context(), id, atSnapshot, hybridtime.Timestamp(resp.GetTimestamp()), 0)
		require.NoError(t, err)
		require.Zero(t, rows, "a snapshot at T shows what lies below T")
	}
	for _, s := range r.followers(id) {
		_, err := s.count(t.Context(), id, latest, 0, 0)
		require.Equal(t, status.NotTheLeader, status.CodeOf(err), "%v", err)
		untracked := c.insert(t, id, 4)
		untracked.RequestId = nil
		_, err = s.replica(id).Write(t.Context(), untracked)
		var e *status.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, status.NotTheLeader, e.Code)
		require.Equal(t, string(leader.n.ServerID()), e.Leader.GetServerId())
		require.Contains(t, e.Error(), leader.addr)
	}
	_, err := leader.count(t.Context(), id, 99, 0, 0)
	require.Equal(t, status.InvalidScanSpec, status.CodeOf(err))
	far := hybridtime.FromTime(time.Now().Add(time.Hour))
	_, err = leader.count(t.Context(), id, atSnapshot, far, 0)
	require.Equal(t, status.InvalidSnapshot, status.CodeOf(err), "%v", err)
	_, err = leader.count(t.Context(), id, atSnapshot, 0, far)
	require.Equal(t, status.InvalidArgument, status.CodeOf(err), "%v", err)
	require.Equal(t, 1, value(t, leader.n.Replicas.metrics.writes[writeOK]))
	require.Zero(t, leader.inFlight())
}

// TestRetryAtNewLeader kills the leader after it has answered, and sends the request again to the next one.
func TestRetryAtNewLeader(t *testing.T) {
	r := newRig(t, 3).startAll()
	id := r.create(r.servers...)
	c := newRequests()
	old := r.leader(id)
	old.write(c.insert(t, id, 1))
	req := c.insert(t, id, 1, 2) // 1 is there already: a row error is part of the answer
	first, err := old.replica(id).Write(t.Context(), req)
	require.NoError(t, err)
	require.Len(t, first.GetRowErrors(), 1)
	old.kill()

	next := r.leader(id)
	again, err := next.replica(id).Write(t.Context(), req)
	require.NoError(t, err)
	require.True(t, proto.Equal(first, again), "first %v, again %v", first, again)
	next.wantRows(id, latest, 2)
	for _, s := range r.followers(id) { // who has applied it answers as well
		r.until("the follower has applied the request", func() bool {
			again, err = s.replica(id).Write(t.Context(), req)
			return err == nil
		})
		sameAnswer(t, first, again)
	}
	r.startAll()
	old.wantRows(id, atSnapshot, 2)
	again, err = old.replica(id).Write(t.Context(), req)
	require.NoError(t, err)
	sameAnswer(t, first, again)
}

// TestUnknownOutcome writes on a leader that has lost its followers: the tracked write ends with the leadership, the other
// one by its caller, and both are decided once when there is a majority again.
func TestUnknownOutcome(t *testing.T) {
	r := newRig(t, 3).startAll()
	id := r.create(r.servers...)
	c := newRequests()
	leader := r.leader(id)
	leader.write(c.insert(t, id, 1))
	before, _ := leader.n.host.Status(id)
	for _, s := range r.followers(id) {
		s.kill()
	}
	tracked := c.insert(t, id, 2, 3)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		_, err := leader.replica(id).Write(ctx, &nyalav1.WriteRequest{TabletId: string(id), RowOperations: inserts(t, 9)})
		require.Equal(t, status.TimedOut, status.CodeOf(err), "%v", err)
	})
	r.until("the untracked write is in the log", func() bool {
		st, _ := leader.n.host.Status(id)
		return st.LastIndex > before.LastIndex
	})
	_, err := leader.replica(id).Write(t.Context(), tracked)
	require.Equal(t, status.NotTheLeader, status.CodeOf(err), "%v", err)
	require.Equal(t, 1, leader.inFlight(), "the untracked one still waits")
	cancel()
	wg.Wait()

	r.startAll()
	resp, err := r.leader(id).replica(id).Write(t.Context(), tracked)
	require.NoError(t, err)
	require.Empty(t, resp.GetRowErrors(), "it was applied once: twice, and its rows would be there already")
	rows, err := r.leader(id).count(t.Context(), id, latest, 0, 0)
	require.NoError(t, err)
	require.Contains(t, []int{3, 4}, rows)
	r.until("nobody waits any more", func() bool { return leader.inFlight() == 0 })
}

// TestDuplicatesShareAProposal sends one request many times at once: it stands in the log once, and all get its answer.
func TestDuplicatesShareAProposal(t *testing.T) {
	r := newRig(t, 1).startAll()
	id := r.create(r.servers...)
	s := r.leader(id)
	before, _ := s.n.host.Status(id)
	req := newRequests().insert(t, id, 1)
	answers := make([]*nyalav1.WriteResponse, 64)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() { answers[i], _ = s.replica(id).Write(t.Context(), req) })
	}
	wg.Wait()
	after, _ := s.n.host.Status(id)
	require.Equal(t, before.LastIndex+1, after.LastIndex)
	for _, a := range answers {
		require.NotNil(t, a)
		require.True(t, proto.Equal(answers[0], a))
	}
}

// TestSharedProposalOutlivesItsCaller: who asks for the same request gets its answer, although the first caller has gone.
func TestSharedProposalOutlivesItsCaller(t *testing.T) {
	r := newRig(t, 1).startAll()
	id := r.create(r.servers...)
	s := r.leader(id)
	rep := s.replica(id)
	tab, err := rep.Tablet()
	require.NoError(t, err)
	req := newRequests().insert(t, id, 1)
	p, isNew, err := rep.begin(tab, storedRequestID(req.GetRequestId()), nil)
	require.NoError(t, err)
	require.True(t, isNew)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	answer := make(chan error, 1)
	go func() {
		_, err := rep.Write(t.Context(), req)
		answer <- err
	}()
	rep.propose(gone, p, &nyalav1.WriteOp{RowOperations: req.GetRowOperations(), RequestId: storedRequestID(req.GetRequestId())})
	require.NoError(t, <-answer)
	_, err = rep.outcomeOf(gone, p)
	require.True(t, err == nil || status.CodeOf(err) == status.TimedOut, "%v", err)
}

// TestStaleRequest sends a request again that its client had said was complete.
func TestStaleRequest(t *testing.T) {
	r := newRig(t, 1).startAll()
	id := r.create(r.servers...)
	s := r.leader(id)
	c := newRequests()
	old := c.insert(t, id, 1)
	s.write(old)
	next := c.insert(t, id, 2)
	next.RequestId.FirstIncompleteSeqNo = next.GetRequestId().GetSeqNo()
	s.write(next)
	_, err := s.replica(id).Write(t.Context(), old)
	require.Equal(t, status.RequestStale, status.CodeOf(err), "%v", err)
	s.wantRows(id, latest, 2)
}

// TestRefusedWrites: what is wrong with a whole request is said before anything is proposed.
func TestRefusedWrites(t *testing.T) {
	r := newRig(t, 1).startAll()
	id := r.create(r.servers...)
	s := r.leader(id)
	before, _ := s.n.host.Status(id)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	fine := func() *nyalav1.WriteRequest { return newRequests().insert(t, id, 1) }
	for name, c := range map[string]struct {
		ctx  context.Context
		edit func(*nyalav1.WriteRequest)
		code status.Code
		text string
	}{
		"client id": {edit: func(w *nyalav1.WriteRequest) { w.RequestId.ClientId = []byte("short") }, code: status.InvalidArgument, text: "client id has 5 bytes, want 16"},
		"schema":    {edit: func(w *nyalav1.WriteRequest) { w.SchemaVersion = 7 }, code: status.ServiceUnavailable, text: "schema version 7 hasn't come here yet"},
		"rows":      {edit: func(w *nyalav1.WriteRequest) { w.RowOperations.Rows = []byte("nonsense") }, code: status.Corruption},
		"timestamp": {edit: func(w *nyalav1.WriteRequest) {
			w.PropagatedTimestamp = uint64(hybridtime.FromTime(time.Now().Add(time.Hour)))
		}, code: status.InvalidArgument, text: "propagated timestamp"},
		"too many": {edit: func(w *nyalav1.WriteRequest) { w.RowOperations = manyOps(t, maxRowOperations+1) }, code: status.TooLarge, text: "1048577 row operations, the most is 1048576"},
		"gone":     {ctx: gone, code: status.TimedOut},
	} {
		t.Run(name, func(t *testing.T) {
			req := fine()
			if c.edit != nil {
				c.edit(req)
			}
			if c.ctx == nil {
				c.ctx = t.Context()
			}
			_, err := s.replica(id).Write(c.ctx, req)
			require.Error(t, err)
			if c.code != status.Corruption {
				require.Equal(t, c.code, status.CodeOf(err), "%v", err)
			}
			require.Contains(t, err.Error(), c.text)
		})
	}
	after, _ := s.n.host.Status(id)
	require.Equal(t, before.LastIndex, after.LastIndex)
}

// manyOps is n deletes of one row.
func manyOps(t *testing.T, n int) *nyalav1.RowOperations {
	s := testSchema(t)
	enc := schema.NewOpsEncoder(s)
	set := schema.NewBitmap(s.NumColumns())
	set.Set(0)
	require.NoError(t, enc.Append(schema.Delete, []schema.Value{schema.IntValue(1), {}}, set))
	row, _ := enc.Bytes()
	ops := &nyalav1.RowOperations{}
	for range n {
		ops.Rows = append(ops.Rows, row...)
	}
	return ops
}

// TestBarrier: behind a barrier nothing that was written before it is undecided.
func TestBarrier(t *testing.T) {
	r := newRig(t, 3).startAll()
	id := r.create(r.servers...)
	s := r.leader(id)
	s.write(newRequests().insert(t, id, 1))
	require.NoError(t, s.replica(id).Barrier(t.Context()))
	st, _ := s.n.host.Status(id)
	require.Equal(t, st.LastIndex, ident.Index(s.replica(id).Status().GetAppliedIndex()))
	for _, f := range r.followers(id) {
		require.Equal(t, status.NotTheLeader, status.CodeOf(f.replica(id).Barrier(t.Context())))
	}
}
