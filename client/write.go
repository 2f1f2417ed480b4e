package client

import (
	"context"
	"fmt"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/status"
)

// writeCall is one write RPC: encoded rows for one tablet, under one request number, sent until a server gives the final
// answer.
type writeCall struct {
	table          *Table
	tablet         *tablet
	rows, indirect []byte
	commitWait     bool
	via            string // the server to ask; empty: whichever leads
}

// write sends a batch. It tries, under the same number, whichever replica may lead, or the one that it is to go through, until
// one answers or ctx ends. The rows may be reused once it has returned.
func (c *Client) write(ctx context.Context, w writeCall) (*nyalav1.WriteResponse, *writeError) {
	ctx, cancel := withTimeout(ctx, c.opts.Timeout)
	defer cancel()
	seq := c.requests.begin()
	defer c.requests.complete(seq)
	r := c.newRetry()
	tried := make(map[string]bool, 3)
	for {
		resp, verdict, err := c.writeOnce(ctx, r, w, seq, tried)
		switch {
		case err == nil:
			return resp, nil
		case verdict == giveUp:
			return nil, &writeError{fault: err, unknown: r.executed}
		case verdict == nextReplica && ctx.Err() == nil:
			continue
		}
		if verdict != sameReplica && ctx.Err() == nil {
			w.table.locations.refresh(w.tablet)
		}
		if perr := r.pause(ctx, verdict.pauseLimit(c)); perr != nil {
			what := fmt.Sprintf("write to tablet %s of table %q", w.tablet.id, w.table.info.Name)
			return nil, &writeError{fault: r.failure(ctx, what), unknown: r.executed}
		}
		clear(tried)
	}
}

// writeOnce tries one replica that this round hasn't tried yet.
func (c *Client) writeOnce(ctx context.Context, r *retry, w writeCall, seq uint64, tried map[string]bool) (*nyalav1.WriteResponse, verdict, *Error) {
	if err := w.table.locations.fate(w.tablet); err != nil {
		return nil, giveUp, err
	}
	if w.tablet.expired() {
		w.table.locations.refresh(w.tablet)
	}
	target, ok := w.tablet.pickWriter(w.via, tried)
	if !ok {
		if len(tried) == 0 {
			r.blocked(status.New(status.ServiceUnavailable, "the master names no replica of tablet %s", w.tablet.id))
		}
		return nil, nextRound, status.New(status.ServiceUnavailable, "no replica left to try")
	}
	tried[target.server] = true
	cc, err := c.conns.get(target.addr)
	if err != nil {
		return nil, giveUp, asCallError(err).fault
	}
	attempt, cancel := context.WithTimeout(ctx, c.opts.AttemptTimeout)
	defer cancel()
	resp, err := nyalav1.NewTabletServiceClient(cc).Write(attempt, &nyalav1.WriteRequest{
		TabletId:            w.tablet.id,
		SchemaVersion:       w.table.schema.Version(),
		RowOperations:       &nyalav1.RowOperations{Rows: w.rows, IndirectData: w.indirect},
		RequestId:           c.requests.id(seq),
		PropagatedTimestamp: c.latest.Load(),
		CommitWait:          w.commitWait,
	})
	if err == nil {
		w.tablet.led(target.server, resp.GetLeader())
		c.ObserveTimestamp(Timestamp(resp.GetTimestamp()))
		return resp, giveUp, nil
	}
	cerr := asCallError(err)
	r.failed(ctx, fmt.Sprintf("server %s (%s)", target.server, target.addr), cerr)
	if ctx.Err() != nil {
		return nil, nextRound, cerr.fault // the caller ran out of time: that says nothing about the server
	}
	return nil, c.judge(w.tablet, target, cerr), cerr.fault
}
