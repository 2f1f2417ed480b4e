package client

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/status"
)

// closeTimeout bounds the word to a server that a scanner isn't needed any more; without it the server finds out itself.
const closeTimeout = 2 * time.Second

// tabletScan reads one tablet.
type tabletScan struct {
	t      *Table
	spec   *scanSpec
	tablet *tablet
	limit  uint64 // 0: none

	// snapshot is 0 until the first answer where the server is to choose.
	snapshot Timestamp
	opened   bool // an answer has come: from now on the scan is one at snapshot, whatever it was before
	lastKey  []byte
	rows     uint64
	finished bool
	// names is how the server is to be asked for columns where its tablet doesn't know a schema as old as the table's; nil: as they
	// were when the table was opened.
	names *columnNames

	// The open scanner, while scannerID is set.
	server    replica
	scannerID []byte
	callSeq   uint32
}

// newTabletScan begins with a tablet. Returned is how many rows the tablets before it gave.
func newTabletScan(t *Table, spec *scanSpec, tb *tablet, snapshot Timestamp, returned uint64) *tabletScan {
	ts := &tabletScan{t: t, spec: spec, tablet: tb}
	if spec.options.ReadMode == ReadAtSnapshot {
		ts.snapshot = snapshot
	}
	if limit := spec.options.Limit; limit > 0 {
		ts.limit = limit - returned
	}
	return ts
}

// next returns the next answer, which may hold no row. Finished says that it is the tablet's last.
func (ts *tabletScan) next(ctx context.Context) (*nyalav1.ScanResponse, error) {
	c := ts.t.c
	ctx, cancel := withTimeout(ctx, c.opts.Timeout)
	defer cancel()
	r := c.newRetry()
	tried := make(map[string]bool, 3)
	for {
		resp, verdict, err := ts.once(ctx, r, tried)
		switch {
		case err == nil:
			if err := ts.accept(resp); err != nil {
				return nil, err
			}
			return resp, nil
		case verdict == giveUp && err.Code == status.MismatchedSchema && ts.names == nil:
			if ts.names, err = ts.newNames(ctx, err); err != nil {
				return nil, err
			}
			continue
		case verdict == giveUp:
			return nil, err
		case verdict == nextReplica && ctx.Err() == nil:
			continue
		}
		if verdict != sameReplica && ctx.Err() == nil {
			ts.t.locations.refresh(ts.tablet)
		}
		if perr := r.pause(ctx, verdict.pauseLimit(c)); perr != nil {
			return nil, r.failure(ctx, fmt.Sprintf("scan tablet %s of table %q", ts.tablet.id, ts.t.info.Name))
		}
		clear(tried)
	}
}

// replaced says whether the tablet is gone, its range dropped, before anything of it was read: what is at its place now may be read
// instead.
func (ts *tabletScan) replaced() bool {
	return !ts.opened && ts.tablet.isGone() && ts.spec.options.TabletID == ""
}

// accept takes over what an answer says about where the scan is. An answer that leaves that open is refused: the scan could
// not go on elsewhere.
func (ts *tabletScan) accept(resp *nyalav1.ScanResponse) *Error {
	if !ts.opened {
		if ts.snapshot == 0 {
			ts.snapshot = Timestamp(resp.GetSnapshotTimestamp())
		}
		if ts.snapshot == 0 {
			return ts.corrupt("it names no snapshot")
		}
		ts.opened = true
	}
	if resp.GetNumRows() > 0 && resp.LastPrimaryKey == nil {
		return ts.corrupt("it has rows but no last key")
	}
	if n := ts.limit - ts.rows; ts.limit > 0 && resp.GetNumRows() > n {
		resp.NumRows = n // decodeBatch cuts the rows
	}
	ts.rows += resp.GetNumRows()
	if resp.LastPrimaryKey != nil {
		ts.lastKey = resp.LastPrimaryKey
	}
	ts.t.c.ObserveTimestamp(Timestamp(resp.GetPropagatedTimestamp()))
	if full := ts.limit > 0 && ts.rows >= ts.limit; full || !resp.GetHasMoreResults() {
		if resp.GetHasMoreResults() {
			ts.close()
		}
		ts.finished = true
		ts.scannerID = nil
	}
	return nil
}

func (ts *tabletScan) corrupt(what string) *Error {
	return status.New(status.Corruption, "scan tablet %s of table %q: the answer of server %s (%s) is damaged: %s",
		ts.tablet.id, ts.t.info.Name, ts.server.server, ts.server.addr, what)
}

// once tries one server: the one with the open scanner, else a replica that this round hasn't tried.
func (ts *tabletScan) once(ctx context.Context, r *retry, tried map[string]bool) (*nyalav1.ScanResponse, verdict, *Error) {
	c := ts.t.c
	opening := ts.scannerID == nil
	if opening {
		if err := ts.t.locations.fate(ts.tablet); err != nil {
			return nil, giveUp, err
		}
		if ts.tablet.expired() {
			ts.t.locations.refresh(ts.tablet)
		}
		target, ok := ts.pick(tried)
		if !ok {
			verdict, err := ts.noReplica(ctx, len(tried))
			if len(tried) == 0 {
				r.blocked(err)
			}
			return nil, verdict, err
		}
		ts.server = target
	}
	cc, err := c.conns.get(ts.server.addr)
	if err != nil {
		return nil, giveUp, asCallError(err).fault
	}
	attempt, cancel := context.WithTimeout(ctx, c.opts.AttemptTimeout)
	defer cancel()
	resp, err := nyalav1.NewTabletServiceClient(cc).Scan(attempt, ts.request(opening))
	if err == nil {
		if opening {
			ts.callSeq = 0
			if ts.mode() == nyalav1.ReadMode_READ_MODE_READ_LATEST {
				ts.tablet.led(ts.server.server, nil)
			}
		}
		ts.callSeq++
		if resp.GetHasMoreResults() && opening {
			ts.scannerID = bytes.Clone(resp.GetScannerId())
		}
		return resp, giveUp, nil
	}
	cerr := asCallError(err)
	r.failed(ctx, fmt.Sprintf("server %s (%s)", ts.server.server, ts.server.addr), cerr)
	ts.scannerID = nil // whatever it was, its answer may be lost: another scanner goes on after the last row that came
	if ctx.Err() != nil {
		return nil, nextRound, cerr.fault // the caller ran out of time: that says nothing about the server
	}
	return nil, ts.judge(cerr, opening, tried), cerr.fault
}

// mode is how the tablet is to be opened now.
func (ts *tabletScan) mode() nyalav1.ReadMode {
	if ts.opened { // elsewhere, where it was
		return nyalav1.ReadMode_READ_MODE_READ_AT_SNAPSHOT
	}
	return ts.spec.options.ReadMode.proto()
}

func (m ReadMode) proto() nyalav1.ReadMode {
	switch m {
	case ReadAtSnapshot:
		return nyalav1.ReadMode_READ_MODE_READ_AT_SNAPSHOT
	case ReadYourWrites:
		return nyalav1.ReadMode_READ_MODE_READ_YOUR_WRITES
	default:
		return nyalav1.ReadMode_READ_MODE_READ_LATEST
	}
}

func (ts *tabletScan) request(opening bool) *nyalav1.ScanRequest {
	req := &nyalav1.ScanRequest{BatchSizeBytes: uint32(ts.spec.options.BatchSizeBytes)}
	if !opening {
		req.Target = &nyalav1.ScanRequest_ScannerId{ScannerId: ts.scannerID}
		req.CallSeqId = ts.callSeq
		return req
	}
	scan := &nyalav1.NewScan{
		TabletId:            ts.tablet.id,
		Columns:             ts.spec.columns,
		CountOnly:           ts.spec.options.CountOnly,
		Predicates:          ts.spec.predicates,
		ReadMode:            ts.mode(),
		PropagatedTimestamp: ts.t.c.latest.Load(),
		StartPrimaryKey:     ts.spec.options.lowerKey,
		StopPrimaryKey:      ts.spec.options.upperKey,
		LastPrimaryKey:      ts.lastKey,
		SchemaVersion:       ts.t.schema.Version(),
	}
	if ts.names != nil {
		scan.SchemaVersion, scan.Columns, scan.Predicates = ts.names.version, ts.names.columns, ts.names.predicates
	}
	if ts.limit > 0 {
		scan.Limit = ts.limit - ts.rows
	}
	if at := uint64(ts.snapshot); at != 0 && scan.ReadMode == nyalav1.ReadMode_READ_MODE_READ_AT_SNAPSHOT {
		scan.SnapshotTimestamp = &at
	}
	req.Target = &nyalav1.ScanRequest_NewScan{NewScan: scan}
	return req
}

// pick chooses the replica to open a scanner at.
func (ts *tabletScan) pick(tried map[string]bool) (replica, bool) {
	o := ts.spec.options
	if o.ServerID == "" && o.Replica == LeaderReplica {
		return ts.tablet.pickWriter("", tried)
	}
	replicas, _ := ts.tablet.locationsNow()
	if o.ServerID != "" {
		for _, r := range replicas {
			if r.server == o.ServerID && !tried[r.server] {
				return r, true
			}
		}
		return replica{}, false
	}
	return pick(replicas, tried, func(r replica) int {
		switch {
		case r.learner:
			return 2
		case ts.t.c.isLocal(r.addr):
			return 0
		}
		return 1
	})
}

// noReplica says how to go on where no replica is left in this round, of which some have been tried.
func (ts *tabletScan) noReplica(ctx context.Context, tried int) (verdict, *Error) {
	id := ts.spec.options.ServerID
	switch {
	case tried > 0:
		return nextRound, status.New(status.ServiceUnavailable, "no replica left to try")
	case id == "":
		return nextRound, status.New(status.ServiceUnavailable, "the master names no replica of tablet %s", ts.tablet.id)
	}
	// What we know may be old: the master has the last word.
	_, err := ts.t.locations.lookup(ts.tablet.start, nil).wait(ctx)
	replicas, _ := ts.tablet.locationsNow()
	missing := !slices.ContainsFunc(replicas, func(r replica) bool { return r.server == id })
	e := status.New(status.NotFound, "server %s has no replica of tablet %s of table %q", id, ts.tablet.id, ts.t.info.Name)
	if err == nil && missing {
		return giveUp, e
	}
	return nextRound, e
}

// judge says how to go on after an error of the server that the scan is at.
func (ts *tabletScan) judge(err *callError, opening bool, tried map[string]bool) verdict {
	if !opening && (err.code == status.ScannerExpired || err.code == status.InvalidScanCallSeqID) {
		return nextReplica // the same server is as good as any
	}
	v := ts.t.c.judge(ts.tablet, ts.server, err)
	if v == nextReplica {
		tried[ts.server.server] = true
	}
	return v
}

// keepAlive tells the server that the open scanner is still wanted.
func (ts *tabletScan) keepAlive(ctx context.Context) error {
	if ts.scannerID == nil {
		return nil
	}
	cc, err := ts.t.c.conns.get(ts.server.addr)
	if err != nil {
		return err
	}
	_, err = nyalav1.NewTabletServiceClient(cc).ScannerKeepAlive(ctx, &nyalav1.ScannerKeepAliveRequest{ScannerId: ts.scannerID})
	return err
}

// close lets the server forget the open scanner; nobody waits for it.
func (ts *tabletScan) close() {
	id := ts.scannerID
	if id == nil {
		return
	}
	ts.scannerID = nil
	c := ts.t.c
	cc, err := c.conns.get(ts.server.addr)
	if err != nil {
		return
	}
	c.goroutine(func() {
		ctx, cancel := context.WithTimeout(c.life, closeTimeout)
		defer cancel()
		_, err := nyalav1.NewTabletServiceClient(cc).Scan(ctx, &nyalav1.ScanRequest{
			Target: &nyalav1.ScanRequest_ScannerId{ScannerId: id}, CallSeqId: ts.callSeq, CloseScanner: true,
		})
		if err != nil {
			c.logger.Debug("closing a scanner failed; the server will expire it", "tablet_id", ts.tablet.id, "err", err)
		}
	})
}
