package tablet

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/schema"
)

// benchSchema has the shape of a row of measurements: a key of 12 bytes, and four columns.
func benchSchema(b *testing.B) *schema.Schema {
	s, err := schema.NewTable([]schema.Column{
		{Name: "host", Type: schema.Int32, Key: true},
		{Name: "at", Type: schema.UnixtimeMicros, Key: true},
		{Name: "a", Type: schema.Int64},
		{Name: "b", Type: schema.Double, Nullable: true},
		{Name: "c", Type: schema.Int32, Nullable: true},
		{Name: "d", Type: schema.String, Nullable: true},
	})
	require.NoError(b, err)
	return s
}

type benchRows struct {
	enc    *schema.OpsEncoder
	s      *schema.Schema
	values []schema.Value
	set    schema.Bitmap
}

func newBenchRows(s *schema.Schema) *benchRows {
	r := &benchRows{enc: schema.NewOpsEncoder(s), s: s, values: make([]schema.Value, s.NumColumns()), set: schema.NewBitmap(s.NumColumns())}
	return r
}

// write returns an operation with n rows whose keys count up from first, in a scattered order if scatter is set.
func (r *benchRows) write(b *testing.B, op schema.OpType, first, n int, scatter bool) *nyalav1.WriteOp {
	r.enc.Reset()
	for i := range n {
		k := first + i
		if scatter {
			k = int(uint64(k) * 0x9e3779b97f4a7c15 >> 24)
		}
		r.values[0], r.values[1] = schema.IntValue(int64(k%1000)), schema.IntValue(int64(k))
		r.values[2], r.values[3] = schema.IntValue(int64(k)), schema.FloatValue(float64(k)/3)
		r.values[4], r.values[5] = schema.IntValue(int64(k%7)), schema.StringValue("some words")
		r.set.ClearAll()
		for c := range r.s.NumColumns() {
			if op != schema.Delete && (op != schema.Update || c < 3) || c < 2 {
				r.set.Set(c)
			}
		}
		require.NoError(b, r.enc.Append(op, r.values, r.set))
	}
	rows, indirect := r.enc.Bytes()
	return &nyalav1.WriteOp{SchemaVersion: r.s.Version(), RowOperations: &nyalav1.RowOperations{
		Rows: append([]byte(nil), rows...), IndirectData: append([]byte(nil), indirect...),
	}}
}

func benchStore(b *testing.B) *Store {
	o := Options{Dir: "store", FS: vfs.NewMem()}
	return openStore(b, o)
}

// BenchmarkApply applies entries of a number of rows each to a tablet that grows meanwhile. allocs/op is per entry.
func BenchmarkApply(b *testing.B) {
	for _, op := range []schema.OpType{schema.Insert, schema.Upsert, schema.Update} {
		for _, rows := range []int{1, 100, 1000} {
			for _, order := range []string{"rising", "scattered"} {
				b.Run(fmt.Sprintf("op=%s/rows=%d/order=%s", map[schema.OpType]string{schema.Insert: "insert", schema.Upsert: "upsert", schema.Update: "update"}[op], rows, order), func(b *testing.B) {
					benchApply(b, op, rows, order == "scattered")
				})
			}
		}
	}
}

func benchApply(b *testing.B, op schema.OpType, rows int, scatter bool) {
	s := benchStore(b)
	t := newTestTablet(b, s, 1, benchSchema(b))
	r := newBenchRows(t.Schema())
	index := ident.Index(0)
	next := func(w *nyalav1.WriteOp) {
		batch := s.NewBatch()
		index++
		res, err := batch.Apply(t, Op{Index: index, Timestamp: hybridtime.Timestamp(index), Write: w})
		if err != nil || len(res.RowErrors) > 0 {
			b.Fatal(err, res.RowErrors)
		}
		if err := batch.Commit(); err != nil {
			b.Fatal(err)
		}
	}
	const updated = 100_000
	if op == schema.Update {
		for i := 0; i < updated; i += 1000 {
			next(r.write(b, schema.Insert, i, 1000, scatter))
		}
	}
	// Entries are encoded ahead, a number at a time, with the clock stopped.
	const ahead = 64
	entries := make([]*nyalav1.WriteOp, 0, ahead)
	n, total := 0, 0
	b.ReportAllocs()
	for b.Loop() {
		if n == len(entries) {
			b.StopTimer()
			entries, n = entries[:0], 0
			for range ahead {
				first := total
				if op == schema.Update {
					first = total % (updated - rows + 1)
				}
				entries = append(entries, r.write(b, op, first, rows, scatter))
				total += rows
			}
			b.StartTimer()
		}
		next(entries[n])
		n++
	}
	b.ReportMetric(float64(rows)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}

// BenchmarkScan scans a tablet of 200,000 rows, in files or in memtables, with all rows once written or each updated once.
func BenchmarkScan(b *testing.B) {
	for _, where := range []string{"memtable", "files"} {
		for _, updates := range []int{0, 1} {
			s := openStore(b, Options{Dir: "store", FS: vfs.NewMem(), MemtableBytes: 256 << 20})
			t := newTestTablet(b, s, 1, benchSchema(b))
			r := newBenchRows(t.Schema())
			const rows = 200_000
			for i := 0; i < rows; i += 1000 {
				applyNext(b, t, r.write(b, schema.Insert, i, 1000, false))
			}
			for range updates {
				for i := 0; i < rows; i += 1000 {
					applyNext(b, t, r.write(b, schema.Update, i, 1000, false))
				}
			}
			if where == "files" {
				lower, upper := numberBounds(1)
				require.NoError(b, s.db.Compact(b.Context(), lower, upper, false))
			}
			for _, c := range []struct {
				name    string
				columns []int
			}{{"none", nil}, {"key", []int{0, 1}}, {"one", []int{2}}, {"all", []int{0, 1, 2, 3, 4, 5}}} {
				b.Run(fmt.Sprintf("columns=%s/from=%s/updates=%d", c.name, where, updates), func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						benchScan(b, t, c.columns, rows)
					}
					b.ReportMetric(float64(rows)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
				})
			}
		}
	}
}

func benchScan(b *testing.B, t *Tablet, columns []int, want int) {
	sc, err := t.NewScanner(ScanSpec{Columns: columns, Snapshot: hybridtime.Max})
	if err != nil {
		b.Fatal(err)
	}
	n := 0
	for more := true; more; {
		var blk Block
		if blk, more, err = sc.Next(b.Context(), 0); err != nil {
			b.Fatal(err)
		}
		n += blk.Rows
		if blk.Record != nil {
			blk.Record.Release()
		}
	}
	if n != want {
		b.Fatalf("%d rows, want %d", n, want)
	}
}
