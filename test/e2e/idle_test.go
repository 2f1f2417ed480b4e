package e2e

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/nyaladb/nyala/internal/localcluster"
)

// idleHeartbeat is the servers' interval in the tests of idle tablets.
const idleHeartbeat = 200 * time.Millisecond

// traffic is what tablet servers handed to the connections among them in a while.
type traffic struct {
	perInterval float64 // messages of all kinds
	beats       float64 // of which beats
	heartbeats  float64 // of leaders, in all: batched or not
}

func (x traffic) String() string {
	return fmt.Sprintf("%.1f messages an interval, %.1f of them beats, and %v heartbeats in all", x.perInterval, x.beats, x.heartbeats)
}

// countTraffic counts what tablet servers send each other while nothing is asked of them. The beats that the master gets are left out.
func countTraffic(t *testing.T, c *localcluster.Cluster, servers []localcluster.Server, d time.Duration) traffic {
	t.Helper()
	all, err := c.Servers()
	if err != nil {
		t.Fatal(err)
	}
	look := func() (x traffic) {
		for _, s := range all {
			if s.Role == localcluster.RoleMaster {
				x.beats -= metric(t, s, "peer_beats_total", `direction="received"`)
			}
		}
		x.perInterval = x.beats
		for _, s := range servers {
			x.perInterval += metric(t, s, "raft_server_messages_total")
			x.beats += metric(t, s, "raft_server_messages_total", `kind="beat"`)
			x.heartbeats += metric(t, s, "no_op_heartbeat_count")
		}
		return x
	}
	before, at := look(), time.Now()
	pause(t, d)
	after := look()
	intervals := float64(time.Since(at)) / float64(idleHeartbeat)
	return traffic{(after.perInterval - before.perInterval) / intervals, (after.beats - before.beats) / intervals, after.heartbeats - before.heartbeats}
}

// rest waits until every replica on the servers is quiet.
func rest(t *testing.T, servers []localcluster.Server, replicas int) {
	t.Helper()
	until(t, 30*time.Second, fmt.Sprintf("%d replicas on %d servers rest", replicas, len(servers)), func() bool {
		quiet, groups := 0.0, 0.0
		for _, s := range servers {
			quiet += metric(t, s, "raft_quiet_groups")
			groups += metric(t, s, "raft_groups")
		}
		return quiet == groups && int(groups) == replicas
	})
}

// cpuSeconds is how much processor time servers have used since their starts.
func cpuSeconds(t *testing.T, servers []localcluster.Server) (sum float64) {
	t.Helper()
	for _, s := range servers {
		sum += metric(t, s, "process_cpu_seconds_total")
	}
	return sum
}

// TestIdleThroughOutage is the second part of trial T14, and faults 22 and 23: with many idle tablets each server sends each other one
// beat per interval and nothing else. That is so as well while one of them is dead, when the tablets that it led have new leaders
// and the others do without it, and once it is back: no tablet is left with heartbeats of its own.
func TestIdleThroughOutage(t *testing.T) {
	const servers = 4
	tables := inForm(1, 15)
	tablets := 100 * tables
	replicas := 3 * tablets
	window := inForm(10*idleHeartbeat, time.Minute)
	c := newCluster(t, servers, fmt.Sprintf("--raft_heartbeat_interval_ms=%d", idleHeartbeat.Milliseconds()))
	cl := connect(t, c)
	for i := range tables {
		numbersTable(t, cl, fmt.Sprint("numbers ", i), 100, 3)
	}
	all := tabletServers(t, c)
	rest(t, all, replicas)
	// One way of each pair, 5 % more, and one beat that falls into the window or not.
	right := func(when string, x traffic, servers int) {
		t.Helper()
		t.Logf("%s: %s", when, x)
		pairs := float64(servers * (servers - 1))
		most := 1.05*pairs + (pairs+float64(servers))*float64(idleHeartbeat)/float64(window)
		if x.perInterval > most || x.heartbeats != 0 {
			t.Errorf("%s: %s, want at most %.1f and no heartbeats", when, x, most)
		}
	}
	before := countTraffic(t, c, all, window)
	right("before", before, servers)

	dead := all[0]
	led := metric(t, dead, "raft_leaders")
	gone := int(metric(t, dead, "raft_groups"))
	if led == 0 || gone == 0 {
		t.Fatalf("%s holds %d replicas and leads %v of them", dead.Name, gone, led)
	}
	if err := c.Kill(dead.Name); err != nil {
		t.Fatal(err)
	}
	down := time.Now()
	alive := others(t, c, dead)
	until(t, 30*time.Second, "every tablet has a living leader", func() bool {
		leads := 0.0
		for _, s := range alive {
			leads += metric(t, s, "raft_leaders")
		}
		return int(leads) == tablets
	})
	rest(t, alive, replicas-gone)
	t.Logf("the survivors rest %v after the kill", time.Since(down).Round(10*time.Millisecond))
	if inForm(0, 1) != 0 {
		pause(t, time.Minute)
	}
	used, at := cpuSeconds(t, alive), time.Now()
	right("while one is dead", countTraffic(t, c, alive, window), len(alive))
	percent := 100 * (cpuSeconds(t, alive) - used) / time.Since(at).Seconds()
	t.Logf("the survivors use %.1f %% of a core", percent)
	// What four servers with 2,000 tablets may use. In a short window the questions of the test itself weigh as much.
	if long := inForm(false, true); long && percent > 6 {
		t.Errorf("the survivors use %.1f %% of a core, want at most 6", percent)
	}

	// That it rests is told apart from that its return isn't known yet: for that each tablet's leader wakes once.
	woken := func() (sum float64) {
		for _, s := range alive {
			for _, why := range []string{"server_back", "server_restarted"} {
				sum += metric(t, s, "raft_quiet_wakes_total", `cause="`+why+`"`)
			}
		}
		return sum
	}
	asleep := woken()
	if err := c.Start(t.Context(), dead.Name); err != nil {
		t.Fatal(err)
	}
	all = tabletServers(t, c)
	until(t, 30*time.Second, "the leaders of its tablets have seen it", func() bool { return int(woken()-asleep) >= gone })
	rest(t, all, replicas)
	// What its return has to tell is told once: then nothing is said.
	until(t, 30*time.Second, "its return has been told", func() bool { return countTraffic(t, c, all, 5*idleHeartbeat).heartbeats == 0 })
	after := countTraffic(t, c, all, window)
	right("after", after, servers)
	if d := math.Abs(after.perInterval-before.perInterval) / before.perInterval; d > 0.2 || math.IsNaN(d) {
		t.Errorf("%.1f messages an interval before, %.1f after: %.0f %% apart", before.perInterval, after.perInterval, 100*d)
	}
	if r := nyala(t, "", "--masters", strings.Join(c.MasterAddresses(), ","), "cluster", "ksck"); r.code != 0 {
		t.Errorf("ksck: %s", r.out)
	}
}
