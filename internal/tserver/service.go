package tserver

import (
	"bytes"
	"context"
	"math"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"google.golang.org/grpc/peer"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/tablet"
)

const (
	// defaultBatchBytes and maxBatchBytes are the size of a scan's answers, as Kudu's.
	defaultBatchBytes = 1 << 20
	maxBatchBytes     = 8 << 20
)

// Service answers clients' reads and writes.
type Service struct {
	nyalav1.UnimplementedTabletServiceServer
	s *Server
}

var _ nyalav1.TabletServiceServer = (*Service)(nil)

// Write applies rows to a tablet; see replica.Replica.Write.
func (v *Service) Write(ctx context.Context, req *nyalav1.WriteRequest) (*nyalav1.WriteResponse, error) {
	r, err := v.s.node.Replicas.Replica(ident.TabletID(req.GetTabletId()))
	if err != nil {
		return nil, err
	}
	return r.Write(ctx, req)
}

// ScannerKeepAlive keeps a scanner from being dropped.
func (v *Service) ScannerKeepAlive(_ context.Context, req *nyalav1.ScannerKeepAliveRequest) (*nyalav1.ScannerKeepAliveResponse, error) {
	if _, err := v.s.scanners.get(req.GetScannerId(), time.Now()); err != nil {
		return nil, err
	}
	return &nyalav1.ScannerKeepAliveResponse{}, nil
}

// Scan opens a scan, goes on with one, or closes it.
func (v *Service) Scan(ctx context.Context, req *nyalav1.ScanRequest) (*nyalav1.ScanResponse, error) {
	if open := req.GetNewScan(); open != nil {
		return v.openScan(ctx, open, req)
	}
	sc, err := v.s.scanners.get(req.GetScannerId(), time.Now())
	if req.GetCloseScanner() {
		if err == nil {
			v.s.scanners.drop(sc)
		}
		return &nyalav1.ScanResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	return v.goOn(ctx, sc, req)
}

// goOn makes the next answer of a scanner. A call out of turn leaves it alone: it may be another call's, under way.
func (v *Service) goOn(ctx context.Context, sc *scanner, req *nyalav1.ScanRequest) (*nyalav1.ScanResponse, error) {
	resp, inTurn, err := v.takeTurn(ctx, sc, req)
	if inTurn && (err != nil || !resp.GetHasMoreResults()) {
		v.s.scanners.drop(sc)
	}
	return resp, err
}

func (v *Service) takeTurn(ctx context.Context, sc *scanner, req *nyalav1.ScanRequest) (resp *nyalav1.ScanResponse, inTurn bool, err error) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	if err := sc.turn(req); err != nil {
		return nil, false, err
	}
	resp, err = v.step(ctx, sc, req.GetBatchSizeBytes())
	return resp, true, err
}

func (v *Service) openScan(ctx context.Context, open *nyalav1.NewScan, req *nyalav1.ScanRequest) (*nyalav1.ScanResponse, error) {
	r, err := v.s.node.Replicas.Replica(ident.TabletID(open.GetTabletId()))
	if err != nil {
		return nil, err
	}
	if req.GetCallSeqId() != 0 {
		return nil, status.New(status.InvalidScanCallSeqID, "the opening call has number %d, want 0", req.GetCallSeqId())
	}
	if open.SnapshotTimestamp != nil && open.GetSnapshotTimestamp() == 0 {
		return nil, status.New(status.InvalidSnapshot, "tablet %s: snapshot 0 is before all time; leave it out to read the present", open.GetTabletId())
	}
	t, snapshot, err := r.ReadPoint(ctx, open.GetReadMode(), hybridtime.Timestamp(open.GetSnapshotTimestamp()),
		hybridtime.Timestamp(open.GetPropagatedTimestamp()))
	if err != nil {
		return nil, err
	}
	spec, err := scanSpec(t, open)
	if err != nil {
		return nil, err
	}
	spec.Snapshot = snapshot
	scan, err := t.NewScanner(spec)
	if err != nil {
		return nil, err
	}
	v.s.metrics.scans.Inc()
	sc := &scanner{
		tabletID: open.GetTabletId(), table: t.TableName(), caller: caller(ctx), open: open, snapshot: snapshot, scan: scan, nextCall: 1,
	}
	sc.mu.Lock()
	defer sc.mu.Unlock()
	resp, err := v.step(ctx, sc, req.GetBatchSizeBytes())
	if err == nil && resp.GetHasMoreResults() && !req.GetCloseScanner() {
		if err = v.s.scanners.add(sc, time.Now()); err == nil {
			resp.ScannerId = sc.id[:]
			return resp, nil
		}
	}
	sc.closed = true
	scan.Close()
	return resp, err
}

// step makes one answer of a scan. There are as many steps at once as processors: heartbeats and votes don't wait behind
// them.
func (v *Service) step(ctx context.Context, sc *scanner, batchBytes uint32) (*nyalav1.ScanResponse, error) {
	select {
	case v.s.steps <- struct{}{}:
		defer func() { <-v.s.steps }()
	case <-ctx.Done():
		return nil, status.Wrap(status.TimedOut, ctx.Err(), "tablet %s: too many scans are under way", sc.tabletID)
	}
	most := int(batchBytes)
	if most == 0 {
		most = defaultBatchBytes
	}
	block, more, err := sc.scan.Next(ctx, min(most, maxBatchBytes))
	if err != nil {
		return nil, err
	}
	resp := &nyalav1.ScanResponse{
		HasMoreResults:      more,
		NumRows:             uint64(block.Rows),
		SnapshotTimestamp:   uint64(sc.snapshot),
		PropagatedTimestamp: uint64(v.s.node.Clock.Latest()),
		LastPrimaryKey:      block.LastKey,
	}
	if block.Record != nil {
		defer block.Record.Release()
		if resp.ArrowIpc, err = encodeRecord(block.Record); err != nil {
			return nil, status.Wrap(status.Unknown, err, "encode %d rows", block.Rows)
		}
	}
	sc.calls.Add(1)
	sc.rows.Add(resp.GetNumRows())
	sc.bytes.Add(uint64(len(resp.GetArrowIpc())))
	return resp, nil
}

// caller is the address that a call comes from.
func caller(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}

// encodeRecord writes rec as an Arrow IPC stream of its own.
func encodeRecord(rec arrow.RecordBatch) ([]byte, error) {
	var buf bytes.Buffer
	w := ipc.NewWriter(&buf, ipc.WithSchema(rec.Schema()))
	if err := w.Write(rec); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// scanSpec turns the request's names and values, which are of the schema version that the caller knows, into positions and
// bound predicates.
func scanSpec(t *tablet.Tablet, open *nyalav1.NewScan) (tablet.ScanSpec, error) {
	s, dropped, err := t.ScanSchema(open.GetSchemaVersion())
	if err != nil {
		return tablet.ScanSpec{}, err
	}
	if open.GetCountOnly() && len(open.GetColumns()) > 0 {
		return tablet.ScanSpec{}, status.New(status.InvalidScanSpec, "scan: count_only returns no columns, but %d are asked for", len(open.GetColumns()))
	}
	spec := tablet.ScanSpec{
		Schema: s,
		Limit:  open.GetLimit(),
		Start:  open.GetStartPrimaryKey(), Stop: open.GetStopPrimaryKey(), After: open.LastPrimaryKey,
	}
	if spec.Limit > math.MaxInt64 {
		spec.Limit = math.MaxInt64
	}
	seen := make(map[int]bool, len(open.GetColumns()))
	for _, name := range open.GetColumns() {
		i := s.IndexOf(name)
		switch {
		case i < 0:
			return spec, status.New(status.InvalidScanSpec, "scan: no column %q", name)
		case seen[i]:
			return spec, status.New(status.InvalidScanSpec, "scan: column %q is asked for twice", name)
		}
		if err := dropped(i); err != nil {
			return spec, err
		}
		seen[i] = true
		spec.Columns = append(spec.Columns, i)
	}
	for _, pb := range open.GetPredicates() {
		p, err := schema.PredicateFromProto(pb)
		if err != nil {
			return spec, err
		}
		b, err := p.Bind(s)
		if err != nil {
			return spec, err
		}
		if err := dropped(b.Column()); err != nil {
			return spec, err
		}
		spec.Predicates = append(spec.Predicates, b)
	}
	return spec, nil
}
