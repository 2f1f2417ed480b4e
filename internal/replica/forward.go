package replica

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/tablet"
)

// A write that comes to a follower is passed on to the leader, and answered once the follower itself has applied it, which
// it recognizes by the request's number: the client then sees its write where it asked. Whether and how the write took
// effect is decided by the log alone, so it is the same answer whichever entry of whichever leader brings it, and no matter
// whether the leader that it was passed on to ever answers.

const (
	// maxForwards and maxForwardBytes bound the writes that one server has passed on and not heard of again.
	maxForwards     = 1 << 10
	maxForwardBytes = 128 << 20
	// forwardTime bounds the wait for a leader's answer where the caller sets no bound.
	forwardTime = 30 * time.Second
	// leftForAnswer is how much of the caller's time, but at most a tenth of it, is kept for giving the leader's answer where
	// the write isn't applied here in time.
	leftForAnswer = 200 * time.Millisecond
)

// forwards are the writes of a server's replicas that leaders elsewhere have been asked to take.
type forwards struct {
	dial    func(address string) (grpc.ClientConnInterface, error)
	metrics *metrics
	running sync.WaitGroup

	mu     sync.Mutex
	n      int
	bytes  int
	closed bool
}

// enter takes a write of the given size in; leave follows.
func (f *forwards) enter(bytes int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return errStopping()
	}
	if f.n >= maxForwards || f.n > 0 && f.bytes+bytes > maxForwardBytes {
		return &status.Error{
			Code: status.TooBusy, RetryAfter: busyRetry,
			Msg: fmt.Sprintf("this server has passed on %d writes of %d bytes to leaders that haven't answered, no more are taken", f.n, f.bytes),
		}
	}
	f.n++
	f.bytes += bytes
	f.running.Add(1)
	f.metrics.forwarding.Inc()
	return nil
}

func (f *forwards) leave(bytes int) {
	f.mu.Lock()
	f.n--
	f.bytes -= bytes
	f.mu.Unlock()
	f.metrics.forwarding.Dec()
	f.running.Done()
}

// close takes no more in and waits until none is under way. The connections are closed by then.
func (f *forwards) close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.running.Wait()
}

// passed is what a replica knows of a write that it has passed on.
type passed struct {
	leader *nyalav1.Peer
	term   ident.Term // in which it leads
	// answered is closed once the leader has taken the write: then answer is its answer, and the entry is committed.
	answered chan struct{}
	answer   *nyalav1.WriteResponse
}

// writeAtFollower has the leader take a write, and answers when it is applied here.
func (r *Replica) writeAtFollower(ctx context.Context, t *tablet.Tablet, req *nyalav1.WriteRequest, id *nyalav1.StoredRequestId) (*nyalav1.WriteResponse, error) {
	to := r.leaderElsewhere()
	switch {
	case id == nil:
		// Without a number it couldn't be recognized here, nor be asked about again if the answer were lost.
		return nil, r.notTheLeader()
	case to == nil:
		resp, err := r.answerOfFollower(t, id)
		if err != nil {
			// A group that is asked for something elects before those that aren't. Its host learns so from a question that only
			// a leader answers.
			_, _ = r.m.host.ReadIndex(ctx, r.id)
		}
		return resp, err
	}
	p, isNew, err := r.begin(t, id, to)
	if err != nil {
		return nil, err
	}
	if isNew {
		r.passOn(ctx, p, req)
	}
	resp, err := r.outcomeOf(ctx, p)
	if isNew {
		r.m.metrics.forwardedWrite(p, err)
	}
	return resp, err
}

// leaderElsewhere is the leader that this replica follows, nil if none is known.
func (r *Replica) leaderElsewhere() *passed {
	st, ok := r.m.host.Status(r.id)
	if !ok || st.Leader == st.Replica {
		return nil
	}
	for _, p := range st.Config.GetPeers() {
		if ident.ReplicaID(p.GetReplicaId()) == st.Leader {
			return &passed{leader: p, term: st.Term, answered: make(chan struct{})}
		}
	}
	return nil
}

// passOn sends a write to the leader. Like a proposal it isn't bound to its caller: others may share it, and the leader goes
// on with it anyhow.
func (r *Replica) passOn(ctx context.Context, p *proposal, req *nyalav1.WriteRequest) {
	f, size := r.m.forwards, proto.Size(req)
	if err := f.enter(size); err != nil {
		r.endForward(p, err)
		return
	}
	conn, err := f.dial(p.passed.leader.GetAddress())
	if err != nil {
		f.leave(size)
		r.endForward(p, err)
		return
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(forwardTime)
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
	go func() {
		defer f.leave(size)
		defer cancel()
		resp, err := nyalav1.NewForwardServiceClient(conn).ForwardWrite(ctx, &nyalav1.ForwardWriteRequest{
			DestServerId: p.passed.leader.GetServerId(),
			Write: &nyalav1.WriteRequest{
				TabletId: req.GetTabletId(), SchemaVersion: req.GetSchemaVersion(), RowOperations: req.GetRowOperations(),
				RequestId: req.GetRequestId(), PropagatedTimestamp: req.GetPropagatedTimestamp(),
			},
		})
		if err != nil {
			r.endForward(p, err)
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		p.passed.answer = resp.GetWrite()
		close(p.passed.answered)
	}()
}

// endForward ends a write that the leader didn't take, or of which it doesn't know, unless it is applied by now.
func (r *Replica) endForward(p *proposal, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endLocked(func(ps *proposals) { ps.end(p, tablet.Result{}, err) })
}

// taken is closed once the leader has taken the write; of one that isn't passed on it never is.
func (to *passed) taken() <-chan struct{} {
	if to == nil {
		return nil
	}
	return to.answered
}

// awaitApplied waits for a write that the leader has taken to be applied here, until the caller's time is nearly over.
func (r *Replica) awaitApplied(ctx context.Context, p *proposal) {
	start := time.Now()
	defer func() { r.m.metrics.forwardWait.Observe(time.Since(start).Seconds()) }()
	wait := forwardTime
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		wait = left - min(left/10, leftForAnswer)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// forwardService takes what other servers pass on.
type forwardService struct {
	nyalav1.UnimplementedForwardServiceServer
	n *Node
}

var _ nyalav1.ForwardServiceServer = (*forwardService)(nil)

// ForwardWrite applies a client's write that came to another server, if this one leads the tablet.
func (s *forwardService) ForwardWrite(ctx context.Context, req *nyalav1.ForwardWriteRequest) (*nyalav1.ForwardWriteResponse, error) {
	if own := s.n.ServerID(); req.GetDestServerId() != string(own) {
		return nil, status.New(status.WrongServerID, "this is server %s, the call is for %s", own, req.GetDestServerId())
	}
	r, err := s.n.Replicas.Replica(ident.TabletID(req.GetWrite().GetTabletId()))
	if err != nil {
		return nil, err
	}
	resp, err := r.writeForwarded(ctx, req.GetWrite())
	if err != nil {
		return nil, err
	}
	return &nyalav1.ForwardWriteResponse{Write: resp}, nil
}
