package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"pgregory.net/rapid"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/schema"
)

// TestPruning compares scans and counts of random predicates with a search through all rows, and which tablets they ask with the
// ones that hold rows that match: hash partitions in two dimensions, ranges, and a range with a hash of its own.
func TestPruning(t *testing.T) {
	c := newFakeCluster(t, 1, 2)
	cl := c.connect(Options{})
	s, err := schema.NewTable([]Column{
		{Name: "a", Type: Int32, Key: true},
		{Name: "b", Type: String, Key: true},
		{Name: "c", Type: Int8, Key: true},
		{Name: "v", Type: Int64, Nullable: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	bound := func(a int64) []byte {
		b, _ := s.Column(0).ValueBytes(IntValue(a))
		ps := &schema.PartitionSchema{Range: []schema.ColumnID{0}}
		return ps.PartitionKey(s, func(int) []byte { return b }, nil)
	}
	ps := &schema.PartitionSchema{
		Hash: []schema.HashDimension{
			{Columns: []schema.ColumnID{0, 1}, Buckets: 4}, {Columns: []schema.ColumnID{2}, Buckets: 3, Seed: 42},
		},
		Range: []schema.ColumnID{0},
		CustomRanges: []schema.RangeWithHash{
			{Upper: bound(0)},
			{Lower: bound(0), Upper: bound(5), Hash: []schema.HashDimension{
				{Columns: []schema.ColumnID{1}, Buckets: 2}, {Columns: []schema.ColumnID{0, 2}, Buckets: 2},
			}},
			{Lower: bound(5)},
		},
	}
	c.mu.Lock()
	fake := c.addTableLocked("t", s, ps, 1)
	c.mu.Unlock()
	table, err := cl.OpenTable(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]Value
	ses := cl.NewSession(SessionOptions{Flush: ManualFlush})
	for a := int64(-3); a < 9; a++ {
		for i, b := range []string{"", "x", "y", "z\x00"} {
			row := []Value{IntValue(a), StringValue(b), IntValue(a%4 + int64(i)), IntValue(a)}
			if i == 3 {
				row[3] = Null()
			}
			rows = append(rows, row)
			op := table.NewInsert()
			for k, v := range row {
				if err := op.SetValue(k, v); err != nil {
					t.Fatal(err)
				}
			}
			if err := ses.Apply(t.Context(), op); err != nil {
				t.Fatal(err)
			}
		}
	}
	if faults, err := ses.Flush(t.Context()); err != nil || len(faults) > 0 {
		t.Fatal(faults, err)
	}
	pruned, ctx := 0, t.Context()
	rapid.Check(t, func(t *rapid.T) {
		preds := drawPredicates(t, table)
		bound, err := schema.BindAll(s, preds)
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		home := map[string]bool{}
		for _, row := range rows {
			if matches(s, bound, row) {
				want = append(want, fmt.Sprint(row))
				p := schema.FindPartition(ps.Partitions(), ps.PartitionKey(s, s.CellsOf(row), nil))
				home[fake.tablets[p].id] = true
			}
		}
		asked := map[string]bool{}
		c.setHook(func(call *fakeCall) error {
			if scan, ok := call.req.(*nyalav1.ScanRequest); ok && scan.GetNewScan() != nil {
				asked[scan.GetNewScan().GetTabletId()] = true
			}
			return nil
		})
		defer c.setHook(nil)
		got := scanRows(ctx, t, table, preds)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Fatalf("%d rows, want %d", len(got), len(want))
		}
		for id := range home {
			if !asked[id] {
				t.Fatalf("tablet %s has a row that matches and wasn't asked", id)
			}
		}
		pruned += len(fake.tablets) - len(asked)
		c.setHook(nil)
		n, err := table.Count(ctx, ScanOptions{Predicates: preds})
		if err != nil || n != uint64(len(want)) {
			t.Fatalf("count: %d, %v; want %d", n, err, len(want))
		}
	})
	if pruned == 0 {
		t.Error("every scan asked every tablet")
	}
	a, _ := table.Predicate("a", Equal, 7)
	b, _ := table.PredicateIn("b", "x")
	if before := c.callCount("TabletService/Scan"); len(scanRows(ctx, t, table, []Predicate{a, b})) != 1 || c.callCount("TabletService/Scan")-before != 3 {
		t.Errorf("a = 7 and b in ('x') asked %d tablets, want the 3 buckets of c", c.callCount("TabletService/Scan")-before)
	}
	if _, err := table.PredicateIn("v", 1, nil); CodeOf(err) != CodeInvalidScanSpec {
		t.Errorf("NULL in a list: %v", err)
	}
}

func scanRows(ctx context.Context, t rapid.TB, table *Table, preds []Predicate) []string {
	sc, err := table.Scan(ctx, ScanOptions{Predicates: preds})
	if err != nil {
		t.Fatal(err)
	}
	defer sc.Close()
	var rows []string
	for {
		b, err := sc.Next(ctx)
		if errors.Is(err, io.EOF) {
			return rows
		}
		if err != nil {
			t.Fatal(err)
		}
		for r := range b.Rows {
			var row []Value
			for i := range table.Columns() {
				row = append(row, b.Value(i, r))
			}
			rows = append(rows, fmt.Sprint(row))
		}
		b.Release()
	}
}

func matches(s *Schema, preds []*schema.BoundPredicate, row []Value) bool {
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

func drawPredicates(t *rapid.T, table *Table) []Predicate {
	var preds []Predicate
	for range rapid.IntRange(0, 4).Draw(t, "predicates") {
		col := table.Columns()[rapid.IntRange(0, 3).Draw(t, "column")]
		value := func() any {
			if col.Type == String {
				return rapid.SampledFrom([]string{"", "x", "y", "z\x00", "zz"}).Draw(t, "text")
			}
			return rapid.IntRange(-4, 9).Draw(t, "number")
		}
		var p Predicate
		var err error
		if rapid.Bool().Draw(t, "in") {
			var list []any
			for range rapid.IntRange(0, 3).Draw(t, "length") {
				list = append(list, value())
			}
			p, err = table.PredicateIn(col.Name, list...)
		} else {
			p, err = table.Predicate(col.Name, rapid.SampledFrom([]Comparison{
				Equal, Less, LessEqual, Greater, GreaterEqual, IsNull, IsNotNull,
			}).Draw(t, "comparison"), value())
		}
		if err != nil {
			t.Fatal(err)
		}
		preds = append(preds, p)
	}
	return preds
}
