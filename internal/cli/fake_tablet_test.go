package cli

import (
	"bytes"
	"context"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// fakeTabletService is TabletService of a fake server.
type fakeTabletService struct {
	nyalav1.UnimplementedTabletServiceServer
	s *fakeServer
}

func (f *fakeTabletService) Write(ctx context.Context, req *nyalav1.WriteRequest) (*nyalav1.WriteResponse, error) {
	c := f.s.c
	c.mu.Lock()
	hold := c.hold
	if hold != nil {
		c.held++
	}
	c.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.tablets[req.GetTabletId()]
	if t == nil {
		return nil, status.New(status.TabletNotFound, "no tablet %s", req.GetTabletId())
	}
	resp := &nyalav1.WriteResponse{Timestamp: c.tickLocked()}
	t.index++
	d := schema.NewOpsDecoder(t.table.schema, req.GetRowOperations().GetRows(), req.GetRowOperations().GetIndirectData())
	for {
		op, err := d.Next()
		if err != nil || op == nil {
			return resp, err
		}
		fault := op.RowError
		if fault == nil {
			fault = t.apply(op)
		}
		if fault != nil {
			resp.RowErrors = append(resp.RowErrors, &nyalav1.RowError{
				RowIndex: uint32(op.Index), Code: nyalav1.ErrorCode(fault.Code), Message: fault.Msg,
			})
		}
	}
}

func (t *fakeTablet) apply(op *schema.DecodedOp) *status.Error {
	key := string(t.table.schema.KeyOfOp(nil, op))
	row := t.rows[key]
	if row != nil && op.Type == schema.Insert {
		return status.New(status.AlreadyPresent, "the key is already present")
	}
	if op.Type == schema.Delete {
		if row == nil {
			return status.New(status.NotFound, "key not found")
		}
		delete(t.rows, key)
		return nil
	}
	fresh := make([]schema.Value, t.table.schema.NumColumns())
	copy(fresh, row)
	for i := range fresh {
		if op.IsSet(i) {
			if fresh[i] = op.Value(i); fresh[i].Bytes() != nil {
				fresh[i] = schema.BytesValue(bytes.Clone(fresh[i].Bytes()))
			}
		}
	}
	t.rows[key] = fresh
	return nil
}

// Scan returns all rows in one answer.
func (f *fakeTabletService) Scan(_ context.Context, req *nyalav1.ScanRequest) (*nyalav1.ScanResponse, error) {
	c := f.s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	scan := req.GetNewScan()
	t := c.tablets[scan.GetTabletId()]
	if t == nil {
		return nil, status.New(status.TabletNotFound, "no tablet %s", scan.GetTabletId())
	}
	s := t.table.schema
	var preds []*schema.BoundPredicate
	for _, p := range scan.GetPredicates() {
		pred, err := schema.PredicateFromProto(p)
		if err != nil {
			return nil, err
		}
		bound, err := pred.Bind(s)
		if err != nil {
			return nil, err
		}
		preds = append(preds, bound)
	}
	keys := make([]string, 0, len(t.rows))
	for k := range t.rows {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	var rows [][]schema.Value
	var lastKey []byte
	for _, k := range keys {
		row := t.rows[k]
		if matches(s, preds, row) && (scan.GetLimit() == 0 || uint64(len(rows)) < scan.GetLimit()) {
			rows = append(rows, row)
			lastKey = []byte(k)
		}
	}
	resp := &nyalav1.ScanResponse{NumRows: uint64(len(rows)), LastPrimaryKey: lastKey, SnapshotTimestamp: scan.GetSnapshotTimestamp()}
	if resp.SnapshotTimestamp == 0 {
		resp.SnapshotTimestamp = c.tickLocked()
	}
	if len(rows) > 0 && !scan.GetCountOnly() {
		var err error
		resp.ArrowIpc, err = encodeRows(s, scan.GetColumns(), rows)
		return resp, err
	}
	return resp, nil
}

func matches(s *schema.Schema, preds []*schema.BoundPredicate, row []schema.Value) bool {
	for _, p := range preds {
		v := row[p.Column()]
		var cell []byte
		if !v.IsNull() {
			cell, _ = s.Column(p.Column()).ValueBytes(v)
		}
		if !p.Matches(cell, v.IsNull()) {
			return false
		}
	}
	return true
}

// encodeRows makes the Arrow stream of some columns of rows.
func encodeRows(s *schema.Schema, names []string, rows [][]schema.Value) ([]byte, error) {
	types := map[schema.Type]arrow.DataType{
		schema.Int8: arrow.PrimitiveTypes.Int8, schema.Int16: arrow.PrimitiveTypes.Int16, schema.Int32: arrow.PrimitiveTypes.Int32,
		schema.Int64: arrow.PrimitiveTypes.Int64, schema.String: arrow.BinaryTypes.String, schema.Binary: arrow.BinaryTypes.Binary,
		schema.Bool: arrow.FixedWidthTypes.Boolean, schema.Float: arrow.PrimitiveTypes.Float32, schema.Double: arrow.PrimitiveTypes.Float64,
		schema.UnixtimeMicros: &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "UTC"},
	}
	var fields []arrow.Field
	for _, name := range names {
		c := s.Column(s.IndexOf(name))
		fields = append(fields, arrow.Field{Name: name, Type: types[c.Type], Nullable: c.Nullable})
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(fields, nil))
	defer b.Release()
	for _, row := range rows {
		for i, name := range names {
			v := row[s.IndexOf(name)]
			if v.IsNull() {
				b.Field(i).AppendNull()
				continue
			}
			switch f := b.Field(i).(type) {
			case *array.Int8Builder:
				f.Append(int8(v.Int()))
			case *array.Int16Builder:
				f.Append(int16(v.Int()))
			case *array.Int32Builder:
				f.Append(int32(v.Int()))
			case *array.Int64Builder:
				f.Append(v.Int())
			case *array.StringBuilder:
				f.Append(string(v.Bytes()))
			case *array.BinaryBuilder:
				f.Append(v.Bytes())
			case *array.BooleanBuilder:
				f.Append(v.Bool())
			case *array.Float32Builder:
				f.Append(float32(v.Float()))
			case *array.Float64Builder:
				f.Append(v.Float())
			case *array.TimestampBuilder:
				f.Append(arrow.Timestamp(v.Int()))
			}
		}
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	var buf bytes.Buffer
	w := ipc.NewWriter(&buf, ipc.WithSchema(rec.Schema()))
	if err := w.Write(rec); err != nil {
		return nil, err
	}
	return buf.Bytes(), w.Close()
}

// fakeAdmin is TabletAdminService of a fake server.
type fakeAdmin struct {
	nyalav1.UnimplementedTabletAdminServiceServer
	s *fakeServer
}

func (f *fakeAdmin) ListTablets(_ context.Context, req *nyalav1.ListTabletsRequest) (*nyalav1.ListTabletsResponse, error) {
	c := f.s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	resp := &nyalav1.ListTabletsResponse{}
	for _, t := range c.tablets {
		i := slices.Index(t.hosts, f.s)
		if i < 0 || c.strip[[2]string{f.s.id, t.id}] || len(req.GetTabletIds()) > 0 && !slices.Contains(req.GetTabletIds(), t.id) {
			continue
		}
		size := uint64(0)
		if req.GetSizes() {
			size = uint64(1000 + i)
		}
		resp.Replicas = append(resp.Replicas, &nyalav1.ReplicaStatus{
			TabletId: t.id, TableId: t.table.id, TableName: t.table.name, State: nyalav1.TabletState_TABLET_STATE_RUNNING,
			Role: t.role(i), Term: t.term, LeaderReplicaId: uint64(t.leader + 1), ReplicaId: uint64(i + 1),
			LastIndex: t.index, CommitIndex: t.index, AppliedIndex: t.index, FirstIndex: t.first, OnDiskBytes: size,
		})
	}
	return resp, nil
}

func (f *fakeAdmin) LeaderStepDown(_ context.Context, req *nyalav1.LeaderStepDownRequest) (*nyalav1.LeaderStepDownResponse, error) {
	c := f.s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.tablets[req.GetTabletId()]
	to := slices.IndexFunc(t.hosts, func(s *fakeServer) bool { return s.id == req.GetNewLeaderServerId() })
	if req.GetNewLeaderServerId() == "" {
		to = (t.leader + 1) % len(t.hosts)
	}
	if to < 0 {
		return nil, status.New(status.InvalidArgument, "server %s has no replica of tablet %s", req.GetNewLeaderServerId(), t.id)
	}
	t.leader = to
	t.term++
	return &nyalav1.LeaderStepDownResponse{}, nil
}
