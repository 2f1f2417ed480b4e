package e2e

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/localcluster"
	"github.com/nyaladb/nyala/test/binaries"
)

// binDir holds nyala, nyala-master and nyala-tserver for all tests.
var binDir string

func TestMain(m *testing.M) {
	os.Exit(binaries.Run(m, &binDir))
}

// newCluster starts one master and n tablet servers on free ports. They are stopped when the test ends.
func newCluster(t *testing.T, n int, flags ...string) *localcluster.Cluster {
	t.Helper()
	dir, err := os.MkdirTemp("", "nyala-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	c, err := localcluster.Up(ctx, localcluster.Config{
		Dir: dir, TabletServers: n, BinDir: binDir, RandomPorts: true, TserverFlags: flags,
	})
	if err != nil {
		t.Fatalf("start a cluster in %s: %v", dir, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 60*time.Second)
		defer cancel()
		if err := c.Down(ctx, !t.Failed()); err != nil {
			t.Errorf("stop the cluster in %s: %v", dir, err)
		}
		if t.Failed() {
			t.Logf("the cluster's folder is kept: %s", dir)
		}
	})
	return c
}

func connect(t *testing.T, c *localcluster.Cluster) *client.Client {
	t.Helper()
	cl, err := client.Connect(t.Context(), client.Options{Masters: c.MasterAddresses(), Timeout: time.Minute, AttemptTimeout: 5 * time.Second})
	if err != nil {
		t.Fatalf("connect to %v: %v", c.MasterAddresses(), err)
	}
	t.Cleanup(func() { cl.Close() })
	return cl
}

// numbersTable is a small table: key id, and a string made from it.
func numbersTable(t *testing.T, cl *client.Client, name string, buckets, replicas int) *client.Table {
	t.Helper()
	var hash []client.HashPartition
	if buckets > 1 {
		hash = append(hash, client.HashPartition{Columns: []string{"id"}, Buckets: buckets})
	}
	tbl, err := cl.CreateTable(t.Context(), client.CreateTableOptions{
		Name: name,
		Columns: []client.Column{
			{Name: "id", Type: client.Int64},
			{Name: "name", Type: client.String, Nullable: true},
		},
		PrimaryKey: []string{"id"},
		Hash:       hash,
		Replicas:   replicas,
	})
	if err != nil {
		t.Fatalf("create table %s: %v", name, err)
	}
	return tbl
}

// tabletServers returns the names of the cluster's tablet servers.
func tabletServers(t *testing.T, c *localcluster.Cluster) []localcluster.Server {
	t.Helper()
	all, err := c.Servers()
	if err != nil {
		t.Fatal(err)
	}
	var ts []localcluster.Server
	for _, s := range all {
		if s.Role == localcluster.RoleTserver {
			ts = append(ts, s)
		}
	}
	return ts
}
