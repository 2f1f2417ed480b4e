package replica

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/tablet"
	"github.com/nyaladb/nyala/internal/wal"
)

// busyRetry is when a caller should try again whose write was refused because flushes are behind.
const busyRetry = 100 * time.Millisecond

// requestKey names a tracked request.
type requestKey struct {
	client [16]byte
	seq    uint64
}

// proposal is a write whose outcome somebody waits for.
type proposal struct {
	key     requestKey
	tracked bool
	op      ident.OpID // set when the host has given it

	once   sync.Once
	done   chan struct{}
	result tablet.Result
	err    error
}

// finish gives the proposal its outcome; the first one counts.
func (p *proposal) finish(result tablet.Result, err error) {
	p.once.Do(func() {
		p.result, p.err = result, err
		close(p.done)
	})
}

// Write applies req's rows through the log and returns once they can be read here. Errors of single rows stand in the
// answer; an error means that the whole request wasn't applied, or, for TIMED_OUT and NOT_THE_LEADER, that this isn't known
// here: sent again with the same request id it is applied once.
func (r *Replica) Write(ctx context.Context, req *nyalav1.WriteRequest) (*nyalav1.WriteResponse, error) {
	t, err := r.Tablet()
	if err != nil {
		return nil, err
	}
	if req.GetCommitWait() {
		return nil, status.New(status.NotSupported, "commit_wait isn't offered by this server")
	}
	if id := req.GetRequestId(); id != nil && len(id.GetClientId()) != 16 {
		return nil, status.New(status.InvalidArgument, "request id: client id has %d bytes, want 16", len(id.GetClientId()))
	}
	op := &nyalav1.WriteOp{
		SchemaVersion: req.GetSchemaVersion(),
		RowOperations: req.GetRowOperations(),
		RequestId:     storedRequestID(req.GetRequestId()),
	}
	if err := t.CheckWrite(op); err != nil {
		return nil, err
	}
	if ts := hybridtime.Timestamp(req.GetPropagatedTimestamp()); ts != 0 {
		if err := r.m.clock.Update(ts); err != nil {
			return nil, status.Wrap(status.InvalidArgument, err, "propagated timestamp %s", ts)
		}
	}
	p, known, err := r.begin(t, op.GetRequestId())
	if err != nil {
		return nil, err
	}
	if !known {
		if err := r.propose(ctx, p, op); err != nil {
			r.forget(p)
			p.finish(tablet.Result{}, err)
		}
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		return nil, status.Wrap(status.TimedOut, ctx.Err(), "tablet %s: the outcome of the write isn't known", r.id)
	}
	if p.err != nil {
		return nil, p.err
	}
	return &nyalav1.WriteResponse{Timestamp: uint64(p.result.Timestamp), RowErrors: p.result.RowErrors}, nil
}

func storedRequestID(id *nyalav1.RequestId) *nyalav1.StoredRequestId {
	if id == nil {
		return nil
	}
	return &nyalav1.StoredRequestId{
		ClientId:             id.GetClientId(),
		SeqNo:                id.GetSeqNo(),
		FirstIncompleteSeqNo: id.GetFirstIncompleteSeqNo(),
	}
}

// begin finds what is known of a request: its outcome, a proposal under way, or neither, and then registers a new one.
//
// The order matters: an outcome is visible to Lookup before its proposal leaves inFlight, so a request that is in neither
// was never applied here.
func (r *Replica) begin(t *tablet.Tablet, id *nyalav1.StoredRequestId) (p *proposal, known bool, err error) {
	p = &proposal{done: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := r.tabletLocked(); err != nil {
		return nil, false, err
	}
	if id == nil {
		return p, false, nil
	}
	p.tracked = true
	p.key.seq = id.GetSeqNo()
	copy(p.key.client[:], id.GetClientId())
	if other, ok := r.inFlight[p.key]; ok {
		return other, true, nil
	}
	result, state := t.Lookup(id)
	switch state {
	case tablet.LookupDone:
		p.finish(result, nil)
		return p, true, nil
	case tablet.LookupStale:
		return nil, false, staleRequest(id)
	case tablet.LookupNew:
	}
	r.inFlight[p.key] = p
	return p, false, nil
}

func staleRequest(id *nyalav1.StoredRequestId) error {
	return status.New(status.RequestStale, "request %d of client %x is older than what is remembered: whether it was applied can't be said",
		id.GetSeqNo(), id.GetClientId())
}

func (r *Replica) propose(ctx context.Context, p *proposal, op *nyalav1.WriteOp) error {
	if pressure := r.m.store.Pressure(); pressure.Refuse {
		return &status.Error{
			Code: status.TooBusy, RetryAfter: busyRetry, Msg: fmt.Sprintf("tablet %s: the server is behind: %s", r.id, pressure.Reason),
		}
	}
	payload, err := proto.Marshal(op)
	if err != nil {
		return status.Wrap(status.InvalidArgument, err, "tablet %s: encode the write", r.id)
	}
	_, _, err = r.m.host.Propose(ctx, r.id, wal.KindWrite, payload, func(op ident.OpID, _ hybridtime.Timestamp) {
		r.mu.Lock()
		defer r.mu.Unlock()
		p.op = op
		r.byIndex[op.Index] = p
	})
	return err
}

// forget drops a proposal that never got a place in the log.
func (r *Replica) forget(p *proposal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.tracked && r.inFlight[p.key] == p {
		delete(r.inFlight, p.key)
	}
}

// outcome is what became of one entry.
type outcome struct {
	op        ident.OpID
	timestamp hybridtime.Timestamp
	result    tablet.Result
	request   *nyalav1.StoredRequestId
}

// deliver hands the outcomes of applied entries, in order, to those who wait. The batch that holds them is committed.
func (r *Replica) deliver(outcomes []outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range outcomes {
		o := &outcomes[i]
		if p, ok := r.byIndex[o.op.Index]; ok {
			delete(r.byIndex, o.op.Index)
			switch {
			case p.op != o.op:
				// Another leader's entry took the place: ours is in no log that counts.
				r.endLocked(p, tablet.Result{}, r.lostLocked(p))
			case o.result.Stale:
				r.endLocked(p, tablet.Result{}, staleRequest(o.request))
			case o.result.Err != nil:
				r.endLocked(p, tablet.Result{}, o.result.Err)
			default:
				r.endLocked(p, o.result, nil)
			}
		}
		r.deliveredLocked(o.op.Index)
	}
}

func (r *Replica) endLocked(p *proposal, result tablet.Result, err error) {
	if p.tracked && r.inFlight[p.key] == p {
		delete(r.inFlight, p.key)
	}
	p.finish(result, err)
}

func (r *Replica) lostLocked(p *proposal) error {
	return status.New(status.Aborted, "tablet %s: write %s was overtaken by a new leader and not applied", r.id, p.op)
}

// leadershipLost answers those who wait for the outcome of a proposal of this leader: it is in the hands of the next one
// now. Tracked requests can be sent again at once, to whoever leads.
func (r *Replica) leadershipLost() {
	err := r.notTheLeader()
	r.mu.Lock()
	defer r.mu.Unlock()
	for index, p := range r.byIndex {
		if p.tracked {
			delete(r.byIndex, index)
			r.endLocked(p, tablet.Result{}, err)
		}
	}
}
