package replica

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/tablet"
)

// wire is a connection to another server whose calls a test takes over.
type wire struct {
	grpc.ClientConnInterface
	call func(ctx context.Context, method string, req, reply any, next func() error) error
}

func (w wire) Invoke(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
	return w.call(ctx, method, req, reply, func() error { return w.ClientConnInterface.Invoke(ctx, method, req, reply, opts...) })
}

// forwardsBy has a test take over the calls that pass writes on from s.
func (s *server) forwardsBy(call func(ctx context.Context, reply *nyalav1.ForwardWriteResponse, next func() error) error) {
	s.n.Replicas.forwards.dial = func(address string) (grpc.ClientConnInterface, error) {
		conn, err := s.n.Dial(address)
		return wire{conn, func(ctx context.Context, _ string, _, reply any, next func() error) error {
			return call(ctx, reply.(*nyalav1.ForwardWriteResponse), next)
		}}, err
	}
}

// sameAnswer compares answers that different servers gave to one request.
func sameAnswer(t *testing.T, a, b *nyalav1.WriteResponse) {
	t.Helper()
	a, b = proto.CloneOf(a), proto.CloneOf(b)
	a.Leader, b.Leader = nil, nil
	require.True(t, proto.Equal(a, b), "%v and %v", a, b)
}

// rowsNow counts the rows that s has applied, and waits for nothing.
func (s *server) rowsNow(id ident.TabletID) int {
	s.rig.t.Helper()
	tab, err := s.replica(id).Tablet()
	require.NoError(s.rig.t, err)
	_, last := tab.Applied()
	sc, err := tab.NewScanner(tablet.ScanSpec{Snapshot: last + 1})
	require.NoError(s.rig.t, err)
	defer sc.Close()
	b, more, err := sc.Next(s.rig.t.Context(), 0)
	require.NoError(s.rig.t, err)
	require.False(s.rig.t, more)
	return b.Rows
}

// TestWriteThroughFollower writes at each follower: the answer comes when the row can be read there, names the leader, and is
// the one that the leader gives, errors of rows included.
func TestWriteThroughFollower(t *testing.T) {
	r := newRig(t, 3).startAll()
	id := r.create(r.servers...)
	leader := r.leader(id)
	c := newRequests()
	n := 0
	for _, s := range r.followers(id) {
		r.until("the follower knows its leader", func() bool { return s.replica(id).leaderElsewhere() != nil })
		m := s.n.Replicas.metrics
		before := value(t, m.forwarded[forwardApplied])
		for range 20 {
			n++
			resp := s.write(c.insert(t, id, int64(n)))
			require.Equal(t, n, s.rowsNow(id))
			require.Equal(t, string(leader.n.ServerID()), resp.GetLeader().GetServerId())
		}
		twice := c.insert(t, id, int64(n), int64(n+1))
		n++
		resp, err := s.replica(id).Write(t.Context(), twice)
		require.NoError(t, err)
		require.Len(t, resp.GetRowErrors(), 1)
		require.Equal(t, n, s.rowsNow(id))
		for _, o := range r.servers {
			again, err := o.replica(id).Write(t.Context(), twice)
			require.NoError(t, err)
			sameAnswer(t, resp, again)
		}
		bad := c.insert(t, id, 1)
		bad.SchemaVersion = 7
		_, err = s.replica(id).Write(t.Context(), bad)
		require.Equal(t, status.ServiceUnavailable, status.CodeOf(err), "the leader's word: %v", err)
		require.Equal(t, before+21, value(t, m.forwarded[forwardApplied]))
		require.Equal(t, 1, value(t, m.forwarded[forwardFailed]))
		r.until("no write is under way", func() bool { return value(t, m.forwarding) == 0 })
	}
	require.Zero(t, value(t, leader.n.Replicas.metrics.forwarded[forwardApplied]))
	for _, s := range r.servers {
		require.Zero(t, s.inFlight())
	}
	leader.wantRows(id, latest, n)
}

// TestForwardedOnce: what was passed on is not passed on again, nor taken by the wrong server.
func TestForwardedOnce(t *testing.T) {
	r := newRig(t, 3).startAll()
	id := r.create(r.servers...)
	leader := r.leader(id)
	f := r.followers(id)[0]
	r.until("the follower knows its leader", func() bool { return f.replica(id).leaderElsewhere() != nil })
	conn, err := leader.n.Dial(f.addr)
	require.NoError(t, err)
	forward := nyalav1.NewForwardServiceClient(conn)
	req := &nyalav1.ForwardWriteRequest{DestServerId: string(f.n.ServerID()), Write: newRequests().insert(t, id, 1)}
	_, err = forward.ForwardWrite(t.Context(), req)
	var e *status.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, status.NotTheLeader, e.Code)
	require.Equal(t, string(leader.n.ServerID()), e.Leader.GetServerId())
	req.DestServerId = string(leader.n.ServerID())
	_, err = forward.ForwardWrite(t.Context(), req)
	require.Equal(t, status.WrongServerID, status.CodeOf(err), "%v", err)
	require.Zero(t, leader.rowsNow(id))
}

// TestForwardAnswerLost: a follower answers when it has applied the write, though the leader's answer never comes; who asks
// twice at once shares the call.
func TestForwardAnswerLost(t *testing.T) {
	r := newRig(t, 3).startAll()
	id := r.create(r.servers...)
	f := r.followers(id)[0]
	r.until("the follower knows its leader", func() bool { return f.replica(id).leaderElsewhere() != nil })
	var calls atomic.Int64
	over := make(chan struct{})
	f.forwardsBy(func(ctx context.Context, _ *nyalav1.ForwardWriteResponse, next func() error) error {
		calls.Add(1)
		err := next()
		<-over
		return err
	})
	req := newRequests().insert(t, id, 1)
	answers := make([]*nyalav1.WriteResponse, 8)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() { answers[i] = f.write(req) })
	}
	wg.Wait()
	for _, a := range answers {
		sameAnswer(t, answers[0], a)
	}
	require.EqualValues(t, 1, calls.Load())
	require.Equal(t, 1, f.rowsNow(id))
	close(over)
}

// TestForwardNotAppliedInTime: where the write isn't applied at the follower, the leader's answer is given while the caller
// still listens.
func TestForwardNotAppliedInTime(t *testing.T) {
	r := newRig(t, 3).startAll()
	id := r.create(r.servers...)
	f := r.followers(id)[0]
	r.until("the follower knows its leader", func() bool { return f.replica(id).leaderElsewhere() != nil })
	f.forwardsBy(func(_ context.Context, reply *nyalav1.ForwardWriteResponse, _ func() error) error {
		reply.Write = &nyalav1.WriteResponse{Timestamp: 77, RowErrors: []*nyalav1.RowError{{RowIndex: 3}}}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	c := newRequests()
	resp, err := f.replica(id).Write(ctx, c.insert(t, id, 1))
	require.NoError(t, err)
	require.NoError(t, ctx.Err())
	require.Equal(t, hybridtime.Timestamp(77), ts(resp))
	require.Len(t, resp.GetRowErrors(), 1)
	require.Equal(t, 1, value(t, f.n.Replicas.metrics.forwarded[forwardTaken]))
	require.Equal(t, 1, f.inFlight(), "it may yet be applied")
	// At the end of the replica the leader's answer stands as well.
	answer, req := make(chan *nyalav1.WriteResponse, 1), c.insert(t, id, 2)
	go func() {
		resp, _ := f.replica(id).Write(t.Context(), req)
		answer <- resp
	}()
	rep := f.replica(id)
	r.until("both are taken, and wait", func() bool {
		rep.mu.Lock()
		defer rep.mu.Unlock()
		taken := 0
		for _, p := range rep.proposals.tracked {
			if p.passed.answer != nil {
				taken++
			}
		}
		return taken == 2
	})
	require.NoError(t, f.n.Replicas.Delete(t.Context(), id))
	require.Equal(t, hybridtime.Timestamp(77), ts(<-answer))
	require.Zero(t, f.inFlight())
}

// TestForwardAtChangeOfLeader: a write that was passed on to a leader that is gone ends with its leadership, is sent again, and
// is applied once, although the first try has reached the log as well.
func TestForwardAtChangeOfLeader(t *testing.T) {
	r := newRig(t, 3).startAll()
	id := r.create(r.servers...)
	old := r.leader(id)
	fs := r.followers(id)
	f, next := fs[0], fs[1]
	r.until("the follower knows its leader", func() bool { return f.replica(id).leaderElsewhere() != nil })
	c := newRequests()
	f.write(c.insert(t, id, 1))
	held := make(chan struct{})
	f.forwardsBy(func(ctx context.Context, _ *nyalav1.ForwardWriteResponse, next func() error) error {
		held <- struct{}{}
		<-ctx.Done() // the leader never hears of it
		return ctx.Err()
	})
	req := c.insert(t, id, 2)
	answer := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	go func() {
		_, err := f.replica(id).Write(ctx, req)
		answer <- err
	}()
	<-held
	require.NoError(t, old.replica(id).StepDown(t.Context(), next.n.ServerID()))
	require.Equal(t, status.NotTheLeader, status.CodeOf(<-answer))
	require.NoError(t, ctx.Err())
	f.n.Replicas.forwards.dial = f.n.Dial
	var resp *nyalav1.WriteResponse
	r.until("the new leader has taken it", func() bool {
		var err error
		resp, err = f.replica(id).Write(t.Context(), req)
		return err == nil
	})
	require.Empty(t, resp.GetRowErrors())
	require.Equal(t, 2, f.rowsNow(id))
	cancel()
}

// TestForwardsBounded: what a server has passed on is bounded in number and in bytes; one write always goes.
func TestForwardsBounded(t *testing.T) {
	x, err := newMetrics(&Manager{}, prometheus.NewRegistry())
	require.NoError(t, err)
	f := &forwards{metrics: x}
	require.NoError(t, f.enter(2*maxForwardBytes))
	require.Equal(t, status.TooBusy, status.CodeOf(f.enter(1)))
	f.leave(2 * maxForwardBytes)
	for range maxForwards {
		require.NoError(t, f.enter(1))
	}
	require.Equal(t, status.TooBusy, status.CodeOf(f.enter(1)))
	require.Equal(t, maxForwards, value(t, x.forwarding))
	for range maxForwards {
		f.leave(1)
	}
	f.close()
	require.Error(t, f.enter(1))
	require.Zero(t, value(t, x.forwarding))
}
