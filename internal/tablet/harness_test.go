package tablet

import (
	"context"
	"flag"
	"fmt"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/invariant"
	"github.com/nyaladb/nyala/internal/schema"
)

// TestMain runs fewer random cases where Pebble's own invariants are on, which make each several times as dear.
func TestMain(m *testing.M) {
	if invariant.Enabled {
		if err := flag.Set("rapid.checks", "30"); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

// testSchema has a composite key whose first part is variable, and a column for each way of being unset.
//
//	k1 string, k2 int16 key; v int32; s string null; d double default 1.5; b bool null; x binary null default "x"
func testSchema(t testing.TB) *schema.Schema {
	s, err := schema.NewTable([]schema.Column{
		{Name: "k1", Type: schema.String, Key: true},
		{Name: "k2", Type: schema.Int16, Key: true},
		{Name: "v", Type: schema.Int32},
		{Name: "s", Type: schema.String, Nullable: true},
		{Name: "d", Type: schema.Double, WriteDefault: []byte{0, 0, 0, 0, 0, 0, 0xf8, 0x3f}},
		{Name: "b", Type: schema.Bool, Nullable: true},
		{Name: "x", Type: schema.Binary, Nullable: true, WriteDefault: []byte("x")},
	})
	require.NoError(t, err)
	return s
}

// kvSchema is k int32 key, v string null.
func kvSchema(t testing.TB) *schema.Schema {
	s, err := schema.NewTable([]schema.Column{
		{Name: "k", Type: schema.Int32, Key: true},
		{Name: "v", Type: schema.String, Nullable: true},
	})
	require.NoError(t, err)
	return s
}

func replicaRecord(n ident.LocalNumber, s *schema.Schema) *nyalav1.ReplicaRecord {
	return &nyalav1.ReplicaRecord{
		TabletId: fmt.Sprintf("%032x", uint64(n)), TableId: fmt.Sprintf("%032x", 1<<40), TableName: "t",
		Schema: s.ToProto(), PartitionSchema: &nyalav1.PartitionSchema{}, Partition: &nyalav1.Partition{},
		Config:    &nyalav1.RaftConfig{Peers: []*nyalav1.Peer{{ReplicaId: 1, ServerId: "s"}}, NextReplicaId: 2},
		ReplicaId: 1,
	}
}

func testOptions(fs vfs.FS) Options {
	return Options{Dir: "store", FS: fs, CacheBytes: 1 << 20, MemtableBytes: 256 << 10}
}

func openStore(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := Open(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func newTestTablet(t testing.TB, s *Store, n ident.LocalNumber, sc *schema.Schema) *Tablet {
	t.Helper()
	tb, err := s.Create(n, replicaRecord(n, sc))
	require.NoError(t, err)
	return tb
}

// rowSpec is one row operation: values for some columns, by name.
type rowSpec struct {
	op  schema.OpType
	set map[string]schema.Value
}

func str(s string) schema.Value { return schema.StringValue(s) }
func num(v int64) schema.Value  { return schema.IntValue(v) }

// kv is an operation on kvSchema; no v: the column isn't set.
func kv(op schema.OpType, k int64, v ...schema.Value) rowSpec {
	r := rowSpec{op: op, set: map[string]schema.Value{"k": num(k)}}
	if len(v) > 0 {
		r.set["v"] = v[0]
	}
	return r
}

func encodeRows(t testing.TB, s *schema.Schema, rows ...rowSpec) *nyalav1.WriteOp {
	e := schema.NewOpsEncoder(s)
	for _, r := range rows {
		values := make([]schema.Value, s.NumColumns())
		set := schema.NewBitmap(s.NumColumns())
		for name, v := range r.set {
			i := s.IndexOf(name)
			require.GreaterOrEqual(t, i, 0, name)
			values[i] = v
			set.Set(i)
		}
		require.NoError(t, e.Append(r.op, values, set))
	}
	b, ind := e.Bytes()
	return &nyalav1.WriteOp{SchemaVersion: s.Version(), RowOperations: &nyalav1.RowOperations{Rows: b, IndirectData: ind}}
}

// apply applies one op in a batch of its own.
func apply(t testing.TB, tb *Tablet, op Op) Result {
	t.Helper()
	b := tb.store.NewBatch()
	defer b.Close()
	res, err := b.Apply(tb, op)
	require.NoError(t, err)
	require.NoError(t, b.Commit())
	return res
}

// write applies rows at the next index and the timestamp 10 times the index.
func write(t testing.TB, tb *Tablet, rows ...rowSpec) Result {
	t.Helper()
	return applyNext(t, tb, encodeRows(t, tb.Schema(), rows...))
}

func applyNext(t testing.TB, tb *Tablet, w *nyalav1.WriteOp) Result {
	t.Helper()
	i, _ := tb.Applied()
	return apply(t, tb, Op{Index: i + 1, Timestamp: hybridtime.Timestamp(10 * (i + 1)), Write: w})
}

// scanAll returns all rows as text, one string per row, columns joined by spaces.
func scanAll(t testing.TB, tb *Tablet, spec ScanSpec, maxBytes int) []string {
	t.Helper()
	if spec.Snapshot == 0 {
		spec.Snapshot = hybridtime.Max
	}
	sc, err := tb.NewScanner(spec)
	require.NoError(t, err)
	defer sc.Close()
	rows := []string{}
	for more := true; more; {
		var b Block
		b, more, err = sc.Next(t.Context(), maxBytes)
		require.NoError(t, err)
		if b.Record != nil {
			require.EqualValues(t, b.Rows, b.Record.NumRows())
			rows = append(rows, recordText(b.Record)...)
			b.Record.Release()
		}
	}
	return rows
}

func recordText(r arrow.RecordBatch) []string {
	rows := make([]string, r.NumRows())
	for i := range rows {
		for c := range int(r.NumCols()) {
			if c > 0 {
				rows[i] += " "
			}
			rows[i] += r.Column(c).ValueStr(i)
		}
	}
	return rows
}

func allColumns(s *schema.Schema) []int {
	out := make([]int, s.NumColumns())
	for i := range out {
		out[i] = i
	}
	return out
}

func codesOf(errs []*nyalav1.RowError) map[uint32]nyalav1.ErrorCode {
	out := map[uint32]nyalav1.ErrorCode{}
	for _, e := range errs {
		out[e.GetRowIndex()] = e.GetCode()
	}
	return out
}

func countRows(t testing.TB, tb *Tablet, snapshot hybridtime.Timestamp) int {
	t.Helper()
	s, err := tb.NewScanner(ScanSpec{Snapshot: snapshot})
	require.NoError(t, err)
	n := 0
	for more := true; more; {
		var b Block
		b, more, err = s.Next(context.Background(), 0)
		require.NoError(t, err)
		n += b.Rows
	}
	return n
}
