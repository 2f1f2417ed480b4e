package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nyaladb/nyala/bench/rig"
	"github.com/nyaladb/nyala/client"
)

var (
	clients     = flag.Int("clients", 64, "clients that write at once")
	seconds     = flag.Int("seconds", 10, "length of one turn")
	rounds      = flag.Int("rounds", 3, "turns of each system")
	etcd        = flag.String("etcd", "", "etcd's server; empty: ours alone")
	etcdClients = flag.String("etcd_clients", "", "the program with etcd's clients")
	profiles    = flag.String("profile", "", "a folder for CPU profiles of our servers in the last turn; empty: none")
)

func main() { rig.Main(run) }

// puts is what one system has done in all turns.
type puts struct {
	PerS                   rig.Summary `json:"writes_per_s"`
	P50                    rig.Summary `json:"p50_ms"`
	P99                    rig.Summary `json:"p99_ms"`
	PerCPU                 rig.Summary `json:"writes_per_server_cpu_s"`
	perS, p50, p99, perCPU []float64
}

func (p *puts) add(name string, n, took, p50, p99 float64, used rig.Usage) {
	p.perS, p.p50, p.p99, p.perCPU = append(p.perS, n/took), append(p.p50, p50), append(p.p99, p99), append(p.perCPU, n/used.CPU())
	p.PerS, p.P50, p.P99, p.PerCPU = rig.Summarize(p.perS), rig.Summarize(p.p50), rig.Summarize(p.p99), rig.Summarize(p.perCPU)
	rig.Say("%s: %.0f writes/s, p50 %.1f ms, p99 %.1f ms; %.0f per CPU-second of the servers", name, n/took, p50, p99, n/used.CPU())
}

type result struct {
	Benchmark string  `json:"benchmark"`
	Clients   int     `json:"clients"`
	Nyala     *puts   `json:"nyala"`
	Etcd      *puts   `json:"etcd,omitempty"`
	Ratio     float64 `json:"writes_per_s_over_etcd,omitempty"`
	CPURatio  float64 `json:"writes_per_server_cpu_s_over_etcd,omitempty"`
}

func run(ctx context.Context) (_ any, err error) {
	c, err := rig.Up(ctx, 3)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	table, err := c.CreateTable(ctx, "t", 1)
	if err != nil {
		return nil, err
	}
	r := result{Benchmark: "puts", Clients: *clients, Nyala: &puts{}}
	var p *rig.Peer
	if *etcd != "" {
		r.Etcd = &puts{}
		if p, err = rig.EtcdUp(ctx, *etcd); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, p.Close()) }()
	}
	for turn := range *rounds {
		if err := ours(ctx, c, table, r.Nyala, turn == *rounds-1); err != nil {
			return nil, err
		}
		if p != nil {
			if err := theirs(ctx, p, r.Etcd); err != nil {
				return nil, err
			}
		}
	}
	if p != nil {
		r.Ratio, r.CPURatio = rig.Round(r.Nyala.PerS.Median/r.Etcd.PerS.Median), rig.Round(r.Nyala.PerCPU.Median/r.Etcd.PerCPU.Median)
	}
	return r, nil
}

var lastKey atomic.Int64

func ours(ctx context.Context, c *rig.Cluster, table *client.Table, p *puts, last bool) error {
	servers, err := c.Servers()
	if err != nil {
		return err
	}
	profiled := make(chan error, 1)
	profiled <- nil
	if last && *profiles != "" {
		tservers, err := c.Tservers()
		if err != nil {
			return err
		}
		profiled = make(chan error, 1)
		go func() { profiled <- rig.Profile(ctx, *profiles, max(1, *seconds-2), tservers) }()
	}
	before, err := rig.UsageOf(servers)
	if err != nil {
		return err
	}
	began := time.Now()
	end := began.Add(time.Duration(*seconds) * time.Second)
	var all sync.WaitGroup
	var mu sync.Mutex
	var times []float64
	var failed error
	for range *clients {
		all.Go(func() {
			s := c.Client.NewSession(client.SessionOptions{})
			var own []float64
			var err error
			for err == nil && time.Now().Before(end) {
				at := time.Now()
				if err = s.Apply(ctx, rig.Upsert(table, lastKey.Add(1))); err == nil {
					own = append(own, rig.Ms(time.Since(at)))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			times, failed = append(times, own...), errors.Join(failed, err)
		})
	}
	all.Wait()
	took := time.Since(began).Seconds()
	if failed != nil {
		return failed
	}
	after, err := rig.UsageOf(servers)
	if err != nil {
		return err
	}
	sum := rig.Summarize(times)
	p.add("Nyala", float64(len(times)), took, sum.Median, sum.P99, after.Sub(before))
	return <-profiled
}

func theirs(ctx context.Context, e *rig.Peer, p *puts) error {
	before, err := e.Usage()
	if err != nil {
		return err
	}
	out, err := e.Output(ctx, *etcdClients, e.Address, "conc", fmt.Sprint(*clients), fmt.Sprint(*seconds))
	if err != nil {
		return err
	}
	after, err := e.Usage()
	if err != nil {
		return err
	}
	var n, took, p50, p99 float64
	if _, err := fmt.Sscan(out, &n, &took, &p50, &p99); err != nil {
		return fmt.Errorf("%s printed %q: %w", *etcdClients, out, err)
	}
	p.add("etcd", n, took, p50, p99, after.Sub(before))
	return nil
}
