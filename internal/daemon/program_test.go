package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// testConfig is what a daemon of these tests takes.
type testConfig struct {
	Common
	masters []string
	unsafe  bool
	secret  string
}

// testProgram is a daemon that does nothing but say, when it runs, what it was told.
type testProgram struct {
	cfg            testConfig
	prog           Program
	ran            bool
	stdout, stderr bytes.Buffer
	environ        []string
}

func newTestProgram() *testProgram {
	p := &testProgram{cfg: testConfig{Common: DefaultCommon(TabletServerDefaults)}}
	f := NewFlags()
	p.cfg.Register(f)
	g := f.Group("Cluster")
	g.Strings(&p.cfg.masters, "tserver_master_addrs", "the masters", Required())
	g.Bool(&p.cfg.unsafe, "never_fsync", "trust the disk", Tagged(Unsafe))
	g.String(&p.cfg.secret, "secret_handshake", "for tests", Tagged(Hidden))
	p.prog = Program{
		Name: "nyala-tserver", Summary: "a tablet server", Flags: f, Log: &p.cfg.Log, Check: p.cfg.Validate,
		Example: "nyala-tserver --fs_wal_dir=/data/wal --tserver_master_addrs=m1:7051",
		Run: func(context.Context, *Environment) error {
			p.ran = true
			return nil
		},
	}
	return p
}

func (p *testProgram) run(t *testing.T, args ...string) int {
	t.Helper()
	p.stdout.Reset()
	p.stderr.Reset()
	return p.prog.Execute(t.Context(), args, p.environ, &p.stdout, &p.stderr)
}

// lines are what standard error says, but for log lines.
func (p *testProgram) lines() []string {
	var out []string
	for line := range strings.Lines(p.stderr.String()) {
		if !strings.HasPrefix(line, "time=") {
			out = append(out, strings.TrimSuffix(line, "\n"))
		}
	}
	return out
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

var needed = []string{"--fs_wal_dir=/w", "--tserver_master_addrs=m1:7051"}

// TestPrecedence shows command line over environment over file over default, dashes for underscores in all of them, and
// that each value knows where it came from.
func TestPrecedence(t *testing.T) {
	p := newTestProgram()
	file := writeFile(t, "tserver.yaml", `
# a comment
webserver-port: 1
raft_heartbeat_interval_ms: 100
leader_failure_max_missed_heartbeat_periods: 4.5
max_clock_sync_error_usec: 10000000
raft_enable_pre_election: false
wall_clock_jump_threshold_sec: 0.5
log_level: warn
fs_data_dirs: [/d1, /d2]
tserver_master_addrs: "m1:7051,m2"
rpc_bind_addresses: 127.0.0.1
`)
	p.environ = []string{"NYALA_WEBSERVER_PORT=2", "NYALA_LOG_LEVEL=error", "NYALA_FS_WAL_DIR=/w", "NYALA_CONFIG=" + file, "PATH=/bin", "NYALA_RPC_MAX_MESSAGE_SIZE="}
	require.Equal(t, ExitOK, p.run(t, "--log-level=debug"), p.stderr.String())
	require.True(t, p.ran)
	c := &p.cfg
	require.Equal(t, 2, c.WebPort)
	require.Equal(t, "debug", c.Log.Level)
	require.Equal(t, 100*time.Millisecond, c.HeartbeatInterval)
	require.Equal(t, 4.5, c.MaxMissedHeartbeats)
	require.Equal(t, 10*time.Second, c.MaxClockSyncError)
	require.Equal(t, 500*time.Millisecond, c.ClockConfig(nil).WallClockJumpThreshold)
	require.False(t, c.PreElection)
	require.Equal(t, []string{"/d1", "/d2"}, c.DataDirs)
	require.Equal(t, []string{"m1:7051", "m2"}, c.masters)
	require.Equal(t, []string{"127.0.0.1:7050"}, c.RPCBindAddresses)
	require.Equal(t, 50<<20, c.RPCMaxMessageSize)
	sources := map[string]Source{}
	for _, f := range p.prog.Flags.All() {
		sources[f.Name] = f.Source
	}
	require.Equal(t, FromCommandLine, sources["log_level"])
	require.Equal(t, FromEnvironment, sources["webserver_port"])
	require.Equal(t, FromFile, sources["fs_data_dirs"])
	require.Equal(t, FromDefault, sources["rpc_max_message_size"])
}

// TestFlagfile shows that a file as gflags has it is read too, under Kudu's name for it.
func TestFlagfile(t *testing.T) {
	p := newTestProgram()
	file := writeFile(t, "flags", "# Kudu's way\n--fs_wal_dir=/w\n\n--webserver-port=3\n--raft_enable_pre_election=false\n--tserver_master_addrs=m\n")
	require.Equal(t, ExitOK, p.run(t, "--flagfile", file), p.stderr.String())
	require.Equal(t, 3, p.cfg.WebPort)
	require.False(t, p.cfg.PreElection)
}

// TestFaults shows that each mistake stops the start with one line that names it, and that nothing ran.
func TestFaults(t *testing.T) {
	yaml := func(text string) []string { return []string{"--config=" + writeFile(t, "c.yaml", text)} }
	for name, c := range map[string]struct {
		args    []string
		environ string
		want    string // of the one line, after the program's name
	}{
		"unknown flag":         {args: []string{"--fs_wal_dri=/w"}, want: "unknown flag --fs_wal_dri; did you mean --fs_wal_dir?"},
		"unknown, none near":   {args: []string{"--banana=1"}, want: "unknown flag --banana"},
		"shorthand":            {args: []string{"-x"}, want: "unknown shorthand flag: 'x' in -x"},
		"argument":             {args: []string{"start"}, want: `takes flags alone, and has "start": write --name=value`},
		"no value":             {args: []string{"--fs_wal_dir"}, want: "--fs_wal_dir needs a value: --fs_wal_dir=…"},
		"not a number":         {args: []string{"--webserver_port=http"}, want: `--webserver_port: "http": want a whole number, 0 to 65535`},
		"out of range":         {args: []string{"--webserver-port=70000"}, want: `--webserver_port: "70000": out of range: want 0 to 65535`},
		"float":                {args: []string{"--leader_failure_max_missed_heartbeat_periods=NaN"}, want: `--leader_failure_max_missed_heartbeat_periods: "NaN": want a number, 2 to 1000`},
		"bool":                 {args: []string{"--raft_enable_pre_election=maybe"}, want: `--raft_enable_pre_election: "maybe": want true or false`},
		"one of":               {args: []string{"--log_level=loud"}, want: `--log_level: "loud": want one of debug, info, warn, error`},
		"backlog 0":            {args: []string{"--rpc_acceptor_listen_backlog=0"}, want: `--rpc_acceptor_listen_backlog: "0": out of range: want -1, or 1 to 65535`},
		"one log file":         {args: []string{"--max_log_files=1"}, want: `--max_log_files: "1": out of range: want 0, or 2 or more`},
		"address":              {args: []string{"--rpc_bind_addresses=http://x:1"}, want: `--rpc_bind_addresses: "http://x:1": address "http://x:1": want host:port or [ipv6]:port`},
		"environment":          {environ: "NYALA_WEBSERVER_PORT=-1", want: `NYALA_WEBSERVER_PORT: "-1": out of range: want 0 to 65535`},
		"unsafe":               {args: append([]string{"--never_fsync"}, needed...), want: "--never_fsync is unsafe: it can cost data; to set it all the same, add --unlock_unsafe_flags"},
		"unsafe value":         {args: append([]string{"--time_source=system_unsync"}, needed...), want: "time_source: system_unsync is unsafe (timestamps may be wrong): it needs unlock_unsafe_flags"},
		"too small":            {args: append([]string{"--wall_clock_jump_threshold_sec=0.05"}, needed...), want: `--wall_clock_jump_threshold_sec: "0.05": out of range: want 0.1 or more`},
		"too long":             {args: []string{"--wall_clock_jump_threshold_sec=1e12"}, want: `--wall_clock_jump_threshold_sec: "1e12": out of range: longer than 292 years`},
		"same folder twice":    {args: append([]string{"--fs_data_dirs=/d,/d/"}, needed...), want: "--fs_data_dirs: /d is given twice"},
		"no file":              {args: []string{"--config=/none.yaml"}, want: "--config: stat /none.yaml: no such file or directory"},
		"a folder":             {args: []string{"--config=/"}, want: "--config: /: want a file of at most 1048576 bytes"},
		"unknown key":          {args: yaml("web_server_port: 1"), want: "FILE: unknown key web_server_port; did you mean --webserver_port?"},
		"value in file":        {args: yaml("webserver_port: many"), want: `FILE: webserver_port: "many": want a whole number, 0 to 65535`},
		"nested":               {args: yaml("log_level: {a: b}"), want: "FILE: log_level: has keys below it: flags are not nested"},
		"nested list":          {args: yaml("fs_data_dirs: [[a]]"), want: "FILE: fs_data_dirs: want a list of plain values"},
		"key without value":    {args: yaml("log_dir:"), want: `FILE: log_dir: has no value; for an empty text write ""`},
		"given twice":          {args: yaml("log-level: info\nlog_level: info"), want: "FILE: log_level is given twice"},
		"config in config":     {args: yaml("config: x"), want: "FILE: config can't stand in a config file"},
		"not a map":            {args: yaml("just words"), want: "FILE: not a YAML map of flags: "},
		"bad yaml":             {args: yaml("a: [1\nb: 2"), want: "FILE: not a YAML map of flags: "},
		"flagfile, bare words": {args: yaml("--log_level=info\nwords"), want: "FILE: line 2: want --name=value"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTestProgram()
			p.environ = []string{c.environ}
			require.Equal(t, ExitUsage, p.run(t, c.args...))
			require.False(t, p.ran)
			got := p.stderr.String()
			for _, a := range c.args {
				if file, ok := strings.CutPrefix(a, "--config="); ok && file != "/" && file != "/none.yaml" {
					got = strings.ReplaceAll(got, file, "FILE")
				}
			}
			if strings.HasSuffix(c.want, ": ") {
				require.Contains(t, got, "nyala-tserver: "+c.want)
			} else {
				require.Equal(t, "nyala-tserver: "+c.want+"\n", got)
			}
			require.Equal(t, 1, strings.Count(got, "\n"), got)
		})
	}
}

// TestAllFaultsAtOnce shows that every fault of a file is said, a line each.
func TestAllFaultsAtOnce(t *testing.T) {
	p := newTestProgram()
	file := writeFile(t, "c.yaml", "webserver_port: -1\nbanana: 1\nlog_level: loud\n")
	require.Equal(t, ExitUsage, p.run(t, "--config="+file))
	require.Len(t, p.lines(), 3, p.stderr.String())
}

// TestMissing shows what a daemon says that was started with nothing: what is needed and one whole example.
func TestMissing(t *testing.T) {
	p := newTestProgram()
	require.Equal(t, ExitUsage, p.run(t))
	require.Equal(t, `nyala-tserver: needed and not given: --fs_wal_dir, --tserver_master_addrs

  --fs_wal_dir            folder of the write-ahead log and of the server's identity
  --tserver_master_addrs  the masters

For example:
  nyala-tserver --fs_wal_dir=/data/wal --tserver_master_addrs=m1:7051

The same may stand in a file (--config) or in the environment (NYALA_…). All flags: nyala-tserver --help
`, p.stderr.String())
}

// TestWarnings shows that a variable that names no flag is spoken of and stops nothing.
func TestWarnings(t *testing.T) {
	p := newTestProgram()
	p.environ = []string{"NYALA_LOG_LEVLE=debug", "NYALA_MASTERS=m1"}
	require.Equal(t, ExitOK, p.run(t, needed...))
	require.Equal(t, []string{"environment variable NYALA_LOG_LEVLE names no flag; did you mean --log_level?"}, p.prog.Flags.Warnings())
	require.Contains(t, p.stderr.String(), "did you mean --log_level?")
}

// TestUnsafe shows that an unsafe flag can be unlocked, and that one at its default needs no key.
func TestUnsafe(t *testing.T) {
	p := newTestProgram()
	require.Equal(t, ExitOK, p.run(t, append([]string{"--never_fsync", "--unlock_unsafe_flags"}, needed...)...))
	require.True(t, p.cfg.unsafe)
	p = newTestProgram()
	require.Equal(t, ExitOK, p.run(t, append([]string{"--never_fsync=false"}, needed...)...))
}

// TestHelp shows that help goes to standard output, by group, without hidden flags, and that nothing runs.
func TestHelp(t *testing.T) {
	p := newTestProgram()
	require.Equal(t, ExitOK, p.run(t, "--help"))
	help := p.stdout.String()
	require.Contains(t, help, "\nLogs:\n  --log_dir (string; not set)\n      folder for log files")
	require.Contains(t, help, "--fs_wal_dir (string; needed)")
	require.Contains(t, help, "--raft_heartbeat_interval_ms (int, 10 to 60000; default 500; advanced)")
	require.NotContains(t, help, "secret_handshake")
	require.Less(t, strings.Index(help, "\nAddresses:"), strings.Index(help, "\nCluster:"))
	for line := range strings.Lines(help) {
		require.LessOrEqual(t, len(line), 160, line)
	}
	require.Equal(t, ExitOK, p.run(t, "--version"))
	require.True(t, strings.HasPrefix(p.stdout.String(), "nyala-tserver development (commit "), p.stdout.String())
	require.False(t, p.ran)
}

// TestExitCodes shows what becomes of errors of Run, of a stop that was asked for and of one that doesn't come.
func TestExitCodes(t *testing.T) {
	p := newTestProgram()
	p.prog.Run = func(context.Context, *Environment) error { return errors.New("disk on fire") }
	require.Equal(t, ExitFailed, p.run(t, needed...))
	require.Equal(t, []string{"nyala-tserver: disk on fire"}, p.lines())

	p = newTestProgram()
	p.prog.Run = func(context.Context, *Environment) error {
		return fmt.Errorf("web: %w", CantStart(errors.New("port taken")))
	}
	require.Equal(t, ExitUsage, p.run(t, needed...))
	require.Equal(t, []string{"nyala-tserver: web: port taken"}, p.lines())
	require.NoError(t, CantStart(nil))

	p = newTestProgram()
	ctx, cancel := context.WithCancel(t.Context())
	p.prog.Run = func(ctx context.Context, _ *Environment) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	}
	require.Equal(t, ExitOK, p.prog.Execute(ctx, needed, nil, &p.stdout, &p.stderr))

	p = newTestProgram()
	ctx, cancel = context.WithCancel(t.Context())
	release := make(chan struct{})
	defer close(release)
	p.prog.StopTimeout = 10 * time.Millisecond
	p.prog.Run = func(context.Context, *Environment) error {
		cancel()
		<-release
		return nil
	}
	require.Equal(t, ExitForced, p.prog.Execute(ctx, needed, nil, &p.stdout, &p.stderr))
	require.Contains(t, p.stderr.String(), "stopped by force: it took longer than 10ms")
}
