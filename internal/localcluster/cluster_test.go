package localcluster

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func up(t *testing.T, cfg Config) *Cluster {
	t.Helper()
	c, err := Up(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := c.Down(context.Background(), true); err != nil && !errors.Is(err, ErrNoCluster) {
			t.Error(err)
		}
	})
	return c
}

func status(t *testing.T, c *Cluster) map[string]Server {
	t.Helper()
	list, err := c.Status(t.Context())
	require.NoError(t, err)
	out := map[string]Server{}
	for _, s := range list {
		out[s.Name] = s
	}
	return out
}

func argsOf(t *testing.T, s Server) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(s.Dir, walDirName, "args"))
	require.NoError(t, err)
	return strings.Split(string(b), "\n")
}

// TestLife takes a cluster through all it can do: up, kill, stop, start, up again in part and in whole, with other flags,
// one server more, down and gone; addresses and ids stay.
func TestLife(t *testing.T) {
	cfg := testConfig(t)
	cfg.TserverFlags = []string{"--color=red"}
	c := up(t, cfg)
	first := status(t, c)
	require.Len(t, first, 3)
	for name, s := range first {
		require.Equal(t, StateRunning, s.State, name)
		require.Len(t, s.UUID, 32, name)
		require.NotZero(t, s.Pid, name)
	}
	require.Equal(t, []string{first["master-1"].RPC}, c.MasterAddresses())
	require.Contains(t, argsOf(t, first["tserver-2"]), "--tserver_master_addrs="+first["master-1"].RPC)
	require.Contains(t, argsOf(t, first["tserver-2"]), "--color=red")
	require.NotContains(t, argsOf(t, first["master-1"]), "--color=red")

	// Kill and stop are seen at once, and done twice they are no error.
	for range 2 {
		require.NoError(t, c.Kill("tserver-1"))
		require.NoError(t, c.Stop(t.Context(), "master-1"))
	}
	down := status(t, c)
	require.Equal(t, StateStopped, down["tserver-1"].State)
	require.Zero(t, down["tserver-1"].Pid)
	require.Equal(t, StateStopped, down["master-1"].State)
	require.Equal(t, StateRunning, down["tserver-2"].State)
	var unknown *UnknownServerError
	require.ErrorAs(t, c.Kill("tserver-9"), &unknown)
	require.ErrorContains(t, c.Start(t.Context(), "x"), "master-1, tserver-1, tserver-2")

	require.NoError(t, c.Start(t.Context(), "tserver-1"))
	require.Contains(t, argsOf(t, first["tserver-1"]), "--color=red")

	// Up again, from nothing but the folder: the master is missing, one server is added, flags hold for who starts.
	cfg.TabletServers, cfg.TserverFlags = 3, []string{"--color=blue"}
	c2, err := Up(t.Context(), cfg)
	require.NoError(t, err)
	second := status(t, c2)
	require.Len(t, second, 4)
	for name, s := range first {
		require.Equal(t, s.RPC, second[name].RPC)
		require.Equal(t, s.UUID, second[name].UUID)
		require.Equal(t, StateRunning, second[name].State)
	}
	require.Equal(t, first["tserver-2"].Pid, second["tserver-2"].Pid)
	require.Contains(t, argsOf(t, second["tserver-3"]), "--color=blue")
	require.Len(t, second["tserver-3"].UUID, 32)

	// All down, folder kept; up once more with the flags remembered.
	require.NoError(t, c2.Down(t.Context(), false))
	for name, s := range status(t, c2) {
		require.Equal(t, StateStopped, s.State, name)
	}
	cfg.TabletServers, cfg.TserverFlags = 0, nil
	c3, err := Up(t.Context(), cfg)
	require.NoError(t, err)
	require.Contains(t, argsOf(t, first["tserver-1"]), "--color=blue")
	cfg.TabletServers = 1
	_, err = Up(t.Context(), cfg)
	require.ErrorContains(t, err, "takes none away")

	require.NoError(t, c3.Down(t.Context(), true))
	require.NoDirExists(t, cfg.Dir)
	_, err = Open(cfg)
	require.ErrorIs(t, err, ErrNoCluster)
}

// TestFailedStart shows that a server that ends at once, or never gets ready, is named with its reason, and that nothing
// is left running.
func TestFailedStart(t *testing.T) {
	cfg := testConfig(t)
	cfg.TserverFlags = []string{"--fail=flag --colour is unknown"}
	_, err := Up(t.Context(), cfg)
	require.ErrorContains(t, err, "tserver-1 ended before it was ready")
	require.ErrorContains(t, err, "flag --colour is unknown")
	cfg.TserverFlags, cfg.ReadyTimeout = []string{"--unready"}, 2*time.Second
	_, err = Up(t.Context(), cfg)
	require.ErrorContains(t, err, "tserver-1 isn't ready after 2s (opening tablets: 0 of 7)")
	c, err := Open(cfg)
	require.NoError(t, err)
	for name, s := range status(t, c) {
		require.Equal(t, StateStopped, s.State, name)
	}
	// The same folder comes up once the fault is gone: flags that failed aren't remembered.
	cfg.TserverFlags, cfg.ReadyTimeout = nil, 0
	c = up(t, cfg)
	require.NotContains(t, argsOf(t, status(t, c)["tserver-1"]), "--unready")
	require.NoError(t, c.Kill("tserver-1"))
	cfg.TserverFlags = []string{"--fail=again"}
	_, err = Up(t.Context(), cfg)
	require.ErrorContains(t, err, "again")
	require.NoError(t, c.Start(t.Context(), "tserver-1"))
}

// TestStarting shows the state between alive and ready.
func TestStarting(t *testing.T) {
	cfg := testConfig(t)
	c := up(t, cfg)
	require.NoError(t, c.Kill("tserver-1"))
	require.NoError(t, c.update(t.Context(), func(st *state) error {
		s := st.find("tserver-1")
		s.Flags = []string{"--unready"}
		return c.launch(st, s)
	}))
	require.Equal(t, StateStarting, status(t, c)["tserver-1"].State)
}

// TestStubborn shows that down ends a server that ignores SIGTERM, and that stop says so instead.
func TestStubborn(t *testing.T) {
	cfg := testConfig(t)
	cfg.StopTimeout, cfg.MasterFlags = 200*time.Millisecond, []string{"--stubborn"}
	c := up(t, cfg)
	require.ErrorContains(t, c.Stop(t.Context(), "master-1"), "nyala local kill master-1")
	require.NoError(t, c.Down(t.Context(), false))
	require.Equal(t, StateStopped, status(t, c)["master-1"].State)
}

// TestReusedPid shows that a pid whose process isn't the one that was started is neither shown as running nor signalled.
func TestReusedPid(t *testing.T) {
	cfg := testConfig(t)
	c := up(t, cfg)
	require.NoError(t, c.Kill("tserver-1"))
	require.NoError(t, c.update(t.Context(), func(st *state) error {
		s := st.find("tserver-1")
		s.Pid, s.Start = os.Getpid(), "another-boot/1" // signalling it would end this test
		return st.save(c.Dir())
	}))
	require.Equal(t, StateStopped, status(t, c)["tserver-1"].State)
	require.NoError(t, c.Kill("tserver-1"))
}

// TestPortTaken shows that a server that has been ready keeps its addresses: a taken port is an error that names it.
func TestPortTaken(t *testing.T) {
	cfg := testConfig(t)
	c := up(t, cfg)
	require.NoError(t, c.Stop(t.Context(), "tserver-2"))
	l, err := net.Listen("tcp", status(t, c)["tserver-2"].RPC)
	require.NoError(t, err)
	defer l.Close()
	require.ErrorContains(t, c.Start(t.Context(), "tserver-2"), l.Addr().String())
}

// TestPortLost shows that a server that has never been ready moves when another program takes its port at the last moment.
func TestPortLost(t *testing.T) {
	cfg := testConfig(t)
	var thief net.Listener
	var c *Cluster
	cfg.Notify = func(s string) {
		if thief != nil || !strings.HasPrefix(s, "master-1 started") {
			return
		}
		var err error
		if c, err = Open(Config{Dir: cfg.Dir}); err == nil {
			thief, err = net.Listen("tcp", status(t, c)["tserver-1"].RPC)
		}
		require.NoError(t, err)
	}
	up(t, cfg)
	defer thief.Close()
	s := status(t, c)["tserver-1"]
	require.Equal(t, StateRunning, s.State)
	require.NotEqual(t, thief.Addr().String(), s.RPC)
}

// TestInterrupted shows that an Up that is cut short stops what it started.
func TestInterrupted(t *testing.T) {
	cfg := testConfig(t)
	cfg.MasterFlags = []string{"--unready"}
	ctx, cancel := context.WithCancel(t.Context())
	cfg.Notify = func(s string) {
		if strings.HasPrefix(s, "master-1 started") {
			cancel()
		}
	}
	_, err := Up(ctx, cfg)
	require.ErrorIs(t, err, context.Canceled)
	c, err := Open(cfg)
	require.NoError(t, err)
	require.Equal(t, StateStopped, status(t, c)["master-1"].State)
}

// TestLock shows that a second command on a folder gives up naming the first, that the lock goes with its holder, and that
// servers don't keep it.
func TestLock(t *testing.T) {
	cfg := testConfig(t)
	c := up(t, cfg)
	lock, err := lockFolder(t.Context(), c.Dir(), 0)
	require.NoError(t, err)
	_, err = lockFolder(t.Context(), c.Dir(), 50*time.Millisecond)
	require.ErrorContains(t, err, "is in use: process ")
	lock.release()
	again, err := lockFolder(t.Context(), c.Dir(), 0)
	require.NoError(t, err)
	again.release()
}

// TestForeignFolder shows that a folder with other things in it is refused, and that deleting leaves what isn't ours.
func TestForeignFolder(t *testing.T) {
	cfg := testConfig(t)
	require.NoError(t, os.MkdirAll(cfg.Dir, 0o755))
	note := filepath.Join(cfg.Dir, "thesis.tex")
	require.NoError(t, os.WriteFile(note, nil, 0o644))
	_, err := Up(t.Context(), cfg)
	require.ErrorContains(t, err, "isn't empty (thesis.tex)")

	cfg.Dir += "2"
	c := up(t, cfg)
	mine := filepath.Join(cfg.Dir, "mine")
	require.NoError(t, os.WriteFile(mine, nil, 0o644))
	require.NoError(t, c.Down(t.Context(), true))
	require.FileExists(t, mine)
	require.NoFileExists(t, filepath.Join(cfg.Dir, stateFileName))
}

// TestBinaries shows what is said when there is no program to run.
func TestBinaries(t *testing.T) {
	cfg := testConfig(t)
	cfg.BinDir = t.TempDir()
	_, err := Up(t.Context(), cfg)
	require.ErrorContains(t, err, "make build")
	require.NoDirExists(t, cfg.Dir)
	t.Setenv("PATH", "")
	_, err = findBinary(RoleTserver, "")
	require.ErrorContains(t, err, "found no nyala-tserver")
}

// TestPorts shows the default ports and their steps around what is taken.
func TestPorts(t *testing.T) {
	taken := []string{"127.0.0.1:7051", "127.0.0.1:8070"}
	p := newPortChooser(&state{Servers: []*serverState{{RPC: "127.0.0.1:7050", Web: "127.0.0.1:8050"}}}, false)
	p.free = func(a string) bool { return !slices.Contains(taken, a) }
	for _, want := range []struct {
		role     Role
		rpc, web string
	}{
		{RoleMaster, "127.0.0.1:7061", "127.0.0.1:8061"},
		{RoleTserver, "127.0.0.1:7060", "127.0.0.1:8060"},
		{RoleTserver, "127.0.0.1:7080", "127.0.0.1:8080"},
	} {
		rpc, web, err := p.choose(want.role)
		require.NoError(t, err)
		require.Equal(t, want.rpc, rpc)
		require.Equal(t, want.web, web)
	}
	p.free = func(string) bool { return false }
	_, _, err := p.choose(RoleMaster)
	require.ErrorContains(t, err, "no two free ports")
}

// TestProcessStart shows that a running process keeps its start time and that one that ended doesn't run.
func TestProcessStart(t *testing.T) {
	a, running, err := processStart(os.Getpid())
	require.NoError(t, err)
	require.True(t, running)
	b, _, _ := processStart(os.Getpid())
	require.Equal(t, a, b)
	require.False(t, alive(os.Getpid(), "else"))
	require.False(t, alive(0, ""))
	require.NoError(t, sendSignal(os.Getpid(), "else", syscall.SIGKILL))
}
