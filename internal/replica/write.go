package replica

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/tablet"
	"github.com/nyaladb/nyala/internal/wal"
)

const (
	// busyRetry is about when a caller should try again whose write was refused because the server is behind; the spread keeps
	// those that were refused together from coming back together.
	busyRetry = 100 * time.Millisecond
	// maxRowOperations is the most row operations in one request: what applying it may cost in memory and time has a bound
	// that doesn't hang on how small rows can be.
	maxRowOperations = 1 << 20
	// minRowOperationBytes is less than any row operation takes: its type, a bitmap, a cell.
	minRowOperationBytes = 3
)

// Write applies req's rows through the log and returns once they can be read here: a follower has the leader take them, and
// where they aren't applied here by the end of the caller's time it gives the leader's answer. Errors of single rows stand in
// the answer; an error means that the whole request wasn't applied, or that this isn't known here (TIMED_OUT,
// NOT_THE_LEADER, SERVICE_UNAVAILABLE, TABLET_FAILED): sent again with the same request id it is applied once.
func (r *Replica) Write(ctx context.Context, req *nyalav1.WriteRequest) (*nyalav1.WriteResponse, error) {
	resp, err := r.write(ctx, req, r.writeAtFollower)
	if err == nil && req.GetCommitWait() {
		resp, err = r.commitWait(ctx, resp)
	}
	r.m.metrics.wrote(resp, err)
	return resp, err
}

// writeForwarded is Write for what another server passes on: it is not passed on again.
func (r *Replica) writeForwarded(ctx context.Context, req *nyalav1.WriteRequest) (*nyalav1.WriteResponse, error) {
	resp, err := r.write(ctx, req, func(_ context.Context, t *tablet.Tablet, _ *nyalav1.WriteRequest, id *nyalav1.StoredRequestId) (*nyalav1.WriteResponse, error) {
		return r.answerOfFollower(t, id)
	})
	r.m.metrics.wrote(resp, err)
	return resp, err
}

// write is a write at a replica that leads, and elsewhere at a follower.
func (r *Replica) write(ctx context.Context, req *nyalav1.WriteRequest,
	elsewhere func(context.Context, *tablet.Tablet, *nyalav1.WriteRequest, *nyalav1.StoredRequestId) (*nyalav1.WriteResponse, error),
) (*nyalav1.WriteResponse, error) {
	t, err := r.Tablet()
	if err != nil {
		return nil, err
	}
	if id := req.GetRequestId(); id != nil && len(id.GetClientId()) != len(requestKey{}.client) {
		return nil, status.New(status.InvalidArgument, "request id: client id has %d bytes, want %d", len(id.GetClientId()), len(requestKey{}.client))
	}
	op := &nyalav1.WriteOp{
		SchemaVersion: req.GetSchemaVersion(),
		RowOperations: req.GetRowOperations(),
		RequestId:     storedRequestID(req.GetRequestId()),
	}
	if op.GetRequestId() != nil {
		// In this server's word, for all replicas: what is forgotten is decided by the log alone.
		op.RememberResponsesUsec, op.RememberClientsUsec = r.m.cfg.rememberUsec()
	}
	// A follower says so before it looks at the rows: it may be behind in what it knows of the schema.
	if !r.leads() {
		return elsewhere(ctx, t, req, op.GetRequestId())
	}
	if err := r.check(t, op); err != nil {
		// A request that took effect keeps its answer, though a column that it set has been dropped since.
		if resp, kerr := r.knownAnswer(t, op.GetRequestId(), nil); resp != nil || kerr != nil {
			return resp, kerr
		}
		return nil, err
	}
	if ts := hybridtime.Timestamp(req.GetPropagatedTimestamp()); ts != 0 {
		if err := r.m.clock.Update(ts); err != nil {
			return nil, status.Wrap(status.InvalidArgument, err, "tablet %s: the request's propagated timestamp", r.id)
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, status.Wrap(status.TimedOut, err, "tablet %s: the write was not begun", r.id)
	}
	p, isNew, err := r.begin(t, op.GetRequestId(), nil)
	if err != nil {
		return nil, err
	}
	if isNew {
		r.propose(ctx, p, op)
	}
	return r.outcomeOf(ctx, p)
}

// commitWait holds an answer back until the write's timestamp is past on every clock, so that whatever anybody writes after
// the answer gets a higher one. Where that can't be waited for the write stands all the same: the same request, sent again,
// here or elsewhere, waits for the rest.
func (r *Replica) commitWait(ctx context.Context, resp *nyalav1.WriteResponse) (*nyalav1.WriteResponse, error) {
	switch err := r.m.clock.WaitPastEverywhere(ctx, hybridtime.Timestamp(resp.GetTimestamp())); {
	case err == nil:
		return resp, nil
	case ctx.Err() != nil:
		return nil, status.Wrap(status.TimedOut, err, "tablet %s: the write is applied; waiting until its timestamp is past on every clock", r.id)
	default:
		return nil, err
	}
}

// check says why a write is refused before it is proposed.
func (r *Replica) check(t *tablet.Tablet, op *nyalav1.WriteOp) error {
	rows, indirect := op.GetRowOperations().GetRows(), op.GetRowOperations().GetIndirectData()
	if sc := t.SchemaAt(op.GetSchemaVersion()); sc != nil && len(rows) > maxRowOperations*minRowOperationBytes {
		switch n, err := schema.CountOps(sc, rows, indirect); {
		case err != nil:
			return status.Wrap(status.CodeOf(err), err, "tablet %s: row operations", r.id)
		case n > maxRowOperations:
			return status.New(status.TooLarge, "tablet %s: the request has %d row operations, the most is %d: send fewer at a time", r.id, n, maxRowOperations)
		}
	}
	return t.CheckWrite(op)
}

// outcomeOf waits for a proposal's outcome.
func (r *Replica) outcomeOf(ctx context.Context, p *proposal) (*nyalav1.WriteResponse, error) {
	select {
	case <-p.done:
	case <-p.passed.taken():
		r.awaitApplied(ctx, p)
	case <-ctx.Done():
	}
	select {
	case <-p.done:
		if p.err == nil {
			return answerOf(uint64(p.result.Timestamp), p.result.RowErrors, p.passed), nil
		}
	default:
	}
	select {
	case <-p.passed.taken(): // it is applied, if not here
		return answerOf(p.passed.answer.GetTimestamp(), p.passed.answer.GetRowErrors(), p.passed), nil
	default:
	}
	select {
	case <-p.done:
		return nil, p.err
	default:
		return nil, status.Wrap(status.TimedOut, ctx.Err(), "tablet %s: the outcome of the write isn't known", r.id)
	}
}

// answerOf is a write's answer; to is the leader that it was passed on to, if it was.
func answerOf(ts uint64, rowErrors []*nyalav1.RowError, to *passed) *nyalav1.WriteResponse {
	resp := &nyalav1.WriteResponse{Timestamp: ts, RowErrors: rowErrors}
	if to != nil {
		resp.Leader = to.leader
	}
	return resp
}

// answerOfFollower gives the answer to a request that was applied before, which every replica knows, and otherwise sends
// the caller to the leader.
func (r *Replica) answerOfFollower(t *tablet.Tablet, id *nyalav1.StoredRequestId) (*nyalav1.WriteResponse, error) {
	if resp, err := r.knownAnswer(t, id, r.leaderElsewhere()); resp != nil || err != nil {
		return resp, err
	}
	return nil, r.notTheLeader()
}

// knownAnswer gives the answer to a request that was applied before; to is the leader elsewhere, if there is one. nil: it wasn't
// applied here so far.
func (r *Replica) knownAnswer(t *tablet.Tablet, id *nyalav1.StoredRequestId, to *passed) (*nyalav1.WriteResponse, error) {
	if id == nil {
		return nil, nil
	}
	switch result, state := t.Lookup(id); state {
	case tablet.LookupDone:
		return answerOf(uint64(result.Timestamp), result.RowErrors, to), nil
	case tablet.LookupStale:
		return nil, staleRequest(id)
	case tablet.LookupNew:
	}
	return nil, nil
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

// begin finds what is known of a request: its outcome, or a proposal under way that is shared (I2), or neither, and then it
// takes a new one in, to be proposed here or passed on to the leader.
//
// The order matters: an outcome is visible to Lookup before its proposal ends, so a request that is in neither was not
// applied here so far. It may stand in the log all the same, proposed by an earlier leader: then it is applied as a
// duplicate and gets the first answer.
func (r *Replica) begin(t *tablet.Tablet, id *nyalav1.StoredRequestId, to *passed) (p *proposal, isNew bool, err error) {
	key := keyOf(id)
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := r.tabletLocked(); err != nil {
		return nil, false, err
	}
	if id != nil {
		if other, ok := r.proposals.tracked[key]; ok {
			return other, false, nil
		}
		switch result, state := t.Lookup(id); state {
		case tablet.LookupDone:
			return known(result, to), false, nil
		case tablet.LookupStale:
			return nil, false, staleRequest(id)
		case tablet.LookupNew:
		}
	}
	if p = r.proposals.begin(key, id != nil, to); p == nil {
		return nil, false, &status.Error{
			Code: status.TooBusy, RetryAfter: busyRetry,
			Msg: fmt.Sprintf("tablet %s: %d writes are under way, no more are taken", r.id, maxProposals),
		}
	}
	r.m.metrics.inFlight.Inc()
	return p, true, nil
}

func staleRequest(id *nyalav1.StoredRequestId) error {
	return status.New(status.RequestStale, "request %d of client %x is older than what is remembered: whether it was applied can't be said",
		id.GetSeqNo(), id.GetClientId())
}

// propose gives a write its place in the log, or ends it. It isn't bound to the caller's context: others may share the
// proposal, and the host answers within a step of its worker.
func (r *Replica) propose(ctx context.Context, p *proposal, op *nyalav1.WriteOp) {
	err := r.pressure(op)
	var payload []byte
	if err == nil {
		if payload, err = proto.Marshal(op); err != nil {
			err = status.Wrap(status.InvalidArgument, err, "tablet %s: encode the write", r.id)
		}
	}
	if err == nil && len(payload) > r.m.cfg.MaxEntryBytes {
		err = status.New(status.TooLarge, "tablet %s: the write's log entry has %d bytes, the most is %d, so that it fits into a message to the other replicas: send less at once, or raise --rpc_max_message_size on all servers",
			r.id, len(payload), r.m.cfg.MaxEntryBytes)
	}
	if err == nil {
		r.proposeEntry(ctx, p, wal.KindWrite, payload)
		return
	}
	r.refuse(p, err)
}

// proposeEntry gives an entry its place in the log, or ends the proposal.
func (r *Replica) proposeEntry(ctx context.Context, p *proposal, kind wal.Kind, payload []byte) {
	_, _, err := r.m.host.Propose(context.WithoutCancel(ctx), r.id, kind, payload, func(op ident.OpID, _ hybridtime.Timestamp) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.proposals.place(p, op)
	})
	if err != nil {
		r.refuse(p, r.hostError(err))
	}
}

// refuse ends a proposal that has no place in the log.
func (r *Replica) refuse(p *proposal, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endLocked(func(ps *proposals) { ps.end(p, tablet.Result{}, err) })
}

// pressure says why a write has to wait: flushes are behind, or memory is short.
func (r *Replica) pressure(op *nyalav1.WriteOp) error {
	var why string
	if p := r.m.store.Pressure(); p.Refuse {
		why = p.Reason
	} else {
		// The request and the log entry made of it.
		why = r.m.memory.Refuse(2 * (len(op.GetRowOperations().GetRows()) + len(op.GetRowOperations().GetIndirectData())))
	}
	if why == "" {
		return nil
	}
	r.m.metrics.pressureRejections.Inc()
	return &status.Error{
		Code: status.TooBusy, RetryAfter: busyRetry/2 + rand.N(busyRetry), Msg: fmt.Sprintf("tablet %s: the write wasn't begun: the server is behind: %s", r.id, why),
	}
}

// hostError is an error of the host's as callers are to see it.
func (r *Replica) hostError(err error) error {
	switch {
	case err == nil:
		return nil
	case status.CodeOf(err) == status.NotTheLeader:
		return r.notTheLeader()
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled):
		return status.Wrap(status.TimedOut, err, "tablet %s", r.id)
	case status.CodeOf(err) == status.TabletNotFound:
		// The host doesn't know the group (yet, or any more); whether this server holds the tablet is said here.
		if _, own := r.Tablet(); own != nil {
			return own
		}
		return status.New(status.TabletNotRunning, "tablet %s: this replica is still joining its group", r.id)
	default:
		return err
	}
}

// Barrier returns once every write is decided that was proposed here before the call: what isn't applied by then never will
// be. It works on the leader alone.
func (r *Replica) Barrier(ctx context.Context) error {
	op, _, err := r.m.host.Propose(ctx, r.id, wal.KindNoop, nil, nil)
	if err != nil {
		return r.hostError(err)
	}
	// Whatever entry is applied at that index in the end, those before it are decided then.
	return r.WaitApplied(ctx, op.Index)
}

// outcome is what became of one entry.
type outcome struct {
	op      ident.OpID
	result  tablet.Result
	request *nyalav1.StoredRequestId
	altered bool // the entry changed the schema or the members
}

func (o *outcome) err() error {
	switch {
	case o.result.Stale:
		return staleRequest(o.request)
	case o.result.Err != nil:
		return o.result.Err
	case o.result.Skipped:
		return status.New(status.TimedOut, "entry %s was applied before: the outcome of the write isn't known", o.op)
	default:
		return nil
	}
}

// deliver hands the outcomes of applied entries, in order, to those who wait. The batch that holds them is committed.
func (r *Replica) deliver(outcomes []outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endLocked(func(ps *proposals) {
		for i := range outcomes {
			o := &outcomes[i]
			ps.applied(o.op, o.result, o.err(), r.lost)
			ps.decided(o.request, o.result, o.err())
			r.deliveredLocked(o.op.Index)
		}
	})
}

// endLocked lets f end proposals, and counts them.
func (r *Replica) endLocked(f func(*proposals)) {
	before := r.proposals.n
	f(&r.proposals)
	r.m.metrics.inFlight.Sub(float64(before - r.proposals.n))
}

// deposed answers those who wait for the outcome of a proposal of a leadership that is over.
func (r *Replica) deposed(term ident.Term, leads bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endLocked(func(ps *proposals) { ps.deposed(term, leads, r.notTheLeader) })
}
