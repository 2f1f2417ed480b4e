package client

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
)

// arrowStream is an IPC stream of n rows: an int64, a nullable string, a bool, a double.
func arrowStream(tb testing.TB, n int) []byte {
	s := arrow.NewSchema([]arrow.Field{
		{Name: "int64", Type: arrow.PrimitiveTypes.Int64},
		{Name: "string", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "bool", Type: arrow.FixedWidthTypes.Boolean},
		{Name: "double", Type: arrow.PrimitiveTypes.Float64},
	}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	for i := range n {
		b.Field(0).(*array.Int64Builder).Append(int64(i))
		if i%3 == 0 {
			b.Field(1).AppendNull()
		} else {
			b.Field(1).(*array.StringBuilder).Append(fmt.Sprint("row ", i))
		}
		b.Field(2).(*array.BooleanBuilder).Append(i%2 == 0)
		b.Field(3).(*array.Float64Builder).Append(float64(i) / 4)
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	var buf bytes.Buffer
	w := ipc.NewWriter(&buf, ipc.WithSchema(s))
	if err := w.Write(rec); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return buf.Bytes()
}

// streamSpec is a scan of the columns of arrowStream.
func streamSpec(tb testing.TB) *scanSpec {
	t := typesTable(tb)
	t.c = &Client{opts: Options{}.withDefaults()}
	spec, err := t.scanSpec(ScanOptions{Columns: []string{"int64", "string", "bool", "double"}})
	if err != nil {
		tb.Fatal(err)
	}
	return spec
}

// TestDecodeIPC reads a stream as arrow-go's own reader does, and each prefix of it as an error.
func TestDecodeIPC(t *testing.T) {
	want := streamSpec(t).arrow
	for _, n := range []int{1, 8, 9, 20} {
		data := arrowStream(t, n)
		rec, err := decodeIPC(want, data)
		if err != nil {
			t.Fatal(err)
		}
		r, err := ipc.NewReader(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		want, err := r.Read()
		if err != nil || !array.RecordEqual(rec, want) {
			t.Errorf("%v, want %v; %v", rec, want, err)
		}
		rec.Release()
	}
	data := arrowStream(t, 20)
	for n := range len(data) - 8 { // the last eight bytes are the end mark, which isn't needed
		if _, err := decodeIPC(want, data[:n]); err == nil {
			t.Errorf("a stream cut to %d bytes was read", n)
		}
	}
}

// TestDecodeBatch refuses an answer that contradicts itself or what was asked for, and cuts one that gives more.
func TestDecodeBatch(t *testing.T) {
	spec := streamSpec(t)
	asked := func(columns ...string) *scanSpec {
		other := *spec
		other.arrow, other.positions = nil, nil
		for _, c := range columns {
			other.positions = append(other.positions, spec.schema.IndexOf(c))
		}
		other.arrow = arrowSchema(spec.schema, other.positions)
		return &other
	}
	for _, f := range []struct {
		spec *scanSpec
		resp *nyalav1.ScanResponse
		want string
	}{
		{spec, &nyalav1.ScanResponse{NumRows: 20, ArrowIpc: arrowStream(t, 20)}, ""},
		{spec, &nyalav1.ScanResponse{NumRows: 7, ArrowIpc: arrowStream(t, 20)}, ""},
		{asked(), &nyalav1.ScanResponse{NumRows: 1000}, ""},
		{spec, &nyalav1.ScanResponse{NumRows: 21, ArrowIpc: arrowStream(t, 20)}, "sent 20 rows and said 21"},
		{asked("int64"), &nyalav1.ScanResponse{NumRows: 20, ArrowIpc: arrowStream(t, 20)}, "sent 4 columns, asked for were 1"},
		{asked("int64", "string", "double", "bool"), &nyalav1.ScanResponse{NumRows: 20, ArrowIpc: arrowStream(t, 20)}, `column 2 is "bool"`},
		{spec, &nyalav1.ScanResponse{NumRows: 20}, "no message"},
		{spec, &nyalav1.ScanResponse{NumRows: 20, ArrowIpc: []byte("not an Arrow stream")}, "no message"},
	} {
		b, err := decodeBatch(f.spec, f.resp)
		if (err == nil) != (f.want == "") || (err != nil && !strings.Contains(err.Error(), f.want)) {
			t.Errorf("%v, want %q", err, f.want)
		}
		if err != nil {
			continue
		}
		if b.Rows != int(f.resp.GetNumRows()) || (b.Record != nil && b.Record.NumRows() != int64(b.Rows)) {
			t.Errorf("%d rows, want %d", b.Rows, f.resp.GetNumRows())
		}
		b.Release()
		b.Release()
	}
	// The same name, another type.
	wrong := *spec
	fields := spec.arrow.Fields()
	for i, typ := range []arrow.DataType{
		arrow.PrimitiveTypes.Int32, arrow.BinaryTypes.Binary, arrow.PrimitiveTypes.Int8, arrow.PrimitiveTypes.Float32,
	} {
		changed := slices.Clone(fields)
		changed[i].Type = typ
		wrong.arrow = arrow.NewSchema(changed, nil)
		_, err := decodeBatch(&wrong, &nyalav1.ScanResponse{NumRows: 20, ArrowIpc: arrowStream(t, 20)})
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("column %q isn't of Arrow type %s", fields[i].Name, typ)) {
			t.Errorf("column %d as %s: %v", i, typ, err)
		}
	}
}

// TestArrowTypes reads a column of each type through Batch.Value, NULLs included.
func TestArrowTypes(t *testing.T) {
	c := newFakeCluster(t, 1, 1)
	cl := c.connect(Options{})
	o := CreateTableOptions{Name: "types", Columns: typesTable(t).Columns(), Replicas: 1}
	table := c.createTable(cl, o)
	s := cl.NewSession(SessionOptions{})
	values := []Value{
		IntValue(1), IntValue(-128), IntValue(-32768), IntValue(math.MinInt32), IntValue(math.MinInt64), StringValue("é"),
		BoolValue(true), FloatValue(1.5), FloatValue(math.Pi), BytesValue([]byte{0, 255}), IntValue(1_356_998_400_000_000),
		IntValue(-9999), IntValue(999_999_999_999_999_999), BytesValue(append(bytes.Repeat([]byte{0xfe}, 8), bytes.Repeat([]byte{0xff}, 8)...)),
		StringValue("äöü"), IntValue(-719162),
	}
	for row := range 3 {
		op := table.NewInsert()
		for i, v := range values {
			if row == 1 && i > 0 {
				v = Null()
			}
			if i == 0 {
				v = IntValue(int64(row))
			}
			if err := op.SetValue(i, v); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Apply(t.Context(), op); err != nil {
			t.Fatal(err)
		}
	}
	sc, err := table.Scan(t.Context(), ScanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer sc.Close()
	b, err := sc.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Release()
	for row := range 3 {
		for i, want := range values {
			if row == 1 && i > 0 {
				want = Null()
			}
			if i == 0 {
				want = IntValue(int64(row))
			}
			if got := b.Value(i, row); !got.Equal(want) {
				t.Errorf("row %d, %s: %v, want %v", row, b.Column(i).Name, got, want)
			}
		}
	}
}

// FuzzDecodeIPC reads any bytes: no panic, and what is read can be walked through.
func FuzzDecodeIPC(f *testing.F) {
	for _, n := range []int{0, 1, 20} {
		f.Add(arrowStream(f, n))
	}
	f.Add([]byte{})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0})
	spec := streamSpec(f)
	f.Fuzz(func(_ *testing.T, data []byte) {
		b, err := decodeBatch(spec, &nyalav1.ScanResponse{NumRows: 1, ArrowIpc: data})
		if err != nil {
			return
		}
		for col := range 4 {
			b.Value(col, 0)
		}
		b.Release()
		if b, err = decodeBatch(spec, &nyalav1.ScanResponse{NumRows: 20, ArrowIpc: data}); err != nil {
			return
		}
		for row := range b.Rows {
			for col := range 4 {
				b.Value(col, row)
			}
		}
		b.Release()
	})
}

func BenchmarkDecodeIPC(b *testing.B) {
	for _, rows := range []int{100, 20_000} {
		data, want := arrowStream(b, rows), streamSpec(b).arrow
		for name, decode := range map[string]func() (arrow.RecordBatch, error){
			"in-place": func() (arrow.RecordBatch, error) { return decodeIPC(want, data) },
			"stream": func() (arrow.RecordBatch, error) {
				r, err := ipc.NewReader(bytes.NewReader(data))
				if err != nil {
					return nil, err
				}
				return r.Read()
			},
		} {
			b.Run(fmt.Sprintf("reader=%s/rows=%d", name, rows), func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(len(data)))
				for b.Loop() {
					rec, err := decode()
					if err != nil {
						b.Fatal(err)
					}
					rec.Release()
				}
			})
		}
	}
}
