package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/localcluster"
)

// nameOf is the value that belongs to a key, so that every row can be checked.
func nameOf(id int64) string { return fmt.Sprintf("row %d of the load", id) }

// load inserts rows of its own key range in small batches until stop is closed. It keeps book: acked are the ids whose
// insert was acknowledged. A row error fails the test: an insert that was applied twice would say "already present".
type load struct {
	first, next int64        // ids [first, next) were acknowledged
	acked       atomic.Int64 // how many those are, for others to see while it runs
}

func (l *load) run(ctx context.Context, cl *client.Client, tbl *client.Table, stop <-chan struct{}) error {
	const batch = 25
	s := cl.NewSession(client.SessionOptions{Flush: client.ManualFlush})
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		for i := range int64(batch) {
			op := tbl.NewInsert()
			if err := errors.Join(op.Set("id", l.next+i), op.Set("name", nameOf(l.next+i))); err != nil {
				return err
			}
			if err := s.Apply(ctx, op); err != nil {
				return err
			}
		}
		rowErrs, err := s.Flush(ctx)
		if err != nil {
			return fmt.Errorf("flush rows from %d: %w", l.next, err)
		}
		if len(rowErrs) > 0 {
			return fmt.Errorf("flush rows from %d: %d row errors, the first: %w", l.next, len(rowErrs), &rowErrs[0])
		}
		l.next += batch
		l.acked.Add(batch)
	}
}

// readAll scans the table and returns what each id holds.
func readAll(ctx context.Context, tbl *client.Table, o client.ScanOptions) (map[int64]string, error) {
	o.Columns = []string{"id", "name"}
	sc, err := tbl.Scan(ctx, o)
	if err != nil {
		return nil, err
	}
	defer sc.Close()
	rows := map[int64]string{}
	for {
		b, err := sc.Next(ctx)
		if errors.Is(err, io.EOF) {
			return rows, nil
		}
		if err != nil {
			return nil, err
		}
		ids, names := b.Record.Column(0).(*array.Int64), b.Record.Column(1).(*array.String)
		for i := range b.Rows {
			if _, twice := rows[ids.Value(i)]; twice {
				return nil, fmt.Errorf("row %d came twice in one scan", ids.Value(i))
			}
			rows[ids.Value(i)] = names.Value(i)
		}
		b.Release()
	}
}

// checkRows shows that exactly the rows of the loads are there.
func checkRows(t *testing.T, what string, rows map[int64]string, loads []*load) {
	t.Helper()
	want := 0
	for _, l := range loads {
		want += int(l.next - l.first)
		for id := l.first; id < l.next; id++ {
			if got, ok := rows[id]; !ok {
				t.Fatalf("%s: acknowledged row %d is lost", what, id)
			} else if got != nameOf(id) {
				t.Fatalf("%s: row %d holds %q", what, id, got)
			}
		}
	}
	if len(rows) != want {
		t.Fatalf("%s: %d rows, %d were acknowledged", what, len(rows), want)
	}
}

// runLoads starts n loads and returns them with a function that stops them and reports their first error.
func runLoads(t *testing.T, cl *client.Client, tbl *client.Table, n int) (loads []*load, stop func() error) {
	t.Helper()
	done := make(chan struct{})
	errs := make(chan error, n)
	for i := range n {
		l := &load{first: int64(i) * 1e9, next: int64(i) * 1e9}
		loads = append(loads, l)
		go func() { errs <- l.run(t.Context(), cl, tbl, done) }()
	}
	return loads, sync.OnceValue(func() error {
		close(done)
		var err error
		for range n {
			err = errors.Join(err, <-errs)
		}
		return err
	})
}

// TestKillAnyServerDuringLoad kills servers, the master among them, with -9 at random moments while rows are inserted, at
// least ten times, starts each again, and then compares every row: none that was acknowledged is lost, none doubled, on
// every replica.
func TestKillAnyServerDuringLoad(t *testing.T) {
	const kills = 10
	c := newCluster(t, 3)
	cl := connect(t, c)
	tbl := numbersTable(t, cl, "numbers", 4, 3)
	loads, stop := runLoads(t, cl, tbl, 4)
	defer func() { _ = stop() }() // where the test fails before it stops them itself
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(uint64(seed), 1))
	all, err := c.Servers()
	if err != nil {
		t.Fatal(err)
	}
	for range kills {
		pause(t, time.Duration(rnd.Int64N(int64(800*time.Millisecond))))
		s := all[rnd.IntN(len(all))]
		if err := c.Kill(s.Name); err != nil {
			t.Fatal(err)
		}
		pause(t, time.Duration(rnd.Int64N(int64(1500*time.Millisecond))))
		if err := c.Start(t.Context(), s.Name); err != nil {
			t.Fatal(err)
		}
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkEverywhere(t, c, cl, tbl, loads)
}

// checkEverywhere reads the table from its leaders, and then from each server alone at one snapshot.
func checkEverywhere(t *testing.T, c *localcluster.Cluster, cl *client.Client, tbl *client.Table, loads []*load) {
	t.Helper()
	rows, err := readAll(t.Context(), tbl, client.ScanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	checkRows(t, "leaders", rows, loads)
	t.Logf("%d rows", len(rows))
	servers, err := cl.ListTabletServers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	snapshot := cl.LatestTimestamp() + 1
	for _, s := range servers {
		rows, err := readAll(t.Context(), tbl, client.ScanOptions{
			ReadMode: client.ReadAtSnapshot, SnapshotTimestamp: snapshot, ServerID: s.ID,
		})
		if err != nil {
			t.Fatalf("read from %s: %v", s.ID, err)
		}
		checkRows(t, "server "+s.ID, rows, loads)
	}
}

// TestKillAllServers kills every server at once during a load and starts them again: every acknowledged row is there.
func TestKillAllServers(t *testing.T) {
	c := newCluster(t, 3)
	cl := connect(t, c)
	tbl := numbersTable(t, cl, "numbers", 4, 3)
	loads, stop := runLoads(t, cl, tbl, 4)
	defer func() { _ = stop() }() // where the test fails before it stops them itself
	pause(t, 1500*time.Millisecond)
	all, err := c.Servers()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if err := c.Kill(s.Name); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range all {
		if err := c.Start(t.Context(), s.Name); err != nil {
			t.Fatal(err)
		}
	}
	pause(t, 500*time.Millisecond)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkEverywhere(t, c, cl, tbl, loads)
}

// pause lets the load run for a while: how long is part of what is tried, nothing is waited for.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}
