package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/localcluster"
	"github.com/nyaladb/nyala/test/binaries"
	"github.com/nyaladb/nyala/test/netproxy"
)

var binDir string

func TestMain(m *testing.M) {
	os.Exit(binaries.Run(m, &binDir))
}

// heartbeat is the servers' interval: elections take a few of them, and the tests' pauses are counted in it.
const heartbeat = 200 * time.Millisecond

// electionTime is the longest that followers wait for a silent leader before they stand: three intervals, and as much by chance.
const electionTime = 6 * heartbeat

// cluster is a cluster behind a network.
type cluster struct {
	*localcluster.Cluster
	t      *testing.T
	net    *netproxy.Net
	client *client.Client
	// names of the tablet servers, ids by name.
	names []string
	ids   map[string]string
	rnd   *rand.Rand
}

// newCluster starts a master and n tablet servers. They are ended when the test ends.
func newCluster(t *testing.T, n int, flags ...string) *cluster {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	c := &cluster{t: t, ids: map[string]string{}, rnd: rand.New(rand.NewPCG(seed, 1))}
	dir, err := os.MkdirTemp("", "nyala-chaos-")
	if err != nil {
		t.Fatal(err)
	}
	var once sync.Mutex
	var running *localcluster.Cluster
	c.net = netproxy.New(func() map[int]string {
		once.Lock()
		defer once.Unlock()
		if running == nil { // it comes up: the state file is all there is
			if running, err = localcluster.Open(localcluster.Config{Dir: dir}); err != nil {
				return nil
			}
		}
		pids := map[int]string{}
		servers, _ := running.Servers()
		for _, s := range servers {
			pids[s.Pid] = s.Name
		}
		return pids
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c.Cluster, err = localcluster.Up(ctx, localcluster.Config{
		Dir: dir, TabletServers: n, BinDir: binDir, RandomPorts: true,
		TserverFlags: append([]string{fmt.Sprintf("--raft_heartbeat_interval_ms=%d", heartbeat.Milliseconds())}, flags...),
		Advertise: func(server, rpc string) string {
			door, err := c.net.Door(server, rpc)
			if err != nil {
				t.Error(err)
			}
			return door
		},
	})
	if err != nil {
		t.Fatalf("start a cluster in %s: %v", dir, err)
	}
	t.Cleanup(func() { c.end(dir) })
	for _, s := range c.tservers() {
		c.names = append(c.names, s.Name)
		c.ids[s.Name] = s.UUID
	}
	c.client, err = client.Connect(t.Context(), client.Options{
		Masters: c.MasterAddresses(), Timeout: 30 * time.Second, AttemptTimeout: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *cluster) end(dir string) {
	c.net.Heal()
	if c.client != nil {
		_ = c.client.Close()
	}
	for _, s := range c.tservers() {
		_ = syscall.Kill(s.Pid, syscall.SIGCONT)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.t.Context()), time.Minute)
	defer cancel()
	if err := c.Down(ctx, !c.t.Failed()); err != nil {
		c.t.Errorf("stop the cluster in %s: %v", dir, err)
	}
	c.net.Close()
	if c.t.Failed() {
		c.t.Logf("the cluster's folder is kept: %s", dir)
	}
}

func (c *cluster) tservers() []localcluster.Server {
	all, err := c.Servers()
	if err != nil {
		c.t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(s localcluster.Server) bool { return s.Role != localcluster.RoleTserver })
}

// server returns a tablet server as it is now.
func (c *cluster) server(name string) localcluster.Server {
	for _, s := range c.tservers() {
		if s.Name == name {
			return s
		}
	}
	c.t.Fatalf("no server %s", name)
	return localcluster.Server{}
}

// others are the tablet servers but those named.
func (c *cluster) others(names ...string) []string {
	return slices.DeleteFunc(slices.Clone(c.names), func(n string) bool { return slices.Contains(names, n) })
}

// signal sends a signal to a server's process.
func (c *cluster) signal(name string, s syscall.Signal) {
	c.t.Helper()
	if err := syscall.Kill(c.server(name).Pid, s); err != nil {
		c.t.Fatalf("%v to %s: %v", s, name, err)
	}
}

// pause lets things go on for a while: how long is part of what is tried, nothing is waited for.
func (c *cluster) pause(d time.Duration) {
	c.t.Helper()
	select {
	case <-time.After(d):
	case <-c.t.Context().Done():
		c.t.Fatal(c.t.Context().Err())
	}
}

// until waits for a condition.
func (c *cluster) until(what string, within time.Duration, cond func() bool) {
	c.t.Helper()
	end := time.Now().Add(within)
	for !cond() {
		if time.Now().After(end) {
			c.t.Fatalf("waited %v in vain until %s", within, what)
		}
		c.pause(5 * time.Millisecond)
	}
}

// tablet is the table's only tablet.
func (c *cluster) tablet(table *client.Table) string {
	c.t.Helper()
	tablets, err := c.client.Tablets(c.t.Context(), table)
	if err != nil || len(tablets) != 1 {
		c.t.Fatalf("the tablets of %s: %v, %v", table.Name(), tablets, err)
	}
	return tablets[0].ID
}

// admin calls a server past the network: a test sees what those that are cut off see.
func (c *cluster) admin(name string, call func(context.Context, nyalav1.TabletAdminServiceClient) error) error {
	conn, err := grpc.NewClient("passthrough:///"+c.server(name).RPC, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Second)
	defer cancel()
	return call(ctx, nyalav1.NewTabletAdminServiceClient(conn))
}

// replica is a tablet's replica as its server sees it; nil: it doesn't say.
func (c *cluster) replica(name, tablet string) *nyalav1.ReplicaStatus {
	var found *nyalav1.ReplicaStatus
	_ = c.admin(name, func(ctx context.Context, admin nyalav1.TabletAdminServiceClient) error {
		answer, err := admin.ListTablets(ctx, &nyalav1.ListTabletsRequest{TabletIds: []string{tablet}})
		if len(answer.GetReplicas()) == 1 {
			found = answer.GetReplicas()[0]
		}
		return err
	})
	return found
}

// leader waits until one of the servers leads the tablet in the highest term that any of them knows.
func (c *cluster) leader(tablet string, among ...string) string {
	c.t.Helper()
	if len(among) == 0 {
		among = c.names
	}
	var leader string
	c.until(fmt.Sprintf("one of %v leads", among), 20*time.Second, func() bool {
		leader = c.leaderNow(tablet, among)
		return leader != ""
	})
	return leader
}

func (c *cluster) leaderNow(tablet string, among []string) (leader string) {
	var term uint64
	for _, name := range among {
		r := c.replica(name, tablet)
		if r.GetTerm() > term {
			leader, term = "", r.GetTerm()
		}
		if r.GetRole() == nyalav1.Role_ROLE_LEADER && r.GetTerm() == term {
			leader = name
		}
	}
	return leader
}

// length is how long faults follow one another: NYALA_CHAOS, or the short form's.
func length(t *testing.T, short time.Duration) time.Duration {
	text := os.Getenv("NYALA_CHAOS")
	if text == "" {
		return short
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("NYALA_CHAOS: %v", err)
	}
	return d
}
