package consensus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/wal"
)

// TestHostOutOfSpace fills the disk of a leader alone and of all, and sees writes refused with OutOfSpace, nothing failed,
// and everything go on when there is room.
func TestHostOutOfSpace(t *testing.T) {
	c := newTestCluster(t, 3)
	tablet := testTablet(1)
	c.createGroup(tablet, 3)
	c.write(tablet, "a")
	for _, h := range c.hosts {
		h.log.(*wal.Mem).SetFull(true)
	}
	l := c.leader(tablet)
	// Unless something else has found the disk full, the first is taken, as nobody knows yet; it stays under way.
	want := []string{"c"}
	switch _, _, err := l.Propose(t.Context(), tablet, wal.KindWrite, []byte("b"), nil); {
	case err == nil:
		want = append(want, "b")
	case status.CodeOf(err) != status.OutOfSpace:
		t.Fatal(err)
	}
	if !eventually(t, func() bool {
		_, _, err := l.Propose(t.Context(), tablet, wal.KindWrite, []byte("refused"), nil)
		return status.CodeOf(err) == status.OutOfSpace
	}) {
		t.Fatal("writes are not refused")
	}
	if _, err := l.CreateGroup(t.Context(), testTablet(2), nil, ident.OpID{}); status.CodeOf(err) != status.OutOfSpace {
		t.Fatalf("create group: %v", err)
	}
	for _, h := range c.hosts {
		h.log.(*wal.Mem).SetFull(false)
	}
	c.write(tablet, "c")
	for _, h := range c.hosts {
		h.until(t, "what was under way", func() bool {
			ps := payloads(h.applied[tablet])
			return !slices.ContainsFunc(want, func(p string) bool { return !slices.Contains(ps, p) })
		})
		if len(h.failed) > 0 {
			t.Fatalf("%s: %v", h.id, h.failed)
		}
	}
}

// TestHostLogFails fails one server's log: all its replicas fail by name and are silent, the others go on.
func TestHostLogFails(t *testing.T) {
	c := newTestCluster(t, 3)
	a, b := testTablet(1), testTablet(2)
	c.createGroup(a, 3)
	c.createGroup(b, 3)
	c.write(a, "x")
	c.write(b, "x")
	l := c.leader(a)
	l.log.(*wal.Mem).FailNext(wal.FailSync)
	c.write(a, "y")
	l.until(t, "both replicas' failure", func() bool { return l.failed[a] != nil && l.failed[b] != nil })
	if err := l.failed[a]; !errors.Is(err, wal.ErrFailed) {
		t.Fatalf("failed by %v", err)
	}
	if _, _, err := l.Propose(t.Context(), a, wal.KindWrite, nil, nil); status.CodeOf(err) != status.TabletFailed {
		t.Fatalf("propose: %v", err)
	}
	if _, err := l.CreateGroup(t.Context(), testTablet(3), nil, ident.OpID{}); err == nil {
		t.Fatal("a group was created in a failed log")
	}
	if s, _ := l.Status(a); s.Role != nyalav1.Role_ROLE_NON_PARTICIPANT || s.Err == nil {
		t.Fatalf("status %+v", s)
	}
	c.write(a, "z")
	c.write(b, "z")
	if err := l.StopGroup(t.Context(), a); err != nil {
		t.Fatal(err)
	}
}

// TestHostStopsAndDeletes stops a replica and starts it again where it was, then deletes it for good.
func TestHostStopsAndDeletes(t *testing.T) {
	c := newTestCluster(t, 1)
	tablet := testTablet(1)
	h := c.hosts[0]
	c.createGroup(tablet, 1)
	for i := range 10 {
		c.write(tablet, fmt.Sprint(i))
	}
	s, _ := h.Status(tablet)
	if err := h.StopGroup(t.Context(), tablet); err != nil {
		t.Fatal(err)
	}
	if _, err := h.ReadIndex(t.Context(), tablet); status.CodeOf(err) != status.TabletNotFound {
		t.Fatalf("read: %v", err)
	}
	h.mu.Lock()
	var applied ident.Index
	if n := len(h.applied[tablet]); n > 0 {
		applied = h.applied[tablet][n-1].Index
	}
	h.mu.Unlock()
	cfg := GroupConfig{Number: s.Number, Tablet: tablet, Replica: 1, Config: c.config(1), Applied: applied, CampaignNow: true}
	if err := h.StartGroup(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if err := h.StartGroup(t.Context(), cfg); status.CodeOf(err) != status.TabletAlreadyExists {
		t.Fatalf("second start: %v", err)
	}
	c.write(tablet, "more")
	h.until(t, "everything, once and in order", func() bool { return len(payloads(h.applied[tablet])) == 11 })
	if err := h.DeleteGroup(t.Context(), tablet); err != nil {
		t.Fatal(err)
	}
	if gs := h.log.Groups(); len(gs) != 0 {
		t.Fatalf("the log still has %v", gs)
	}
	if err := h.DeleteGroup(t.Context(), tablet); status.CodeOf(err) != status.TabletNotFound {
		t.Fatalf("second delete: %v", err)
	}
}

// TestHostLargeEntry passes an entry of 50 MiB through a group, with time enough between heartbeats for a busy machine.
func TestHostLargeEntry(t *testing.T) {
	c := newTestClusterAt(t, 3, 2*time.Second)
	tablet := testTablet(1)
	c.createGroup(tablet, 3)
	payload := bytes.Repeat([]byte{7}, 50<<20)
	for {
		_, _, err := c.leader(tablet).Propose(t.Context(), tablet, wal.KindWrite, payload, nil)
		if err == nil {
			break
		}
		if !status.CodeOf(err).Retriable() {
			t.Fatal(err)
		}
	}
	for _, h := range c.hosts {
		h.until(t, "the large entry", func() bool {
			es := h.applied[tablet]
			return len(es) > 0 && len(es[len(es)-1].Payload) == len(payload)
		})
	}
	_, _, err := c.leader(tablet).Propose(t.Context(), tablet, wal.KindWrite, make([]byte, 51<<20), nil)
	if status.CodeOf(err) != status.TooLarge {
		t.Fatalf("51 MiB: %v", err)
	}
}

// TestHostCompacts cuts the log behind what is durable in all stores, and not before.
func TestHostCompacts(t *testing.T) {
	c := newTestCluster(t, 3)
	tablet := testTablet(1)
	c.createGroup(tablet, 3)
	for i := range 20 {
		c.write(tablet, fmt.Sprint(i))
	}
	for _, h := range c.hosts {
		h.until(t, "all writes", func() bool { return len(payloads(h.applied[tablet])) == 20 })
	}
	l := c.leader(tablet)
	l.Compact(tablet, 15)
	if !eventually(t, func() bool { s, _ := l.Status(tablet); return s.FirstIndex == 16 }) {
		s, _ := l.Status(tablet)
		t.Fatalf("log begins at %d", s.FirstIndex)
	}
	for _, h := range c.hosts {
		if !eventually(t, func() bool { h.Compact(tablet, 18); s, _ := h.Status(tablet); return s.FirstIndex == 19 }) {
			t.Fatalf("%s: log isn't cut", h.id)
		}
	}
	c.write(tablet, "after")
}

// TestHostRequestsEnd sees waiting requests end with their context and with the host.
func TestHostRequestsEnd(t *testing.T) {
	c := newTestCluster(t, 3)
	tablet := testTablet(1)
	c.createGroup(tablet, 3)
	_, ts := c.write(tablet, "a")
	l := c.leader(tablet)
	c.net.mu.Lock()
	for _, h := range c.hosts {
		c.net.cut[h.id] = true
	}
	c.net.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if _, err := l.CloseTimestamp(ctx, tablet, ts.Add(time.Second)); status.CodeOf(err) != status.TimedOut {
		t.Fatalf("close without a majority: %v", err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := l.CloseTimestamp(context.WithoutCancel(t.Context()), tablet, ts.Add(time.Second))
		done <- err
	}()
	c.stop(l)
	if err := <-done; err == nil {
		t.Fatal("answered without a majority")
	}
	c.hosts = slices.DeleteFunc(c.hosts, func(h *testHost) bool { return h == l })
}

// TestMetrics lints the metrics, and shows that closing a host takes them away.
func TestMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m, err := newMetrics(reg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newMetrics(reg); err == nil {
		t.Fatal("registered twice")
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	kuduNames := []string{"no_op_heartbeat_count", "heartbeat_batch_count"}
	families = slices.DeleteFunc(families, func(f *dto.MetricFamily) bool { return slices.Contains(kuduNames, f.GetName()) })
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Fatalf("%v, %v", problems, err)
	}
	m.close()
	if got, _ := reg.Gather(); len(got) != 0 {
		t.Fatalf("%d metrics are left", len(got))
	}
}

// TestConfigValidate names every fault at once.
func TestConfigValidate(t *testing.T) {
	err := Config{HeartbeatInterval: 1, MaxMissedHeartbeats: 1, BatchHeartbeats: true, HeartbeatWindow: 1, Workers: -1, Limits: Limits{MaxInflightBytes: 1}}.Validate()
	for _, want := range []string{"server id", "heartbeat interval", "missed", "wait", "in a batch", "workers", "in flight"} {
		if err == nil || !bytes.Contains([]byte(err.Error()), []byte(want)) {
			t.Errorf("%v doesn't name %q", err, want)
		}
	}
	good := DefaultConfig()
	good.ServerID = "s"
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
}
