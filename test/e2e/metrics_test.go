package e2e

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// TestWebPages fetches what people and Prometheus look at on each daemon of a cluster that holds a table.
func TestWebPages(t *testing.T) {
	c := newCluster(t, 1)
	cl := connect(t, c)
	numbersTable(t, cl, `a "name" with <b> and \`, 2, 1)
	servers, err := c.Servers()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range servers {
		for path, want := range map[string]string{
			"/metrics":          "\nlog_bytes_logged ",
			"/healthz":          "",
			"/readyz":           "",
			"/varz?format=json": "fs_wal_dir",
			"/":                 "Replicas",
		} {
			code, body := get(t, "http://"+s.Web+path)
			if code != http.StatusOK || !strings.Contains(body, want) {
				t.Errorf("%s %s: %d, want %q in it:\n%.500s", s.Name, path, code, want, body)
			}
			if path == "/" && strings.Contains(body, "<b>") {
				t.Errorf("%s: a table's name stands unescaped on the page", s.Name)
			}
		}
		// Every series that this server will ever have without a label from outside is there from the start.
		_, body := get(t, "http://"+s.Web+"/metrics")
		for _, series := range []string{
			`raft_server_messages_total{kind="vote"} `, "hybrid_clock_timestamp ", "go_goroutines ", "process_cpu_seconds_total ",
		} {
			if !strings.Contains(body, "\n"+series) {
				t.Errorf("%s: /metrics has no series %s", s.Name, series)
			}
		}
		problems, err := promlint.New(strings.NewReader(body)).Lint()
		if err != nil {
			t.Fatalf("%s: /metrics: %v", s.Name, err)
		}
		for _, p := range problems {
			if !slices.Contains(kuduNames, p.Metric) {
				t.Errorf("%s: metric %s: %s", s.Name, p.Metric, p.Text)
			}
		}
	}
}

// kuduNames are metrics that have Kudu's names, which break Prometheus' rules: an operator of Kudu finds them by these.
var kuduNames = []string{
	"delete_ignore_errors", "insert_ignore_errors", "update_ignore_errors", "insertions_failed_dup_key", "leader_memory_pressure_rejections", "log_append_latency", "log_bytes_logged", "log_gc_duration",
	"log_group_commit_latency", "rpc_connections_accepted", "rpcs_queue_overflow", "rpcs_timed_out_in_queue", "rows_deleted", "rows_inserted", "rows_updated", "rows_upserted", "scanner_rows_returned",
	"scanner_rows_scanned", "scanners_expired", "scans_started",
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}
