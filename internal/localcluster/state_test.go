package localcluster

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStateRoundTrip writes a state file and reads it back.
func TestStateRoundTrip(t *testing.T) {
	st := &state{Version: stateVersion}
	st.grow(RoleMaster, 1)
	st.grow(RoleTserver, 2)
	for i, s := range st.Servers {
		s.RPC, s.Web, s.Flags, s.Pid, s.Start = address(100+i), address(200+i), []string{"--a=b"}, i, "boot/7"
	}
	dir := t.TempDir()
	require.NoError(t, st.save(dir))
	got, err := loadState(dir)
	require.NoError(t, err)
	require.Equal(t, st, got)
	require.Equal(t, []string{"master-1", "tserver-1", "tserver-2"}, got.names())
	_, err = loadState(t.TempDir())
	require.ErrorIs(t, err, ErrNoCluster)
}

// TestDecodeStateFaults names what is wrong with a state file.
func TestDecodeStateFaults(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{`{`, "unexpected EOF"},
		{`{"version":9}`, "version 9"},
		{`{"version":1,"x":1}`, "unknown field"},
		{`{"version":1,"servers":[null]}`, "server 1 is null"},
		{`{"version":1,"servers":[{"name":"a","role":"boss"}]}`, `role "boss"`},
		{`{"version":1,"servers":[{"name":"../a","role":"master"}]}`, `"../a" can't be a folder's name`},
		{`{"version":1,"servers":[{"name":"..","role":"master"}]}`, `".." can't be a folder's name`},
		{`{"version":1,"servers":[{"name":"a","role":"master"}]}`, "no address"},
	} {
		_, err := decodeState([]byte(c.in))
		require.ErrorContains(t, err, c.want, c.in)
	}
}

// FuzzDecodeState shows that no content of the state file makes a panic, and that what is taken is written the same.
func FuzzDecodeState(f *testing.F) {
	f.Add([]byte(`{"version":1,"servers":[{"name":"tserver-1","role":"tserver","rpc":"127.0.0.1:1","web":"127.0.0.1:2","pid":3}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		st, err := decodeState(data)
		if err != nil {
			return
		}
		b, err := json.Marshal(st)
		require.NoError(t, err)
		again, err := decodeState(b)
		require.NoError(t, err)
		require.Len(t, again.Servers, len(st.Servers))
	})
}
