package client

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// set sets columns of an operation: name, value, name, value, …
func set(op *Operation, pairs ...any) *Operation {
	for i := 0; i < len(pairs); i += 2 {
		if err := op.Set(fmt.Sprint(pairs[i]), pairs[i+1]); err != nil {
			op.table.c.logger.Error("test: set", "err", err)
			return nil // the caller's next use of it fails the test
		}
	}
	return op
}

// insert returns an insert of (id, note).
func insert(t *Table, id int, note string) *Operation {
	return set(t.NewInsert(), "id", id, "note", note)
}

// TestSyncSession writes rows one by one, and gets each row's error from Apply.
func TestSyncSession(t *testing.T) {
	c := newFakeCluster(t, 1, 3)
	cl := c.connect(Options{})
	table := c.createTable(cl, rowsTable("t", 3))
	s := cl.NewSession(SessionOptions{})
	for i := range 20 {
		if err := s.Apply(t.Context(), insert(table, i, "x")); err != nil {
			t.Fatal(err)
		}
	}
	if s.LastTimestamp() == 0 || s.LastTimestamp() != cl.LatestTimestamp() {
		t.Errorf("last timestamp %v, the client's %v", s.LastTimestamp(), cl.LatestTimestamp())
	}
	op := insert(table, 7, "again")
	op.Tag = 99
	err := s.Apply(t.Context(), op)
	var row *RowError
	if !errors.As(err, &row) || row.Code != CodeAlreadyPresent || row.Index != 20 || row.Op.Tag != 99 || row.OutcomeUnknown ||
		string(row.Op.Value(1).Bytes()) != "again" || CodeOf(err) != CodeAlreadyPresent {
		t.Errorf("insert again: %v", err)
	}
	up := set(table.NewUpdate(), "id", 1000, "n", 5)
	if err := s.Apply(t.Context(), up); CodeOf(err) != CodeNotFound {
		t.Errorf("update of no row: %v", err)
	}
	del := set(table.NewDelete(), "id", 3)
	if err := s.Apply(t.Context(), del); err != nil {
		t.Error(err)
	}
	if n, err := table.Count(t.Context(), ScanOptions{}); n != 19 || err != nil {
		t.Errorf("count %d, %v", n, err)
	}
	if rows, err := s.Close(t.Context()); rows != nil || err != nil {
		t.Errorf("close: %v, %v", rows, err)
	}
	if err := s.Apply(t.Context(), del); CodeOf(err) != CodeIllegalState {
		t.Errorf("apply after close: %v", err)
	}
}

// TestManualFlush applies many rows, some twice: nothing is sent before Flush, and its errors come in the order of Apply.
func TestManualFlush(t *testing.T) {
	c := newFakeCluster(t, 1, 3)
	cl := c.connect(Options{})
	table := c.createTable(cl, rowsTable("t", 3))
	s := cl.NewSession(SessionOptions{Flush: ManualFlush, BatchRows: 50})
	const n = 1000
	op := table.NewInsert()
	for i := range n {
		op.Reset()
		set(op, "id", i).Tag = uint64(i)
		if err := s.Apply(t.Context(), op); err != nil {
			t.Fatal(err)
		}
		if i%100 == 99 { // the row before comes again
			op.Reset()
			set(op, "id", i-1, "note", fmt.Sprint("again ", i-1)).Tag = uint64(i)
			if err := s.Apply(t.Context(), op); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := c.callCount("TabletService/Write"); got != 0 {
		t.Fatalf("%d writes before the flush", got)
	}
	if rows, bytes := s.Buffered(); rows != n+10 || bytes == 0 {
		t.Errorf("buffered %d rows, %d bytes", rows, bytes)
	}
	rows, err := s.Flush(t.Context())
	if err != nil || len(rows) != 10 {
		t.Fatalf("flush: %d row errors, %v", len(rows), err)
	}
	for k, r := range rows {
		want := uint64(k*101 + 100)
		if r.Index != want || r.Op.Tag != uint64(k*100+99) || r.Code != CodeAlreadyPresent ||
			string(r.Op.Value(1).Bytes()) != fmt.Sprint("again ", k*100+98) {
			t.Errorf("error %d: index %d (want %d), tag %d, %v", k, r.Index, want, r.Op.Tag, &r)
		}
	}
	for _, tb := range c.tablets {
		if tb.maxRows > 50 {
			t.Errorf("a batch of %d rows", tb.maxRows)
		}
	}
	if got, _ := table.Count(t.Context(), ScanOptions{}); got != n {
		t.Errorf("count %d", got)
	}
	if rows, bytes := s.Buffered(); rows != 0 || bytes != 0 {
		t.Errorf("buffered %d rows, %d bytes after the flush", rows, bytes)
	}
	if rows, err := s.Flush(t.Context()); rows != nil || err != nil {
		t.Errorf("empty flush: %v, %v", rows, err)
	}
}

// TestOrderPerKey changes one key over and over, across batches and flushes (I1).
func TestOrderPerKey(t *testing.T) {
	c := newFakeCluster(t, 1, 1)
	cl := c.connect(Options{})
	table := c.createTable(cl, rowsTable("t", 1))
	s := cl.NewSession(SessionOptions{Flush: ManualFlush, BatchRows: 2})
	for i := range 60 {
		for id := range 5 {
			if err := s.Apply(t.Context(), set(table.NewUpsert(), "id", id, "n", i)); err != nil {
				t.Fatal(err)
			}
		}
		if i%25 == 0 {
			if rows, err := s.Flush(t.Context()); len(rows) > 0 || err != nil {
				t.Fatal(rows, err)
			}
		}
	}
	if _, err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, tb := range c.tablets {
		for key, versions := range tb.rows {
			for i, v := range versions {
				if got := int(v.cells[2][0]); got != i {
					t.Fatalf("key %x: version %d holds %d", key, i, got)
				}
			}
		}
	}
}

// TestConcurrentSession shares a session among goroutines, with flushes in between.
func TestConcurrentSession(t *testing.T) {
	c := newFakeCluster(t, 1, 3)
	cl := c.connect(Options{})
	table := c.createTable(cl, rowsTable("t", 1))
	for _, mode := range []FlushMode{SyncFlush, ManualFlush} {
		s := cl.NewSession(SessionOptions{Flush: mode, BatchRows: 3})
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				for i := range 50 {
					if err := s.Apply(t.Context(), insert(table, int(mode)*1000+g*100+i, "x")); err != nil {
						t.Error(err)
					}
					if i%20 == 0 {
						if rows, err := s.Flush(t.Context()); len(rows) > 0 || err != nil {
							t.Error(rows, err)
						}
					}
				}
			})
		}
		wg.Wait()
		if rows, err := s.Close(t.Context()); len(rows) > 0 || err != nil {
			t.Error(rows, err)
		}
	}
	if n, _ := table.Count(t.Context(), ScanOptions{}); n != 800 {
		t.Errorf("count %d", n)
	}
}

// TestBufferFull shows that a session refuses, and doesn't take, what its bound has no room for.
func TestBufferFull(t *testing.T) {
	c := newFakeCluster(t, 1, 1)
	cl := c.connect(Options{})
	table := c.createTable(cl, rowsTable("t", 1))
	s := cl.NewSession(SessionOptions{Flush: ManualFlush, BufferBytes: 1000})
	written := 0
	for written < 100 {
		switch err := s.Apply(t.Context(), insert(table, written, "some text")); {
		case errors.Is(err, ErrBufferFull):
			if rows, err := s.Flush(t.Context()); len(rows) > 0 || err != nil {
				t.Fatal(rows, err)
			}
		case err != nil:
			t.Fatal(err)
		default:
			written++
		}
		if _, bytes := s.Buffered(); bytes > 1100 {
			t.Fatalf("%d bytes buffered", bytes)
		}
	}
	s.Close(t.Context())
	if n, _ := table.Count(t.Context(), ScanOptions{}); n != 100 {
		t.Errorf("count %d", n)
	}
}

// TestBatchSize writes cells of 60 KiB: requests stay below the batch's bound, a row that is larger goes alone, and one that
// no request can hold is refused.
func TestBatchSize(t *testing.T) {
	c := newFakeCluster(t, 1, 1)
	o := CreateTableOptions{Name: "wide", PrimaryKey: []string{"id"}, Replicas: 1, Columns: []Column{{Name: "id", Type: Int32}}}
	for i := range 40 {
		o.Columns = append(o.Columns, Column{Name: fmt.Sprint("c", i), Type: Binary, Nullable: true})
	}
	cl := c.connect(Options{MaxMessageSize: 2 << 20})
	table := c.createTable(cl, o)
	largest := 0
	c.setHook(func(call *fakeCall) error {
		if w, ok := call.req.(*nyalav1.WriteRequest); ok && !call.after {
			ops := w.GetRowOperations()
			largest = max(largest, len(ops.GetRows())+len(ops.GetIndirectData()))
		}
		return nil
	})
	s := cl.NewSession(SessionOptions{Flush: ManualFlush, BatchBytes: 500_000})
	cell := make([]byte, 60<<10)
	row := func(id, cells int) *Operation {
		op := set(table.NewInsert(), "id", id)
		for i := range cells {
			if err := op.Set(fmt.Sprint("c", i), cell); err != nil {
				t.Fatal(err)
			}
		}
		return op
	}
	for id := range 20 {
		if err := s.Apply(t.Context(), row(id, 3)); err != nil {
			t.Fatal(err)
		}
	}
	if rows, err := s.Flush(t.Context()); len(rows) > 0 || err != nil {
		t.Fatal(rows, err)
	}
	if largest > 500_000 || largest < 300_000 {
		t.Errorf("the largest request has %d bytes", largest)
	}
	if err := s.Apply(t.Context(), row(100, 20)); err != nil {
		t.Fatal(err)
	}
	if rows, err := s.Flush(t.Context()); len(rows) > 0 || err != nil || largest < 1_200_000 {
		t.Fatal(rows, err, largest)
	}
	err := s.Apply(t.Context(), row(101, 40))
	if CodeOf(err) != CodeTooLarge || !strings.Contains(err.Error(), "more than a request of at most 2097152 bytes") {
		t.Errorf("too large: %v", err)
	}
	if err := cl.NewSession(SessionOptions{}).Apply(t.Context(), row(101, 40)); CodeOf(err) != CodeTooLarge {
		t.Errorf("too large, sync: %v", err)
	}
}

// TestDeleteOfWholeRow shows that a delete's columns besides the key stay at home, also in the count of what is buffered, and that
// operations with IGNORE bring no errors.
func TestDeleteOfWholeRow(t *testing.T) {
	c := newFakeCluster(t, 1, 1)
	cl := c.connect(Options{})
	table := c.createTable(cl, rowsTable("t", 1))
	s := cl.NewSession(SessionOptions{Flush: ManualFlush})
	for _, op := range []*Operation{
		insert(table, 1, "a"), set(table.NewInsertIgnore(), "id", 1, "note", "b"), set(table.NewUpsertIgnore(), "id", 2),
		set(table.NewUpdateIgnore(), "id", 3, "note", "c"), set(table.NewDeleteIgnore(), "id", 3, "note", strings.Repeat("x", 1000)),
		set(table.NewDelete(), "id", 1, "n", 5, "note", strings.Repeat("x", 1000)),
	} {
		if err := s.Apply(t.Context(), op); err != nil {
			t.Fatal(err)
		}
	}
	if _, bytes := s.Buffered(); bytes > 500 {
		t.Errorf("%d bytes are buffered", bytes)
	}
	if rows, err := s.Flush(t.Context()); len(rows) > 0 || err != nil {
		t.Fatal(rows, err)
	}
	if rows, bytes := s.Buffered(); rows != 0 || bytes != 0 {
		t.Errorf("%d rows, %d bytes are left", rows, bytes)
	}
	if n, err := table.Count(t.Context(), ScanOptions{}); n != 1 || err != nil {
		t.Errorf("%d rows, %v", n, err)
	}
	if op, err := table.NewOperation(DeleteIgnore); err != nil || op.Type() != DeleteIgnore {
		t.Error(err)
	}
	if _, err := table.NewOperation(4); CodeOf(err) != CodeInvalidArgument {
		t.Error(err)
	}
}

// TestBadOperations are refused before anything is sent, with the column's name.
func TestBadOperations(t *testing.T) {
	c := newFakeCluster(t, 1, 1)
	cl := c.connect(Options{})
	table := c.createTable(cl, rowsTable("t", 1))
	for _, f := range []struct {
		op   *Operation
		want string
	}{
		{set(table.NewInsert(), "note", "x"), `column "id" (int64): INSERT without a value for a key column`},
		{set(table.NewUpdate(), "n", 1), `column "id" (int64): UPDATE without a value for a key column`},
		{set(table.NewUpdate(), "id", 1), "UPDATE sets no column besides the key"},
		{set(table.NewDelete(), "n", 2), `column "id" (int64): DELETE without a value for a key column`},
		{set(table.NewInsertIgnore(), "note", "x"), `column "id" (int64): INSERT_IGNORE without a value for a key column`},
		{set(table.NewUpdateIgnore(), "id", 1), "UPDATE_IGNORE sets no column besides the key"},
	} {
		for _, mode := range []FlushMode{SyncFlush, ManualFlush} {
			s := cl.NewSession(SessionOptions{Flush: mode})
			if err := s.Apply(t.Context(), f.op); CodeOf(err) != CodeInvalidArgument || err.Error() != f.want {
				t.Errorf("%v, want %s", err, f.want)
			}
			if rows, _ := s.Buffered(); rows != 0 {
				t.Errorf("a row with a fault was taken: %s", f.want)
			}
		}
	}
	other := c.connect(Options{})
	if err := other.NewSession(SessionOptions{}).Apply(t.Context(), insert(table, 1, "")); CodeOf(err) != CodeInvalidArgument {
		t.Errorf("another client's table: %v", err)
	}
	if n := c.callCount("TabletService/Write"); n != 0 {
		t.Errorf("%d writes were sent", n)
	}
}

// TestBatchFails has one tablet refuse everything: its rows are errors, in order, later batches are not sent, and the other
// tablets' rows are written.
func TestBatchFails(t *testing.T) {
	c := newFakeCluster(t, 1, 1)
	cl := c.connect(Options{})
	table := c.createTable(cl, rowsTable("t", 1))
	bad := c.tables[table.ID()].tablets[2]
	sent := 0
	c.setHook(func(call *fakeCall) error {
		if w, ok := call.req.(*nyalav1.WriteRequest); ok && !call.after && w.GetTabletId() == bad.id {
			c.mu.Lock()
			defer c.mu.Unlock()
			sent++
			return status.New(status.Corruption, "the disk is on fire")
		}
		return nil
	})
	s := cl.NewSession(SessionOptions{Flush: ManualFlush, BatchRows: 5})
	for i := range 100 {
		if err := s.Apply(t.Context(), insert(table, i, "x")); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := s.Flush(t.Context())
	if CodeOf(err) != CodeCorruption || sent != 1 {
		t.Errorf("flush: %v; %d batches sent", err, sent)
	}
	n, _ := table.Count(t.Context(), ScanOptions{})
	if len(rows) < 10 || int(n)+len(rows) != 100 {
		t.Errorf("%d rows failed, %d written", len(rows), n)
	}
	if !slices.IsSortedFunc(rows, func(a, b RowError) int { return int(a.Index) - int(b.Index) }) {
		t.Error("row errors out of order")
	}
	for i := range rows {
		if got := rows[i].Op.Value(0).Int(); got != int64(rows[i].Index) || rows[i].Code != CodeCorruption {
			t.Errorf("row error %d is of row %d: %v", rows[i].Index, got, &rows[i])
		}
		if unsent := strings.Contains(rows[i].Err.Error(), "not sent"); unsent != (i >= 5) || rows[i].OutcomeUnknown == unsent {
			t.Errorf("row error %d: %v", i, &rows[i])
		}
	}
}

// TestDeletedTable writes to a table that is gone: the error says so, soon.
func TestDeletedTable(t *testing.T) {
	c := newFakeCluster(t, 1, 1)
	cl := c.connect(Options{})
	table := c.createTable(cl, rowsTable("t", 1))
	s := cl.NewSession(SessionOptions{})
	if err := s.Apply(t.Context(), insert(table, 1, "")); err != nil {
		t.Fatal(err)
	}
	if err := c.connect(Options{}).DeleteTable(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	if err := s.Apply(t.Context(), insert(table, 1, "")); CodeOf(err) != CodeTableNotFound {
		t.Errorf("apply: %v", err)
	}
	if _, err := table.Count(t.Context(), ScanOptions{}); CodeOf(err) != CodeTableNotFound {
		t.Errorf("count: %v", err)
	}
}

// TestRebuiltOperation encodes operations and rebuilds them from their bytes: they are the same.
func TestRebuiltOperation(t *testing.T) {
	c := newFakeCluster(t, 1, 1)
	cl := c.connect(Options{})
	table := c.createTable(cl, rowsTable("t", 1))
	b := newBatch(table)
	ops := []*Operation{
		insert(table, 1, ""), set(insert(table, 2, "two"), "n", nil), set(table.NewDelete(), "id", -1),
		set(table.NewUpsert(), "id", 4, "ok", false),
	}
	for i, op := range ops {
		op.Tag = uint64(10 * i)
		if err := b.append(op, op.encodedSize(), uint64(i), 1<<20); err != nil {
			t.Fatal(err)
		}
		if i == 0 && b.enc.Size() != op.encodedSize() {
			t.Errorf("encoded size %d, said %d", b.enc.Size(), op.encodedSize())
		}
	}
	for i, r := range b.allFailed(status.New(status.IO, "x"), true) {
		op := ops[i]
		if r.Op.kind != op.kind || r.Op.Tag != op.Tag || !slices.Equal(r.Op.set, op.set) ||
			!slices.EqualFunc(r.Op.values, op.values, schema.Value.Equal) {
			t.Errorf("operation %d came back as %+v, was %+v", i, r.Op, op)
		}
	}
	if _, err := b.rowErrors([]*nyalav1.RowError{{RowIndex: 4}}); CodeOf(err) != CodeCorruption {
		t.Errorf("a row that isn't there: %v", err)
	}
}
