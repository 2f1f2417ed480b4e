package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/localcluster"
)

const (
	prometheusDir = "../../deploy/prometheus"
	grafanaDir    = "../../deploy/grafana"
)

// needProgram skips a test where a program isn't installed.
func needProgram(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s isn't on this machine: apt-get install prometheus", name)
	}
	return path
}

// prometheus is a running Prometheus.
type prometheus struct {
	t   *testing.T
	url string
}

// startPrometheus runs Prometheus with the shipped configuration, pointed at this cluster's master and made faster.
func startPrometheus(t *testing.T, masterWeb string) *prometheus {
	t.Helper()
	program := needProgram(t, "prometheus")
	dir := t.TempDir()
	config := strings.NewReplacer("localhost:8051", masterWeb, "15s", "1s", "30s", "1s", "60s", "1s").Replace(readFile(t, filepath.Join(prometheusDir, "prometheus.yml")))
	files := map[string]string{"prometheus.yml": config}
	for _, name := range []string{"recording.rules.yml", "alerts.rules.yml"} {
		files[name] = readFile(t, filepath.Join(prometheusDir, name))
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 { // the port may be taken by another between its choice and its use
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		address := ln.Addr().String()
		ln.Close()
		var log bytes.Buffer
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		cmd := exec.CommandContext(ctx, program, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
			"--web.listen-address="+address, "--log.level=warn")
		cmd.Stdout, cmd.Stderr = &log, &log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		p := &prometheus{t: t, url: "http://" + address}
		if p.awaitReady(ended) {
			t.Cleanup(func() {
				cancel()
				err := <-ended
				if t.Failed() {
					t.Logf("Prometheus ended with %v; its log:\n%s", err, &log)
				}
			})
			return p
		}
		cancel()
		if !strings.Contains(log.String(), "address already in use") {
			t.Fatalf("Prometheus didn't start:\n%s", &log)
		}
	}
	t.Fatal("no port for Prometheus")
	return nil
}

func (p *prometheus) awaitReady(ended chan error) bool {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			ended <- err
			return false
		case <-tick.C:
			req, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, p.url+"/-/ready", nil)
			if err != nil {
				p.t.Fatal(err)
			}
			if resp, err := http.DefaultClient.Do(req); err == nil {
				resp.Body.Close()
				if resp.StatusCode == http.StatusOK {
					return true
				}
			}
		}
	}
}

// api asks Prometheus' HTTP API; what isn't a success fails the test.
func (p *prometheus) api(path string, into any) {
	p.t.Helper()
	_, body := get(p.t, p.url+path)
	answer := struct {
		Status, Error string
		Data          any
	}{Data: into}
	if err := json.Unmarshal([]byte(body), &answer); err != nil || answer.Status != "success" {
		p.t.Fatalf("%s: %v %s\n%.500s", path, err, answer.Error, body)
	}
}

type promSeries struct{ Metric map[string]string }

func (p *prometheus) query(expr string) []promSeries {
	p.t.Helper()
	var data struct{ Result []promSeries }
	p.api("/api/v1/query?query="+url.QueryEscape(expr), &data)
	return data.Result
}

// until asks again until something is so.
func (p *prometheus) until(what func() string, so func() bool) {
	p.t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(60 * time.Second)
	for !so() {
		select {
		case <-tick.C:
		case <-deadline:
			p.t.Fatalf("waited in vain until %s", what())
		}
	}
}

// TestPrometheus runs a cluster that works, and a real Prometheus with the shipped configuration that finds its servers by
// the master's /prometheus-sd. Every server is scraped; every query of every dashboard answers with data; every rule is
// evaluated without error, no alert is raised, and the histogram has Kudu's name as well; a table's name with any byte in it
// comes through.
func TestPrometheus(t *testing.T) {
	needProgram(t, "prometheus")
	c := newCluster(t, 2)
	cl := connect(t, c)
	tbl := numbersTable(t, cl, "numbers", 2, 1)
	awkward := "a \"name\" with \\ and \\n,\nlines\r\t{b=\"c\"} # HELP 'ü' 😀\x01\x7f\u2028"
	numbersTable(t, cl, awkward, 1, 1)
	keepBusy(t, cl, tbl)
	master := ""
	all, err := c.Servers()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if s.Role == localcluster.RoleMaster {
			master = s.Web
		}
	}
	p := startPrometheus(t, master)

	p.until(func() string { return "all servers are scraped" }, func() bool {
		return len(p.query(`up{job="nyala",group="masters"} == 1`)) == 1 && len(p.query(`up{job="nyala",group="tservers"} == 1`)) == 2
	})
	open := dashboardQueries(t)
	p.until(func() string { return fmt.Sprintf("these queries have answers: %v", open) }, func() bool {
		open = slices.DeleteFunc(open, func(q dashboardQuery) bool {
			return len(p.query(strings.NewReplacer("$cluster", ".*", "$instance", ".*", "$__rate_interval", "10s").Replace(q.expr))) > 0
		})
		return len(open) == 0
	})
	p.until(func() string { return "the histogram has Kudu's name" }, func() bool {
		return len(p.query(`histogram_quantile(0.99, rpc_listen_socket_rx_queue_size_bucket)`)) >= 3
	})
	p.until(func() string { return "the table's name is there" }, func() bool {
		return slices.ContainsFunc(p.query("table_tablets"), func(s promSeries) bool { return s.Metric["table_name"] == awkward })
	})
	odd := ""
	p.until(func() string { return "every rule is well and no alert is up: " + odd }, func() bool {
		odd = p.oddRules()
		return odd == ""
	})
}

// ofTheMachine are alerts that may wait for their time to come where the machine's disks are full, or it is busy.
var ofTheMachine = []string{"NyalaDiskFillsUp", "NyalaWALSlow", "NyalaCallsFail", "NyalaCallsTurnedAway", "NyalaMemoryPressure", "NyalaWritesHeldBack"}

// oddRules names the rules that weren't evaluated, failed, or raise an alert, or will if it goes on like that.
func (p *prometheus) oddRules() string {
	p.t.Helper()
	var data struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError, State string }
		}
	}
	p.api("/api/v1/rules", &data)
	var odd []string
	n := 0
	for _, g := range data.Groups {
		for _, r := range g.Rules {
			n++
			if r.Health != "ok" || r.State == "firing" || r.State == "pending" && !slices.Contains(ofTheMachine, r.Name) {
				odd = append(odd, fmt.Sprintf("%s: %s %s %s", r.Name, r.Health, r.State, r.LastError))
			}
		}
	}
	if n < 25 {
		odd = append(odd, fmt.Sprintf("only %d rules", n))
	}
	return strings.Join(odd, "; ")
}

// TestDiscovery shows what the master tells Prometheus: each server, where its web pages are, and whose it is.
func TestDiscovery(t *testing.T) {
	c := newCluster(t, 2)
	servers, err := c.Servers()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range servers {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.Web+"/prometheus-sd", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if s.Role != localcluster.RoleMaster {
			if resp.StatusCode != http.StatusNotFound {
				t.Errorf("%s: %s", s.Name, resp.Status)
			}
			continue
		}
		var groups []struct {
			Targets []string
			Labels  map[string]string
		}
		if err := json.NewDecoder(resp.Body).Decode(&groups); err != nil || resp.Header.Get("Content-Type") != "application/json" {
			t.Fatalf("%s: %v %v", s.Name, resp.Header, err)
		}
		found := map[string]string{}
		for _, g := range groups {
			if len(g.Targets) != 1 || g.Labels["__scheme__"] != "http" || len(g.Labels["cluster_id"]) != 32 || len(g.Labels["server_id"]) != 32 {
				t.Errorf("%s: %v", s.Name, g)
			}
			found[g.Targets[0]] = g.Labels["group"]
		}
		for _, other := range servers {
			want := "tservers"
			if other.Role == localcluster.RoleMaster {
				want = "masters"
			}
			if found[other.Web] != want {
				t.Errorf("%s at %s is in group %q", other.Name, other.Web, found[other.Web])
			}
		}
		if len(found) != len(servers) {
			t.Errorf("%d servers in %v", len(servers), found)
		}
	}
}

// keepBusy writes to a table and scans it until the test ends.
func keepBusy(t *testing.T, cl *client.Client, tbl *client.Table) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	t.Cleanup(func() {
		cancel()
		<-done
	})
	go func() {
		defer close(done)
		for n := int64(0); ctx.Err() == nil; n++ {
			if err := writeAndScan(ctx, cl, tbl, n); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond): // a steady trickle of work, nothing waits for it
			}
		}
	}()
}

// writeAndScan writes a row and reads all.
func writeAndScan(ctx context.Context, cl *client.Client, tbl *client.Table, id int64) error {
	op := tbl.NewUpsert()
	if err := op.Set("id", id); err != nil {
		return err
	}
	if err := cl.NewSession(client.SessionOptions{}).Apply(ctx, op); err != nil {
		return err
	}
	sc, err := tbl.Scan(ctx, client.ScanOptions{})
	if err != nil {
		return err
	}
	defer sc.Close()
	for {
		batch, err := sc.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		batch.Release()
	}
}
