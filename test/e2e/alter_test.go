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
		s.wantRows("after", s.rows(tbl), "1 one 7 NULL 1.50", "2 two 7 NULL 1.50", "3 three 8 new b 1.50", "4 four 7 NULL 1.50")
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
	}, func(s state) {
		tbl := s.open("u")
		var want []string
		for k := 1; k <= n; k++ {
			switch {
			case k%5 == 0:
				want = append(want, fmt.Sprint(k, " 2 new"))
			case k%3 != 0:
				want = append(want, fmt.Sprint(k, " 1 new"))
			}
		}
		if len(want) != 7333 {
			s.Fatal(len(want))
		}
		s.wantRows("u", s.rows(tbl), want...)
	})
}

// TestReplacedRange is trial T44: a client goes on writing and reading while another drops a range and adds it again, 50 times. Each
// write lands in the tablet that is there or is refused; what was dropped doesn't come back.
func TestReplacedRange(t *testing.T) {
	c := newCluster(t, 1)
	a, b := connect(t, c), connect(t, c)
	s := state{t, c, a, 1}
	s.ok("table", "create", "t", "--replicas", "1", "--columns", "day string, id int64, v int32", "--primary_key", "day,id", "--hash", "id:2",
		"--range", "day: ['20230301', '20230302')")
	ofA := s.open("t")
	ofB, err := b.OpenTable(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	day := client.RangePartition{Lower: []any{"20230301"}, Upper: []any{"20230302"}}
	ours := day // with another hash every other time
	ours.Hash = []client.HashPartition{{Columns: []string{"id"}, Buckets: 3, Seed: 5}}
	var stop atomic.Bool
	var written, refused atomic.Int64
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			ses := a.NewSession(client.SessionOptions{})
			for i := 0; !stop.Load(); i++ {
				op := ofA.NewUpsert()
				if err := set(op, "20230301", 1000*(w+1)+i%1000, i); err != nil {
					t.Error(err)
					return
				}
				switch err := ses.Apply(t.Context(), op); {
				case err == nil:
					written.Add(1)
				case client.CodeOf(err) == client.CodeNotFound:
					refused.Add(1)
				default:
					t.Errorf("write: %v", err)
					return
				}
			}
		})
	}
	for i := range 50 {
		next := day
		if i%2 == 0 {
			next = ours
		}
		now, err := ofB.Alter().DropRange(day).AddRange(next).Apply(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if want := 2 + (i+1)%2; now.Info().Tablets != want {
			t.Fatalf("%d tablets, want %d", now.Info().Tablets, want)
		}
		if i%10 == 0 { // not in one step, so that there are moments without the range
			for _, step := range []*client.TableAlteration{ofB.Alter().DropRange(day), ofB.Alter().AddRange(next)} {
				if _, err := step.Apply(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, err := ofA.Count(t.Context(), client.ScanOptions{}); err != nil {
			t.Errorf("count: %v", err)
		}
	}
	stop.Store(true)
	writers.Wait()
	t.Logf("%d rows written, %d refused", written.Load(), refused.Load())
	if written.Load() == 0 {
		t.Error("nothing was written")
	}
	servers, err := c.Servers()
	if err != nil {
		t.Fatal(err)
	}
	lookups := func() float64 {
		return metric(t, servers[0], "rpc_duration_seconds_count", "GetTableLocations") + metric(t, servers[0], "rpc_duration_seconds_count", "GetTable\"")
	}
	for i := range 5 {
		if _, err := ofB.Alter().DropRange(day).AddRange(day).Apply(t.Context()); err != nil {
			t.Fatal(err)
		}
		op := ofA.NewInsert()
		if err := set(op, "20230301", 7, i); err != nil {
			t.Fatal(err)
		}
		before := lookups()
		if err := a.NewSession(client.SessionOptions{}).Apply(t.Context(), op); err != nil {
			t.Errorf("insert into the new tablet: %v", err)
		}
		if n := lookups() - before; !(n < 20) {
			t.Errorf("one write took %v lookups", n)
		}
		s.wantRows("t", s.rows(ofA), fmt.Sprint("20230301 7 ", i))
		s.wantCount(ofA, "all", 1, "day = '20230301'")
	}
}
