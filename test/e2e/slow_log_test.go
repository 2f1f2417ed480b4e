package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/localcluster"
)

// TestSlowLog is trial T13 (c) and fault 7 on real processes. Each sync of a follower's log takes two election timeouts longer:
// writes go on, and nobody stands for election. Then so does each of the leader's: it hands over by itself, writes go on elsewhere
// while its log is still slow, and when it is fast again every replica has every row.
func TestSlowLog(t *testing.T) {
	const heartbeat = 250 * time.Millisecond
	const timeout = 3 * heartbeat
	c := newCluster(t, 3, fmt.Sprintf("--raft_heartbeat_interval_ms=%d", heartbeat.Milliseconds()), "--unlock_unsafe_flags")
	cl := connect(t, c)
	tbl := numbersTable(t, cl, "numbers", 1, 3)
	l := &load{}
	insertRows(t, cl, tbl, l, 25)
	tablet := onlyTablet(t, cl, tbl).ID
	leader := leaderOf(t, c, cl, tbl)
	follower := others(t, c, leader)[0]
	elections := func() (n float64) {
		for _, s := range tabletServers(t, c) {
			n += metric(t, s, "raft_elections_begun_total")
		}
		return n
	}
	term, begun := replicaOn(t, leader, tablet).GetTerm(), elections()

	slowLog(t, follower, 2*timeout)
	end := time.Now().Add(inForm(4*time.Second, 2*time.Minute))
	for time.Now().Before(end) {
		insertRows(t, cl, tbl, l, 25)
		pause(t, heartbeat/5)
	}
	if metric(t, follower, "raft_log_stalls_total") == 0 {
		t.Error("the follower's log never stalled")
	}
	for _, s := range tabletServers(t, c) {
		if r := replicaOn(t, s, tablet); r.GetTerm() != term {
			t.Errorf("%s: term %d, it was %d before the follower's log was slow", s.Name, r.GetTerm(), term)
		}
	}
	if now := elections(); now != begun {
		t.Errorf("%v elections because a follower's log is slow", now-begun)
	}
	slowLog(t, follower, 0)
	level := func(s localcluster.Server) {
		t.Helper()
		until(t, 20*time.Second, s.Name+" is level", func() bool {
			var committed uint64
			for _, o := range tabletServers(t, c) {
				committed = max(committed, replicaOn(t, o, tablet).GetCommitIndex())
			}
			return replicaOn(t, s, tablet).GetAppliedIndex() == committed
		})
	}
	level(follower)

	before := metric(t, leader, "raft_leaderships_handed_over_total", `cause="log_stalled"`)
	slowLog(t, leader, 2*timeout)
	slow := time.Now()
	insertRows(t, cl, tbl, l, 25) // acknowledged by the next leader, or by this one at the end of a sync
	until(t, 20*time.Second, "the leader hands over", func() bool {
		return metric(t, leader, "raft_leaderships_handed_over_total", `cause="log_stalled"`) > before
	})
	next := leaderOf(t, c, cl, tbl)
	until(t, 20*time.Second, "another leads", func() bool { next = leaderOf(t, c, cl, tbl); return next.Name != leader.Name })
	took := time.Since(slow)
	insertRows(t, cl, tbl, l, 500)
	t.Logf("another led %v after the leader's log had become slow; 500 rows later it was %v", took.Round(time.Millisecond), time.Since(slow).Round(time.Millisecond))
	if now := leaderOf(t, c, cl, tbl); now.Name == leader.Name {
		t.Errorf("%s, whose log is slow, leads again", now.Name)
	}
	slowLog(t, leader, 0)
	level(leader)
	checkHealthy(t, c)
	rows, err := readAll(t.Context(), tbl, client.ScanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	checkRows(t, "leader", rows, []*load{l})
	for _, s := range tabletServers(t, c) {
		rows, err := readAll(t.Context(), tbl, client.ScanOptions{ReadMode: client.ReadAtSnapshot, SnapshotTimestamp: cl.LatestTimestamp() + 1, ServerID: s.UUID})
		if err != nil {
			t.Fatalf("read from %s: %v", s.Name, err)
		}
		checkRows(t, s.Name, rows, []*load{l})
	}
}
