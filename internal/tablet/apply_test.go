package tablet

import (
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// TestSeveralOpsOnOneKey sends the batch of trial T39: row errors at 1, 5, 6 and 9, all else applied in order, one version
// per key, one timestamp, nothing of it visible just before.
func TestSeveralOpsOnOneKey(t *testing.T) {
	s := openStore(t, testOptions(vfs.NewMem()))
	tb := newTestTablet(t, s, 1, kvSchema(t))
	w := encodeRows(t, tb.Schema(),
		kv(schema.Insert, 1, str("a")), kv(schema.Insert, 1, str("b")), kv(schema.Upsert, 1, str("c")), kv(schema.Delete, 1),
		kv(schema.Insert, 1, str("d")), kv(schema.Update, 2, str("x")), kv(schema.Delete, 3), kv(schema.Upsert, 1),
		kv(schema.Upsert, 1), kv(schema.Insert, 4, str(strings.Repeat("z", 65536))), kv(schema.Insert, 5, str("z")))
	// The encoder refuses a cell that is too large, so the one byte more is put in by hand: the last cell but one.
	ops := w.GetRowOperations()
	ops.IndirectData = append(ops.IndirectData, make([]byte, 8)...)
	dec := schema.NewOpsDecoder(tb.Schema(), ops.Rows, ops.IndirectData)
	for range 10 {
		op, err := dec.Next()
		require.NoError(t, err)
		if op.Index == 9 {
			require.Len(t, op.Cell(1), 65536)
		}
	}
	pos := len(ops.Rows) - (2 + 1 + 4 + 16) - 8 // the length in row 9's cell
	require.Equal(t, byte(1), ops.Rows[pos+2])
	ops.Rows[pos]++

	res := applyNext(t, tb, w)
	require.Nil(t, res.Err)
	require.Equal(t, map[uint32]nyalav1.ErrorCode{
		1: nyalav1.ErrorCode_ERROR_CODE_ALREADY_PRESENT, 5: nyalav1.ErrorCode_ERROR_CODE_NOT_FOUND,
		6: nyalav1.ErrorCode_ERROR_CODE_NOT_FOUND, 9: nyalav1.ErrorCode_ERROR_CODE_CELL_TOO_LARGE,
	}, codesOf(res.RowErrors))
	require.Equal(t, []uint32{1, 5, 6, 9}, rowIndexes(res))
	require.Equal(t, "key already present", res.RowErrors[0].GetMessage())
	require.Equal(t, "key not found", res.RowErrors[1].GetMessage())
	require.Equal(t, []string{"1 d", "5 z"}, scanAll(t, tb, ScanSpec{Columns: []int{0, 1}}, 0))
	require.Empty(t, scanAll(t, tb, ScanSpec{Columns: []int{0, 1}, Snapshot: res.Timestamp}, 0))
	require.Len(t, scanAll(t, tb, ScanSpec{Columns: []int{0, 1}, Snapshot: res.Timestamp + 1}, 0), 2)
}

// TestIgnore shows that operations with IGNORE pass over rows that are there, or aren't, without an error and without a change,
// decided in their order within the batch, and otherwise do what the plain ones do.
func TestIgnore(t *testing.T) {
	s := openStore(t, testOptions(vfs.NewMem()))
	tb := newTestTablet(t, s, 1, kvSchema(t))
	res := applyNext(t, tb, encodeRows(t, tb.Schema(),
		kv(schema.InsertIgnore, 1, str("a")), kv(schema.InsertIgnore, 1, str("b")), kv(schema.UpdateIgnore, 2, str("c")),
		kv(schema.DeleteIgnore, 3), kv(schema.UpsertIgnore, 4, str("d")), kv(schema.UpdateIgnore, 4, str("e")),
		kv(schema.Insert, 5), kv(schema.DeleteIgnore, 5), kv(schema.Insert, 1, str("f")), kv(schema.Delete, 5)))
	require.Equal(t, map[uint32]nyalav1.ErrorCode{
		8: nyalav1.ErrorCode_ERROR_CODE_ALREADY_PRESENT, 9: nyalav1.ErrorCode_ERROR_CODE_NOT_FOUND,
	}, codesOf(res.RowErrors))
	require.Equal(t, []string{"1 a", "4 e"}, scanAll(t, tb, ScanSpec{Columns: []int{0, 1}}, 0))
	require.Empty(t, write(t, tb, kv(schema.InsertIgnore, 1, str("z"))).RowErrors)
	require.Equal(t, []string{"1 a", "4 e"}, scanAll(t, tb, ScanSpec{Columns: []int{0, 1}}, 0))
}

func rowIndexes(r Result) []uint32 {
	var out []uint32
	for _, e := range r.RowErrors {
		out = append(out, e.GetRowIndex())
	}
	return out
}

// TestUpsert shows the three faces of an upsert: blind where all columns are set, defaults on a new row, and only what is set
// on a row that is there.
func TestUpsert(t *testing.T) {
	s := openStore(t, testOptions(vfs.NewMem()))
	tb := newTestTablet(t, s, 1, testSchema(t))
	key := map[string]schema.Value{"k1": str("k"), "k2": num(1), "v": num(7)}
	with := func(more map[string]schema.Value) rowSpec {
		r := rowSpec{op: schema.Upsert, set: map[string]schema.Value{}}
		for k, v := range key {
			r.set[k] = v
		}
		for k, v := range more {
			r.set[k] = v
		}
		return r
	}
	cols := []int{2, 3, 4, 5, 6}
	write(t, tb, with(nil))
	require.Equal(t, []string{"7 (null) 1.5 (null) eA=="}, scanAll(t, tb, ScanSpec{Columns: cols}, 0))
	write(t, tb, with(map[string]schema.Value{"s": str(""), "x": schema.Null(), "d": schema.FloatValue(2)}))
	require.Equal(t, []string{"7  2 (null) (null)"}, scanAll(t, tb, ScanSpec{Columns: cols}, 0))
	write(t, tb, with(map[string]schema.Value{"b": schema.BoolValue(true)}))
	require.Equal(t, []string{"7  2 true (null)"}, scanAll(t, tb, ScanSpec{Columns: cols}, 0))
	// In one batch with what comes before it on the key.
	write(t, tb, rowSpec{schema.Delete, map[string]schema.Value{"k1": str("k"), "k2": num(1)}}, with(map[string]schema.Value{"s": str("n")}))
	require.Equal(t, []string{"7 n 1.5 (null) eA=="}, scanAll(t, tb, ScanSpec{Columns: cols}, 0))
	for snap, want := range map[hybridtime.Timestamp]string{
		11: "7 (null) 1.5 (null) eA==", 21: "7  2 (null) (null)", 31: "7  2 true (null)", 41: "7 n 1.5 (null) eA==",
	} {
		require.Equal(t, []string{want}, scanAll(t, tb, ScanSpec{Columns: cols, Snapshot: snap}, 0), snap)
	}
}

// TestApplyOrder shows that an entry is applied once, that a gap and a timestamp that doesn't rise end the tablet, and that
// nothing but the error comes after.
func TestApplyOrder(t *testing.T) {
	s := openStore(t, testOptions(vfs.NewMem()))
	tb := newTestTablet(t, s, 1, kvSchema(t))
	write(t, tb, kv(schema.Insert, 1))
	w := encodeRows(t, tb.Schema(), kv(schema.Delete, 1))
	require.True(t, apply(t, tb, Op{Index: 1, Timestamp: 10, Write: w}).Skipped)
	apply(t, tb, Op{Index: 2})
	i, ts := tb.Applied()
	require.EqualValues(t, 2, i)
	require.EqualValues(t, 10, ts)

	b := s.NewBatch()
	defer b.Close()
	var order *OrderError
	_, err := b.Apply(tb, Op{Index: 4, Timestamp: 40, Write: w})
	require.ErrorAs(t, err, &order)
	require.Contains(t, err.Error(), "entry 4 comes after entry 2")
	_, err = b.Apply(tb, Op{Index: 3, Timestamp: 30, Write: w})
	require.ErrorAs(t, err, &order, "the tablet goes no further")
	other := newTestTablet(t, s, 2, kvSchema(t))
	write(t, other, kv(schema.Insert, 1))
	_, err = b.Apply(other, Op{Index: 2, Timestamp: 10, Write: w})
	require.ErrorAs(t, err, &order)
	require.Contains(t, err.Error(), "not above")
	require.NoError(t, b.Commit())
	require.Len(t, scanAll(t, tb, ScanSpec{Columns: []int{0}}, 0), 1)
}

// TestWholeRequestFaults shows that what can't be read, or names an unknown schema, is refused by CheckWrite, fails as a
// whole at apply, moves the applied index all the same, and is not remembered as the request's answer.
func TestWholeRequestFaults(t *testing.T) {
	s := openStore(t, testOptions(vfs.NewMem()))
	tb := newTestTablet(t, s, 1, kvSchema(t))
	id := &nyalav1.StoredRequestId{ClientId: make([]byte, 16), SeqNo: 3}
	good := encodeRows(t, tb.Schema(), kv(schema.Insert, 1, str("a")), kv(schema.Insert, 2, str("b")))
	cut := encodeRows(t, tb.Schema(), kv(schema.Insert, 1, str("a")), kv(schema.Insert, 2, str("b")))
	cut.RowOperations.Rows = cut.RowOperations.Rows[:len(cut.RowOperations.Rows)-1]
	bad := encodeRows(t, tb.Schema(), kv(schema.Insert, 1, str("a")))
	bad.RowOperations.IndirectData = nil
	unknown := encodeRows(t, tb.Schema(), kv(schema.Insert, 1, str("a")))
	unknown.SchemaVersion = 9
	for name, w := range map[string]*nyalav1.WriteOp{"cut": cut, "slice": bad, "schema": unknown} {
		w.RequestId = id
		require.Error(t, tb.CheckWrite(w), name)
		res := applyNext(t, tb, w)
		require.NotNil(t, res.Err, name)
		code := status.MismatchedSchema
		if w == unknown {
			code = status.ServiceUnavailable // it may still come here
		}
		require.Equal(t, code, res.Err.Code, name)
		require.Empty(t, scanAll(t, tb, ScanSpec{Columns: []int{0}}, 0), name)
		_, state := tb.Lookup(id)
		require.Equal(t, LookupNew, state, name)
	}
	short := encodeRows(t, tb.Schema(), kv(schema.Insert, 1, str("a")))
	short.RequestId = &nyalav1.StoredRequestId{ClientId: []byte("short")}
	require.Equal(t, status.InvalidArgument, status.CodeOf(tb.CheckWrite(short)))
	require.Equal(t, status.InvalidArgument, applyNext(t, tb, short).Err.Code)

	good.RequestId = id
	require.NoError(t, tb.CheckWrite(good))
	res := applyNext(t, tb, good)
	require.Nil(t, res.Err)
	require.False(t, res.Duplicate)
	require.Len(t, scanAll(t, tb, ScanSpec{Columns: []int{0}}, 0), 2)
	i, _ := tb.Applied()
	require.EqualValues(t, 5, i)
	require.Empty(t, applyNext(t, tb, encodeRows(t, tb.Schema())).RowErrors, "no rows is a success")
}

// TestRowNotInPartition shows that CheckWrite refuses a request one of whose rows belongs to another tablet.
func TestRowNotInPartition(t *testing.T) {
	s := openStore(t, testOptions(vfs.NewMem()))
	sc := kvSchema(t)
	ps := &schema.PartitionSchema{Hash: []schema.HashDimension{{Columns: []schema.ColumnID{0}, Buckets: 2}}}
	rec := replicaRecord(1, sc)
	rec.PartitionSchema = ps.ToProto()
	rec.Partition = ps.Partitions()[0].ToProto()
	tb, err := s.Create(1, rec)
	require.NoError(t, err)
	inside, outside := int64(-1), int64(-1)
	for k := range int64(20) {
		cell := func(int) []byte { return []byte{byte(k), 0, 0, 0} }
		p := tb.Partition()
		if p.Contains(tb.PartitionSchema().PartitionKey(sc, cell, nil)) {
			inside = k
		} else {
			outside = k
		}
	}
	require.NoError(t, tb.CheckWrite(encodeRows(t, sc, kv(schema.Insert, inside))))
	err = tb.CheckWrite(encodeRows(t, sc, kv(schema.Insert, inside), kv(schema.Delete, outside)))
	require.Equal(t, status.RowNotInPartition, status.CodeOf(err))
	require.Contains(t, err.Error(), "row operation 1")
}

// TestBatchOfSeveralTablets shows that entries of several tablets, and several of one, see each other inside one batch and
// show nothing outside until it commits.
func TestBatchOfSeveralTablets(t *testing.T) {
	s := openStore(t, testOptions(vfs.NewMem()))
	a, b := newTestTablet(t, s, 1, kvSchema(t)), newTestTablet(t, s, 2, kvSchema(t))
	batch := s.NewBatch()
	defer batch.Close()
	ins := encodeRows(t, a.Schema(), kv(schema.Insert, 1, str("a")))
	for _, tb := range []*Tablet{a, b} {
		res, err := batch.Apply(tb, Op{Index: 1, Timestamp: 10, Write: ins})
		require.NoError(t, err)
		require.Empty(t, res.RowErrors)
	}
	res, err := batch.Apply(a, Op{Index: 2, Timestamp: 20, Write: ins})
	require.NoError(t, err)
	require.Equal(t, []uint32{0}, rowIndexes(res))
	res, err = batch.Apply(a, Op{Index: 3, Timestamp: 30, Write: encodeRows(t, a.Schema(), kv(schema.Update, 1, str("u")))})
	require.NoError(t, err)
	require.Empty(t, res.RowErrors)
	require.Empty(t, scanAll(t, a, ScanSpec{Columns: []int{0, 1}}, 0))
	i, _ := a.Applied()
	require.Zero(t, i)
	require.NoError(t, batch.Commit())
	require.Equal(t, []string{"1 u"}, scanAll(t, a, ScanSpec{Columns: []int{0, 1}}, 0))
	require.Equal(t, []string{"1 a"}, scanAll(t, a, ScanSpec{Columns: []int{0, 1}, Snapshot: 25}, 0))
	require.Equal(t, []string{"1 a"}, scanAll(t, b, ScanSpec{Columns: []int{0, 1}}, 0))
}

// TestDroppedBatch shows that a tablet whose batch was given up takes nothing more: its memory is ahead of the store.
func TestDroppedBatch(t *testing.T) {
	s := openStore(t, testOptions(vfs.NewMem()))
	tb := newTestTablet(t, s, 1, kvSchema(t))
	b := s.NewBatch()
	_, err := b.Apply(tb, Op{Index: 1, Timestamp: 10, Write: encodeRows(t, tb.Schema(), kv(schema.Insert, 1))})
	require.NoError(t, err)
	b.Close()
	b.Close()
	require.ErrorContains(t, tb.Err(), "dropped")
	b = s.NewBatch()
	defer b.Close()
	_, err = b.Apply(tb, Op{Index: 1, Timestamp: 10})
	require.ErrorContains(t, err, "dropped")
}

// TestConfigAndSchemaChanges shows that both are versions of the tablet's own state, and that entries in an older version of
// the schema are still read: new columns get their defaults, columns gone since can't be set.
func TestConfigAndSchemaChanges(t *testing.T) {
	fs := vfs.NewMem()
	s := openStore(t, testOptions(fs))
	tb := newTestTablet(t, s, 1, kvSchema(t))
	v0 := tb.Schema()
	write(t, tb, kv(schema.Insert, 1, str("old")))
	apply(t, tb, Op{Index: 2, Timestamp: 20, Config: &nyalav1.RaftConfig{OpidIndex: 2}})
	v1, err := schema.New([]schema.Column{
		{ID: 0, Name: "key", Type: schema.Int32, Key: true},
		{ID: 2, Name: "n", Type: schema.Int64, ReadDefault: []byte{5, 0, 0, 0, 0, 0, 0, 0}, WriteDefault: []byte{6, 0, 0, 0, 0, 0, 0, 0}},
		{ID: 3, Name: "m", Type: schema.String, Nullable: true},
	}, 1, 4)
	require.NoError(t, err)
	require.Nil(t, apply(t, tb, Op{Index: 3, Timestamp: 30, Schema: v1.ToProto()}).Err)
	require.Nil(t, apply(t, tb, Op{Index: 4, Timestamp: 40, Schema: v1.ToProto()}).Err, "the same version again")
	other := v1.ToProto()
	other.Columns[1].Name = "another"
	require.NotNil(t, apply(t, tb, Op{Index: 5, Timestamp: 50, Schema: other}).Err, "the same version with other columns")

	w := encodeRows(t, v0, kv(schema.Insert, 2))
	require.NoError(t, tb.CheckWrite(w))
	require.Empty(t, apply(t, tb, Op{Index: 6, Timestamp: 60, Write: w}).RowErrors)
	for _, row := range []rowSpec{kv(schema.Insert, 3, str("gone")), kv(schema.Update, 1, str("gone"))} {
		w = encodeRows(t, v0, kv(schema.Insert, 4), row)
		require.Equal(t, status.MismatchedSchema, status.CodeOf(tb.CheckWrite(w)))
		res := applyNext(t, tb, w)
		require.Equal(t, status.MismatchedSchema, res.Err.Code)
		require.EqualError(t, res.Err, `column "v" of schema version 0 was dropped: open the table again`)
	}
	w = encodeRows(t, v0, kv(schema.Delete, 2), kv(schema.Insert, 2))
	require.NoError(t, tb.CheckWrite(w))
	require.Empty(t, applyNext(t, tb, w).RowErrors)
	want := []string{"1 5 (null)", "2 6 (null)"}
	require.Equal(t, want, scanAll(t, tb, ScanSpec{Columns: []int{0, 1, 2}}, 0))
	require.Equal(t, []string{"1 old", "2 (null)"}, scanAll(t, tb, ScanSpec{Schema: v0, Columns: []int{0, 1}}, 0))

	require.NoError(t, s.Close())
	s = openStore(t, testOptions(fs))
	tb, ok, err := s.Load(1)
	require.NoError(t, err)
	require.True(t, ok)
	require.EqualValues(t, 1, tb.Schema().Version())
	require.NotNil(t, tb.SchemaAt(0))
	require.Nil(t, tb.SchemaAt(7))
	require.EqualValues(t, 2, tb.Config().GetOpidIndex())
	require.Equal(t, want, scanAll(t, tb, ScanSpec{Columns: []int{0, 1, 2}}, 0))

	bad, err := schema.New([]schema.Column{{ID: 5, Name: "other", Type: schema.Int32, Key: true}}, 2, 6)
	require.NoError(t, err)
	require.Equal(t, status.InvalidSchema, apply(t, tb, Op{Index: 10, Timestamp: 100, Schema: bad.ToProto()}).Err.Code)
	later, err := schema.New(v1.Columns(), 4, 4)
	require.NoError(t, err)
	require.Nil(t, apply(t, tb, Op{Index: 11, Timestamp: 110, Schema: later.ToProto()}).Err, "versions in between may be left out")
	w.SchemaVersion = 3
	require.Equal(t, status.MismatchedSchema, applyNext(t, tb, w).Err.Code, "a version that was left out")
	w.SchemaVersion = 5
	require.Equal(t, status.ServiceUnavailable, applyNext(t, tb, w).Err.Code, "a version to come")
}
