package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nyaladb/nyala/bench/rig"
)

const (
	kuduTservers = 4
	kuduPerTable = 200
)

// kuduHome is the unpacked release.
func kuduHome() string {
	version := os.Getenv("KUDU_VERSION")
	if version == "" {
		version = "1.18.1"
	}
	return in("kudu/kudu-binary-" + version + "-linux-x86_64")
}

// kuduResult is what idle tablets cost, and how long a server with its share of them takes to start.
type kuduResult struct {
	Tablets        int     `json:"tablets"`
	CreateSeconds  float64 `json:"create_s"`
	WindowSeconds  float64 `json:"window_s"`
	UserMs         float64 `json:"cpu_utime"`
	SystemMs       float64 `json:"cpu_stime"`
	PercentOfCore  float64 `json:"cpu_percent_of_core"`
	SwitchesPerS   float64 `json:"context_switches_per_s"`
	HeartbeatsPerS float64 `json:"update_consensus_per_s"`
	RSSMiB         float64 `json:"rss_mib"`
	Replicas       int     `json:"replicas_of_started_server"`
	StartSeconds   float64 `json:"start_s"`
}

// kuduCluster is a master and four tablet servers.
type kuduCluster struct {
	*processes
	rpc, web []string // the master's first
}

func kudu(ctx context.Context, p *processes) (any, error) {
	lib := filepath.Join(kuduHome(), "lib")
	p.env = []string{"LD_LIBRARY_PATH=" + lib, "SASL_PATH=" + filepath.Join(lib, "sasl2"), "KUDU_HOME=" + kuduHome()}
	addresses, err := ports(2 * (kuduTservers + 1))
	if err != nil {
		return nil, err
	}
	c := &kuduCluster{processes: p, rpc: addresses[:kuduTservers+1], web: addresses[kuduTservers+1:]}
	for i := range kuduTservers + 1 {
		if err := c.run(i); err != nil {
			return nil, err
		}
	}
	master := p.all[0]
	p.all = p.all[1:] // usage counts tablet servers alone
	defer func() { p.all = append(p.all, master) }()
	if err := until(ctx, "all tablet servers have registered", func() bool {
		out, err := p.output(ctx, filepath.Join(kuduHome(), "bin/kudu"), "tserver", "list", c.rpc[0], "--format=json", "--columns=uuid")
		return err == nil && strings.Count(out, "uuid") == kuduTservers
	}); err != nil {
		return nil, err
	}
	r := &kuduResult{Tablets: *tablets}
	start := time.Now()
	for made := 0; made < *tablets; made += kuduPerTable {
		if err := c.create(ctx, fmt.Sprintf("idle%03d", made/kuduPerTable), min(kuduPerTable, *tablets-made)); err != nil {
			return nil, err
		}
		rig.Say("Kudu: %d of %d tablets after %v", min(made+kuduPerTable, *tablets), *tablets, time.Since(start).Round(time.Second))
	}
	r.CreateSeconds = rig.Round(time.Since(start).Seconds())
	if err := rig.Pause(ctx, *settle); err != nil {
		return nil, err
	}
	before, err := p.usage()
	if err != nil {
		return nil, err
	}
	beats, at := c.sum(ctx, "handler_latency_kudu_consensus_ConsensusService_UpdateConsensus"), time.Now()
	if err := rig.Pause(ctx, *window); err != nil {
		return nil, err
	}
	after, err := p.usage()
	if err != nil {
		return nil, err
	}
	seconds, used := time.Since(at).Seconds(), after.Sub(before)
	r.HeartbeatsPerS = rig.Round((c.sum(ctx, "handler_latency_kudu_consensus_ConsensusService_UpdateConsensus") - beats) / seconds)
	r.WindowSeconds, r.UserMs, r.SystemMs = rig.Round(seconds), rig.Round(1000*used.UserSeconds), rig.Round(1000*used.SystemSeconds)
	r.PercentOfCore = rig.Round(100 * used.CPU() / seconds)
	r.SwitchesPerS = rig.Round((used.Voluntary + used.Involuntary) / seconds)
	r.RSSMiB = rig.Round(after.RSSBytes / (1 << 20))
	return r, c.restart(ctx, r)
}

// run starts a server; the first is the master.
func (c *kuduCluster) run(i int) error {
	name, program := fmt.Sprintf("ts%d", i), "kudu-tserver"
	if i == 0 {
		name, program = "master", "kudu-master"
	}
	dir := filepath.Join(c.dir, name)
	if err := os.MkdirAll(filepath.Join(dir, "log"), 0o755); err != nil {
		return err
	}
	host, port, _ := strings.Cut(c.web[i], ":")
	args := []string{
		"--unlock_unsafe_flags", "--unlock_experimental_flags", "--time_source=system_unsync", "--logtostderr", "--minloglevel=1",
		"--fs_wal_dir=" + dir + "/wal", "--fs_data_dirs=" + dir + "/data", "--log_dir=" + dir + "/log", "--rpc_bind_addresses=" + c.rpc[i],
		"--webserver_interface=" + host, "--webserver_port=" + port,
	}
	if i == 0 {
		args = append(args, "--max_create_tablets_per_ts=100000")
	} else {
		args = append(args, "--tserver_master_addrs="+c.rpc[0], "--log_segment_size_mb=1", "--tablet_state_walk_min_period_ms=20")
	}
	return c.start(name, filepath.Join(kuduHome(), "bin", program), args...)
}

func (c *kuduCluster) create(ctx context.Context, name string, buckets int) error {
	b, err := json.Marshal(map[string]any{
		"table_name": name,
		"schema": map[string]any{
			"columns":          []any{map[string]any{"column_name": "k", "column_type": "INT64"}, map[string]any{"column_name": "v", "column_type": "STRING", "is_nullable": true}},
			"key_column_names": []string{"k"},
		},
		"partition":    map[string]any{"hash_partitions": []any{map[string]any{"columns": []string{"k"}, "num_buckets": max(buckets, 2)}}},
		"num_replicas": 3,
	})
	if err != nil {
		return err
	}
	_, err = c.output(ctx, filepath.Join(kuduHome(), "bin/kudu"), "table", "create", c.rpc[0], string(b), "--timeout_ms=300000")
	return err
}

// sum adds up a metric of all tablet servers; what can't be read counts as none.
func (c *kuduCluster) sum(ctx context.Context, metric string) (n float64) {
	for _, web := range c.web[1:] {
		n += kuduMetric(ctx, web, metric)
	}
	return n
}

func kuduMetric(ctx context.Context, web, metric string) (n float64) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+web+"/metrics?types=server&metrics="+metric, nil)
	if err != nil {
		return 0
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0
	}
	var entities []struct {
		Metrics []struct {
			Name       string  `json:"name"`
			Value      float64 `json:"value"`
			TotalCount float64 `json:"total_count"`
		} `json:"metrics"`
	}
	if json.Unmarshal(b, &entities) != nil {
		return 0
	}
	for _, e := range entities {
		for _, m := range e.Metrics {
			if m.Name == metric {
				n += m.Value + m.TotalCount
			}
		}
	}
	return n
}

// restart kills a tablet server and times its start until it counts all its tablets as running.
func (c *kuduCluster) restart(ctx context.Context, r *kuduResult) error {
	const running = "tablets_num_running"
	want := kuduMetric(ctx, c.web[1], running)
	r.Replicas = int(want)
	if err := c.all[0].Process.Kill(); err != nil {
		return err
	}
	_ = c.all[0].Wait()
	c.all = c.all[1:]
	start := time.Now()
	if err := c.run(1); err != nil {
		return err
	}
	if err := until(ctx, "all tablets run again", func() bool { return kuduMetric(ctx, c.web[1], running) >= want }); err != nil {
		return err
	}
	r.StartSeconds = rig.Round(time.Since(start).Seconds())
	return nil
}
