package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/localcluster"
)

// TestReplicaMovesDuringLoad moves replicas of a tablet between four servers by the command line while rows are inserted: once
// without a fault, once with the target killed -9 in the middle of its copy, once with the source. Each move comes to its end,
// and every replica has every acknowledged row.
func TestReplicaMovesDuringLoad(t *testing.T) {
	c := newCluster(t, 4, "--raft_heartbeat_interval_ms=100", "--heartbeat_interval_ms=100",
		"--tablet_copy_transfer_chunk_size_bytes=16384", "--tablet_copy_download_file_inject_latency_ms=10")
	cl := connect(t, c)
	tbl := numbersTable(t, cl, "numbers", 1, 3)
	loads, stop := runLoads(t, cl, tbl, 2)
	defer func() { _ = stop() }() // where the test fails before it stops them itself
	for loads[0].acked.Load() < 5000 {
		pause(t, 20*time.Millisecond)
	}
	byID := map[string]localcluster.Server{}
	for _, s := range tabletServers(t, c) {
		byID[s.UUID] = s
	}
	for _, kill := range []string{"nobody", "the target", "the source"} {
		tb := onlyTablet(t, cl, tbl)
		var leader, from, to localcluster.Server
		free := map[string]localcluster.Server{}
		for id, s := range byID {
			free[id] = s
		}
		for _, r := range tb.Replicas {
			delete(free, r.ServerID)
			if r.Role == client.RoleLeader {
				leader = byID[r.ServerID]
			} else {
				from = byID[r.ServerID]
			}
		}
		if len(tb.Replicas) != 3 || len(free) != 1 || leader.Name == "" {
			t.Fatalf("before a move with %s killed: %+v", kill, tb.Replicas)
		}
		for _, s := range free {
			to = s
		}
		done := make(chan result, 1)
		begin := time.Now()
		go func() {
			done <- nyala(t, "", "--masters", strings.Join(c.MasterAddresses(), ","), "tablet", "change_config", "move_replica", tb.ID, from.UUID, to.RPC)
		}()
		awaitCopying(t, to, tb.ID)
		if kill != "nobody" {
			victim := to
			if kill == "the source" {
				victim = leader
			}
			if err := c.Kill(victim.Name); err != nil {
				t.Fatal(err)
			}
			if err := c.Start(t.Context(), victim.Name); err != nil {
				t.Fatal(err)
			}
		}
		if r := <-done; r.code != 0 || !strings.Contains(r.out, "has moved from") {
			t.Fatalf("move with %s killed: exit code %d\n%s%s", kill, r.code, r.out, r.err)
		}
		t.Logf("a move with %s killed took %v, at %d rows", kill, time.Since(begin).Round(time.Millisecond), loads[0].acked.Load()+loads[1].acked.Load())
		members := map[string]bool{}
		for _, r := range onlyTablet(t, cl, tbl).Replicas {
			members[r.ServerID] = true
		}
		if len(members) != 3 || !members[to.UUID] || members[from.UUID] {
			t.Fatalf("after a move from %s to %s with %s killed the master names %v", from.UUID, to.UUID, kill, members)
		}
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkHealthy(t, c)
	rows, err := readAll(t.Context(), tbl, client.ScanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	checkRows(t, "leader", rows, loads)
	snapshot := cl.LatestTimestamp() + 1
	for _, r := range onlyTablet(t, cl, tbl).Replicas {
		rows, err := readAll(t.Context(), tbl, client.ScanOptions{
			ReadMode: client.ReadAtSnapshot, SnapshotTimestamp: snapshot, ServerID: r.ServerID,
		})
		if err != nil {
			t.Fatalf("read from %s: %v", r.ServerID, err)
		}
		checkRows(t, "server "+r.ServerID, rows, loads)
	}
	masters := strings.Join(c.MasterAddresses(), ",")
	tb := onlyTablet(t, cl, tbl)
	for _, q := range []struct{ args, want string }{
		{"add_replica " + tb.ID + " " + tb.Replicas[0].ServerID, "has a replica on " + tb.Replicas[0].Address + " already"},
		{"remove_replica " + tb.ID + " 127.0.0.1:1", "there is no tablet server"},
	} {
		r := nyala(t, "", append([]string{"--masters", masters, "tablet", "change_config"}, strings.Fields(q.args)...)...)
		if r.code != 1 || !strings.Contains(r.err, q.want) {
			t.Errorf("%s: exit code %d, %s, want %q", q.args, r.code, r.err, q.want)
		}
	}
}

// onlyTablet is the one tablet of a table, once the master knows its leader.
func onlyTablet(t *testing.T, cl *client.Client, tbl *client.Table) client.Tablet {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; pause(t, 20*time.Millisecond) {
		tablets, err := cl.Tablets(t.Context(), tbl)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range tablets[0].Replicas {
			if r.Role == client.RoleLeader {
				return tablets[0]
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("no leader is known: %+v", tablets[0])
		}
	}
}

// awaitCopying waits until a server copies a tablet and has some of it.
func awaitCopying(t *testing.T, s localcluster.Server, tablet string) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+s.RPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		resp, err := nyalav1.NewTabletAdminServiceClient(conn).ListTablets(ctx, &nyalav1.ListTabletsRequest{TabletIds: []string{tablet}})
		if err != nil {
			t.Fatalf("%s isn't seen to copy tablet %s: %v", s.Name, tablet, err)
		}
		for _, r := range resp.GetReplicas() {
			if r.GetState() == nyalav1.TabletState_TABLET_STATE_COPYING && r.GetCopiedBytes() > 0 {
				return
			}
		}
		pause(t, 5*time.Millisecond)
	}
}
