package rig

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/invariant"
	"github.com/nyaladb/nyala/internal/localcluster"
)

// Bin is the folder of the binaries that are measured.
var Bin = flag.String("bin", "bin", "the folder of nyala, nyala-master and nyala-tserver")

// Main runs a benchmark: fn gets a context that ends with Ctrl-C. Its result is the program's last line.
func Main(fn func(ctx context.Context) (any, error)) {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	result, err := fn(ctx)
	stop()
	if err == nil {
		err = printJSON(os.Stdout, result)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Say tells a person what is being done.
func Say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s "+format+"\n", append([]any{time.Now().Format("15:04:05")}, args...)...)
}

// Cluster is a cluster of real processes in a temporary folder.
type Cluster struct {
	*localcluster.Cluster
	Client *client.Client
	dir    string
}

// Up starts a master and tablet servers on free ports, the latter with the given flags, and connects.
func Up(ctx context.Context, tservers int, flags ...string) (*Cluster, error) {
	dir, err := os.MkdirTemp("", "nyala-bench-")
	if err != nil {
		return nil, err
	}
	if flags == nil {
		flags = []string{}
	}
	c := &Cluster{dir: dir}
	c.Cluster, err = localcluster.Up(ctx, localcluster.Config{
		Dir: dir, TabletServers: tservers, BinDir: *Bin, RandomPorts: true, TserverFlags: flags,
	})
	if err == nil {
		c.Client, err = client.Connect(ctx, client.Options{Masters: c.MasterAddresses(), Timeout: 2 * time.Minute})
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Command is the command line tool, asked of this cluster. What it says on standard error is shown, unless the caller takes it.
func (c *Cluster) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(*Bin, "nyala"), append(slices.Clone(args), "--masters", strings.Join(c.MasterAddresses(), ","))...)
	cmd.Stderr = os.Stderr
	return cmd
}

// HasFlag says whether the tablet servers that are measured know a flag.
func HasFlag(ctx context.Context, name string) bool {
	return exec.CommandContext(ctx, filepath.Join(*Bin, "nyala-tserver"), "--"+name+"=true", "--version").Run() == nil
}

// Close ends the cluster and deletes its folder.
func (c *Cluster) Close() error {
	var errs []error
	if c.Client != nil {
		errs = append(errs, c.Client.Close())
	}
	if c.Cluster != nil {
		servers, err := c.Servers()
		errs = append(errs, err)
		for _, s := range servers {
			errs = append(errs, c.Kill(s.Name))
		}
	}
	errs = append(errs, os.RemoveAll(c.dir))
	return errors.Join(errs...)
}

// Tservers returns the tablet servers as they are now.
func (c *Cluster) Tservers() ([]localcluster.Server, error) {
	all, err := c.Servers()
	if err != nil {
		return nil, err
	}
	var ts []localcluster.Server
	for _, s := range all {
		if s.Role == localcluster.RoleTserver {
			ts = append(ts, s)
		}
	}
	return ts, nil
}

// CreateTable makes a table with an INT64 key k and a STRING v, in so many hash partitions with three replicas each, and
// returns when all are led.
func (c *Cluster) CreateTable(ctx context.Context, name string, partitions int) (*client.Table, error) {
	o := client.CreateTableOptions{
		Name:       name,
		Columns:    []client.Column{{Name: "k", Type: client.Int64}, {Name: "v", Type: client.String, Nullable: true}},
		PrimaryKey: []string{"k"},
		Replicas:   3,
	}
	if partitions > 1 {
		o.Hash = []client.HashPartition{{Columns: []string{"k"}, Buckets: partitions}}
	}
	return c.Client.CreateTable(ctx, o)
}

// Upsert makes an operation that writes a row with the given key.
func Upsert(t *client.Table, key int64) *client.Operation {
	op := t.NewUpsert()
	err := errors.Join(op.Set("k", key), op.Set("v", "a value of thirty-two characters"))
	invariant.Check(err == nil, "table %s isn't CreateTable's: %v", t.Name(), err)
	return op
}

// Leader returns the id of the server that leads a table's first tablet, and of one that follows.
func (c *Cluster) Leader(ctx context.Context, t *client.Table) (leader, follower string, err error) {
	tablets, err := c.Client.Tablets(ctx, t)
	if err != nil {
		return "", "", err
	}
	l, ok := tablets[0].Leader()
	if !ok {
		return "", "", fmt.Errorf("tablet %s has no leader", tablets[0].ID)
	}
	for _, r := range tablets[0].Replicas {
		if r.ServerID != l.ServerID {
			follower = r.ServerID
		}
	}
	return l.ServerID, follower, nil
}
