package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/cli"
	"github.com/nyaladb/nyala/internal/localcluster"
	"github.com/nyaladb/nyala/internal/status"
)

// TestOrderedScan is trial T37: a tablet's rows come in the order of the key whatever columns are asked for, and go on behind the last
// one when the server that is read from is killed with -9.
func TestOrderedScan(t *testing.T) {
	const n = 30_000
	type row struct {
		k1 int
		k2 string
		v  int
	}
	var rows []row
	for i := range n {
		rows = append(rows, row{i%301 - 150, fmt.Sprintf("%x", i*7919%n), i})
	}
	inStatesOn(t, 3, func(s state) {
		tbl := s.create("t", "k1 int16, k2 string, v int32", "k1", "k2")
		for part := range 12 { // of which each spans all keys
			ses := s.cl.NewSession(client.SessionOptions{Flush: client.ManualFlush})
			for i := part; i < n; i += 12 {
				op := tbl.NewInsert()
				if err := errors.Join(set(op, rows[i].k1, rows[i].k2, rows[i].v), ses.Apply(t.Context(), op)); err != nil {
					t.Fatal(err)
				}
			}
			if faults, err := ses.Close(t.Context()); err != nil || len(faults) > 0 {
				t.Fatal(len(faults), err)
			}
		}
		slices.SortFunc(rows, func(a, b row) int {
			if a.k1 != b.k1 {
				return a.k1 - b.k1
			}
			return strings.Compare(a.k2, b.k2)
		})
	}, func(s state) {
		tbl := s.open("t")
		for _, columns := range [][]string{{"v", "k2", "k1"}, {"v"}, {"k2", "v"}} {
			var want []string
			for _, r := range rows {
				cells := map[string]string{"k1": fmt.Sprint(r.k1), "k2": r.k2, "v": fmt.Sprint(r.v)}
				var line []string
				for _, c := range columns {
					line = append(line, cells[c])
				}
				want = append(want, strings.Join(line, " "))
			}
			kills := []int{}
			if len(columns) == 3 {
				kills = []int{n / 3, 2 * n / 3}
			}
			if got := s.scanThroughKills(tbl, columns, kills); !slices.Equal(got, want) {
				s.Errorf("%v: %d rows, not those of the table in the order of its key", columns, len(got))
			}
			out := s.nyala("", "table", "scan", "t", "--format", "csv", "--columns", strings.Join(columns, ","))
			if lines := strings.Split(strings.TrimSuffix(out.out, "\n"), "\n")[1:]; !slices.Equal(lines, strings.Split(strings.ReplaceAll(strings.Join(want, "\n"), " ", ","), "\n")) {
				s.Errorf("%v: the command line has %d rows, %s", columns, len(lines), out.err)
			}
		}
		if got, err := tbl.Count(s.Context(), client.ScanOptions{}); err != nil || got != n {
			s.Errorf("without columns: %d rows, %v", got, err)
		}
		_, err := tbl.Scan(s.Context(), client.ScanOptions{Columns: []string{"k2", "k2"}})
		wantError(s.T, "a column twice", err, status.InvalidScanSpec, `"k2" is asked for twice`)
		s.refused(`"k2" is asked for twice`, "table", "scan", "t", "--columns", "k2,k2")
	})
}

// scanThroughKills reads a table in batches of about 100 rows. When so many rows as kills says have come, the leader of its only tablet
// is killed; it is started again at the end.
func (s state) scanThroughKills(tbl *client.Table, columns []string, kills []int) []string {
	s.Helper()
	sc, err := tbl.Scan(s.Context(), client.ScanOptions{Columns: columns, BatchSizeBytes: 2000})
	if err != nil {
		s.Fatal(err)
	}
	defer sc.Close()
	var rows []string
	var killed string
	restart := func() {
		if killed != "" {
			if err := s.c.Start(s.Context(), killed); err != nil {
				s.Error(err)
			}
		}
	}
	defer func() { restart() }()
	for {
		b, err := sc.Next(s.Context())
		if errors.Is(err, io.EOF) {
			return rows
		}
		if err != nil {
			s.Fatal(err)
		}
		for r := range b.Rows {
			var cells []string
			for i := range columns {
				cells = append(cells, b.Column(i).FormatText(b.Value(i, r)))
			}
			rows = append(rows, strings.Join(cells, " "))
		}
		b.Release()
		if len(kills) > 0 && len(rows) >= kills[0] {
			kills = kills[1:]
			restart()
			killed = s.leaderOf(tbl)
			if err := s.c.Kill(killed); err != nil {
				s.Fatal(err)
			}
		}
	}
}

// leaderOf is the name of the server that leads a table's only tablet.
func (s state) leaderOf(tbl *client.Table) string {
	s.Helper()
	for s.Context().Err() == nil {
		tablets, err := s.cl.Tablets(s.Context(), tbl)
		if err != nil || len(tablets) != 1 {
			s.Fatal(len(tablets), err)
		}
		for _, r := range tablets[0].Replicas {
			if r.Role != nyalav1.Role_ROLE_LEADER {
				continue
			}
			for _, server := range tabletServers(s.T, s.c) {
				if server.RPC == r.Address {
					return server.Name
				}
			}
		}
	}
	s.Fatal("the tablet has no leader")
	return ""
}

// rawScan scans a table's only tablet without the client.
type rawScan struct {
	*testing.T
	nyalav1.TabletServiceClient
	open *nyalav1.NewScan
}

func newRawScan(t *testing.T, server localcluster.Server, tbl *client.Table, tablet string, preds ...client.Predicate) *rawScan {
	t.Helper()
	conn, err := grpc.NewClient(server.RPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	r := &rawScan{t, nyalav1.NewTabletServiceClient(conn), &nyalav1.NewScan{TabletId: tablet, Columns: []string{"k"}, ReadMode: nyalav1.ReadMode_READ_MODE_READ_LATEST}}
	for _, p := range preds {
		r.open.Predicates = append(r.open.Predicates, p.ToProto())
	}
	return r
}

func (r *rawScan) begin() (*nyalav1.ScanResponse, error) {
	return r.Scan(r.Context(), &nyalav1.ScanRequest{Target: &nyalav1.ScanRequest_NewScan{NewScan: r.open}, BatchSizeBytes: 1})
}

func (r *rawScan) next(id []byte, call uint32) (*nyalav1.ScanResponse, error) {
	resp, err := r.Scan(r.Context(), &nyalav1.ScanRequest{Target: &nyalav1.ScanRequest_ScannerId{ScannerId: id}, CallSeqId: call})
	return resp, status.FromGRPC(err)
}

// rest reads a scan to its end: how many rows came, and how many answers had none.
func (r *rawScan) rest(resp *nyalav1.ScanResponse, id []byte, call uint32) (rows, empty int) {
	r.Helper()
	for {
		rows += int(resp.GetNumRows())
		if resp.GetNumRows() == 0 {
			empty++
		}
		if !resp.GetHasMoreResults() {
			return rows, empty
		}
		var err error
		if resp, err = r.next(id, call); err != nil {
			r.Fatal(err)
		}
		call++
	}
}

// TestScannerLife is trial T38: scans that nobody calls are dropped, those kept alive aren't; answers without rows aren't the end; calls
// come in turn; the memory of ten thousand scans that nobody ended comes back. What the trial waits for seconds is a second here.
func TestScannerLife(t *testing.T) {
	const n, ttl = 300_000, time.Second
	c := newCluster(t, 1, fmt.Sprintf("--scanner_ttl_ms=%d", ttl.Milliseconds()), "--scanner_max_open=20000")
	s := state{t, c, connect(t, c), 1}
	server := tabletServers(t, c)[0]
	tbl := s.create("t", "k int32, v int32", "k")
	ses := s.cl.NewSession(client.SessionOptions{Flush: client.BackgroundFlush})
	for _, k := range rand.Perm(n) {
		op := tbl.NewInsert()
		v := 0
		if k >= n-10 {
			v = 1
		}
		if err := errors.Join(set(op, k, v), ses.Apply(t.Context(), op)); err != nil {
			t.Fatal(err)
		}
	}
	if faults, err := ses.Close(t.Context()); err != nil || len(faults) > 0 {
		t.Fatal(len(faults), err)
	}
	tablets, err := s.cl.Tablets(t.Context(), tbl)
	if err != nil {
		t.Fatal(err)
	}
	one := s.predicate(tbl, "v", client.Equal, 1)
	few, all := newRawScan(t, server, tbl, tablets[0].ID, one), newRawScan(t, server, tbl, tablets[0].ID)
	begin := func(r *rawScan) *nyalav1.ScanResponse {
		t.Helper()
		resp, err := r.begin()
		if err != nil || !resp.GetHasMoreResults() {
			t.Fatalf("%v, %v", resp, err)
		}
		return resp
	}
	expired := func() float64 { return metric(t, server, "scanners_expired") }
	await := func(what string, done func() bool) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); !done(); {
			if time.Now().After(end) {
				t.Fatal("waited in vain for " + what)
			}
		}
	}

	resp := begin(few)
	if rows, empty := few.rest(resp, resp.GetScannerId(), 1); rows != 10 || empty < 2 {
		t.Errorf("%d rows, and %d answers without any", rows, empty)
	}
	s.wantCount(tbl, "v = 1", 10, "v = 1", one)

	// Dropped, and kept alive.
	before := expired()
	dropped, kept := begin(all), begin(all)
	for call := time.NewTicker(ttl / 4); expired() == before; <-call.C {
		if _, err := all.ScannerKeepAlive(t.Context(), &nyalav1.ScannerKeepAliveRequest{ScannerId: kept.GetScannerId()}); err != nil {
			t.Fatal(err)
		}
	}
	_, err = all.next(dropped.GetScannerId(), 1)
	wantError(t, "a scan that was dropped", err, status.ScannerExpired, "may have expired")
	resp, err = all.next(kept.GetScannerId(), 1)
	if err != nil {
		t.Fatalf("a scan that was kept alive: %v", err)
	}
	_, err = all.next(kept.GetScannerId(), 5)
	wantError(t, "call 5", err, status.InvalidScanCallSeqID, "call 5 came where 2 was due")
	var both sync.WaitGroup
	answers, errs := make([]*nyalav1.ScanResponse, 2), make([]error, 2)
	for i := range 2 {
		both.Go(func() { answers[i], errs[i] = all.next(kept.GetScannerId(), 2) })
	}
	both.Wait()
	good := slices.Index(errs, nil)
	if good < 0 {
		t.Fatal(errs)
	}
	wantError(t, "the second of two calls at once", errs[1-good], status.InvalidScanCallSeqID, "call 2 came where 3 was due")
	rows, _ := all.rest(answers[good], kept.GetScannerId(), 3)
	if rows += int(kept.GetNumRows() + resp.GetNumRows()); rows != n {
		t.Errorf("%d rows of a scan that was kept alive, want %d", rows, n)
	}

	// The client's scan that was dropped goes on by one call that fails and one that opens it again.
	before = expired()
	sc, err := tbl.Scan(t.Context(), client.ScanOptions{BatchSizeBytes: 100_000})
	if err != nil {
		t.Fatal(err)
	}
	defer sc.Close()
	seen := map[int64]bool{}
	for {
		b, err := sc.Next(t.Context())
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for r := range b.Rows {
			k := b.Value(0, r).Int()
			if seen[k] {
				t.Fatalf("row %d came twice", k)
			}
			seen[k] = true
		}
		if b.Release(); before != 0 {
			await("the scan to be dropped", func() bool { return expired() > before })
			before = 0
		}
	}
	if failures := metric(t, server, "rpc_failures_total", "TabletService/Scan"); len(seen) != n || failures != 4 {
		t.Errorf("%d rows, want %d; %v calls failed, want 4: the three above and one of the client's", len(seen), n, failures)
	}

	// The command line's scan, whose reader leaves it alone for so long, does the same.
	drops := expired()
	printed, out := io.Pipe()
	scanned := make(chan int, 1)
	go func() {
		scanned <- cli.Run(t.Context(), s.arguments([]string{"table", "scan", "t", "--format", "csv", "--columns", "k"}), cli.Streams{In: strings.NewReader(""), Out: out, Err: io.Discard})
		out.Close()
	}()
	defer printed.Close()
	lines, printedRows := bufio.NewScanner(printed), 0
	for lines.Scan() {
		if k, err := strconv.ParseInt(lines.Text(), 10, 64); err == nil {
			delete(seen, k)
			printedRows++
		} else {
			await("the command's scan to be dropped", func() bool { return expired() > drops })
		}
	}
	code := <-scanned
	drops = expired() - drops // where this machine is very slow, more than one
	if failures := metric(t, server, "rpc_failures_total", "TabletService/Scan"); code != 0 || printedRows != n || len(seen) != 0 || failures != 4+drops {
		t.Errorf("the command line printed %d rows and left out %d; %v calls failed, want 4 and one for each of %v drops", printedRows, len(seen), failures, drops)
	}

	// Ten thousand scans that nobody ends.
	heap := func() float64 {
		get(t, "http://"+server.Web+"/debug/pprof/heap?gc=1")
		return metric(t, server, "go_memstats_heap_alloc_bytes")
	}
	base := heap()
	var openers sync.WaitGroup
	for range 16 {
		openers.Go(func() {
			for range 10_000 / 16 {
				if _, err := all.begin(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	openers.Wait()
	most := heap()
	await("all scans to be dropped", func() bool { return metric(t, server, "active_scanners") == 0 })
	if now := heap(); now > 1.1*base {
		t.Errorf("%.0f bytes before, %.0f with the scans, %.0f after", base, most, now)
	}

	// A server that was killed with -9 knows no scan any more, and answers new ones as before.
	open := begin(all)
	if err := errors.Join(c.Kill(server.Name), c.Start(t.Context(), server.Name)); err != nil {
		t.Fatal(err)
	}
	few, all = newRawScan(t, server, tbl, tablets[0].ID, one), newRawScan(t, server, tbl, tablets[0].ID)
	_, err = all.next(open.GetScannerId(), 1)
	wantError(t, "a scan from before the restart", err, status.ScannerExpired, "may have expired")
	s.wantCount(tbl, "v = 1", 10, "v = 1", one)
	resp = begin(few)
	if rows, empty := few.rest(resp, resp.GetScannerId(), 1); rows != 10 || empty < 2 {
		t.Errorf("after the restart %d rows, and %d answers without any", rows, empty)
	}
}
