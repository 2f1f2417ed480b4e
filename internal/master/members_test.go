package master

import (
	"testing"

	"github.com/stretchr/testify/require"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/replica"
)

// clocksKnown returns how many other servers' clocks a server has measured, and how many others it thinks there are.
func (s *server) clocksKnown() (known, others int) {
	st := s.n.Clock.Status()
	return len(st.Peers), st.Opinion.Others
}

// knowEachOther waits until each running server beats with all others, masters too.
func (r *rig) knowEachOther(servers ...*server) {
	r.t.Helper()
	r.until("all servers know each other's clocks", func() bool {
		for _, s := range servers {
			if known, others := s.clocksKnown(); known != len(servers)-1 || others != len(servers)-1 {
				return false
			}
		}
		return true
	})
}

// TestServersOfACluster shows that every server learns of every other, masters too, and swaps beats with it; that one that
// has gone silent is forgotten, and that a master that starts again names at once the servers that the catalog knows.
func TestServersOfACluster(t *testing.T) {
	r := newRig(t, 3)
	all := append([]*server{r.master}, r.ts...)
	r.knowEachOther(all...)
	version := r.ts[0].n.ServersVersion()
	require.NotZero(t, version)

	r.master.stop()
	r.master.start()
	r.until("a newer list", func() bool { return r.ts[0].n.ServersVersion() > version })
	r.knowEachOther(all...)
}

// TestMembersVersions shows that a list's version rises with each change, over leaderships too.
func TestMembersVersions(t *testing.T) {
	var l members
	one := []*nyalav1.ServerAddress{{ServerId: "a", RpcAddress: "a:1"}}
	require.True(t, l.set(3, one))
	list, version := l.newer(0)
	require.Equal(t, one, list)
	require.False(t, l.set(3, []*nyalav1.ServerAddress{{ServerId: "a", RpcAddress: "a:1"}}))
	none, same := l.newer(version)
	require.Empty(t, none)
	require.Equal(t, version, same)
	require.True(t, l.set(3, nil))
	_, second := l.newer(version)
	require.Greater(t, second, version)
	l.clear()
	_, cleared := l.newer(second)
	require.Zero(t, cleared)
	require.True(t, l.set(4, one))
	_, third := l.newer(second)
	require.Greater(t, third, second)
	require.Equal(t, []replica.Server{{ID: "a", Address: "a:1"}}, replica.ServersFromProto(one))
}
