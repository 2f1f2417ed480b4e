package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/nyaladb/nyala/bench/rig"
)

var (
	rounds   = flag.Int("rounds", 3, "turns of each system")
	threads  = flag.Int("threads", 2, "threads that insert")
	rows     = flag.Int("rows", 1_000_000, "rows that each thread inserts")
	kuduHome = flag.String("kudu", "", "a folder with Kudu's binaries; empty: ours alone")
	profiles = flag.String("profile", "", "a folder for CPU profiles of our servers in the last turn; empty: none")
	seconds  = flag.Int("profile_seconds", 5, "how long they are")
	extra    = flag.String("loadgen_flags", "", "more flags for both tools, separated by blanks: --use_random_pk")
	tflags   = flag.String("tserver_flags", "", "flags for our tablet servers, separated by blanks")
)

func main() { rig.Main(run) }

// load is what one system has done in all turns.
type load struct {
	RowsPerS     rig.Summary `json:"rows_per_s"`
	RowsPerCPU   rig.Summary `json:"rows_per_server_cpu_s"`
	rate, perCPU []float64
}

func (l *load) add(name string, n, rate float64, used rig.Usage) {
	l.rate, l.perCPU = append(l.rate, rate), append(l.perCPU, n/used.CPU())
	l.RowsPerS, l.RowsPerCPU = rig.Summarize(l.rate), rig.Summarize(l.perCPU)
	rig.Say("%s: %.0f rows/s; servers: %.2f s user, %.2f s system, %.0f rows per CPU-second", name, rate, used.UserSeconds,
		used.SystemSeconds, n/used.CPU())
}

type result struct {
	Benchmark    string  `json:"benchmark"`
	Rows         int     `json:"rows"`
	Nyala        *load   `json:"nyala"`
	KuduSynced   *load   `json:"kudu_synced,omitempty"`
	KuduUnsynced *load   `json:"kudu_unsynced,omitempty"`
	Ratio        float64 `json:"rows_per_server_cpu_s_over_kudu_synced,omitempty"`
}

func run(ctx context.Context) (_ any, err error) {
	ours, err := rig.Up(ctx, 3, strings.Fields(*tflags)...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, ours.Close()) }()
	r := result{Benchmark: "loadgen", Rows: *threads * *rows, Nyala: &load{}}
	var synced, unsynced *rig.Peer
	if *kuduHome != "" {
		r.KuduSynced, r.KuduUnsynced = &load{}, &load{}
		if synced, err = rig.KuduUp(ctx, *kuduHome, "--log_force_fsync_all=true"); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, synced.Close()) }()
		if unsynced, err = rig.KuduUp(ctx, *kuduHome); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, unsynced.Close()) }()
	}
	for turn := range *rounds {
		if err := nyala(ctx, ours, r.Nyala, turn == *rounds-1); err != nil {
			return nil, err
		}
		if *kuduHome == "" {
			continue
		}
		if err := errors.Join(kudu(ctx, synced, "Kudu, synced", r.KuduSynced), kudu(ctx, unsynced, "Kudu, not synced", r.KuduUnsynced)); err != nil {
			return nil, err
		}
	}
	if *kuduHome != "" {
		r.Ratio = rig.Round(r.Nyala.RowsPerCPU.Median / r.KuduSynced.RowsPerCPU.Median)
	}
	return r, nil
}

// options are those that both tools have.
func options() []string {
	return append([]string{fmt.Sprintf("--num_threads=%d", *threads), fmt.Sprintf("--num_rows_per_thread=%d", *rows), "--table_num_replicas=3"}, strings.Fields(*extra)...)
}

func nyala(ctx context.Context, c *rig.Cluster, l *load, last bool) error {
	servers, err := c.Servers()
	if err != nil {
		return err
	}
	var profiled chan error
	if last && *profiles != "" {
		tservers, err := c.Tservers()
		if err != nil {
			return err
		}
		profiled = make(chan error, 1)
		go func() { profiled <- rig.Profile(ctx, *profiles, *seconds, tservers) }()
	}
	before, err := rig.UsageOf(servers)
	if err != nil {
		return err
	}
	cmd := c.Command(ctx, append([]string{"perf", "loadgen", "--format=json"}, options()...)...)
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	after, err := rig.UsageOf(servers)
	if err != nil {
		return err
	}
	var report struct {
		Rows     float64 `json:"rows"`
		RowsPerS float64 `json:"rows_per_s"`
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return fmt.Errorf("nyala perf loadgen printed %q: %w", out, err)
	}
	l.add("Nyala", report.Rows, report.RowsPerS, after.Sub(before))
	if profiled != nil {
		return <-profiled
	}
	return nil
}

var timeTotal = regexp.MustCompile(`time total: ([0-9.]+) ms`)

func kudu(ctx context.Context, p *rig.Peer, name string, l *load) error {
	before, err := p.Usage()
	if err != nil {
		return err
	}
	args := append([]string{"perf", "loadgen", p.Address, "--table_num_hash_partitions=8"}, options()...)
	out, err := p.Output(ctx, filepath.Join(*kuduHome, "bin", "kudu"), args...)
	if err != nil {
		return err
	}
	after, err := p.Usage()
	if err != nil {
		return err
	}
	m := timeTotal.FindStringSubmatch(out)
	if m == nil {
		return fmt.Errorf("kudu perf loadgen doesn't say how long it took: %s", out)
	}
	ms, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return err
	}
	n := float64(*threads * *rows)
	l.add(name, n, n/ms*1000, after.Sub(before))
	return nil
}
