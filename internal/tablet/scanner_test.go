package tablet

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// fourStates asks the same question with the rows in memory, flushed, compacted, and after a crash and replay.
func fourStates(t *testing.T, sc *schema.Schema, entries [][]rowSpec, ask func(t *testing.T, tb *Tablet)) {
	fs := vfs.NewCrashableMem()
	s := openStore(t, testOptions(fs))
	tb := newTestTablet(t, s, 1, sc)
	fill := func(tb *Tablet) {
		i, _ := tb.Applied()
		for _, rows := range entries[i:] {
			require.Empty(t, write(t, tb, rows...).RowErrors)
		}
	}
	fill(tb)
	t.Run("memory", func(t *testing.T) { ask(t, tb) })
	require.NoError(t, s.Flush())
	t.Run("flushed", func(t *testing.T) { ask(t, tb) })
	lower, upper := numberBounds(1)
	require.NoError(t, s.db.Compact(t.Context(), lower, upper, false))
	t.Run("compacted", func(t *testing.T) { ask(t, tb) })

	crashed := openStore(t, testOptions(fs.CrashClone(vfs.CrashCloneCfg{})))
	tb, ok, err := crashed.Load(1)
	require.NoError(t, err)
	if !ok {
		tb = newTestTablet(t, crashed, 1, sc)
	}
	fill(tb)
	t.Run("crashed", func(t *testing.T) { ask(t, tb) })
}

func bind(t *testing.T, s *schema.Schema, preds ...schema.Predicate) []*schema.BoundPredicate {
	b, err := schema.BindAll(s, preds)
	require.NoError(t, err)
	return b
}

// TestEmptyString is trial T32: the empty string as a key and as a value, next to NULL, through updates and deletes.
func TestEmptyString(t *testing.T) {
	sc, err := schema.NewTable([]schema.Column{{Name: "k", Type: schema.String, Key: true}, {Name: "v", Type: schema.String, Nullable: true}})
	require.NoError(t, err)
	row := func(op schema.OpType, k string, v ...schema.Value) rowSpec {
		r := rowSpec{op, map[string]schema.Value{"k": str(k)}}
		if len(v) > 0 {
			r.set["v"] = v[0]
		}
		return r
	}
	entries := [][]rowSpec{
		{row(schema.Insert, "", str("")), row(schema.Insert, "a", schema.Null())},
		{row(schema.Update, "", str("x"))},
		{row(schema.Delete, "")},
		{row(schema.Insert, "", str(""))},
	}
	k, v := sc.Column(0), sc.Column(1)
	fourStates(t, sc, entries, func(t *testing.T, tb *Tablet) {
		require.Equal(t, []string{" ", "a (null)"}, scanAll(t, tb, ScanSpec{Columns: []int{0, 1}}, 0))
		for i, c := range []struct {
			p    schema.Predicate
			want int
		}{
			{schema.Equal(k, str("")), 1},
			{schema.GreaterEqual(k, str("")), 2},
			{schema.Less(k, str("")), 0},
			{schema.Equal(v, str("")), 1},
			{schema.IsNull(v), 1},
		} {
			require.Len(t, scanAll(t, tb, ScanSpec{Columns: []int{0}, Predicates: bind(t, sc, c.p)}, 0), c.want, i)
		}
		require.Equal(t, []string{"x"}, scanAll(t, tb, ScanSpec{Columns: []int{1}, Snapshot: 21, Stop: []byte("a")}, 0))
		require.Empty(t, scanAll(t, tb, ScanSpec{Columns: []int{1}, Snapshot: 31, Stop: []byte("a")}, 0))
	})
}

// TestIntegerExtremes is trial T30 for every integer type, as key and as a column with NULLs.
func TestIntegerExtremes(t *testing.T) {
	for _, c := range []struct {
		typ      schema.Type
		min, max int64
	}{
		{schema.Int8, math.MinInt8, math.MaxInt8},
		{schema.Int16, math.MinInt16, math.MaxInt16},
		{schema.Int32, math.MinInt32, math.MaxInt32},
		{schema.Int64, math.MinInt64, math.MaxInt64},
	} {
		t.Run(c.typ.String(), func(t *testing.T) {
			sc, err := schema.NewTable([]schema.Column{{Name: "k", Type: c.typ, Key: true}, {Name: "v", Type: c.typ, Nullable: true}})
			require.NoError(t, err)
			var rows []rowSpec
			for i := range int64(10) {
				v := num(c.max - i)
				if i%2 == 1 {
					v = schema.Null()
				}
				rows = append(rows, rowSpec{schema.Insert, map[string]schema.Value{"k": num(c.max - i), "v": v}})
			}
			rows = append(rows, rowSpec{schema.Insert, map[string]schema.Value{"k": num(c.min), "v": num(c.min)}})
			k, v := sc.Column(0), sc.Column(1)
			fourStates(t, sc, [][]rowSpec{rows}, func(t *testing.T, tb *Tablet) {
				count := func(preds ...schema.Predicate) int {
					return len(scanAll(t, tb, ScanSpec{Columns: []int{0}, Predicates: bind(t, sc, preds...)}, 0))
				}
				require.Equal(t, 11, count())
				require.Equal(t, 10, count(schema.GreaterEqual(k, num(c.max-9)), schema.LessEqual(k, num(c.max))))
				require.Equal(t, 0, count(schema.Greater(k, num(c.max))))
				require.Equal(t, 11, count(schema.LessEqual(k, num(c.max))))
				require.Equal(t, 0, count(schema.Less(k, num(c.min))))
				require.Equal(t, 1, count(schema.LessEqual(k, num(c.min))))
				require.Equal(t, 6, count(schema.LessEqual(v, num(c.max))))
				require.Equal(t, 0, count(schema.Greater(v, num(c.max))))
				require.Equal(t, 5, count(schema.IsNull(v)))
				all := scanAll(t, tb, ScanSpec{Columns: []int{0}}, 0)
				require.Equal(t, fmt.Sprint(c.min), all[0])
				require.Equal(t, fmt.Sprint(c.max), all[10])
			})
		})
	}
}

// TestBoundsThatExcludeEachOther shows that bounds which meet nothing return nothing: crossed ones, and bounds apart from
// what a predicate asks.
func TestBoundsThatExcludeEachOther(t *testing.T) {
	s := openStore(t, testOptions(vfs.NewMem()))
	tb := newTestTablet(t, s, 1, kvSchema(t))
	for k := range int64(30) {
		write(t, tb, kv(schema.Insert, k, str("v")))
	}
	key := func(k int64) []byte { return binary.BigEndian.AppendUint32(nil, uint32(k)^1<<31) }
	k := tb.Schema().Column(0)
	for _, c := range []struct {
		spec ScanSpec
		want int
	}{
		{ScanSpec{Start: key(5), Stop: key(10)}, 5},
		{ScanSpec{Start: key(10), Stop: key(5)}, 0},
		{ScanSpec{Start: key(5), Stop: key(5)}, 0},
		{ScanSpec{Start: key(5), Stop: key(10), Predicates: bind(t, tb.Schema(), schema.GreaterEqual(k, num(20)))}, 0},
		{ScanSpec{Start: key(5), Stop: key(10), After: key(3)}, 5},
		{ScanSpec{Start: key(5), Stop: key(10), After: key(5)}, 4},
		{ScanSpec{Start: key(5), Stop: key(10), After: key(9)}, 0},
		{ScanSpec{Start: key(5), Stop: key(10), After: key(20)}, 0},
		{ScanSpec{After: []byte{}}, 30},
		{ScanSpec{Start: key(5), Limit: 3}, 3},
		{ScanSpec{Limit: math.MaxUint64}, 30},
	} {
		c.spec.Columns = []int{0}
		require.Len(t, scanAll(t, tb, c.spec, 0), c.want, "%+v", c.spec)
	}
}

// TestEveryType writes a value, NULL and a value again of every type that the encoders know, and reads them as Arrow.
func TestEveryType(t *testing.T) {
	big := make([]byte, 16)
	for i := range big {
		big[i] = 0xff
	}
	cases := []struct {
		typ   schema.Type
		value schema.Value
		arrow arrow.DataType
		text  string
	}{
		{schema.Int8, num(-128), arrow.PrimitiveTypes.Int8, "-128"},
		{schema.Int16, num(-2), arrow.PrimitiveTypes.Int16, "-2"},
		{schema.Int32, num(1 << 30), arrow.PrimitiveTypes.Int32, "1073741824"},
		{schema.Int64, num(math.MinInt64), arrow.PrimitiveTypes.Int64, "-9223372036854775808"},
		{schema.String, str("表\x00"), arrow.BinaryTypes.String, "表\x00"},
		{schema.Bool, schema.BoolValue(true), arrow.FixedWidthTypes.Boolean, "true"},
		{schema.Float, schema.FloatValue(0.5), arrow.PrimitiveTypes.Float32, "0.5"},
		{schema.Double, schema.FloatValue(-1e300), arrow.PrimitiveTypes.Float64, "-1e+300"},
		{schema.Binary, schema.BytesValue([]byte{0xff, 0}), arrow.BinaryTypes.Binary, "/wA="},
		{schema.UnixtimeMicros, num(-3843556560235001), arrow.FixedWidthTypes.Timestamp_us, "1848-03-15T09:23:59.764999Z"},
		{schema.Decimal32, num(-12345), &arrow.Decimal128Type{Precision: 9, Scale: 2}, "-123.45"},
		{schema.Decimal64, num(12345), &arrow.Decimal128Type{Precision: 18, Scale: 2}, "123.45"},
		{schema.Decimal128, schema.BytesValue(big), &arrow.Decimal128Type{Precision: 38, Scale: 2}, "-0.01"},
		{schema.Varchar, str("abc"), arrow.BinaryTypes.String, "abc"},
		{schema.Date, num(-719162), arrow.FixedWidthTypes.Date32, "0001-01-01"},
	}
	for _, asKey := range []bool{false, true} {
		for _, c := range cases {
			if asKey && !c.typ.KeyAllowed() {
				continue
			}
			t.Run(fmt.Sprintf("%v/key=%v", c.typ, asKey), func(t *testing.T) {
				col := schema.Column{ID: 1, Name: "c", Type: c.typ, Key: asKey, Nullable: !asKey}
				switch c.typ {
				case schema.Decimal32:
					col.Precision, col.Scale = 9, 2
				case schema.Decimal64:
					col.Precision, col.Scale = 18, 2
				case schema.Decimal128:
					col.Precision, col.Scale = 38, 2
				case schema.Varchar:
					col.Length = 10
				default:
				}
				sc, err := schema.New([]schema.Column{{Name: "k", Type: schema.Int32, Key: true}, col}, 0, 2)
				require.NoError(t, err)
				s := openStore(t, testOptions(vfs.NewMem()))
				tb := newTestTablet(t, s, 1, sc)
				var rows []rowSpec
				var want []string
				for k := range int64(40) {
					r := rowSpec{schema.Insert, map[string]schema.Value{"k": num(k), "c": c.value}}
					text := c.text
					if !asKey && k%13 == 11 {
						r.set["c"], text = schema.Null(), "(null)"
					}
					rows, want = append(rows, r), append(want, text)
				}
				require.Empty(t, write(t, tb, rows...).RowErrors)
				require.Equal(t, want, scanAll(t, tb, ScanSpec{Columns: []int{1}}, 0))
				scn, err := tb.NewScanner(ScanSpec{Columns: []int{1}, Snapshot: hybridtime.Max})
				require.NoError(t, err)
				require.True(t, arrow.TypeEqual(c.arrow, scn.ArrowSchema().Field(0).Type), "%v", scn.ArrowSchema())
				require.Equal(t, !asKey, scn.ArrowSchema().Field(0).Nullable)
				p := bind(t, sc, schema.Equal(sc.Column(1), c.value))
				require.Len(t, scanAll(t, tb, ScanSpec{Columns: []int{0}, Predicates: p}, 0), 40-strings.Count(strings.Join(want, " "), "(null)"))
			})
		}
	}
}

// TestOddProjections is the first half of trial T37: columns in any order, none, and one twice.
func TestOddProjections(t *testing.T) {
	sc, err := schema.NewTable([]schema.Column{
		{Name: "k1", Type: schema.Int16, Key: true}, {Name: "k2", Type: schema.String, Key: true}, {Name: "v", Type: schema.Int32},
	})
	require.NoError(t, err)
	var entries [][]rowSpec
	var want []string
	for k1 := range 100 {
		for k2 := range 10 {
			want = append(want, fmt.Sprintf("%d key%d %d", k1-50, k2, k1*10+k2))
		}
	}
	// Twelve overlapping runs.
	for run := range 12 {
		var rows []rowSpec
		for i := run; i < 1000; i += 12 {
			rows = append(rows, rowSpec{schema.Insert, map[string]schema.Value{
				"k1": num(int64(i/10 - 50)), "k2": str(fmt.Sprintf("key%d", i%10)), "v": num(int64(i)),
			}})
		}
		entries = append(entries, rows)
	}
	fourStates(t, sc, entries, func(t *testing.T, tb *Tablet) {
		require.Equal(t, want, scanAll(t, tb, ScanSpec{Columns: []int{0, 1, 2}}, 500))
		for i, r := range scanAll(t, tb, ScanSpec{Columns: []int{2, 1, 0}}, 500) {
			f := strings.Fields(want[i])
			require.Equal(t, f[2]+" "+f[1]+" "+f[0], r)
		}
		require.Len(t, scanAll(t, tb, ScanSpec{Columns: []int{2}}, 500), 1000)
		require.Equal(t, 1000, countRows(t, tb, hybridtime.Max))
		_, err := tb.NewScanner(ScanSpec{Columns: []int{1, 1}})
		require.Equal(t, status.InvalidScanSpec, status.CodeOf(err))
		_, err = tb.NewScanner(ScanSpec{Columns: []int{3}})
		require.Equal(t, status.InvalidScanSpec, status.CodeOf(err))
		// The second half: a scan that goes on elsewhere from the last key.
		var got []string
		var after []byte
		for {
			scn, err := tb.NewScanner(ScanSpec{Columns: []int{0, 1, 2}, After: after, Snapshot: hybridtime.Max})
			require.NoError(t, err)
			b, more, err := scn.Next(t.Context(), 2000)
			require.NoError(t, err)
			if b.Record != nil {
				got = append(got, recordText(b.Record)...)
				after = b.LastKey
			}
			if !more {
				break
			}
		}
		require.Equal(t, want, got)
	})
}

// TestStepsAreShort shows that a call of Next ends in time where a single row has tens of thousands of versions, above the
// snapshot or below it, and that the scan goes on within the row.
func TestStepsAreShort(t *testing.T) {
	s := openStore(t, testOptions(vfs.NewMem()))
	tb := newTestTablet(t, s, 1, testSchema(t))
	key := func(more map[string]schema.Value) map[string]schema.Value {
		out := map[string]schema.Value{"k1": str("hot"), "k2": num(1)}
		for k, v := range more {
			out[k] = v
		}
		return out
	}
	write(t, tb, rowSpec{schema.Insert, key(map[string]schema.Value{"v": num(-1), "s": str("first")})})
	const updates = 3000
	for i := range updates {
		write(t, tb, rowSpec{schema.Update, key(map[string]schema.Value{"v": num(int64(i))})})
	}
	scan := func(snapshot hybridtime.Timestamp) (row string, calls int) {
		sc, err := tb.NewScanner(ScanSpec{Columns: []int{2, 3}, Snapshot: snapshot})
		require.NoError(t, err)
		sc.budget = -1
		for more := true; more; calls++ {
			var b Block
			b, more, err = sc.Next(t.Context(), 0)
			require.NoError(t, err)
			if b.Record != nil {
				row += recordText(b.Record)[0]
			}
		}
		return row, calls
	}
	row, calls := scan(hybridtime.Max)
	require.Equal(t, fmt.Sprint(updates-1, " first"), row)
	require.InDelta(t, updates/defaultVersionsPerLook, calls, 3, "a step looks at so many versions")
	row, calls = scan(11)
	require.Equal(t, "-1 first", row)
	require.Less(t, calls, 3, "what is too new is jumped over")
	row, _ = scan(10 * (1 + updates/2))
	require.Equal(t, fmt.Sprint(updates/2-2, " first"), row)
	// Without the columns that are further down the first version is enough.
	require.Equal(t, []string{fmt.Sprint(updates - 1)}, scanAll(t, tb, ScanSpec{Columns: []int{2}}, 0))
	require.Equal(t, 1, countRows(t, tb, hybridtime.Max))
}

// TestScanStops shows what ends a scan early: its context, and the end of its tablet; and that a closed or finished one
// returns nothing.
func TestScanStops(t *testing.T) {
	s := openStore(t, testOptions(vfs.NewMem()))
	tb := newTestTablet(t, s, 1, kvSchema(t))
	write(t, tb, kv(schema.Insert, 1, str("a")))
	sc, err := tb.NewScanner(ScanSpec{Columns: []int{0}, Snapshot: 100})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, more, err := sc.Next(ctx, 0)
	require.ErrorIs(t, err, context.Canceled)
	require.True(t, more)
	b, more, err := sc.Next(t.Context(), 0)
	require.NoError(t, err)
	require.False(t, more)
	require.Equal(t, 1, b.Rows)
	b, more, err = sc.Next(t.Context(), 0)
	require.NoError(t, err)
	require.False(t, more)
	require.Zero(t, b.Rows)

	sc, err = tb.NewScanner(ScanSpec{Columns: []int{0}, Snapshot: 100})
	require.NoError(t, err)
	require.NoError(t, s.Delete(1))
	_, _, err = sc.Next(t.Context(), 0)
	require.Equal(t, status.TabletNotFound, status.CodeOf(err))
	_, err = tb.NewScanner(ScanSpec{})
	require.Equal(t, status.TabletNotFound, status.CodeOf(err))
	_, _, err = tb.Checksum(t.Context(), 100)
	require.Equal(t, status.TabletNotFound, status.CodeOf(err))
}

// TestScansBesideWrites scans at a snapshot again and again while entries are applied, flushed and compacted: the rows and
// the checksum stay what they were.
func TestScansBesideWrites(t *testing.T) {
	s := openStore(t, testOptions(vfs.NewMem()))
	tb := newTestTablet(t, s, 1, kvSchema(t))
	var rows []rowSpec
	for k := range int64(500) {
		rows = append(rows, kv(schema.Upsert, k, str("first")))
	}
	write(t, tb, rows...)
	want := scanAll(t, tb, ScanSpec{Columns: []int{0, 1}, Snapshot: 11}, 0)
	n, sum, err := tb.Checksum(t.Context(), 11)
	require.NoError(t, err)
	require.EqualValues(t, 500, n)

	var entries []*nyalav1.WriteOp
	for i := range 58 {
		for k := range rows {
			rows[k].set["v"] = str(strings.Repeat("x", i))
		}
		entries = append(entries, encodeRows(t, tb.Schema(), rows...))
	}
	done := make(chan error, 1)
	go func() { done <- applyAll(s, tb, entries) }()
	for finished := false; !finished; {
		select {
		case err := <-done:
			require.NoError(t, err)
			finished = true
		default:
		}
		require.True(t, slices.Equal(want, scanAll(t, tb, ScanSpec{Columns: []int{0, 1}, Snapshot: 11}, 700)))
		n2, sum2, err := tb.Checksum(t.Context(), 11)
		require.NoError(t, err)
		require.Equal(t, []uint64{n, sum}, []uint64{n2, sum2})
		_, ts := tb.Applied()
		require.Len(t, scanAll(t, tb, ScanSpec{Columns: []int{0}, Snapshot: ts + 1}, 0), 500)
	}
	_, sum2, err := tb.Checksum(t.Context(), hybridtime.Max)
	require.NoError(t, err)
	require.NotEqual(t, sum, sum2)
}

// applyAll applies entries from index 2 on, and flushes at times.
func applyAll(s *Store, tb *Tablet, entries []*nyalav1.WriteOp) error {
	for i, w := range entries {
		b := s.NewBatch()
		defer b.Close()
		if _, err := b.Apply(tb, Op{Index: ident.Index(i + 2), Timestamp: hybridtime.Timestamp(10 * (i + 2)), Write: w}); err != nil {
			return err
		}
		if err := b.Commit(); err != nil {
			return err
		}
		if i%20 == 0 {
			if err := s.Flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestChecksumKudu holds the sum to its definition: for each row a CRC-32C of column indexes, NULL marks and cells.
func TestChecksumKudu(t *testing.T) {
	s := openStore(t, testOptions(vfs.NewMem()))
	a, b := newTestTablet(t, s, 1, kvSchema(t)), newTestTablet(t, s, 2, kvSchema(t))
	write(t, a, kv(schema.Insert, 7, str("hi")), kv(schema.Insert, 8))
	// The same rows by another way.
	write(t, b, kv(schema.Insert, 8, str("x")), kv(schema.Insert, 9))
	write(t, b, kv(schema.Update, 8, schema.Null()), kv(schema.Delete, 9))
	write(t, b, kv(schema.Upsert, 7, str("hi")))
	crc := func(b ...byte) uint64 { return uint64(crcOf(b)) }
	want := crc(0, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 1, 'h', 'i') + crc(0, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 0)
	for _, tb := range []*Tablet{a, b} {
		n, sum, err := tb.Checksum(t.Context(), hybridtime.Max)
		require.NoError(t, err)
		require.EqualValues(t, 2, n)
		require.Equal(t, want, sum)
	}
	_, _, err := a.Checksum(canceled(t), hybridtime.Max)
	require.ErrorIs(t, err, context.Canceled)
}

func canceled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func crcOf(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }
