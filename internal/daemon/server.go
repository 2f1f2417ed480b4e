package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/consensus"
	"github.com/nyaladb/nyala/internal/daemon/buildinfo"
	"github.com/nyaladb/nyala/internal/fs"
	"github.com/nyaladb/nyala/internal/replica"
	"github.com/nyaladb/nyala/internal/rpc"
)

// injectLatencyFlag may be changed while the daemon runs.
const injectLatencyFlag = "log_inject_latency_ms_mean"

// stepDownTimeout bounds the handing over of leaderships at a stop that was asked for.
const stepDownTimeout = 5 * time.Second

// Role is what a server does beside what every server does.
type Role interface {
	// Run works until ctx ends.
	Run(ctx context.Context) error
	// Ready says whether the server may be given work, and if not, why.
	Ready() (bool, string)
}

// Serve runs a server of the given role, in a cluster with these masters: web port, folders, node, and what role makes of the
// node. The node's services and pages may be registered in role, which is called before anything is answered.
func (c *Common) Serve(ctx context.Context, env *Environment, kind fs.Role, masters []string, node replica.NodeConfig,
	role func(n *replica.Node, w *Web, logger *slog.Logger) (Role, error),
) error {
	health := &Health{}
	web := c.WebConfig()
	web.Title, web.Metrics, web.Flags, web.Health, web.Logger = "nyala-"+string(kind), env.Registry, env.Flags, health, env.Logger
	w, err := NewWeb(web)
	if err != nil {
		return err
	}
	if err := w.Listen(); err != nil {
		return CantStart(err)
	}
	defer w.Close()

	c.completeNodeConfig(&node, env, kind, masters)
	if node.Memory, err = c.limitMemory(env, &node); err != nil {
		return CantStart(err)
	}
	defer node.Memory.Close()
	health.AddNote("memory", node.Memory.Note)
	node.RPC.WebAddress = w.Address
	if err := c.chooseTimeSource(ctx, env, &node); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return CantStart(err)
	}
	var latency atomic.Int64
	delay := func() error { latency.Store(int64(c.InjectLogLatency)); return nil }
	_ = delay() // which doesn't fail
	node.WAL.InjectLatency = func() time.Duration { return time.Duration(latency.Load()) }
	env.Flags.OnChange(injectLatencyFlag, delay)
	n, err := replica.OpenNode(node)
	if err != nil {
		return CantStart(err)
	}
	env.Flags.OnChange(metricsLevelFlag, func() error { w.SetMetricsLevel(c.metricsLevel()); return nil })
	env.Flags.OnChange(sampleEveryFlag, func() error { return n.RPC.SetSampleEveryLog2(c.RPCLimits.SampleEveryLog2) })
	if err := w.advertise(n.Addresses()[0]); err != nil {
		return errors.Join(CantStart(err), n.Close())
	}
	n.SetWebAddresses(w.AdvertisedAddresses())
	env.Registry.MustRegister(&diskCollector{folders: c.folders()})
	r, err := role(n, w, env.Logger)
	if err != nil {
		return errors.Join(err, n.Close())
	}
	health.AddReady("replicas", notReady(n.Replicas.Ready))
	health.AddReady("role", notReady(r.Ready))
	// A server whose clock can't be trusted is alive: it follows and waits. A restart would not mend the clock.
	health.AddNote("clock", n.ClockTrouble)
	health.AddReady("clock", notReady(func() (bool, string) { why := n.ClockTrouble(); return why == "", why }))
	n.SetReady(r.Ready)
	w.AddCalls(n.RPC.Calls)
	w.AddSection(nodeSection(n))
	w.AddSection(replicaSection(n))
	w.AddPage(tabletPath, tabletPage(n))

	env.Logger.Info("starting", "role", string(kind), "server_id", string(n.ServerID()), "rpc", n.Addresses(), "web", w.Address(),
		"version", buildinfo.Get().String())
	g := Group{Logger: env.Logger}
	g.Add(Part{Name: "web", Run: w.Run})
	g.Add(Part{Name: "server", Run: func(ctx context.Context) error {
		defer health.SetStopping()
		if err := n.AwaitClock(ctx); err != nil {
			if ctx.Err() != nil {
				return n.Close()
			}
			return errors.Join(CantStart(err), n.Close())
		}
		return n.Run(ctx, r.Run)
	}})
	return g.Run(ctx)
}

func notReady(ready func() (bool, string)) Check {
	return func(context.Context) error {
		if ok, why := ready(); !ok {
			return errors.New(why)
		}
		return nil
	}
}

// completeNodeConfig fills in what the common flags say.
func (c *Common) completeNodeConfig(n *replica.NodeConfig, env *Environment, kind fs.Role, masters []string) {
	n.FS = fs.Config{WALDir: c.WALDir, DataDirs: c.DataDirs, Role: kind, Logger: env.Logger}
	n.RPC = c.ServerConfig()
	n.Peers = c.PeerConfig()
	n.AdvertisedAddresses = c.RPCAdvertisedAddresses
	n.Clock = c.ClockConfig(masters)
	n.MockOffset = c.MockClockOffset
	n.Consensus = consensus.DefaultConfig()
	n.Consensus.HeartbeatInterval = c.HeartbeatInterval
	n.Consensus.MaxMissedHeartbeats = int(c.MaxMissedHeartbeats)
	n.Consensus.PreElection = c.PreElection
	n.Consensus.PushCommit = c.PushCommitIndex
	n.Consensus.BatchHeartbeats, n.Consensus.HeartbeatWindow, n.Consensus.HeartbeatBatch = c.HeartbeatBatcher, c.HeartbeatWindow, c.HeartbeatBatch
	n.Consensus.Quiesce, n.Consensus.ServerLiveness = c.QuiesceIdleTablets, c.ServerLiveness
	c.LogRetention.configure(&n.Consensus)
	n.StepDownTimeout = stepDownTimeout
	n.Version = buildinfo.Get().String()
	n.Logger, n.Registerer = env.Logger, env.Registry
}

func nodeSection(n *replica.Node) Section {
	return Section{Title: "Identity", Order: 1, Table: func(context.Context) (Table, error) {
		cluster := string(n.ClusterID())
		if cluster == "" {
			cluster = "none so far"
		}
		return Table{Rows: [][]Cell{
			TextRow("server", string(n.ServerID())),
			TextRow("cluster", cluster),
			TextRow("RPC", strings.Join(n.Addresses(), ", ")),
			TextRow("starts", fmt.Sprint(n.Incarnation())),
			TextRow("hybrid clock", n.Clock.Latest().String()),
			TextRow("clock", cmp.Or(n.ClockTrouble(), "gives timestamps out")),
		}}, nil
	}}
}

// maxReplicasShown bounds the table of replicas on the index page.
const maxReplicasShown = 1000

func replicaSection(n *replica.Node) Section {
	return Section{Title: "Replicas", Order: 2, Table: func(context.Context) (Table, error) {
		t := Table{Header: []string{"table", "tablet", "state", "role", "term", "committed", "applied", "error"}}
		all := n.Replicas.Statuses()
		slices.SortStableFunc(all, func(a, b *nyalav1.ReplicaStatus) int { return cmp.Compare(a.GetTableName(), b.GetTableName()) })
		for i, s := range all {
			if i == maxReplicasShown {
				t.Rows = append(t.Rows, TextRow("…", "more than are shown here", "", "", "", "", "", ""))
				break
			}
			row := TextRow(s.GetTableName(), s.GetTabletId(), replica.StateName(s.GetState()), replica.RoleName(s.GetRole()),
				fmt.Sprint(s.GetTerm()), fmt.Sprint(s.GetCommitIndex()), fmt.Sprint(s.GetAppliedIndex()), s.GetError())
			row[1].Link = TabletPage(s.GetTabletId())
			t.Rows = append(t.Rows, row)
		}
		return t, nil
	}}
}

// RegisterStorage declares the flags of a node's WAL and store; what n holds is the defaults.
func (c *Common) RegisterStorage(f *Flags, n *replica.NodeConfig) {
	g := f.Group("Storage")
	g.Int64(&n.WAL.ReservedBytes, "fs_wal_dir_reserved_bytes", "free space that the write-ahead log leaves on its disk; -1: 1 % of the disk", AtLeast(-1))
	g.Duration(&c.InjectLogLatency, time.Millisecond, injectLatencyFlag, "how much longer each sync of the write-ahead log takes, as on a slow disk: for tests",
		Tagged(Hidden, Unsafe, Runtime), Between(0, 60_000))
	g.Int64(&n.WAL.CacheBytes, "log_cache_size_limit_bytes", "memory for recent log entries", Tagged(Advanced), AtLeast(1<<20))
	g.Int64(&n.Tablet.CacheBytes, "block_cache_capacity_bytes", "memory for blocks of the store", AtLeast(1<<20))
	g.Int64(&n.Tablet.MemtableBytes, "memtable_size_bytes", "row versions gathered in memory before they are written to a file", Tagged(Advanced), AtLeast(1<<20))
	g.Duration(&n.Tablet.RememberResponsesTTL, time.Millisecond, "remember_responses_ttl_ms",
		"how long the answer to a write is remembered, so that the same write sent again is not applied twice", Tagged(Advanced), AtLeast(1000))
	g.Duration(&n.Tablet.RememberClientsTTL, time.Millisecond, "remember_clients_ttl_ms",
		"how long a client is remembered after its last write", Tagged(Advanced), AtLeast(1000))
}

// JoinAddresses returns host:port for each address of a flag that lists them.
func JoinAddresses(list []string, defaultPort int) ([]string, error) {
	var out []string
	for _, s := range list {
		a, err := rpc.ParseAddresses(s, defaultPort)
		if err != nil {
			return nil, err
		}
		out = append(out, a...)
	}
	return out, nil
}
