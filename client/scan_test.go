package client

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
)

// fill inserts rows 0 … n-1: note "row <id>" but NULL for each fifth, n = id % 10.
func fill(t *testing.T, table *Table, n int) {
	t.Helper()
	s := table.c.NewSession(SessionOptions{Flush: ManualFlush})
	for i := range n {
		op := set(table.NewInsert(), "id", i, "n", i%10, "note", fmt.Sprint("row ", i))
		if i%5 == 0 {
			set(op, "note", nil)
		}
		if err := s.Apply(t.Context(), op); err != nil {
			t.Fatal(err)
		}
	}
	if rows, err := s.Close(t.Context()); len(rows) > 0 || err != nil {
		t.Fatal(rows, err)
	}
}

// ids reads column "id", the first, to the end.
func ids(t *testing.T, sc *Scanner) ([]int64, error) {
	t.Helper()
	defer sc.Close()
	var list []int64
	for {
		b, err := sc.Next(t.Context())
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return list, err
		}
		if b.Rows == 0 || int64(b.Rows) != b.Record.NumRows() {
			t.Errorf("a batch of %d rows, record %d", b.Rows, b.Record.NumRows())
		}
		list = append(list, b.Record.Column(0).(*array.Int64).Int64Values()...)
		b.Release()
	}
}

func scan(t *testing.T, table *Table, o ScanOptions) []int64 {
	t.Helper()
	sc, err := table.Scan(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	list, err := ids(t, sc)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// sequence is 0 … n-1.
func sequence(n int) []int64 {
	list := make([]int64, n)
	for i := range list {
		list[i] = int64(i)
	}
	return list
}

// each says whether list, in any order, is exactly want.
func each(list, want []int64) bool {
	list = slices.Sorted(slices.Values(list))
	return slices.Equal(list, want)
}

// TestScan reads with projections, predicates and limits over four tablets.
func TestScan(t *testing.T) {
	c := newFakeCluster(t, 1, 3)
	cl := c.connect(Options{})
	table := c.createTable(cl, rowsTable("t", 3))
	if list := scan(t, table, ScanOptions{}); len(list) != 0 {
		t.Errorf("an empty table gave %v", list)
	}
	fill(t, table, 200)
	if list := scan(t, table, ScanOptions{}); !each(list, sequence(200)) {
		t.Errorf("all rows: %v", list)
	}
	predicate := func(column string, cmp Comparison, value any) Predicate {
		p, err := table.Predicate(column, cmp, value)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, f := range []struct {
		preds []Predicate
		want  func(i int64) bool
	}{
		{[]Predicate{predicate("id", Less, 40)}, func(i int64) bool { return i < 40 }},
		{[]Predicate{predicate("id", LessEqual, 40), predicate("n", Equal, 0)}, func(i int64) bool { return i <= 40 && i%10 == 0 }},
		{[]Predicate{predicate("id", Greater, 40), predicate("n", GreaterEqual, int8(8))}, func(i int64) bool { return i > 40 && i%10 >= 8 }},
		{[]Predicate{predicate("note", IsNull, nil)}, func(i int64) bool { return i%5 == 0 }},
		{[]Predicate{predicate("note", IsNotNull, nil), predicate("ok", Equal, true)}, func(i int64) bool { return i%5 != 0 }},
		{[]Predicate{predicate("note", Equal, "row 7")}, func(i int64) bool { return i == 7 }},
	} {
		var want []int64
		for _, i := range sequence(200) {
			if f.want(i) {
				want = append(want, i)
			}
		}
		o := ScanOptions{Columns: []string{"id", "note"}, Predicates: f.preds}
		if list := scan(t, table, o); !each(list, want) {
			t.Errorf("%v: %v, want %v", f.preds, list, want)
		}
		if n, err := table.Count(t.Context(), ScanOptions{Predicates: f.preds}); n != uint64(len(want)) || err != nil {
			t.Errorf("%v: count %d, %v", f.preds, n, err)
		}
	}
	for _, limit := range []int{1, 6, 7, 8, 60, 199, 200, 1000} {
		want := min(limit, 200)
		if list := scan(t, table, ScanOptions{Limit: uint64(limit)}); len(list) != want {
			t.Errorf("limit %d: %d rows", limit, len(list))
		}
		if n, err := table.Count(t.Context(), ScanOptions{Limit: uint64(limit)}); n != uint64(want) || err != nil {
			t.Errorf("limit %d: count %d, %v", limit, n, err)
		}
	}
	total := 0
	for _, tb := range c.tables[table.ID()].tablets {
		total += len(scan(t, table, ScanOptions{TabletID: tb.id}))
	}
	if total != 200 {
		t.Errorf("tablet by tablet: %d rows", total)
	}
}

// TestBatchValues reads cells through Value, in an order of columns of the caller's.
func TestBatchValues(t *testing.T) {
	c := newFakeCluster(t, 1, 1)
	cl := c.connect(Options{})
	table := c.createTable(cl, oneTablet("t", 1))
	fill(t, table, 6)
	sc, err := table.Scan(t.Context(), ScanOptions{Columns: []string{"note", "ok", "n", "id"}})
	if err != nil {
		t.Fatal(err)
	}
	defer sc.Close()
	b, err := sc.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Release()
	var text strings.Builder
	for row := range b.Rows {
		for col := range 4 {
			fmt.Fprintf(&text, "%v ", b.Value(col, row))
		}
	}
	want := `NULL true 0 0 "row 1" true 1 1 "row 2" true 2 2 "row 3" true 3 3 "row 4" true 4 4 NULL true 5 5 `
	if text.String() != want || b.Column(0).Name != "note" {
		t.Errorf("%s, want %s", text.String(), want)
	}
	if _, err := sc.Next(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("after the last: %v", err)
	}
	if _, err := sc.Next(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("and again: %v", err)
	}
}

// TestScanFaults are found before anything is sent.
func TestScanFaults(t *testing.T) {
	c := newFakeCluster(t, 1, 1)
	cl := c.connect(Options{})
	table := c.createTable(cl, rowsTable("t", 1))
	for _, f := range []struct {
		o    ScanOptions
		code Code
		want string
	}{
		{ScanOptions{Columns: []string{"nope"}}, CodeInvalidArgument, `has no column "nope"; it has id, note, n, ok`},
		{ScanOptions{Columns: []string{"n", "n"}}, CodeInvalidScanSpec, "twice"},
		{ScanOptions{Replica: ClosestReplica}, CodeInvalidScanSpec, "only a leader serves ReadLatest"},
		{ScanOptions{SnapshotTimestamp: 5}, CodeInvalidScanSpec, "needs ReadAtSnapshot"},
		{ScanOptions{ReadMode: 9}, CodeInvalidScanSpec, "unknown read mode 9"},
		{ScanOptions{BatchSizeBytes: -1}, CodeInvalidScanSpec, "-1 bytes"},
		{ScanOptions{CountOnly: true, Columns: []string{"n"}}, CodeInvalidScanSpec, "CountOnly"},
		{ScanOptions{Predicates: []Predicate{{Column: "x"}}}, CodeInvalidScanSpec, "x"},
	} {
		_, err := table.Scan(t.Context(), f.o)
		if CodeOf(err) != f.code || !strings.Contains(err.Error(), f.want) {
			t.Errorf("%+v: %v (%v), want %v with %q", f.o, err, CodeOf(err), f.code, f.want)
		}
	}
	for _, f := range []struct {
		column string
		value  any
		want   string
	}{
		{"nope", 1, `no column "nope"`}, {"n", "x", "want an integer"}, {"n", 1 << 40, "out of range"}, {"n", nil, "use IsNull"},
	} {
		if _, err := table.Predicate(f.column, Less, f.value); err == nil || !strings.Contains(err.Error(), f.want) {
			t.Errorf("predicate on %s: %v", f.column, err)
		}
	}
	if sc, err := table.Scan(t.Context(), ScanOptions{TabletID: "nope"}); err != nil {
		t.Error(err)
	} else if _, err := sc.Next(t.Context()); CodeOf(err) != CodeTabletNotFound {
		t.Errorf("an unknown tablet: %v", err)
	}
	if _, err := table.Count(t.Context(), ScanOptions{TabletID: "nope"}); CodeOf(err) != CodeTabletNotFound {
		t.Errorf("an unknown tablet: %v", err)
	}
}

// TestSnapshot reads the past while rows are changed, at every kind of replica.
func TestSnapshot(t *testing.T) {
	c := newFakeCluster(t, 1, 3)
	cl := c.connect(Options{})
	table := c.createTable(cl, rowsTable("t", 3))
	fill(t, table, 50)
	at := cl.LatestTimestamp() + 1
	s := cl.NewSession(SessionOptions{Flush: ManualFlush})
	for i := range 50 {
		for _, op := range []*Operation{set(table.NewDelete(), "id", i), insert(table, 1000+i, "later")} {
			if err := s.Apply(t.Context(), op); err != nil {
				t.Fatal(err)
			}
		}
	}
	if rows, err := s.Close(t.Context()); len(rows) > 0 || err != nil {
		t.Fatal(rows, err)
	}
	read := map[string]int{}
	c.setHook(func(call *fakeCall) error {
		if ns := call.req.(*nyalav1.ScanRequest).GetNewScan(); ns != nil && !call.after {
			c.change(func() {
				if c.tablets[ns.GetTabletId()].leader == call.server.id {
					read["leader"]++
				}
				read[call.server.id]++
			})
		}
		return nil
	})
	for _, o := range []ScanOptions{{}, {Replica: ClosestReplica}, {ServerID: "ts-0"}, {ServerID: "ts-1"}, {ServerID: "ts-2"}} {
		o.ReadMode, o.SnapshotTimestamp = ReadAtSnapshot, at
		clear(read)
		if list := scan(t, table, o); !each(list, sequence(50)) {
			t.Errorf("%+v: %v", o, list)
		}
		switch {
		case o.ServerID != "" && read[o.ServerID] != 4:
			t.Errorf("%+v was read at %v", o, read)
		case o.ServerID == "" && o.Replica == LeaderReplica && read["leader"] != 4:
			t.Errorf("%+v was read at %v", o, read)
		}
	}
	if list := scan(t, table, ScanOptions{}); len(list) != 50 || slices.Min(list) != 1000 {
		t.Errorf("the present: %v", list)
	}
	if n, err := table.Count(t.Context(), ScanOptions{ReadMode: ReadAtSnapshot, SnapshotTimestamp: s.LastTimestamp() + 1}); n != 50 || err != nil {
		t.Errorf("at the session's last write: %d, %v", n, err)
	}
}

// TestSnapshotOfPresent names no timestamp: the first tablet's server chooses, and all tablets are read at its choice though
// rows are written in between.
func TestSnapshotOfPresent(t *testing.T) {
	c := newFakeCluster(t, 1, 1)
	cl := c.connect(Options{})
	table := c.createTable(cl, rowsTable("t", 1))
	fill(t, table, 100)
	next := 1000
	var snapshots []uint64
	c.setHook(func(call *fakeCall) error {
		ns, ok := call.req.(*nyalav1.ScanRequest)
		if !ok || !call.after {
			return nil
		}
		c.change(func() {
			if o := ns.GetNewScan(); o != nil {
				snapshots = append(snapshots, o.GetSnapshotTimestamp())
			}
		})
		return nil
	})
	sc, err := table.Scan(t.Context(), ScanOptions{ReadMode: ReadAtSnapshot})
	if err != nil {
		t.Fatal(err)
	}
	defer sc.Close()
	s := cl.NewSession(SessionOptions{})
	var list []int64
	for {
		b, err := sc.Next(t.Context())
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, b.Record.Column(0).(*array.Int64).Int64Values()...)
		b.Release()
		for range 5 {
			if err := s.Apply(t.Context(), insert(table, next, "later")); err != nil {
				t.Fatal(err)
			}
			next++
		}
	}
	if !each(list, sequence(100)) {
		t.Errorf("rows %v", list)
	}
	if len(snapshots) != 4 || snapshots[0] != 0 || snapshots[1] != uint64(sc.SnapshotTimestamp()) || snapshots[3] != snapshots[1] {
		t.Errorf("tablets were opened at %v", snapshots)
	}
	snapshots = nil
	if n, err := table.Count(t.Context(), ScanOptions{ReadMode: ReadAtSnapshot}); n != uint64(100+next-1000) || err != nil {
		t.Errorf("count %d, %v", n, err)
	}
	if len(snapshots) != 4 || snapshots[0] != 0 || snapshots[1] == 0 || snapshots[2] != snapshots[1] || snapshots[3] != snapshots[1] {
		t.Errorf("tablets were counted at %v", snapshots)
	}
}
