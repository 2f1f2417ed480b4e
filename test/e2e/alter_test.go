package e2e

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/status"
)

// alter changes a table through the client.
func (s state) alter(tbl *client.Table, steps func(*client.TableAlteration)) *client.Table {
	s.Helper()
	a := tbl.Alter()
	steps(a)
	now, err := a.Apply(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	return now
}

// TestAlterTable changes a table in every way, through the client and the command line, on three replicas. Programs that had it open
// go on with what they know, or are told; nobody reads or writes a column for another.
func TestAlterTable(t *testing.T) {
	const columns = "k int64, a string null, b int32 null"
	var old *client.Table // as of before all changes
	inStatesOn(t, 3, func(s state) {
		old = s.create("before", columns, "k")
		s.insert(old, 1, "one", 10)
		s.insert(old, 2, "two", nil)
		now := s.alter(old, func(a *client.TableAlteration) {
			a.RenameTable("after").AddColumn(client.Column{Name: "n", Type: client.Int32}, 7).RenameColumn("a", "text").DropColumn("b").
				AddColumn(client.Column{Name: "b", Type: client.String, Nullable: true}, nil).SetComment("text", "what it says")
		})
		if now.Name() != "after" || now.ID() != old.ID() || now.Schema().Version() != 1 {
			t.Errorf("table %s, schema version %d", now.Name(), now.Schema().Version())
		}
		s.insert(now, 3, "three", 8, "new b")

		// The client that knows the old columns: what it sets is there, the rest are defaults. The old b isn't the new one.
		op := old.NewInsert()
		if err := errors.Join(op.Set("k", 4), op.Set("a", "four")); err != nil {
			t.Fatal(err)
		}
		ses := s.cl.NewSession(client.SessionOptions{})
		if err := ses.Apply(t.Context(), op); err != nil {
			t.Error(err)
		}
		if err := op.Set("b", 5); err != nil {
			t.Fatal(err)
		}
		wantError(t, "a write of a column that was dropped", ses.Apply(t.Context(), op), status.MismatchedSchema, `"b"`)
		s.ok("table", "alter", "column_set_default", "after", "n", "9")
		s.ok("table", "alter", "add_column", "after", "d decimal(9,2) default 1.50 comment 'EUR'")
		s.ok("table", "alter", "column_remove_default", "after", "d")
		s.ok("table", "alter", "rename_column", "after", "k", "key")
		s.ok("table", "alter", "column_set_comment", "after", "n", "a number")
		s.refused(`the table has no column "x"`, "table", "alter", "delete_column", "after", "x")
		s.refused("a key column can't be dropped", "table", "alter", "delete_column", "after", "key")
		s.refused(`table "after" already exists`, "table", "alter", "rename_table", "after", "after")
		s.refused("isn't nullable needs a default", "table", "alter", "add_column", "after", "e int8")
		s.refused("the name", "table", "alter", "rename_column", "after", "n", strings.Repeat("n", 257))
	}, func(s state) {
		tbl := s.open("after")
		s.wantTable(tbl, "1 one 7 NULL 1.50", "2 two 7 NULL 1.50", "3 three 8 new b 1.50", "4 four 7 NULL 1.50")
		s.wantCount(tbl, "n = 7", 3, "n = 7", s.predicate(tbl, "n", client.Equal, 7))
		s.wantCount(tbl, "b is null", 3, "b is null", s.predicate(tbl, "b", client.IsNull, nil))
		s.wantCount(tbl, "d = 1.5", 4, "d = 1.5", s.predicate(tbl, "d", client.Equal, "1.5"))
		if d := s.describe("after"); d.Version != 6 || d.Columns[0].Name != "key" || d.Columns[3].ID != 4 {
			s.Errorf("described as %+v", d)
		}
		_, err := s.cl.OpenTable(s.Context(), "before")
		wantError(s.T, "the old name", err, status.TableNotFound, "before")

		// The table as it was opened before all changes, whose client is the test's first one.
		was := state{s.T, s.c, s.cl, s.replicas}
		got := was.scanColumns(old, client.ScanOptions{Columns: []string{"a", "k"}})
		s.wantRows("the old columns", got, "one 1", "two 2", "three 3", "four 4")
		for what, o := range map[string]client.ScanOptions{
			"a column that was dropped":    {Columns: []string{"k", "b"}},
			"a predicate on one that was":  {Columns: []string{"k"}, Predicates: []client.Predicate{s.predicate(old, "b", client.Equal, 10)}},
			"all columns, one was dropped": {},
		} {
			sc, err := old.Scan(s.Context(), o)
			if err == nil {
				_, err = sc.Next(s.Context())
				sc.Close()
			}
			wantError(s.T, what, err, status.MismatchedSchema, `column "b"`)
		}
	})
}

// scanColumns returns rows with the columns of a projection.
func (s state) scanColumns(tbl *client.Table, o client.ScanOptions) []string {
	s.Helper()
	sc, err := tbl.Scan(s.Context(), o)
	if err != nil {
		s.Fatal(err)
	}
	defer sc.Close()
	var rows []string
	for {
		b, err := sc.Next(s.Context())
		if err != nil {
			if !errors.Is(err, io.EOF) {
				s.Error(err)
			}
			return rows
		}
		for r := range b.Rows {
			var cells []string
			for i := range o.Columns {
				cells = append(cells, b.Column(i).FormatText(b.Value(i, r)))
			}
			rows = append(rows, strings.Join(cells, " "))
		}
		b.Release()
	}
}

// TestAlterUnderLoad is the ALTER of trial T42: operations of a session stay in order and none is refused while columns come and go and
// the table is renamed.
func TestAlterUnderLoad(t *testing.T) {
	const n = 10_000
	inStatesOn(t, 3, func(s state) {
		tbl, err := s.cl.CreateTable(t.Context(), client.CreateTableOptions{
			Name: "t", Columns: []client.Column{{Name: "k", Type: client.Int64, Key: true}, {Name: "v", Type: client.Int32}},
			Hash: []client.HashPartition{{Columns: []string{"k"}, Buckets: 4}}, Replicas: 3,
		})
		if err != nil {
			t.Fatal(err)
		}
		ses := s.cl.NewSession(client.SessionOptions{Flush: client.BackgroundFlush, BatchRows: 7, FlushInterval: 5 * time.Millisecond})
		apply := func(op *client.Operation, values ...any) {
			if err := errors.Join(set(op, values...), ses.Apply(t.Context(), op)); err != nil {
				t.Fatal(err)
			}
		}
		var flushers sync.WaitGroup
		var done atomic.Bool
		for range 8 {
			flushers.Go(func() {
				for !done.Load() {
					if faults, err := ses.Flush(t.Context()); err != nil || len(faults) > 0 {
						t.Errorf("flush: %v, %v", faults, err)
						return
					}
				}
			})
		}
		// The command line loads a row before the changes and one after.
		loads, feed := io.Pipe()
		defer feed.Close()
		loaded := make(chan result, 1)
		go func() { loaded <- s.inProcessFrom(loads, "table", "load", "t", "-", "--input_format", "csv") }()
		send := func(text string) {
			if _, err := io.WriteString(feed, text); err != nil {
				t.Fatal(err)
			}
		}
		send("k,v\n20001,3\n")
		altered := make(chan struct{})
		for k := 1; k <= n; k++ {
			apply(tbl.NewInsert(), k, 0)
			apply(tbl.NewUpdate(), k, 1)
			if k%3 == 0 {
				apply(tbl.NewDelete(), k)
			}
			if k%5 == 0 {
				apply(tbl.NewUpsert(), k, 2)
			}
			if k == n/4 {
				go func() {
					defer close(altered)
					a := tbl.Alter().AddColumn(client.Column{Name: "w", Type: client.String}, "new")
					if _, err := a.Apply(t.Context()); err != nil {
						t.Error(err)
					}
					if _, err := tbl.Alter().RenameTable("u").RenameColumn("v", "value").Apply(t.Context()); err != nil {
						t.Error(err)
					}
				}()
			}
		}
		done.Store(true)
		flushers.Wait()
		if faults, err := ses.Close(t.Context()); err != nil || len(faults) > 0 {
			t.Errorf("close: %v, %v", faults, err)
		}
		<-altered
		send("20002,3\n")
		feed.Close()
		(<-loaded).want(t, "load", 0, "")
	}, func(s state) {
		tbl := s.open("u")
		want := []string{"20001 3 new", "20002 3 new"}
		for k := 1; k <= n; k++ {
			switch {
			case k%5 == 0:
				want = append(want, fmt.Sprint(k, " 2 new"))
			case k%3 != 0:
				want = append(want, fmt.Sprint(k, " 1 new"))
			}
		}
		if len(want) != 7333+2 {
			s.Fatal(len(want))
		}
		s.wantTable(tbl, want...)
		for clause, want := range map[string]int{"value = 2": 2000, "value = 1": 5333, "value = 0": 0, "value = 3": 2, "w = 'new'": 7333 + 2} {
			s.wantCount(tbl, clause, want, clause)
		}
	})
}
