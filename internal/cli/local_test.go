package cli

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nyaladb/nyala/internal/localcluster"
)

// TestPrintServers shows the two forms of local status.
func TestPrintServers(t *testing.T) {
	servers := []localcluster.Server{
		{
			Name: "master-1", Role: localcluster.RoleMaster, UUID: fakeID("a", 1), Pid: 4711, RPC: "127.0.0.1:7051", Web: "127.0.0.1:8051",
			Dir: "/d/master-1", Log: "/d/master-1/logs/nyala-master.log", State: localcluster.StateRunning,
		},
		{
			Name: "tserver-1", Role: localcluster.RoleTserver, RPC: "127.0.0.1:7050", Web: "127.0.0.1:8050",
			Dir: "/d/tserver-1", Log: "/d/tserver-1/logs/nyala-tserver.log", State: localcluster.StateStopped,
		},
	}
	var out bytes.Buffer
	a := &app{Streams: Streams{Out: &out}}
	require.NoError(t, a.printServers(servers, "table"))
	require.Equal(t, `NAME       STATE     PID  RPC             WEB             UUID                              LOG
---------  -------  ----  --------------  --------------  --------------------------------  -----------------------------------
master-1   running  4711  127.0.0.1:7051  127.0.0.1:8051  a0000000000000000000000000000001  /d/master-1/logs/nyala-master.log
tserver-1  stopped     -  127.0.0.1:7050  127.0.0.1:8050  -                                 /d/tserver-1/logs/nyala-tserver.log
`, out.String())
	out.Reset()
	require.NoError(t, a.printServers(servers[1:], "json"))
	require.JSONEq(t, `{"servers":[{"name":"tserver-1","role":"tserver","uuid":"","pid":0,"rpc":"127.0.0.1:7050","web":"127.0.0.1:8050",
		"dir":"/d/tserver-1","log":"/d/tserver-1/logs/nyala-tserver.log","state":"stopped"}]}`, out.String())
}

// TestLocalDir shows where a cluster lies: --dir, else NYALA_LOCAL_DIR, else a folder in the home.
func TestLocalDir(t *testing.T) {
	t.Setenv("HOME", "/home/u")
	env := ""
	a := &app{getenv: func(string) string { return env }}
	require.Equal(t, filepath.Join("/home/u", ".nyala", "local"), a.defaultLocalDir())
	env = "/elsewhere"
	require.Equal(t, "/elsewhere", a.defaultLocalDir())
	require.Empty(t, a.dirHint(&localFlags{dir: "/elsewhere"}))
	require.Equal(t, " --dir /x", a.dirHint(&localFlags{dir: "/x"}))
}

// TestServerFlags shows flags for servers: none given, none at all, and what isn't a flag.
func TestServerFlags(t *testing.T) {
	for _, c := range []struct{ given, want []string }{
		{nil, nil}, {[]string{""}, []string{}}, {[]string{"--a=b", "--c"}, []string{"--a=b", "--c"}},
	} {
		got, err := serverFlags(c.given)
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
	_, err := serverFlags([]string{"a=b"})
	require.Error(t, err)
}

// TestMasterAddresses shows which masters are asked: --masters, else NYALA_MASTERS, else the default.
func TestMasterAddresses(t *testing.T) {
	env := ""
	a := &app{getenv: func(string) string { return env }}
	require.Equal(t, []string{"localhost:7051"}, a.masterAddresses())
	env = "a:1,b:2"
	require.Equal(t, []string{"a:1", "b:2"}, a.masterAddresses())
	a.masters = []string{"c:3"}
	require.Equal(t, []string{"c:3"}, a.masterAddresses())
}
