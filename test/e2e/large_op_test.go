package e2e

import (
	"math"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/localcluster"
	"github.com/nyaladb/nyala/internal/schema"
)

// appendsBy is how many appends a server has sent, those without entries among them.
func appendsBy(t *testing.T, s localcluster.Server) float64 {
	t.Helper()
	return metric(t, s, "raft_server_messages_total", `kind="append"`) + metric(t, s, "raft_server_messages_total", `kind="append_probe"`)
}

// TestOperationLargerThanAMessage is trial T11 on real processes: a follower is stopped, a batch of 24 rows of 65,536 bytes each,
// more than a message takes, and a hundred small rows are written, and the follower goes on. It is level within 10 s, for fewer than
// 20 appends an operation; afterwards its leader sends none and has nothing to do; and each replica holds the same rows.
func TestOperationLargerThanAMessage(t *testing.T) {
	const large, small, ops = 24, 100, 101
	c := newCluster(t, 3, "--raft_heartbeat_interval_ms=100")
	cl := connect(t, c)
	s := state{t, c, cl, 3}
	tbl := s.create("rows", "id int64, text string", "id")
	s.insert(tbl, int64(-1), "before")
	leader := leaderOf(t, c, cl, tbl)
	follower := others(t, c, leader)[0]
	before := appendsBy(t, leader)
	if err := syscall.Kill(follower.Pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(follower.Pid, syscall.SIGCONT) })
	since := time.Now()
	session := cl.NewSession(client.SessionOptions{Flush: client.ManualFlush})
	for i := range int64(large) {
		op := tbl.NewInsert()
		if err := set(op, i, strings.Repeat(string(rune('a'+i)), schema.MaxCellSize)); err != nil {
			t.Fatal(err)
		}
		if err := session.Apply(t.Context(), op); err != nil {
			t.Fatal(err)
		}
	}
	if failed, err := session.Flush(t.Context()); err != nil || len(failed) > 0 {
		t.Fatalf("the batch: %v, %v", failed, err)
	}
	for i := range small {
		s.insert(tbl, int64(large+i), "small")
	}
	// As long as that the leader has time to send again and again what isn't answered.
	if rest := inForm(3*time.Second, 20*time.Second) - time.Since(since); rest > 0 {
		pause(t, rest)
	}
	if err := syscall.Kill(follower.Pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	resumed := time.Now()
	tablet := onlyTablet(t, cl, tbl).ID
	committed := replicaOn(t, leader, tablet).GetCommitIndex()
	until(t, 10*time.Second, "the follower is level", func() bool { return replicaOn(t, follower, tablet).GetAppliedIndex() >= committed })
	level := time.Since(resumed)
	perOp := (appendsBy(t, leader) - before) / ops
	t.Logf("level after %v; %.2f appends an operation to both followers", level.Round(time.Millisecond), perOp)
	if perOp >= 20 || math.IsNaN(perOp) {
		t.Errorf("%.2f appends an operation", perOp)
	}
	if now := leaderOf(t, c, cl, tbl); now.Name != leader.Name {
		t.Errorf("%s leads; %s did when the follower was stopped", now.Name, leader.Name)
	}

	until(t, 20*time.Second, "the tablet is quiet", func() bool { return metric(t, leader, "raft_quiet_groups") == 1 })
	appends, used, at := appendsBy(t, leader), cpuTime(t, leader), time.Now()
	pause(t, time.Second)
	busy := float64(cpuTime(t, leader)-used) / float64(time.Since(at))
	if more := appendsBy(t, leader) - appends; more != 0 || busy > 0.25 {
		t.Errorf("with nothing to do the leader sends %v appends a second and takes %.0f %% of a core", more, 100*busy)
	}

	checkHealthy(t, c)
	want := s.scan(tbl, client.ScanOptions{})
	if len(want) != 1+large+small {
		t.Errorf("%d rows, %d were written", len(want), 1+large+small)
	}
	snapshot := cl.LatestTimestamp() + 1
	for _, r := range onlyTablet(t, cl, tbl).Replicas {
		got := s.scan(tbl, client.ScanOptions{ReadMode: client.ReadAtSnapshot, SnapshotTimestamp: snapshot, ServerID: r.ServerID})
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s holds %d rows, and not what the others hold", r.Address, len(got))
		}
	}
}
