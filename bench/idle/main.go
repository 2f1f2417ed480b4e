package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/nyaladb/nyala/bench/rig"
	"github.com/nyaladb/nyala/internal/localcluster"
)

var (
	tablets  = flag.Int("tablets", 2000, "tablets, with three replicas each")
	tservers = flag.Int("tservers", 4, "tablet servers")
	window   = flag.Duration("window", time.Minute, "how long the idle cluster is watched")
	settle   = flag.Duration("settle", 20*time.Second, "how long it is left alone before")
	modes    = flag.String("modes", "all_on,no_quiescence,both_off", "which to run, of these three")
	base     = flag.Int("base", 20, "tablets of the run that memory is compared with; 0: leave that out")
)

// flagsOf are the tablet servers' flags in each mode.
var flagsOf = map[string][]string{
	"all_on":        nil,
	"no_quiescence": {"--raft_quiesce_idle_tablets=false"},
	"both_off":      {"--raft_quiesce_idle_tablets=false", "--enable_multi_raft_heartbeat_batcher=false"},
}

func main() { rig.Main(run) }

// measured is one mode's result. Counts are of all tablet servers, in the window.
type measured struct {
	CreateSeconds float64            `json:"create_s"`
	WindowSeconds float64            `json:"window_s"`
	CPUUtimeMs    float64            `json:"cpu_utime"`
	CPUStimeMs    float64            `json:"cpu_stime"`
	Heartbeats    float64            `json:"no_op_heartbeat_count"`
	Batches       float64            `json:"heartbeat_batch_count"`
	PerBatch      float64            `json:"heartbeats_per_batch"`
	PercentOfCore float64            `json:"cpu_percent_of_core"`
	SwitchesPerS  float64            `json:"context_switches_per_s"`
	BetweenPerS   float64            `json:"frames_between_tservers_per_s"`
	MessagesPerS  map[string]float64 `json:"raft_messages_per_s"`
	Elections     float64            `json:"elections"`
	QuietGroups   float64            `json:"quiet_groups"`
	RSSMiB        float64            `json:"rss_mib"`
	RSSPerReplica float64            `json:"rss_kib_per_replica,omitempty"`
	MasterCPUMs   float64            `json:"master_cpu_ms"`
	Note          string             `json:"note,omitempty"`
}

type result struct {
	Benchmark string               `json:"benchmark"`
	Tablets   int                  `json:"tablets"`
	Tservers  int                  `json:"tservers"`
	BaseRSS   float64              `json:"base_rss_mib,omitempty"`
	Modes     map[string]*measured `json:"modes"`
}

func run(ctx context.Context) (any, error) {
	r := result{Benchmark: "idle", Tablets: *tablets, Tservers: *tservers, Modes: map[string]*measured{}}
	if *base > 0 {
		m, err := measure(ctx, "all_on", *base)
		if err != nil {
			return nil, err
		}
		r.BaseRSS = m.RSSMiB
	}
	for _, mode := range strings.Split(*modes, ",") {
		if _, ok := flagsOf[mode]; !ok {
			return nil, fmt.Errorf("-modes: %q is none of all_on, no_quiescence, both_off", mode)
		}
		m, err := measure(ctx, mode, *tablets)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", mode, err)
		}
		if r.BaseRSS > 0 && *tablets > *base {
			m.RSSPerReplica = rig.Round((m.RSSMiB - r.BaseRSS) * 1024 / float64(3*(*tablets-*base)))
		}
		r.Modes[mode] = m
	}
	return r, nil
}

// snapshot is how servers stand at a moment.
type snapshot struct {
	at              time.Time
	usage, master   rig.Usage
	metrics, mstats rig.Metrics
}

func measure(ctx context.Context, mode string, n int) (_ *measured, err error) {
	rig.Say("%s: %d tablets on %d servers", mode, n, *tservers)
	m := &measured{}
	var flags []string
	for _, f := range flagsOf[mode] {
		name, _, _ := strings.Cut(strings.TrimPrefix(f, "--"), "=")
		if rig.HasFlag(ctx, name) {
			flags = append(flags, f)
		} else {
			m.Note = strings.TrimPrefix(m.Note+"; these binaries have no --"+name, "; ")
		}
	}
	c, err := rig.Up(ctx, *tservers, flags...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	all, took, err := c.CreateTablets(ctx, n)
	if err != nil {
		return nil, err
	}
	if err := c.WriteEach(ctx, all); err != nil {
		return nil, err
	}
	if err := rig.Pause(ctx, *settle); err != nil {
		return nil, err
	}
	rig.Say("idle for %v", *window)
	before, err := look(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := rig.Pause(ctx, *window); err != nil {
		return nil, err
	}
	after, err := look(ctx, c)
	if err != nil {
		return nil, err
	}
	m.fill(before, after, took)
	return m, nil
}

// fill computes what happened between two looks.
func (m *measured) fill(before, after *snapshot, took time.Duration) {
	seconds := after.at.Sub(before.at).Seconds()
	used, counted := after.usage.Sub(before.usage), after.metrics.Sub(before.metrics)
	master := after.mstats.Sub(before.mstats)
	m.CreateSeconds, m.WindowSeconds = rig.Round(took.Seconds()), rig.Round(seconds)
	m.CPUUtimeMs, m.CPUStimeMs = rig.Round(1000*used.UserSeconds), rig.Round(1000*used.SystemSeconds)
	m.PercentOfCore = rig.Round(100 * used.CPU() / seconds)
	m.SwitchesPerS = rig.Round((used.Voluntary + used.Involuntary) / seconds)
	m.RSSMiB = rig.Round(after.usage.RSSBytes / (1 << 20))
	m.MasterCPUMs = rig.Round(1000 * after.master.Sub(before.master).CPU())
	m.Heartbeats, m.Batches = counted.Sum("no_op_heartbeat_count"), counted.Sum("heartbeat_batch_count")
	if m.Batches > 0 {
		m.PerBatch = rig.Round(m.Heartbeats / m.Batches)
	}
	m.Elections = counted.Sum("raft_elections_begun_total")
	m.QuietGroups = after.metrics.Sum("raft_quiet_groups")
	// What tablet servers send, less what the master gets of it.
	sent := func(x rig.Metrics, direction string) (n float64) {
		for _, channel := range []string{"control", "data"} {
			n += x[fmt.Sprintf("peer_batches_total{channel=%q,direction=%q}", channel, direction)]
		}
		return n
	}
	m.BetweenPerS = rig.Round((sent(counted, "sent") - sent(master, "received")) / seconds)
	m.MessagesPerS = counted.ByLabel("raft_server_messages_total")
	maps.DeleteFunc(m.MessagesPerS, func(_ string, v float64) bool { return v == 0 })
	for kind, v := range m.MessagesPerS {
		m.MessagesPerS[kind] = rig.Round(v / seconds)
	}
}

func look(ctx context.Context, c *rig.Cluster) (*snapshot, error) {
	servers, err := c.Servers()
	if err != nil {
		return nil, err
	}
	var ts, masters []localcluster.Server
	for _, s := range servers {
		if s.Role == localcluster.RoleTserver {
			ts = append(ts, s)
		} else {
			masters = append(masters, s)
		}
	}
	s := &snapshot{at: time.Now()}
	if s.usage, err = rig.UsageOf(ts); err != nil {
		return nil, err
	}
	if s.master, err = rig.UsageOf(masters); err != nil {
		return nil, err
	}
	if s.metrics, err = rig.MetricsOf(ctx, ts); err != nil {
		return nil, err
	}
	s.mstats, err = rig.MetricsOf(ctx, masters)
	return s, err
}
