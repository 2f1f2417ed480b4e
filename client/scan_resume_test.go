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
