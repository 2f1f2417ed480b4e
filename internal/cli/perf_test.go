package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLoadgen inserts what it says, and scans count it.
func TestLoadgen(t *testing.T) {
	c := newFakeCluster(t, 3)
	run := func(args ...string) (string, string, int) { return runCLI(t.Context(), c.master.addr, nil, args...) }
	out, errs, code := run("perf", "loadgen", "--num_rows_per_thread", "500", "--num_threads", "3", "--table_num_replicas", "3",
		"--keep_auto_table", "--run_scan", "--format", "json")
	require.Zero(t, code, errs)
	var r struct {
		Table         string
		Rows, Errors  uint64
		Scanned       uint64  `json:"scanned_rows"`
		RowsPerSecond float64 `json:"rows_per_s"`
	}
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	require.Equal(t, uint64(1500), r.Rows)
	require.Equal(t, uint64(1500), r.Scanned)
	require.Positive(t, r.RowsPerSecond)
	require.Equal(t, 1500, c.count(r.Table))
	out, _, code = run("table", "scan", r.Table, "--where", "key = 4500", "--format", "csv")
	require.Zero(t, code)
	require.Equal(t, "key,int_val,string_val\n", out, "the third thread's last row begins at 2*1500 + 499*3")
	out, _, code = run("table", "scan", r.Table, "--where", "key = 4497", "--format", "csv")
	require.Zero(t, code)
	require.Equal(t, "key,int_val,string_val\n4497,4498,4499."+strings.Repeat("x", 27)+"\n", out)

	out, errs, code = run("perf", "table_scan", r.Table, "--num_threads", "4", "--format", "json")
	require.Zero(t, code, errs)
	var s struct{ Rows, Bytes uint64 }
	require.NoError(t, json.Unmarshal([]byte(out), &s))
	require.Equal(t, uint64(1500), s.Rows)
	require.Greater(t, s.Bytes, uint64(1500*44))
	out, errs, code = run("perf", "table_scan", r.Table, "--row_count_only")
	require.Zero(t, code, errs)
	require.Contains(t, out, "Scanned count 1500 ")

	// The same rows again: each is rejected.
	out, errs, code = run("perf", "loadgen", "--table_name", r.Table, "--num_rows_per_thread", "500", "--num_threads", "3", "--show_first_n_errors", "2")
	require.Equal(t, exitRejected, code, errs)
	require.Contains(t, out, "errors:     1500")
	require.Equal(t, 2, strings.Count(errs, "already present"), errs)
	_, errs, code = run("perf", "loadgen", "--table_name", r.Table, "--num_rows_per_thread", "10", "--use_upsert", "--flush_per_n_rows", "3")
	require.Zero(t, code, errs)

	// A cleanup deletes what the run inserted, and nothing where a row was there before.
	before := c.count(r.Table)
	out, errs, code = run("perf", "loadgen", "--table_name", r.Table, "--seq_start", "100000", "--use_random_non_pk", "--run_cleanup", "--format", "json")
	require.Zero(t, code, errs)
	require.Contains(t, out, `"deleted_rows": 2000`)
	require.Equal(t, before, c.count(r.Table))
	_, errs, code = run("perf", "loadgen", "--table_name", r.Table, "--num_rows_per_thread", "10", "--run_cleanup")
	require.Equal(t, exitRejected, code)
	require.Contains(t, errs, "the rows are left")
	require.Equal(t, before, c.count(r.Table))

	// Its table may have ranges, which divide the sequence, and a name in a database.
	_, errs, code = run("perf", "loadgen", "--table_num_replicas", "3", "--table_num_hash_partitions", "2", "--table_num_range_partitions", "3",
		"--auto_database", "db", "--keep_auto_table", "--run_scan")
	require.Zero(t, code, errs)
	out, _, _ = run("table", "list", "db.loadgen_auto_", "--format", "json")
	require.Contains(t, out, `"name": "db.loadgen_auto_`)
	o := loadgenTable(loadgenFlags{threads: 2, rows: 1000, ranges: 3, seqStart: 50})
	require.Equal(t, [][]any{{int64(2050)}, {int64(4050)}}, o.Splits, "of the 6000 numbers that the cells take")

	for flag, want := range map[string]string{
		"--num_threads=0": "choose 1 to 1024", "--num_rows_per_thread=0": "choose 1 to", "--table_num_range_partitions=0": "choose 1 to 1000",
		"--run_cleanup --use_random": "mustn't be random", "--buffer_size_bytes=0": "choose 1 or more",
	} {
		_, errs, code = run(append([]string{"perf", "loadgen"}, strings.Fields(flag)...)...)
		require.Equal(t, exitUsage, code)
		require.Contains(t, errs, want)
	}

	// The table of a run is dropped.
	_, errs, code = run("perf", "loadgen", "--table_num_replicas", "3")
	require.Zero(t, code, errs)
	out, _, _ = run("table", "list")
	require.Equal(t, 2, strings.Count(out, "loadgen_auto_"))

	// Shells are told of tables, and of a flag's words.
	for line, want := range map[string]string{
		"table describe loadgen": r.Table + "\n", "table load x y --op up": "upsert\n", "table scan x --format ": "parquet\n",
		"table load x ": ":0\n", "table describe x ": ":4\n",
	} {
		out, _, code = run(append([]string{"__complete"}, strings.Split(line, " ")...)...)
		require.Zero(t, code)
		require.Contains(t, out, want, line)
	}
}
