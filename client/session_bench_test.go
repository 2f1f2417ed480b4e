package client

import (
	"fmt"
	"testing"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/schema"
)

// localTable is a table whose tablets are known and whose servers don't exist: for what happens before anything is sent.
func localTable(tb testing.TB, columns []Column, buckets int) *Table {
	s, err := schema.NewTable(columns)
	if err != nil {
		tb.Fatal(err)
	}
	c := &Client{opts: Options{}.withDefaults(), requests: newRequests()}
	ps := &schema.PartitionSchema{Range: []schema.ColumnID{0}}
	if buckets > 1 {
		ps.Hash = []schema.HashDimension{{Columns: []schema.ColumnID{0}, Buckets: uint32(buckets)}}
	}
	t := &Table{c: c, info: TableInfo{Name: "local"}, schema: s, partition: ps, locations: &locations{c: c, tableName: "local"}}
	t.locations.known.Store(&keyMap{partition: ps})
	answer := &nyalav1.GetTableLocationsResponse{TtlMs: uint32(time.Hour.Milliseconds())}
	for i, p := range ps.Partitions() {
		answer.Tablets = append(answer.Tablets, &nyalav1.TabletLocations{TabletId: fmt.Sprint("tablet-", i), Partition: p.ToProto()})
	}
	if _, err := t.locations.merge(nil, time.Now(), answer); err != nil {
		tb.Fatal(err)
	}
	return t
}

// loadgenColumns are those of `kudu perf loadgen`'s table; flightColumns a narrow table of flights.
func loadgenColumns() []Column {
	return []Column{{Name: "key", Type: Int64, Key: true}, {Name: "int_val", Type: Int32}, {Name: "string_val", Type: String}}
}

func wideColumns() []Column {
	columns := []Column{{Name: "key", Type: Int64, Key: true}, {Name: "carrier", Type: String, Key: true}}
	for i := range 8 {
		columns = append(columns, Column{Name: fmt.Sprint("n", i), Type: Int32, Nullable: true})
	}
	for i := range 4 {
		columns = append(columns, Column{Name: fmt.Sprint("s", i), Type: String, Nullable: true})
	}
	return append(columns, Column{Name: "at", Type: UnixtimeMicros}, Column{Name: "x", Type: Double, Nullable: true})
}

// BenchmarkApply takes rows into a session's buffers, which are emptied without sending: the client's own cost per row.
func BenchmarkApply(b *testing.B) {
	text := []byte("some text of 30 bytes, or so.")
	for _, table := range []struct {
		name    string
		columns []Column
	}{{"loadgen", loadgenColumns()}, {"wide", wideColumns()}} {
		for _, tablets := range []int{1, 8, 100} {
			b.Run(fmt.Sprintf("table=%s/tablets=%d", table.name, tablets), func(b *testing.B) {
				t := localTable(b, table.columns, tablets)
				s := t.c.NewSession(SessionOptions{Flush: ManualFlush, BufferBytes: 1 << 40})
				op := t.NewInsert()
				values := make([]Value, t.schema.NumColumns())
				for i := range values {
					switch {
					case t.schema.Column(i).Type.VarLen():
						values[i] = BytesValue(text)
					case t.schema.Column(i).Type == Double:
						values[i] = FloatValue(float64(i))
					default:
						values[i] = IntValue(int64(i))
					}
				}
				bytes, n := 0, int64(0)
				b.ReportAllocs()
				for b.Loop() {
					values[0] = IntValue(n * 0x9E3779B97F4A7C)
					for i, v := range values {
						if err := op.SetValue(i, v); err != nil {
							b.Fatal(err)
						}
					}
					if err := s.Apply(b.Context(), op); err != nil {
						b.Fatal(err)
					}
					if n++; n%50_000 == 0 {
						bytes += s.drop()
					}
				}
				bytes += s.drop()
				b.SetBytes(int64(bytes) / n)
				b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "rows/s")
			})
		}
	}
}

// drop takes what is buffered away, as a flush does, but sends nothing.
func (s *Session) drop() (bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, buf := range s.order {
		for _, batch := range buf.batches {
			bytes += batch.enc.Size()
			s.recycleLocked(batch)
		}
	}
	s.order, s.buffered = nil, 0
	clear(s.tables)
	return bytes
}

// BenchmarkSet converts Go values by column name: the convenient way.
func BenchmarkSet(b *testing.B) {
	t := localTable(b, loadgenColumns(), 1)
	op := t.NewInsert()
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		set(op, "key", n, "int_val", n&0xffff, "string_val", "some text")
	}
}

// BenchmarkSyncWrite writes single rows over a loopback connection to the fake cluster: the client's share, and gRPC's.
func BenchmarkSyncWrite(b *testing.B) {
	c := newFakeCluster(b, 1, 1)
	cl := c.connect(Options{})
	table := c.createTable(cl, rowsTable("t", 1))
	s := cl.NewSession(SessionOptions{})
	op := table.NewUpsert()
	b.ReportAllocs()
	n := int64(0)
	for b.Loop() {
		n++
		if err := op.SetValue(0, IntValue(n%1000)); err != nil {
			b.Fatal(err)
		}
		if err := s.Apply(b.Context(), op); err != nil {
			b.Fatal(err)
		}
	}
}
