package schema

import (
	"fmt"
	"testing"
)

// bench is a table like that of the flights: a composite key, 19 columns, 1,000 rows.
type bench struct {
	s              *Schema
	ps             *PartitionSchema
	parts          []Partition
	row            []Value
	cells          [][]byte
	key            []byte
	encoder        *OpsEncoder
	rows, indirect []byte
	preds          []*BoundPredicate
}

const benchRows = 1000

func newBench(t testing.TB) *bench {
	t.Helper()
	columns := []Column{
		{Name: "time_hour", Type: UnixtimeMicros, Key: true},
		{Name: "carrier", Type: String, Key: true},
		{Name: "flight", Type: Int32, Key: true},
		{Name: "origin", Type: String, Key: true},
	}
	for i := range 10 {
		columns = append(columns, Column{Name: fmt.Sprintf("n%d", i), Type: Int32, Nullable: i%2 == 0})
	}
	for i := range 3 {
		columns = append(columns, Column{Name: fmt.Sprintf("s%d", i), Type: String, Nullable: true})
	}
	columns = append(columns, Column{Name: "d", Type: Double}, Column{Name: "b", Type: Bool})
	s, err := NewTable(columns)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{s: s, encoder: NewOpsEncoder(s), ps: &PartitionSchema{
		Hash: []HashDimension{{Columns: []ColumnID{1, 2}, Buckets: 16}, {Columns: []ColumnID{0}, Buckets: 4}}, Range: []ColumnID{0},
	}}
	b.parts = b.ps.Partitions()
	for i := range columns {
		switch columns[i].Type {
		case String:
			b.row = append(b.row, StringValue("N14228"))
		case Double:
			b.row = append(b.row, FloatValue(0.5))
		case Bool:
			b.row = append(b.row, BoolValue(true))
		default:
			b.row = append(b.row, IntValue(int64(1000+i)))
		}
		cell, err := s.Column(i).ValueBytes(b.row[i])
		if err != nil {
			t.Fatal(err)
		}
		b.cells = append(b.cells, cell)
	}
	e := NewOpsEncoder(s)
	for range benchRows {
		if err := e.Append(Upsert, b.row, nil); err != nil {
			t.Fatal(err)
		}
	}
	b.rows, b.indirect = e.Bytes()
	b.key = s.EncodeKey(nil, func(i int) []byte { return b.cells[i] })
	preds, err := ParseWhere(s, "n1 > 2000 and origin = 'JFK' and n3 in (1, 2, 3, 4) and d < 1 and s0 >= 'A'")
	if err != nil {
		t.Fatal(err)
	}
	if b.preds, err = BindAll(s, preds); err != nil {
		t.Fatal(err)
	}
	return b
}

// perRow reports the time per row beside that per loop.
func perRow(b *testing.B, rows int) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*rows), "ns/row")
}

func BenchmarkDecodeOps(b *testing.B) {
	x := newBench(b)
	for _, key := range []bool{false, true} {
		b.Run(fmt.Sprintf("columns=%d/key=%v", x.s.NumColumns(), key), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(x.rows) + len(x.indirect)))
			d := NewOpsDecoder(x.s, x.rows, x.indirect)
			var buf []byte
			for b.Loop() {
				d.Reset(x.s, x.rows, x.indirect)
				for {
					op, err := d.Next()
					if err != nil {
						b.Fatal(err)
					}
					if op == nil {
						break
					}
					if key {
						buf = x.s.KeyOfOp(buf[:0], op)
					}
				}
			}
			perRow(b, benchRows)
		})
	}
}

func BenchmarkEncodeOps(b *testing.B) {
	x := newBench(b)
	b.Run(fmt.Sprintf("columns=%d", x.s.NumColumns()), func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			x.encoder.Reset()
			for range benchRows {
				if err := x.encoder.Append(Upsert, x.row, nil); err != nil {
					b.Fatal(err)
				}
			}
		}
		perRow(b, benchRows)
	})
}

func BenchmarkKey(b *testing.B) {
	x := newBench(b)
	cell := func(i int) []byte { return x.cells[i] }
	b.Run("op=encode", func(b *testing.B) {
		b.ReportAllocs()
		var buf []byte
		for b.Loop() {
			buf = x.s.EncodeKey(buf[:0], cell)
		}
	})
	b.Run("op=decode", func(b *testing.B) {
		b.ReportAllocs()
		var values []Value
		for b.Loop() {
			var err error
			if values, err = x.s.DecodeKey(values[:0], x.key); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkPartition(b *testing.B) {
	x := newBench(b)
	cell := func(i int) []byte { return x.cells[i] }
	var key []byte
	b.Run("op=key", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			key = x.ps.PartitionKey(x.s, cell, key[:0])
		}
	})
	b.Run(fmt.Sprintf("op=find/partitions=%d", len(x.parts)), func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			FindPartition(x.parts, key)
		}
	})
}

func BenchmarkMurmur2(b *testing.B) {
	for _, size := range []int{4, 16, 64, 1024} {
		b.Run(fmt.Sprintf("bytes=%d", size), func(b *testing.B) {
			data := make([]byte, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				Murmur2_64(data, 0)
			}
		})
	}
}

func BenchmarkMatches(b *testing.B) {
	x := newBench(b)
	for _, p := range x.preds {
		c := x.s.Column(p.Column())
		b.Run(fmt.Sprintf("type=%v/column=%s", c.Type, c.Name), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p.Matches(x.cells[p.Column()], false)
			}
		})
	}
}

func BenchmarkText(b *testing.B) {
	x := newBench(b)
	for _, text := range []struct {
		column int
		text   string
	}{{0, "2013-01-01T10:00:00Z"}, {1, "UA"}, {4, "1400"}, {17, "0.125"}} {
		c := x.s.Column(text.column)
		v, err := c.ParseText(text.text)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("type=%v/op=parse", c.Type), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.ParseText(text.text); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("type=%v/op=append", c.Type), func(b *testing.B) {
			b.ReportAllocs()
			var buf []byte
			for b.Loop() {
				buf = c.AppendText(buf[:0], v)
			}
		})
	}
}
