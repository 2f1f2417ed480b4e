package client

import (
	"bytes"
	"fmt"
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
		{Name: "i", Type: arrow.PrimitiveTypes.Int64},
		{Name: "s", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "b", Type: arrow.FixedWidthTypes.Boolean},
		{Name: "d", Type: arrow.PrimitiveTypes.Float64},
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

// TestDecodeIPC reads a stream where it lies: as arrow-go's own reader does, every cut and changed byte without a panic.
func TestDecodeIPC(t *testing.T) {
	data := arrowStream(t, 20)
	rec, err := decodeIPC(data)
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
	for n := range data {
		if rec, err := decodeIPC(data[:n]); err == nil {
			rec.Release()
			if n < len(data)-8 {
				t.Errorf("a stream cut to %d bytes was read", n)
			}
		}
	}
}

// TestDecodeBatch refuses an answer that contradicts itself, and cuts one that gives more than was asked for.
func TestDecodeBatch(t *testing.T) {
	table := typesTable(t)
	positions := []int{4, 5, 6, 8}
	for _, f := range []struct {
		positions []int
		resp      *nyalav1.ScanResponse
		ok        bool
	}{
		{positions, &nyalav1.ScanResponse{NumRows: 20, ArrowIpc: arrowStream(t, 20)}, true},
		{positions, &nyalav1.ScanResponse{NumRows: 7, ArrowIpc: arrowStream(t, 20)}, true},
		{nil, &nyalav1.ScanResponse{NumRows: 1000}, true},
		{positions, &nyalav1.ScanResponse{NumRows: 21, ArrowIpc: arrowStream(t, 20)}, false},
		{positions[:2], &nyalav1.ScanResponse{NumRows: 20, ArrowIpc: arrowStream(t, 20)}, false},
		{positions, &nyalav1.ScanResponse{NumRows: 20}, false},
		{positions, &nyalav1.ScanResponse{NumRows: 20, ArrowIpc: []byte("not an Arrow stream")}, false},
	} {
		b, err := decodeBatch(table.schema, f.positions, f.resp)
		if (err == nil) != f.ok {
			t.Errorf("%d rows, %d columns: %v", f.resp.GetNumRows(), len(f.positions), err)
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
}

// FuzzDecodeIPC reads any bytes: no panic, and what is read can be walked through.
func FuzzDecodeIPC(f *testing.F) {
	for _, n := range []int{0, 1, 20} {
		f.Add(arrowStream(f, n))
	}
	f.Add([]byte{})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		table := typesTable(t)
		b, err := decodeBatch(table.schema, []int{4, 5, 6, 8}, &nyalav1.ScanResponse{NumRows: 1, ArrowIpc: data})
		if err != nil {
			return
		}
		for col := range 4 {
			b.Value(col, 0)
		}
		b.Release()
	})
}

func BenchmarkDecodeIPC(b *testing.B) {
	for _, rows := range []int{100, 20_000} {
		data := arrowStream(b, rows)
		for name, decode := range map[string]func() (arrow.RecordBatch, error){
			"in-place": func() (arrow.RecordBatch, error) { return decodeIPC(data) },
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
