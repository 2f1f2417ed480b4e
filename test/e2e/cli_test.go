package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// result is what a command printed and how it ended.
type result struct {
	out, err string
	code     int
}

// nyala runs the command line in the repository's root and returns what it printed.
func nyala(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	return command(t, stdin, nil, filepath.Join(binDir, "nyala"), args...)
}

func command(t *testing.T, stdin string, env []string, name string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s %v: %v", name, args, err)
	}
	return result{out: out.String(), err: errOut.String(), code: cmd.ProcessState.ExitCode()}
}

// want shows that the command ended with the code and that its standard output is exactly this.
func (r result) want(t *testing.T, what string, code int, out string) {
	t.Helper()
	if r.code != code || r.out != out {
		t.Errorf("%s: exit code %d, want %d; output %q, want %q; errors: %s", what, r.code, code, r.out, out, r.err)
	}
}

// wantError shows that the command failed with the code, printed no data, and said this.
func (r result) wantError(t *testing.T, what string, code int, contains string) {
	t.Helper()
	if r.code != code || r.out != "" || !strings.Contains(r.err, contains) {
		t.Errorf("%s: exit code %d, want %d; output %q; errors %q, want %q in them", what, r.code, code, r.out, r.err, contains)
	}
}

// TestScripts runs what a script would: two clusters side by side, tables through pipes, every format, and a cluster whose
// servers were killed and are brought back with the same addresses.
func TestScripts(t *testing.T) {
	dir := t.TempDir()
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	up := func(dir string, more ...string) result {
		t.Helper()
		return nyala(t, "", append([]string{"local", "up", "--tservers", "1", "--dir", dir}, more...)...)
	}
	if r := up(one, "--tserver_flag=--scanner_ttl_ms=50000"); r.code != 0 || r.out != "" {
		t.Fatalf("local up: %+v", r)
	}
	defer nyala(t, "", "local", "down", "--dir", one, "--delete")
	if r := up(two); r.code != 0 {
		t.Fatalf("second cluster: %+v", r)
	}
	defer nyala(t, "", "local", "down", "--dir", two, "--delete")

	before := localStatus(t, one)
	env := []string{"NYALA_MASTERS=" + before["master-1"].RPC}
	run := func(stdin string, args ...string) result {
		t.Helper()
		return command(t, stdin, env, filepath.Join(binDir, "nyala"), args...)
	}
	run("", "table", "create", "t", "--columns", "id int64, name string null, at unixtime_micros null", "--primary_key", "id",
		"--hash", "id:4", "--replicas", "1").want(t, "create", 0, "")
	if r := run("", "table", "list"); r.code != 0 || !strings.Contains(r.out, "\nt  ") {
		t.Errorf("list: %+v", r)
	}
	load := run("id,name,at\n1,one,2013-01-01T05:00:00Z\n2,,\n3,\"\",1357016400000001\n", "table", "load", "t", "-", "--input_format", "csv")
	if load.code != 0 || load.out != "" || !strings.Contains(load.err, "loaded 3 rows") {
		t.Errorf("load from a pipe: %+v", load)
	}
	run("", "table", "count", "t").want(t, "count", 0, "3\n")
	rows := strings.Split(run("", "table", "scan", "t", "--format", "csv").out, "\n")
	slices.Sort(rows[1:]) // tablets come in the order of their hash
	if got, want := strings.Join(rows, "\n"), "id,name,at\n\n1,one,2013-01-01T05:00:00Z\n2,,\n3,\"\",2013-01-01T05:00:00.000001Z"; got != want {
		t.Errorf("scan: %q, want %q", got, want)
	}
	run("", "table", "scan", "t", "--format", "csv", "--columns", "name", "--where", "id >= 2 and id < 3").want(t, "where", 0, "name\n\n")
	run("", "table", "scan", "t", "--format", "json", "--where", "id = 1", "--columns", "id,name").want(t, "json", 0, "[\n{\"id\":1,\"name\":\"one\"}\n]\n")
	run("{\"id\": 1, \"name\": \"uno\"}\n", "table", "load", "t", "-", "--input_format", "ndjson", "--op", "upsert").want(t, "upsert", 0, "")
	run("", "table", "scan", "t", "--format", "csv", "--columns", "name", "--where", "id = 1").want(t, "after the upsert", 0, "name\nuno\n")

	// A bad value is named by line and column, and what is bad in one row harms no other.
	bad := run("id,name\n7,seven\neight,x\n", "table", "load", "t", "-", "--input_format", "csv")
	if bad.code == 0 || !strings.Contains(bad.err, "line 3") || !strings.Contains(bad.err, "id") {
		t.Errorf("a bad value: %+v", bad)
	}
	again := run("id,name\n1,x\n9,nine\n", "table", "load", "t", "-", "--input_format", "csv")
	if again.code != 4 || !strings.Contains(again.err, "already present") {
		t.Errorf("a row that exists: %+v", again)
	}
	if out := run("", "table", "scan", "t", "--format", "csv", "--columns", "name", "--where", "id = 9").out; out != "name\nnine\n" {
		t.Errorf("the row beside it: %q", out)
	}

	// The WAL of a running server is read through it, that of a stopped one from its file.
	ts := before["tserver-1"]
	byServer := run("", "wal", "dump", "--server", ts.RPC, "--format", "ndjson")
	byFolder := run("", "wal", "dump", "--dir", ts.Dir, "--format", "ndjson")
	if byServer.code != 0 || strings.Count(byServer.out, "\n") < 4 || byServer.out != byFolder.out {
		t.Errorf("wal dump: through the server %+v, of its folder %+v", byServer, byFolder)
	}
	nyala(t, "", "local", "stop", "tserver-1", "--dir", one)
	stopped := run("", "wal", "dump", "--dir", ts.Dir, "--format", "ndjson")
	if stopped.code != 0 || stopped.out != byServer.out {
		t.Errorf("wal dump of a stopped server: %d lines, running it had %d: %s", strings.Count(stopped.out, "\n"),
			strings.Count(byServer.out, "\n"), stopped.err)
	}

	nyala(t, "", "local", "kill", "master-1", "--dir", one)
	if s := localStatus(t, one); s["master-1"].State != "stopped" || s["tserver-1"].State != "stopped" {
		t.Errorf("after stop and kill: %+v", s)
	}
	if r := nyala(t, "", "local", "up", "--dir", one); r.code != 0 {
		t.Fatalf("local up on a folder whose servers were stopped: %+v", r)
	}
	after := localStatus(t, one)
	for name, s := range after {
		if s.RPC != before[name].RPC || s.Web != before[name].Web || s.UUID != before[name].UUID || s.State != "running" {
			t.Errorf("%s came back as %+v, was %+v", name, s, before[name])
		}
	}
	run("", "table", "count", "t").want(t, "count after the restart", 0, "5\n")
	// The empty string is a key and a value like any other.
	run("", "table", "create", "empty", "--columns", "k string, v string null", "--primary_key", "k", "--replicas", "1").want(t, "create", 0, "")
	run("k,v\n\"\",\"\"\na,\n", "table", "load", "empty", "-", "--input_format", "csv").want(t, "load empty strings", 0, "")
	run("", "table", "scan", "empty", "--format", "csv").want(t, "scan empty strings", 0, "k,v\n\"\",\"\"\na,\n")
	run("", "table", "scan", "empty", "--format", "csv", "--where", "k = ''").want(t, "find the empty string", 0, "k,v\n\"\",\"\"\n")
	run("", "table", "delete", "t").want(t, "delete", 0, "")
	run("", "table", "count", "t").wantError(t, "count of a deleted table", 1, "there is no table \"t\"")
	if r := nyala(t, "", "--masters", localStatus(t, two)["master-1"].RPC, "table", "list"); r.code != 0 || r.out != "" {
		t.Errorf("the other cluster: %+v", r)
	}
}

type serverStatus struct{ Name, Role, UUID, RPC, Web, Dir, Log, State string }

func localStatus(t *testing.T, dir string) map[string]serverStatus {
	t.Helper()
	r := nyala(t, "", "local", "status", "--dir", dir, "--format", "json")
	var s struct{ Servers []serverStatus }
	if err := json.Unmarshal([]byte(r.out), &s); err != nil {
		t.Fatalf("local status: %v: %+v", err, r)
	}
	byName := map[string]serverStatus{}
	for _, s := range s.Servers {
		byName[s.Name] = s
	}
	return byName
}

// TestFirstHour makes the mistakes of a first hour and shows that each is answered with what to do.
func TestFirstHour(t *testing.T) {
	nyala(t, "", "--masters", "localhost:1", "table", "list").
		wantError(t, "no cluster", 3, "no master at localhost:1: is one running? try nyala local up")

	dir := t.TempDir()
	master := filepath.Join(binDir, "nyala-master")
	none := command(t, "", nil, filepath.Join(binDir, "nyala-tserver"))
	if none.code != 2 || !strings.Contains(none.err, "--fs_wal_dir") || !strings.Contains(none.err, "--tserver_master_addrs") ||
		!strings.Contains(none.err, "nyala-tserver --fs_wal_dir=/var/lib/nyala-tserver") {
		t.Errorf("started with nothing: %+v", none)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	flags := func(rpc, web, wal string) []string {
		_, port, _ := net.SplitHostPort(web)
		return []string{"--rpc_bind_addresses=" + rpc, "--webserver_interface=127.0.0.1", "--webserver_port=" + port, "--fs_wal_dir=" + wal}
	}
	taken := l.Addr().String()
	command(t, "", nil, master, flags(taken, "127.0.0.1:0", filepath.Join(dir, "a"))...).wantError(t, "RPC port taken", 2, taken)
	command(t, "", nil, master, flags("127.0.0.1:0", taken, filepath.Join(dir, "b"))...).wantError(t, "web port taken", 2, taken)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	command(t, "", nil, master, flags("127.0.0.1:0", "127.0.0.1:0", filepath.Join(file, "wal"))...).
		wantError(t, "a folder that can't be made", 2, filepath.Join(file, "wal"))
	command(t, "", nil, master, "--no_such_flag=1").wantError(t, "unknown flag", 2, "no_such_flag")
	command(t, "", nil, master, append(flags("127.0.0.1:0", "127.0.0.1:0", dir), "--raft_heartbeat_interval_ms=0")...).
		wantError(t, "value out of range", 2, "raft_heartbeat_interval_ms")
	config := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(config, []byte("fs_wal_dri: /tmp/x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	command(t, "", nil, master, "--config="+config).wantError(t, "unknown key in the file", 2, "fs_wal_dri")

	// A second process on a running server's folder goes at once, and says who holds it.
	c := newCluster(t, 1)
	server := tabletServers(t, c)[0]
	start := time.Now()
	second := command(t, "", nil, filepath.Join(binDir, "nyala-tserver"),
		append(flags("127.0.0.1:0", "127.0.0.1:0", walDirOf(t, server.Dir)), "--tserver_master_addrs="+c.MasterAddresses()[0])...)
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("a second process on the folder took %v to go", took)
	}
	second.wantError(t, "second process on a folder", 2, server.Dir)
	if !strings.Contains(second.err, "pid") {
		t.Errorf("second process doesn't name the holder: %s", second.err)
	}
	// A master on a tablet server's folder is refused.
	if err := c.Kill(server.Name); err != nil {
		t.Fatal(err)
	}
	command(t, "", nil, master, flags("127.0.0.1:0", "127.0.0.1:0", walDirOf(t, server.Dir))...).
		wantError(t, "a master on a tablet server's folder", 2, "tserver")
}

// walDirOf finds the WAL folder of a local cluster's server.
func walDirOf(t *testing.T, dir string) string {
	t.Helper()
	wal := filepath.Join(dir, "wal")
	if _, err := os.Stat(wal); err != nil {
		t.Fatal(err)
	}
	return wal
}
