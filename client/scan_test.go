package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/status"
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

// TestScanGoesOn breaks scans in all ways between and within calls, while rows are written and deleted: each scan returns
// exactly the rows of its snapshots, none twice (I3).
func TestScanGoesOn(t *testing.T) {
	for _, mode := range []ReadMode{ReadLatest, ReadAtSnapshot} {
		for _, replica := range []ReplicaChoice{LeaderReplica, ClosestReplica} {
			if mode == ReadLatest && replica != LeaderReplica {
				continue
			}
			t.Run(fmt.Sprintf("mode=%d/replica=%d", mode, replica), func(t *testing.T) { testScanGoesOn(t, mode, replica) })
		}
	}
}

func testScanGoesOn(t *testing.T, mode ReadMode, replica ReplicaChoice) {
	c := newFakeCluster(t, 1, 3)
	c.rowsPerBatch = 4
	cl := c.connect(Options{})
	table := c.createTable(cl, rowsTable("t", 3))
	fill(t, table, 300)
	faults := 0
	next := 1000
	c.setHook(func(call *fakeCall) error {
		req, ok := call.req.(*nyalav1.ScanRequest)
		if !ok || req.GetCloseScanner() {
			return nil
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		n := rand.IntN(100)
		switch opening := req.GetNewScan() != nil; {
		case call.after && n < 10: // the answer is lost
			faults++
			return errLost
		case call.after && n < 13 && !opening: // the scanner expires under us
			clear(c.scans)
		case !call.after && n < 6: // leaders move; scanners stay
			for _, tb := range c.tablets {
				tb.leader, tb.term, tb.mute = tb.hosts[rand.IntN(3)], tb.term+1, rand.IntN(2) == 0
			}
		case !call.after && n < 12:
			faults++
			return status.New(status.TabletNotRunning, "still starting")
		case !call.after && n < 15:
			return status.New(status.TooBusy, "queue is full")
		case !call.after && n < 40: // rows come and go, and the scan doesn't see it
			for _, tb := range c.tablets {
				for key, versions := range tb.rows {
					if len(versions) == 1 && rand.IntN(40) == 0 {
						tb.rows[key] = append(versions, fakeVersion{ts: c.now()})
					}
				}
				next++
			}
		}
		return nil
	})
	at := cl.LatestTimestamp() + 1
	for range 8 {
		o := ScanOptions{ReadMode: mode, Replica: replica, Columns: []string{"id", "n"}}
		if mode == ReadAtSnapshot {
			o.SnapshotTimestamp = at
		}
		list := scan(t, table, o)
		if mode == ReadAtSnapshot && !each(list, sequence(300)) {
			t.Fatalf("%d rows: %v", len(list), list)
		}
		seen := map[int64]bool{}
		for _, id := range list {
			if seen[id] {
				t.Fatalf("row %d came twice", id)
			}
			seen[id] = true
		}
	}
	if faults < 20 {
		t.Errorf("only %d faults happened", faults)
	}
}

// TestScanServerDies kills the server of an open scanner, really: the scan goes on at another, at the same snapshot.
func TestScanServerDies(t *testing.T) {
	c := newFakeCluster(t, 1, 3)
	cl := c.connect(Options{})
	table := c.createTable(cl, oneTablet("t", 3))
	fill(t, table, 100)
	tb := c.tabletOf(table, 0)
	sc, err := table.Scan(t.Context(), ScanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := sc.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first := slices.Clone(b.Record.Column(0).(*array.Int64).Int64Values())
	b.Release()
	c.server(tb.leader).kill()
	c.change(func() { // and everything is deleted: the scan must not see it
		for key, versions := range tb.rows {
			tb.rows[key] = append(versions, fakeVersion{ts: c.now()})
		}
		tb.leader = ""
	})
	rest, err := ids(t, sc)
	if err != nil {
		t.Fatal(err)
	}
	if got := append(first, rest...); !slices.Equal(got, sequence(100)) {
		t.Errorf("rows %v", got)
	}
}

// TestScanAtServer asks one server alone: it waits for it, and never asks another.
func TestScanAtServer(t *testing.T) {
	c := newFakeCluster(t, 1, 3)
	cl := c.connect(Options{})
	table := c.createTable(cl, oneTablet("t", 2))
	fill(t, table, 20)
	o := ScanOptions{ReadMode: ReadAtSnapshot, SnapshotTimestamp: cl.LatestTimestamp() + 1, ServerID: "ts-1"}
	if list := scan(t, table, o); !each(list, sequence(20)) {
		t.Errorf("rows %v", list)
	}
	c.server("ts-1").kill()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Millisecond)
	defer cancel()
	if _, err := table.Count(ctx, o); CodeOf(err) != CodeTimedOut || !strings.Contains(err.Error(), "at server ts-1 ("+c.server("ts-1").addr+")") ||
		strings.Contains(err.Error(), "ts-0") {
		t.Errorf("a dead server: %v", err)
	}
	o.ServerID = "ts-2"
	if _, err := table.Count(t.Context(), o); CodeOf(err) != CodeNotFound || !strings.Contains(err.Error(), "server ts-2 has no replica of tablet") {
		t.Errorf("a server without a replica: %v", err)
	}
}

// TestScannerClose leaves nothing behind: not at the server after an early end, by Close or by a limit.
func TestScannerClose(t *testing.T) {
	c := newFakeCluster(t, 1, 1)
	cl := c.connect(Options{})
	table := c.createTable(cl, rowsTable("t", 1))
	fill(t, table, 100)
	sc, err := table.Scan(t.Context(), ScanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := sc.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.Release()
	sc.Close()
	sc.Close()
	if _, err := sc.Next(t.Context()); CodeOf(err) != CodeIllegalState {
		t.Errorf("next after close: %v", err)
	}
	scan(t, table, ScanOptions{Limit: 7})
	cl.goroutines.Wait()
	c.change(func() {
		if len(c.scans) != 0 {
			t.Errorf("%d scanners left at the server", len(c.scans))
		}
	})
}

// TestNextAgain cuts a Next off by its context: the next one goes on without loss.
func TestNextAgain(t *testing.T) {
	c := newFakeCluster(t, 1, 1)
	cl := c.connect(Options{})
	table := c.createTable(cl, oneTablet("t", 1))
	fill(t, table, 30)
	sc, err := table.Scan(t.Context(), ScanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer sc.Close()
	var hold atomic.Bool
	c.setHook(func(call *fakeCall) error {
		if hold.Load() && call.after {
			<-call.ctx.Done()
		}
		return nil
	})
	var list []int64
	for i := 0; ; i++ {
		hold.Store(i%2 == 1)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if i%2 == 1 {
			cancel()
			ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
		}
		b, err := sc.Next(ctx)
		cancel()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			if CodeOf(err) != CodeTimedOut || i%2 == 0 {
				t.Fatal(err)
			}
			continue
		}
		list = append(list, b.Record.Column(0).(*array.Int64).Int64Values()...)
		b.Release()
	}
	if !slices.Equal(list, sequence(30)) {
		t.Errorf("rows %v", list)
	}
}

// TestDamagedAnswer: what a scan couldn't go on from is an error, not a gap later on.
func TestDamagedAnswer(t *testing.T) {
	c := newFakeCluster(t, 1, 1)
	cl := c.connect(Options{})
	table := c.createTable(cl, oneTablet("t", 1))
	fill(t, table, 30)
	for want, damage := range map[string]func(*nyalav1.ScanResponse){
		"names no snapshot":           func(r *nyalav1.ScanResponse) { r.SnapshotTimestamp = 0 },
		"has rows but no last key":    func(r *nyalav1.ScanResponse) { r.LastPrimaryKey = nil },
		"the Arrow stream is damaged": func(r *nyalav1.ScanResponse) { r.ArrowIpc = nil },
		"7 rows and said 8":           func(r *nyalav1.ScanResponse) { r.NumRows++ },
	} {
		c.change(func() { c.answer = damage })
		sc, err := table.Scan(t.Context(), ScanOptions{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = sc.Next(t.Context())
		if CodeOf(err) != CodeCorruption || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if _, again := sc.Next(t.Context()); !errors.Is(again, err) {
			t.Errorf("then %v", again)
		}
	}
}
