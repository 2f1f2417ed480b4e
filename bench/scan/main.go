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
	rounds   = flag.Int("rounds", 3, "turns of each system and kind")
	rows     = flag.Int("rows", 2_000_000, "rows of the table")
	kuduHome = flag.String("kudu", "", "a folder with Kudu's binaries; empty: ours alone")
)

func main() { rig.Main(run) }

// kinds are what is read, by a name and the flags of both tools.
var kinds = []struct {
	name  string
	flags []string
}{
	{"all_columns", nil},
	{"key", []string{"--columns=key"}},
	{"count", []string{"--row_count_only"}},
}

type result struct {
	Benchmark string                 `json:"benchmark"`
	Rows      int                    `json:"rows"`
	Nyala     map[string]rig.Summary `json:"nyala_rows_per_s"`
	Kudu      map[string]rig.Summary `json:"kudu_rows_per_s,omitempty"`
}

func run(ctx context.Context) (_ any, err error) {
	ours, err := rig.Up(ctx, 3)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, ours.Close()) }()
	r := result{Benchmark: "scan", Rows: *rows, Nyala: map[string]rig.Summary{}}
	load := []string{
		"perf", "loadgen", "--num_threads=2", fmt.Sprintf("--num_rows_per_thread=%d", *rows/2), "--table_num_replicas=3", "--table_num_hash_partitions=8", "--keep_auto_table",
	}
	var table struct{ Table string }
	if out, err := ours.Command(ctx, append(load, "--format=json")...).Output(); err != nil {
		return nil, err
	} else if err := json.Unmarshal(out, &table); err != nil {
		return nil, err
	}
	var theirs *rig.Peer
	kudu := filepath.Join(*kuduHome, "bin", "kudu")
	var theirTable string
	if *kuduHome != "" {
		r.Kudu = map[string]rig.Summary{}
		if theirs, err = rig.KuduUp(ctx, *kuduHome); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, theirs.Close()) }()
		args := append([]string{"perf", "loadgen", theirs.Address}, load[2:]...)
		if _, err := theirs.Output(ctx, kudu, args...); err != nil {
			return nil, err
		}
		out, err := theirs.Output(ctx, kudu, "table", "list", theirs.Address)
		if err != nil {
			return nil, err
		}
		theirTable = strings.TrimSpace(out)
	}
	ourRates, theirRates := map[string][]float64{}, map[string][]float64{}
	for range *rounds {
		for _, k := range kinds {
			out, err := ours.Command(ctx, append([]string{"perf", "table_scan", table.Table, "--format=json"}, k.flags...)...).Output()
			if err != nil {
				return nil, err
			}
			var report struct {
				Rows     int     `json:"rows"`
				RowsPerS float64 `json:"rows_per_s"`
			}
			if err := json.Unmarshal(out, &report); err != nil {
				return nil, err
			}
			if report.Rows != *rows {
				return nil, fmt.Errorf("a scan gave %d rows of %d", report.Rows, *rows)
			}
			rig.Say("Nyala, %s: %.0f rows/s", k.name, report.RowsPerS)
			ourRates[k.name] = append(ourRates[k.name], report.RowsPerS)
			if theirs == nil {
				continue
			}
			text, err := theirs.Output(ctx, kudu, append([]string{"perf", "table_scan", theirs.Address, theirTable}, k.flags...)...)
			if err != nil {
				return nil, err
			}
			n, seconds, err := kuduScan(text)
			if err != nil {
				return nil, err
			}
			rig.Say("Kudu, %s: %.0f rows/s", k.name, n/seconds)
			theirRates[k.name] = append(theirRates[k.name], n/seconds)
		}
	}
	for _, k := range kinds {
		r.Nyala[k.name] = rig.Summarize(ourRates[k.name])
		if theirs != nil {
			r.Kudu[k.name] = rig.Summarize(theirRates[k.name])
		}
	}
	return r, nil
}

var total = regexp.MustCompile(`Total count ([0-9]+) cost ([0-9.]+) seconds`)

// kuduScan reads the report of `kudu perf table_scan`.
func kuduScan(text string) (rows, seconds float64, err error) {
	m := total.FindStringSubmatch(text)
	if m == nil {
		return 0, 0, fmt.Errorf("kudu perf table_scan doesn't say how long it took: %s", text)
	}
	rows, err1 := strconv.ParseFloat(m[1], 64)
	seconds, err2 := strconv.ParseFloat(m[2], 64)
	return rows, seconds, errors.Join(err1, err2)
}
