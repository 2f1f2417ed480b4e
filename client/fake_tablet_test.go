package client

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sort"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// fakeTablet is a tablet: one state for all its replicas.
type fakeTablet struct {
	c         *fakeCluster
	table     *fakeTable
	id        string
	partition schema.Partition

	hosts  []string // servers that have a replica
	listed []string // those that the master names
	leader string   // "": none
	// mute: a replica that doesn't lead doesn't say who does.
	mute bool
	term uint64

	rows    map[string][]fakeVersion // by encoded key, oldest first
	answers map[string]map[uint64]*nyalav1.WriteResponse
	stale   map[string]uint64
	// applied counts how often each key was written to: more than once per operation is a row doubled.
	applied map[string]int
	batches int
	maxRows int
}

// fakeVersion is a row as of a timestamp; cells nil: deleted. A NULL cell is nil.
type fakeVersion struct {
	ts    uint64
	cells [][]byte
}

func (t *fakeTablet) locationsLocked() *nyalav1.TabletLocations {
	l := &nyalav1.TabletLocations{TabletId: t.id, Partition: t.partition.ToProto()}
	for i, id := range t.listed {
		role := nyalav1.Role_ROLE_FOLLOWER
		if id == t.leader {
			role = nyalav1.Role_ROLE_LEADER
		}
		l.Replicas = append(l.Replicas, &nyalav1.ReplicaLocation{
			ServerId: id, Address: t.c.server(id).addr, Role: role, ReplicaId: uint64(i + 1),
		})
	}
	return l
}

// fakeTabletService is the TabletService of one fake server.
type fakeTabletService struct {
	nyalav1.UnimplementedTabletServiceServer
	s *fakeServer
}

// tabletLocked finds a replica on this server.
func (f *fakeTabletService) tabletLocked(id string) (*fakeTablet, error) {
	t := f.s.c.tablets[id]
	if t == nil || !slices.Contains(t.hosts, f.s.id) {
		return nil, status.New(status.TabletNotFound, "server %s has no tablet %s", f.s.id, id)
	}
	return t, nil
}

func (f *fakeTabletService) notLeader(t *fakeTablet) error {
	e := status.New(status.NotTheLeader, "server %s doesn't lead tablet %s", f.s.id, t.id)
	e.Term = t.term
	if t.leader != "" && !t.mute {
		e.Leader = &nyalav1.Peer{ServerId: t.leader, Address: t.c.server(t.leader).addr, ReplicaId: 1}
	}
	return e
}

func (f *fakeTabletService) Write(_ context.Context, req *nyalav1.WriteRequest) (*nyalav1.WriteResponse, error) {
	c := f.s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	t, err := f.tabletLocked(req.GetTabletId())
	if err != nil {
		return nil, err
	}
	if t.leader != f.s.id && (!c.forwards || t.leader == "") {
		return nil, f.notLeader(t)
	}
	resp, err := t.writeLocked(req)
	if err == nil && t.leader != f.s.id {
		resp = &nyalav1.WriteResponse{
			Timestamp: resp.GetTimestamp(), RowErrors: resp.GetRowErrors(),
			Leader: &nyalav1.Peer{ServerId: t.leader, Address: c.server(t.leader).addr},
		}
	}
	return resp, err
}

func (t *fakeTablet) writeLocked(req *nyalav1.WriteRequest) (*nyalav1.WriteResponse, error) {
	id := req.GetRequestId()
	client := string(id.GetClientId())
	if resp := t.answers[client][id.GetSeqNo()]; resp != nil {
		return resp, nil
	}
	if id.GetSeqNo() < t.stale[client] {
		return nil, status.New(status.RequestStale, "request %d of a client that has answers from %d on", id.GetSeqNo(), t.stale[client])
	}
	t.stale[client] = max(t.stale[client], id.GetFirstIncompleteSeqNo())
	resp, err := t.applyLocked(req)
	if err != nil {
		return nil, err
	}
	if t.answers[client] == nil {
		t.answers[client] = map[uint64]*nyalav1.WriteResponse{}
	}
	for seq := range t.answers[client] {
		if seq < t.stale[client] {
			delete(t.answers[client], seq)
		}
	}
	t.answers[client][id.GetSeqNo()] = resp
	return resp, nil
}

func (t *fakeTablet) applyLocked(req *nyalav1.WriteRequest) (*nyalav1.WriteResponse, error) {
	s := t.table.schema
	if req.GetSchemaVersion() != s.Version() {
		return nil, status.New(status.MismatchedSchema, "schema version %d, have %d", req.GetSchemaVersion(), s.Version())
	}
	ops := req.GetRowOperations()
	n, err := schema.CountOps(s, ops.GetRows(), ops.GetIndirectData())
	if err != nil {
		return nil, err
	}
	t.batches++
	t.maxRows = max(t.maxRows, n)
	ts := t.c.now()
	resp := &nyalav1.WriteResponse{Timestamp: ts}
	d := schema.NewOpsDecoder(s, ops.GetRows(), ops.GetIndirectData())
	for {
		op, err := d.Next()
		if err != nil {
			return nil, err
		}
		if op == nil {
			return resp, nil
		}
		rowErr := op.RowError
		if rowErr == nil {
			pk := t.table.partition.PartitionKey(s, op.Cell, nil)
			if !t.partition.Contains(pk) {
				return nil, status.New(status.RowNotInPartition, "row %d is not in tablet %s", op.Index, t.id)
			}
			rowErr = t.applyOp(op, ts)
		}
		if rowErr != nil {
			resp.RowErrors = append(resp.RowErrors, &nyalav1.RowError{
				RowIndex: uint32(op.Index), Code: nyalav1.ErrorCode(rowErr.Code), Message: rowErr.Msg,
			})
		}
	}
}

func (t *fakeTablet) applyOp(op *schema.DecodedOp, ts uint64) *status.Error {
	s := t.table.schema
	key := string(s.KeyOfOp(nil, op))
	versions := t.rows[key]
	var old [][]byte
	if n := len(versions); n > 0 {
		old = versions[n-1].cells
	}
	plain, ignore := op.Type.Plain()
	switch {
	case ignore && (plain == schema.Insert) == (old != nil) && plain != schema.Upsert:
		return nil
	case op.Type == schema.Insert && old != nil:
		return status.New(status.AlreadyPresent, "key already present")
	case (op.Type == schema.Update || op.Type == schema.Delete) && old == nil:
		return status.New(status.NotFound, "key not found")
	}
	t.applied[key]++
	if plain == schema.Delete {
		t.rows[key] = append(versions, fakeVersion{ts: ts})
		return nil
	}
	cells := make([][]byte, s.NumColumns())
	for i := range cells {
		switch {
		case op.IsSet(i) && !op.IsNull(i):
			cells[i] = append([]byte{}, op.Cell(i)...)
		case !op.IsSet(i) && old != nil:
			cells[i] = old[i]
		case !op.IsSet(i):
			cells[i] = s.Column(i).WriteDefault
		}
	}
	t.rows[key] = append(versions, fakeVersion{ts: ts, cells: cells})
	return nil
}

// fakeScanner holds what a scan has still to return.
type fakeScanner struct {
	server   *fakeServer
	columns  []int
	rows     [][][]byte
	keys     []string
	seq      uint32
	snapshot uint64
}

func (f *fakeTabletService) Scan(_ context.Context, req *nyalav1.ScanRequest) (*nyalav1.ScanResponse, error) {
	c := f.s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if ns := req.GetNewScan(); ns != nil {
		return f.openLocked(ns)
	}
	id := string(req.GetScannerId())
	sc := c.scans[id]
	switch {
	case req.GetCloseScanner():
		delete(c.scans, id)
		return &nyalav1.ScanResponse{}, nil
	case sc == nil || sc.server != f.s:
		return nil, status.New(status.ScannerExpired, "scanner %x not found", id)
	case sc.seq != req.GetCallSeqId():
		return nil, status.New(status.InvalidScanCallSeqID, "call %d, want %d", req.GetCallSeqId(), sc.seq)
	}
	return f.answerLocked(id, sc), nil
}

func (f *fakeTabletService) openLocked(ns *nyalav1.NewScan) (*nyalav1.ScanResponse, error) {
	c := f.s.c
	t, err := f.tabletLocked(ns.GetTabletId())
	if err != nil {
		return nil, err
	}
	sc := &fakeScanner{server: f.s, snapshot: ns.GetSnapshotTimestamp()}
	switch {
	case ns.GetReadMode() == nyalav1.ReadMode_READ_MODE_READ_LATEST && t.leader != f.s.id:
		return nil, f.notLeader(t)
	case ns.GetReadMode() == nyalav1.ReadMode_READ_MODE_READ_LATEST || sc.snapshot == 0:
		sc.snapshot = c.now()
	}
	s := t.table.schema
	for _, name := range ns.GetColumns() {
		i := s.IndexOf(name)
		if i < 0 {
			return nil, status.New(status.InvalidScanSpec, "no column %q", name)
		}
		sc.columns = append(sc.columns, i)
	}
	var preds []*schema.BoundPredicate
	for _, p := range ns.GetPredicates() {
		pred, err := schema.PredicateFromProto(p)
		if err != nil {
			return nil, err
		}
		b, err := pred.Bind(s)
		if err != nil {
			return nil, err
		}
		preds = append(preds, b)
	}
	t.collect(sc, ns, preds)
	c.scanSeq++
	return f.answerLocked(fmt.Sprintf("scanner-%d", c.scanSeq), sc), nil
}

// collect finds the rows of a scan.
func (t *fakeTablet) collect(sc *fakeScanner, ns *nyalav1.NewScan, preds []*schema.BoundPredicate) {
	keys := make([]string, 0, len(t.rows))
	for k := range t.rows {
		if ns.LastPrimaryKey == nil || bytes.Compare([]byte(k), ns.GetLastPrimaryKey()) > 0 {
			keys = append(keys, k)
		}
	}
	sort.Strings(keys)
	for _, k := range keys {
		var cells [][]byte
		for _, v := range t.rows[k] {
			if v.ts < sc.snapshot {
				cells = v.cells
			}
		}
		match := cells != nil
		for _, p := range preds {
			match = match && p.Matches(cells[p.Column()], cells[p.Column()] == nil)
		}
		if match && (ns.GetLimit() == 0 || uint64(len(sc.rows)) < ns.GetLimit()) {
			sc.rows, sc.keys = append(sc.rows, cells), append(sc.keys, k)
		}
	}
}

func (f *fakeTabletService) answerLocked(id string, sc *fakeScanner) *nyalav1.ScanResponse {
	c := f.s.c
	n := min(c.rowsPerBatch, len(sc.rows))
	resp := &nyalav1.ScanResponse{
		NumRows: uint64(n), SnapshotTimestamp: sc.snapshot, PropagatedTimestamp: c.now(), HasMoreResults: n < len(sc.rows),
	}
	if n > 0 {
		resp.LastPrimaryKey = []byte(sc.keys[n-1])
		if len(sc.columns) > 0 {
			resp.ArrowIpc = c.encode(sc, n)
		}
	}
	sc.rows, sc.keys = sc.rows[n:], sc.keys[n:]
	sc.seq++
	if resp.HasMoreResults {
		if sc.seq == 1 {
			resp.ScannerId = []byte(id)
		}
		c.scans[id] = sc
	} else {
		delete(c.scans, id)
	}
	if c.answer != nil {
		c.answer(resp)
	}
	return resp
}

// encode builds the Arrow stream of the scanner's next rows.
func (c *fakeCluster) encode(sc *fakeScanner, n int) []byte {
	var s *schema.Schema
	for _, t := range c.tables { // the tests have one table
		s = t.schema
	}
	fields := make([]arrow.Field, len(sc.columns))
	for k, i := range sc.columns {
		fields[k] = arrow.Field{Name: s.Column(i).Name, Type: arrowTypeOf(s.Column(i)), Nullable: s.Column(i).Nullable}
	}
	as := arrow.NewSchema(fields, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, as)
	defer b.Release()
	for _, cells := range sc.rows[:n] {
		for k, i := range sc.columns {
			appendCell(c, b.Field(k), s.Column(i), cells[i])
		}
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	var buf bytes.Buffer
	w := ipc.NewWriter(&buf, ipc.WithSchema(as))
	if err := w.Write(rec); err != nil {
		c.tb.Errorf("encode: %v", err)
	}
	if err := w.Close(); err != nil {
		c.tb.Errorf("encode: %v", err)
	}
	return buf.Bytes()
}

var arrowTypes = map[schema.Type]arrow.DataType{
	schema.Int8: arrow.PrimitiveTypes.Int8, schema.Int16: arrow.PrimitiveTypes.Int16, schema.Int32: arrow.PrimitiveTypes.Int32,
	schema.Int64: arrow.PrimitiveTypes.Int64, schema.Float: arrow.PrimitiveTypes.Float32, schema.Double: arrow.PrimitiveTypes.Float64,
	schema.String: arrow.BinaryTypes.String, schema.Binary: arrow.BinaryTypes.Binary, schema.Bool: arrow.FixedWidthTypes.Boolean,
	schema.UnixtimeMicros: arrow.FixedWidthTypes.Timestamp_us, schema.Varchar: arrow.BinaryTypes.String, schema.Date: arrow.FixedWidthTypes.Date32,
}

func arrowTypeOf(c *schema.Column) arrow.DataType {
	if c.Precision > 0 {
		return &arrow.Decimal128Type{Precision: int32(c.Precision), Scale: int32(c.Scale)}
	}
	return arrowTypes[c.Type]
}

func appendCell(c *fakeCluster, b array.Builder, col *schema.Column, cell []byte) {
	if cell == nil {
		b.AppendNull()
		return
	}
	v, err := col.ValueFromBytes(cell)
	if err != nil {
		c.tb.Errorf("cell of %s: %v", col.Name, err)
	}
	switch b := b.(type) {
	case *array.Int8Builder:
		b.Append(int8(v.Int()))
	case *array.Int16Builder:
		b.Append(int16(v.Int()))
	case *array.Int32Builder:
		b.Append(int32(v.Int()))
	case *array.Int64Builder:
		b.Append(v.Int())
	case *array.Float32Builder:
		b.Append(float32(v.Float()))
	case *array.Float64Builder:
		b.Append(v.Float())
	case *array.StringBuilder:
		b.Append(string(v.Bytes()))
	case *array.BinaryBuilder:
		b.Append(v.Bytes())
	case *array.BooleanBuilder:
		b.Append(v.Bool())
	case *array.TimestampBuilder:
		b.Append(arrow.Timestamp(v.Int()))
	case *array.Date32Builder:
		b.Append(arrow.Date32(v.Int()))
	case *array.Decimal128Builder:
		n, err := col.Unscaled(v)
		if err != nil {
			c.tb.Error(err)
		}
		b.Append(decimal128.FromBigInt(n))
	default:
		c.tb.Errorf("no Arrow builder for %s", col.Type)
	}
}
