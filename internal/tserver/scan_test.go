package tserver

import (
	"bytes"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/status"
)

// newScan asks for both columns in small answers.
func newScan(id string, edit func(*nyalav1.NewScan)) *nyalav1.ScanRequest {
	n := &nyalav1.NewScan{TabletId: id, Columns: []string{"id", "v"}}
	if edit != nil {
		edit(n)
	}
	return &nyalav1.ScanRequest{Target: &nyalav1.ScanRequest_NewScan{NewScan: n}, BatchSizeBytes: 1000}
}

func nextScan(resp *nyalav1.ScanResponse, call uint32) *nyalav1.ScanRequest {
	return &nyalav1.ScanRequest{Target: &nyalav1.ScanRequest_ScannerId{ScannerId: resp.GetScannerId()}, CallSeqId: call, BatchSizeBytes: 1000}
}

// ids reads the key column of an answer.
func ids(t *testing.T, resp *nyalav1.ScanResponse) (out []int64) {
	t.Helper()
	if len(resp.GetArrowIpc()) == 0 {
		return nil
	}
	r, err := ipc.NewReader(bytes.NewReader(resp.GetArrowIpc()))
	require.NoError(t, err)
	defer r.Release()
	for r.Next() {
		out = append(out, r.RecordBatch().Column(0).(*array.Int64).Int64Values()...)
	}
	require.Len(t, out, int(resp.GetNumRows()))
	return out
}

// finish reads a scan that was begun to its end.
func (s *server) finish(first *nyalav1.ScanResponse) (out []int64) {
	s.t.Helper()
	out = ids(s.t, first)
	more, call := first.GetHasMoreResults(), uint32(1)
	for more {
		resp, err := s.Scan(s.t.Context(), nextScan(first, call))
		require.NoError(s.t, err)
		require.Equal(s.t, first.GetSnapshotTimestamp(), resp.GetSnapshotTimestamp())
		out = append(out, ids(s.t, resp)...)
		more, call = resp.GetHasMoreResults(), call+1
	}
	return out
}

func upTo(n int) (out []int64) {
	for i := range n {
		out = append(out, int64(i))
	}
	return out
}

// TestScanCalls: calls come in turn; one that is out of turn is refused and disturbs nothing; a finished or closed scanner
// is gone.
func TestScanCalls(t *testing.T) {
	m := newFakeMaster(t)
	s := newServer(t, m.addr).start()
	id := create(t, s)
	load(t, id, 100, s)
	first, err := s.Scan(t.Context(), newScan(id, nil))
	require.NoError(t, err)
	require.True(t, first.GetHasMoreResults())
	for _, call := range []uint32{0, 2, 5} {
		_, err = s.Scan(t.Context(), nextScan(first, call))
		require.Equal(t, status.InvalidScanCallSeqID, status.CodeOf(status.FromGRPC(err)), "%v", err)
	}
	require.Equal(t, upTo(100), s.finish(first))
	_, err = s.Scan(t.Context(), nextScan(first, 99))
	require.Equal(t, status.ScannerExpired, status.CodeOf(status.FromGRPC(err)), "it has come to its end")

	first, err = s.Scan(t.Context(), newScan(id, nil))
	require.NoError(t, err)
	req := nextScan(first, 1)
	req.CloseScanner = true
	for range 2 {
		_, err = s.Scan(t.Context(), req)
		require.NoError(t, err, "closing twice is no error")
	}
	_, err = s.Scan(t.Context(), nextScan(first, 1))
	require.Equal(t, status.ScannerExpired, status.CodeOf(status.FromGRPC(err)))
	_, err = s.ScannerKeepAlive(t.Context(), &nyalav1.ScannerKeepAliveRequest{ScannerId: first.GetScannerId()})
	require.Equal(t, status.ScannerExpired, status.CodeOf(status.FromGRPC(err)))
	require.Zero(t, s.s.scanners.open())

	// Two calls of the same number at once: one is answered, the other is out of turn, and the scan goes on.
	first, err = s.Scan(t.Context(), newScan(id, nil))
	require.NoError(t, err)
	var wg sync.WaitGroup
	answers := make([]*nyalav1.ScanResponse, 2)
	errs := make([]error, 2)
	for i := range answers {
		wg.Go(func() { answers[i], errs[i] = s.Scan(t.Context(), nextScan(first, 1)) })
	}
	wg.Wait()
	got := ids(t, first)
	for i := range answers {
		if errs[i] == nil {
			got = append(got, ids(t, answers[i])...)
		} else {
			require.Equal(t, status.InvalidScanCallSeqID, status.CodeOf(status.FromGRPC(errs[i])))
		}
	}
	for call := uint32(2); ; call++ {
		resp, err := s.Scan(t.Context(), nextScan(first, call))
		require.NoError(t, err)
		got = append(got, ids(t, resp)...)
		if !resp.GetHasMoreResults() {
			break
		}
	}
	require.Equal(t, upTo(100), got)

	one := newScan(id, nil)
	one.CloseScanner = true
	resp, err := s.Scan(t.Context(), one)
	require.NoError(t, err)
	require.NotEmpty(t, ids(t, resp))
	require.Empty(t, resp.GetScannerId())
	require.Zero(t, s.s.scanners.open())
}

// TestScannerExpiry: a scanner that nobody calls is dropped; keep-alives keep it.
func TestScannerExpiry(t *testing.T) {
	m := newFakeMaster(t)
	s := newServer(t, m.addr)
	s.cfg.ScannerTTL = 150 * time.Millisecond
	s.start()
	id := create(t, s)
	load(t, id, 100, s)
	kept, err := s.Scan(t.Context(), newScan(id, nil))
	require.NoError(t, err)
	left, err := s.Scan(t.Context(), newScan(id, nil))
	require.NoError(t, err)
	begin := time.Now()
	until(t, "the other one is dropped, and some time has gone by", func() bool {
		_, err := s.ScannerKeepAlive(t.Context(), &nyalav1.ScannerKeepAliveRequest{ScannerId: kept.GetScannerId()})
		require.NoError(t, err)
		return s.s.scanners.open() == 1 && time.Since(begin) > 2*s.cfg.ScannerTTL
	})
	_, err = s.Scan(t.Context(), nextScan(left, 1))
	require.Equal(t, status.ScannerExpired, status.CodeOf(status.FromGRPC(err)))
	require.ErrorContains(t, err, "it may have expired")
	require.Equal(t, upTo(100), s.finish(kept))
}

// TestScannersBounded: beyond the most open scanners only scans that fit one answer are served.
func TestScannersBounded(t *testing.T) {
	m := newFakeMaster(t)
	s := newServer(t, m.addr)
	s.cfg.MaxScanners = 2
	s.start()
	id := create(t, s)
	load(t, id, 100, s)
	var open []*nyalav1.ScanResponse
	for range 2 {
		resp, err := s.Scan(t.Context(), newScan(id, nil))
		require.NoError(t, err)
		open = append(open, resp)
	}
	_, err := s.Scan(t.Context(), newScan(id, nil))
	require.Equal(t, status.TooBusy, status.CodeOf(status.FromGRPC(err)))
	require.ErrorContains(t, err, "--scanner_max_open")
	small, err := s.Scan(t.Context(), newScan(id, func(n *nyalav1.NewScan) { n.Limit = 3 }))
	require.NoError(t, err)
	require.Equal(t, upTo(3), ids(t, small))
	require.Equal(t, upTo(100), s.finish(open[0]))
	resp, err := s.Scan(t.Context(), newScan(id, nil))
	require.NoError(t, err)
	require.Equal(t, upTo(100), s.finish(resp))
}

// TestScanGoesOnElsewhere: what one replica began another ends, from the last key, at the same snapshot, whatever is written
// in between.
func TestScanGoesOnElsewhere(t *testing.T) {
	m := newFakeMaster(t)
	var all []*server
	for range 3 {
		all = append(all, newServer(t, m.addr).start())
	}
	m.next("they belong to the cluster", full)
	id := create(t, all...)
	leader := load(t, id, 100, all...)
	first, err := leader.Scan(t.Context(), newScan(id, nil))
	require.NoError(t, err)
	got := ids(t, first)
	load2(t, id, leader)
	leader.stop()
	for _, s := range all {
		if s == leader {
			continue
		}
		resp, err := s.Scan(t.Context(), newScan(id, func(n *nyalav1.NewScan) {
			n.ReadMode, n.LastPrimaryKey = nyalav1.ReadMode_READ_MODE_READ_AT_SNAPSHOT, first.LastPrimaryKey
			n.SnapshotTimestamp = &first.SnapshotTimestamp
		}))
		require.NoError(t, err)
		require.Equal(t, first.GetSnapshotTimestamp(), resp.GetSnapshotTimestamp())
		require.Equal(t, upTo(100), append(slices.Clone(got), s.finish(resp)...))
	}
}

// load2 inserts a row before and behind all others, too late for a scan under way.
func load2(t *testing.T, id string, s *server) {
	t.Helper()
	_, err := s.Write(t.Context(), &nyalav1.WriteRequest{TabletId: id, RowOperations: rowsOf(t, -5, 50_000)})
	require.NoError(t, err)
}

// TestScanSpecs: what is wrong with a scan is said.
func TestScanSpecs(t *testing.T) {
	m := newFakeMaster(t)
	s := newServer(t, m.addr).start()
	id := create(t, s)
	load(t, id, 10, s)
	for name, c := range map[string]struct {
		edit func(*nyalav1.NewScan)
		code status.Code
		text string
	}{
		"column":    {func(n *nyalav1.NewScan) { n.Columns = []string{"x"} }, status.InvalidScanSpec, `no column "x"`},
		"twice":     {func(n *nyalav1.NewScan) { n.Columns = []string{"id", "id"} }, status.InvalidScanSpec, "asked for twice"},
		"count":     {func(n *nyalav1.NewScan) { n.CountOnly = true }, status.InvalidScanSpec, "count_only"},
		"predicate": {func(n *nyalav1.NewScan) { n.Predicates = []*nyalav1.Predicate{{Column: "x"}} }, status.Unknown, ""},
		"snapshot": {func(n *nyalav1.NewScan) {
			n.ReadMode, n.SnapshotTimestamp = nyalav1.ReadMode_READ_MODE_READ_AT_SNAPSHOT, new(uint64)
		}, status.InvalidSnapshot, "snapshot 0"},
	} {
		_, err := s.Scan(t.Context(), newScan(id, c.edit))
		err = status.FromGRPC(err)
		require.Error(t, err, name)
		if c.code != status.Unknown {
			require.Equal(t, c.code, status.CodeOf(err), "%s: %v", name, err)
		}
		require.ErrorContains(t, err, c.text, name)
	}
	req := newScan(id, nil)
	req.CallSeqId = 1
	_, err := s.Scan(t.Context(), req)
	require.Equal(t, status.InvalidScanCallSeqID, status.CodeOf(status.FromGRPC(err)))
	count, err := s.Scan(t.Context(), newScan(id, func(n *nyalav1.NewScan) { n.Columns, n.CountOnly, n.Limit = nil, true, 1<<64-1 }))
	require.NoError(t, err)
	require.Equal(t, uint64(10), count.GetNumRows())
	require.Empty(t, count.GetArrowIpc())
}

// TestMetrics: every series is there from the start, named as Kudu's, and nothing is left registered.
func TestMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	x, err := newMetrics(newScanners(time.Minute, 1), reg)
	require.NoError(t, err)
	_, err = newMetrics(newScanners(time.Minute, 1), reg)
	require.Error(t, err)
	families, err := reg.Gather()
	require.NoError(t, err)
	var names []string
	for _, f := range families {
		names = append(names, f.GetName())
	}
	require.Equal(t, []string{"active_scanners", "scanners_expired", "scans_started"}, names)
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	require.NoError(t, err)
	for _, p := range problems {
		if p.Metric != "scanners_expired" && p.Metric != "scans_started" { // Kudu's names
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	x.unregister()
	families, err = reg.Gather()
	require.NoError(t, err)
	require.Empty(t, families)
}

// TestListScanners describes what is open, and nothing once it is closed.
func TestListScanners(t *testing.T) {
	m := newFakeMaster(t)
	s := newServer(t, m.addr)
	s.start()
	id := create(t, s)
	load(t, id, 100, s)
	admin := &AdminService{s: s.s}
	first, err := s.Scan(t.Context(), newScan(id, nil))
	require.NoError(t, err)
	_, err = s.Scan(t.Context(), nextScan(first, 1))
	require.NoError(t, err)
	list, err := admin.ListScanners(t.Context(), &nyalav1.ListScannersRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetScanners(), 1)
	i := list.GetScanners()[0]
	require.Equal(t, first.GetScannerId(), i.GetScannerId())
	require.Equal(t, id, i.GetTabletId())
	require.Equal(t, uint64(2), i.GetCalls())
	require.Equal(t, first.GetSnapshotTimestamp(), i.GetSnapshotTimestamp())
	require.NotZero(t, i.GetRows())
	require.NotEmpty(t, i.GetColumns())
	require.NotEmpty(t, i.GetTableName())
	require.Equal(t, s.cfg.ScannerTTL.Milliseconds(), list.GetTtlMs())
	done := nextScan(first, 2)
	done.CloseScanner = true
	_, err = s.Scan(t.Context(), done)
	require.NoError(t, err)
	list, err = admin.ListScanners(t.Context(), &nyalav1.ListScannersRequest{})
	require.NoError(t, err)
	require.Empty(t, list.GetScanners())
	_, err = admin.ListScanners(t.Context(), &nyalav1.ListScannersRequest{DestServerId: "another"})
	require.Equal(t, status.WrongServerID, status.CodeOf(err))
}
