package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nyaladb/nyala/bench/rig"
)

var (
	window   = flag.Duration("window", 30*time.Second, "how long each load is watched")
	loads    = flag.String("loads", "none,processes,writes,scans,all", "which to run, of these")
	rows     = flag.Int("rows", 500_000, "rows of the table that is scanned")
	interval = flag.Duration("interval", 100*time.Millisecond, "the time between two beats")
	tflags   = flag.String("tserver_flags", "", "more flags for the tablet servers, separated by blanks")
	profiles = flag.String("profile", "", "a folder for profiles and traces of the tablet servers under the last load; empty: none")
	burns    = flag.Bool("burn", false, "be one of the busy loops")
)

func main() {
	flag.Parse()
	if *burns {
		burn()
	}
	rig.Main(run)
}

// burn takes a core as far as it gets it, until its parent is gone.
func burn() {
	parent := os.Getppid()
	for n := uint32(1); ; {
		for range 1 << 24 {
			n = n*1664525 + 1013904223
		}
		if os.Getppid() != parent || n == 1 {
			os.Exit(0)
		}
	}
}

// delays are those of one kind of message under one load, in milliseconds. They come from a histogram, so that between its bounds
// they are as exact as Prometheus' own quantiles.
type delays struct {
	N     float64 `json:"n"`
	P50   float64 `json:"p50_ms"`
	P99   float64 `json:"p99_ms"`
	P999  float64 `json:"p99_9_ms"`
	Above float64 `json:"above_200_ms"` // how many
}

type loaded struct {
	Beats      delays  `json:"beats"`
	Heartbeats delays  `json:"heartbeat_round_trips"`
	QueueMiB   float64 `json:"largest_data_queue_mib"`
	CPU        float64 `json:"servers_cpu_percent_of_core"`
	Elections  float64 `json:"elections"`
}

type result struct {
	Benchmark string             `json:"benchmark"`
	Cores     int                `json:"cores"`
	Loads     map[string]*loaded `json:"loads"`
}

func run(ctx context.Context) (_ any, err error) {
	ms := int(interval.Milliseconds())
	// A server is silent after as long as by default.
	flags := []string{
		fmt.Sprintf("--raft_heartbeat_interval_ms=%d", ms), fmt.Sprintf("--leader_failure_max_missed_heartbeat_periods=%d", 1500/ms),
		fmt.Sprintf("--multi_raft_heartbeat_window_ms=%d", min(100, ms/2)),
	}
	c, err := rig.Up(ctx, 3, append(flags, strings.Fields(*tflags)...)...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	table, err := newTable(ctx, c)
	if err != nil {
		return nil, err
	}
	r := result{Benchmark: "beats", Cores: runtime.NumCPU(), Loads: map[string]*loaded{}}
	names := strings.Split(*loads, ",")
	for i, name := range names {
		if r.Loads[name], err = measure(ctx, c, name, table, i == len(names)-1); err != nil {
			return nil, fmt.Errorf("load %s: %w", name, err)
		}
		l := r.Loads[name]
		rig.Say("%s: beats p50 %.1f, p99 %.0f, p99.9 %.0f ms (%.0f of %.0f over 200); heartbeats p99.9 %.0f ms; servers %.0f %% of a core", name,
			l.Beats.P50, l.Beats.P99, l.Beats.P999, l.Beats.Above, l.Beats.N, l.Heartbeats.P999, l.CPU)
	}
	return r, nil
}

// nyala runs the command line tool, which waits a minute: servers are slow here.
func nyala(ctx context.Context, c *rig.Cluster, args ...string) *exec.Cmd {
	return c.Command(ctx, append(args, "--timeout=1m")...)
}

// newTable makes the table that is scanned, and returns its name.
func newTable(ctx context.Context, c *rig.Cluster) (string, error) {
	out, err := nyala(ctx, c, "perf", "loadgen", fmt.Sprintf("--num_rows_per_thread=%d", *rows/2), "--table_num_replicas=3", "--keep_auto_table", "--format=json").Output()
	if err != nil {
		return "", err
	}
	var made struct{ Table string }
	err = json.Unmarshal(out, &made)
	return made.Table, err
}

// start starts a load. It goes on until ctx ends; loads counts its goroutines.
func start(ctx context.Context, running *sync.WaitGroup, c *rig.Cluster, load, table string) error {
	again := func(cmd func() *exec.Cmd) {
		running.Go(func() {
			for ctx.Err() == nil {
				if err := cmd().Run(); err != nil && ctx.Err() == nil {
					rig.Say("%s: %v", load, err)
				}
			}
		})
	}
	switch load {
	case "none":
	case "processes":
		self, err := os.Executable()
		if err != nil {
			return err
		}
		for range 2 * runtime.NumCPU() {
			again(func() *exec.Cmd {
				cmd := exec.CommandContext(ctx, self, "-burn")
				// A session of its own, as servers have: systems that share processors out by session treat both alike.
				cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
				return cmd
			})
		}
	case "writes":
		for range 2 {
			again(func() *exec.Cmd {
				return nyala(ctx, c, "perf", "loadgen", "--num_threads=4", "--num_rows_per_thread=100000", "--string_len=4000", "--table_num_replicas=3")
			})
		}
	case "scans":
		for range 2 {
			again(func() *exec.Cmd { return nyala(ctx, c, "perf", "table_scan", table) })
		}
	case "all":
		return errors.Join(start(ctx, running, c, "processes", table), start(ctx, running, c, "writes", table), start(ctx, running, c, "scans", table))
	default:
		return fmt.Errorf("-loads: %q is none of none, processes, writes, scans, all", load)
	}
	return nil
}

// measure watches the servers under one load.
func measure(ctx context.Context, c *rig.Cluster, load, table string, last bool) (*loaded, error) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	if err := start(ctx, &running, c, load, table); err != nil {
		return nil, err
	}
	servers, err := c.Tservers()
	if err != nil {
		return nil, err
	}
	if err := rig.Pause(ctx, 3*time.Second); err != nil { // until the load is there
		return nil, err
	}
	if last && *profiles != "" {
		running.Go(func() {
			if err := rig.Profile(ctx, *profiles, 5, servers); err != nil {
				rig.Say("profile: %v", err)
			}
		})
	}
	used, err := rig.UsageOf(servers)
	if err != nil {
		return nil, err
	}
	before, err := rig.MetricsOf(ctx, servers)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	l := &loaded{}
	for time.Since(began) < *window {
		if err := rig.Pause(ctx, 2*time.Second); err != nil {
			return nil, err
		}
		now, err := rig.MetricsOf(ctx, servers)
		if err != nil {
			return nil, err
		}
		l.QueueMiB = max(l.QueueMiB, rig.Round(now[`peer_queue_bytes{channel="data"}`]/(1<<20)))
	}
	after, err := rig.MetricsOf(ctx, servers)
	if err != nil {
		return nil, err
	}
	usedAfter, err := rig.UsageOf(servers)
	if err != nil {
		return nil, err
	}
	l.CPU = rig.Round(100 * usedAfter.Sub(used).CPU() / time.Since(began).Seconds())
	counted := after.Sub(before)
	l.Beats, l.Heartbeats = delaysOf(counted, "peer_beat_delay_seconds"), delaysOf(counted, "raft_heartbeat_round_trip_seconds")
	l.Elections = counted.Sum("raft_elections_begun_total")
	return l, nil
}

func delaysOf(m rig.Metrics, name string) delays {
	b := m.Buckets(name)
	if len(b) == 0 || b[len(b)-1].Count == 0 {
		return delays{}
	}
	n := b[len(b)-1].Count
	i := slices.IndexFunc(b, func(b rig.Bucket) bool { return b.Le >= 0.2 })
	ms := func(q float64) float64 { return rig.Round(1000 * rig.Quantile(b, q)) }
	return delays{N: n, P50: ms(0.5), P99: ms(0.99), P999: ms(0.999), Above: n - b[i].Count}
}
