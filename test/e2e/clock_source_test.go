package e2e

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/clock/ntp/ntptest"
)

// TestSourceFaults has the kernel say that nobody steers the clock, name an error bound below zero, and one that is too large
// (T05): rows are written on through the first two, refused through the third, and the metrics tell them apart.
func TestSourceFaults(t *testing.T) {
	c := newCluster(t, 1, mockClocks...)
	cl := connect(t, c)
	tbl := numbersTable(t, cl, "numbers", 1, 1)
	server := tabletServers(t, c)[0]
	id := int64(0)
	write := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		op := tbl.NewInsert()
		if err := op.Set("id", id); err != nil {
			t.Fatal(err)
		}
		id++
		return cl.NewSession(client.SessionOptions{}).Apply(ctx, op)
	}
	mock := func(args ...string) {
		t.Helper()
		if res := nyala(t, "", append([]string{"clock", "mock", "--server", server.RPC}, args...)...); res.code != 0 {
			t.Fatalf("clock mock %v: %+v", args, res)
		}
	}
	metric := func(name string) float64 {
		t.Helper()
		_, text := webPage(t, server.Web, "/metrics")
		m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("no metric %s", name)
		}
		v, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	becomes := func(name string, want func(float64) bool) {
		t.Helper()
		until(t, 10*time.Second, name+" changes", func() bool { return want(metric(name)) })
	}
	is := func(want float64) func(float64) bool { return func(v float64) bool { return v == want } }

	for _, fault := range [][]string{{"--unsynced"}, {"--max_error", "-1us"}} {
		mock(fault...)
		becomes("hybrid_clock_extrapolating", is(1))
		if err := write(); err != nil {
			t.Errorf("%v: %v", fault, err)
		}
		first := metric("hybrid_clock_error")
		becomes("hybrid_clock_error", func(v float64) bool { return v > first && v < 1e6 })
		mock("--offset", "0")
		becomes("hybrid_clock_extrapolating", is(0))
	}
	mock("--max_error", "10.000001s")
	becomes("clock_fenced", is(1))
	err := write()
	if code := client.CodeOf(err); code != client.CodeTimedOut || !strings.Contains(err.Error(), "clock too uncertain") {
		t.Errorf("with an error bound above 10 s: %v", err)
	}
	mock("--offset", "0")
	becomes("clock_fenced", is(0))
	if err := write(); err != nil {
		t.Errorf("set right: %v", err)
	}
}

// TestBuiltinSource runs a cluster by the word of three NTP servers, of which one lies by an hour, then another says nothing:
// timestamps stay right, and who loses the majority says so and goes on.
func TestBuiltinSource(t *testing.T) {
	servers := []*ntptest.Server{ntptest.New(t), ntptest.New(t), ntptest.New(t)}
	servers[2].Does(ntptest.Behaviour{Lie: time.Hour})
	var addresses []string
	for _, s := range servers {
		addresses = append(addresses, s.Address())
	}
	c := newCluster(t, 1, "--time_source=builtin", "--builtin_ntp_poll_interval_ms=100", "--builtin_ntp_request_timeout_ms=200",
		"--builtin_ntp_servers="+strings.Join(addresses, ","))
	cl := connect(t, c)
	tbl := numbersTable(t, cl, "numbers", 1, 1)
	server := tabletServers(t, c)[0]
	id := int64(0)
	write := func() {
		t.Helper()
		s := cl.NewSession(client.SessionOptions{})
		op := tbl.NewInsert()
		if err := op.Set("id", id); err != nil {
			t.Fatal(err)
		}
		id++
		if err := s.Apply(t.Context(), op); err != nil {
			t.Fatal(err)
		}
		if off := time.Since(s.LastTimestamp().Time()).Abs(); off > time.Second {
			t.Errorf("a timestamp is %v off", off)
		}
	}
	write()
	if k := getClock(t, server.RPC); k.GetSource() != "builtin" {
		t.Errorf("%v", k)
	}
	servers[1].Does(ntptest.Behaviour{Silent: true})
	until(t, 10*time.Second, "it says that the source is lost", func() bool { return getClock(t, server.RPC).GetExtrapolating() })
	write()
	servers[1].Does(ntptest.Behaviour{})
	until(t, 10*time.Second, "the source is back", func() bool { return !getClock(t, server.RPC).GetExtrapolating() })
	write()
}

// TestStartWaitsForAClock starts a server that must have a steered clock on a machine whose clock nobody steers: it waits,
// alive and not ready, ends at once when it is told to, and gives up in its time with a line that says what to do.
func TestStartWaitsForAClock(t *testing.T) {
	start := func(wait string) (*exec.Cmd, *bytes.Buffer, string) {
		dir := t.TempDir()
		var out bytes.Buffer
		cmd := exec.Command(filepath.Join(binDir, "nyala-master"), "--fs_wal_dir="+dir+"/wal", "--log_dir="+dir, "--time_source=system",
			"--rpc_bind_addresses=127.0.0.1:0", "--webserver_interface=127.0.0.1", "--webserver_port=0", "--ntp_initial_sync_wait_secs="+wait)
		cmd.Stderr = &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		return cmd, &out, filepath.Join(dir, "nyala-master.log")
	}
	cmd, out, log := start("1.5")
	waiting := func(log string) (web string, ok bool) {
		b, _ := os.ReadFile(log)
		if strings.Contains(string(b), "named the cluster") {
			_ = cmd.Process.Kill()
			t.Skip("somebody steers this machine's clock")
		}
		m := regexp.MustCompile(`msg=starting role=\S+ .* web=(\S+)`).FindSubmatch(b)
		if m == nil || !strings.Contains(string(b), "waiting for the machine's clock") {
			return "", false
		}
		return string(m[1]), true
	}
	until(t, 10*time.Second, "it waits", func() bool { _, ok := waiting(log); return ok })
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 2 {
		t.Errorf("it ended with %v", err)
	}
	for _, want := range []string{"chrony", "--time_source=", "adjtimex says"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("its last line doesn't name %q: %s", want, out)
		}
	}

	cmd, _, log = start("60")
	var web string
	until(t, 10*time.Second, "it waits", func() (ok bool) { web, ok = waiting(log); return ok })
	if code, text := webPage(t, web, "/healthz"); code != 200 || !strings.Contains(text, "clock: not synchronised yet") {
		t.Errorf("/healthz: %d\n%s", code, text)
	}
	if code, text := webPage(t, web, "/readyz"); code != 503 {
		t.Errorf("/readyz: %d\n%s", code, text)
	}
	began := time.Now()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || time.Since(began) > 5*time.Second {
		t.Errorf("told to end it ended with %v after %v", err, time.Since(began))
	}
}
