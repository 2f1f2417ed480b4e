package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nyaladb/nyala/bench/rig"
	"github.com/nyaladb/nyala/client"
)

var (
	writers = flag.String("writers", "1,4,16,64", "numbers of writers of the curve")
	seconds = flag.Float64("seconds", 5, "length of one measurement")
	pairs   = flag.Int("pairs", 7, "turns with the push on and off; 0: leave that out")
)

func main() { rig.Main(run) }

type point struct {
	Writers           int                `json:"writers"`
	PerSecond         float64            `json:"writes_per_s"`
	P50               float64            `json:"p50_ms"`
	MessagesPerCommit float64            `json:"messages_per_commit"`
	ByKind            map[string]float64 `json:"messages_per_commit_by_kind"`
	CPUPerWrite       float64            `json:"server_cpu_ms_per_write"`
}

type result struct {
	Benchmark string  `json:"benchmark"`
	Curve     []point `json:"curve"`
	// PushOn and PushOff are CPU per write in ms; Ratio is the median of the pairs' ratios.
	PushOn  rig.Summary `json:"push_on_cpu_ms_per_write"`
	PushOff rig.Summary `json:"push_off_cpu_ms_per_write"`
	Ratio   float64     `json:"push_cpu_ratio"`
	Note    string      `json:"note,omitempty"`
}

func run(ctx context.Context) (_ any, err error) {
	on, err := start(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, on.Close()) }()
	r := result{Benchmark: "writers"}
	if _, err := on.load(ctx, 16); err != nil { // warms up
		return nil, err
	}
	for _, text := range strings.Split(*writers, ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			return nil, fmt.Errorf("-writers: %w", err)
		}
		p, err := on.load(ctx, n)
		if err != nil {
			return nil, err
		}
		rig.Say("%d writers: %.0f writes/s, %.2f messages and %.3f ms of CPU a write", n, p.PerSecond, p.MessagesPerCommit, p.CPUPerWrite)
		r.Curve = append(r.Curve, p)
	}
	if *pairs == 0 {
		return r, nil
	}
	if !rig.HasFlag(ctx, "raft_push_commit_index") {
		r.Note = "these binaries have no --raft_push_commit_index"
		return r, nil
	}
	off, err := start(ctx, "--raft_push_commit_index=false")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, off.Close()) }()
	var ons, offs, ratios []float64
	for i := range *pairs + 1 {
		a, err := on.load(ctx, 64)
		if err != nil {
			return nil, err
		}
		b, err := off.load(ctx, 64)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			continue // warms up
		}
		ons, offs, ratios = append(ons, a.CPUPerWrite), append(offs, b.CPUPerWrite), append(ratios, a.CPUPerWrite/b.CPUPerWrite)
	}
	r.PushOn, r.PushOff, r.Ratio = rig.Summarize(ons), rig.Summarize(offs), rig.Round(rig.Median(ratios))
	return r, nil
}

// loaded is a cluster with a table of one tablet.
type loaded struct {
	*rig.Cluster
	table *client.Table
	key   atomic.Int64
}

func start(ctx context.Context, flags ...string) (*loaded, error) {
	c, err := rig.Up(ctx, 3, flags...)
	if err != nil {
		return nil, err
	}
	table, err := c.CreateTable(ctx, "t", 1)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &loaded{Cluster: c, table: table}, nil
}

// load has n writers write for a while.
func (l *loaded) load(ctx context.Context, n int) (point, error) {
	servers, err := l.Tservers()
	if err != nil {
		return point{}, err
	}
	before, err := rig.MetricsOf(ctx, servers)
	if err != nil {
		return point{}, err
	}
	usage, err := rig.UsageOf(servers)
	if err != nil {
		return point{}, err
	}
	began := time.Now()
	end := began.Add(time.Duration(*seconds * float64(time.Second)))
	var all sync.WaitGroup
	var mu sync.Mutex
	var times []float64
	var failed error
	for range n {
		all.Go(func() {
			s := l.Client.NewSession(client.SessionOptions{})
			var own []float64
			var err error
			for err == nil && time.Now().Before(end) {
				at := time.Now()
				if err = s.Apply(ctx, rig.Upsert(l.table, l.key.Add(1))); err == nil {
					own = append(own, rig.Ms(time.Since(at)))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			times = append(times, own...)
			failed = errors.Join(failed, err)
		})
	}
	all.Wait()
	took := time.Since(began)
	if failed != nil {
		return point{}, failed
	}
	after, err := rig.MetricsOf(ctx, servers)
	if err != nil {
		return point{}, err
	}
	used, err := rig.UsageOf(servers)
	if err != nil {
		return point{}, err
	}
	writes := float64(len(times))
	p := point{
		Writers: n, PerSecond: rig.Round(writes / took.Seconds()), P50: rig.Round(rig.Median(times)),
		CPUPerWrite: rig.Round(1000 * used.Sub(usage).CPU() / writes), ByKind: map[string]float64{},
	}
	sent := after.Sub(before)
	p.MessagesPerCommit = rig.Round(sent.Sum("raft_server_messages_total") / writes)
	for kind, v := range sent.ByLabel("raft_server_messages_total") {
		if v > 0 {
			p.ByKind[kind] = rig.Round(v / writes)
		}
	}
	return p, nil
}
