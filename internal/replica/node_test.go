package replica

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/fs"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/rpc"
	"github.com/nyaladb/nyala/internal/status"
)

// TestOtherClusterIsRefused: a server of another cluster is refused by name, by each RPC and by the servers' own streams,
// and nothing of it is taken over.
func TestOtherClusterIsRefused(t *testing.T) {
	r := newRig(t, 1).startAll()
	s := r.servers[0]
	other := ident.ClusterID(ident.New())
	err := s.n.SetClusterID(other)
	require.Equal(t, status.ClusterIDMismatch, status.CodeOf(err))
	require.ErrorContains(t, err, string(other))
	require.ErrorContains(t, err, string(r.cluster))
	require.Equal(t, r.cluster, s.n.ClusterID())
	for id, want := range map[ident.ClusterID]status.Code{other: status.ClusterIDMismatch, r.cluster: status.OK, "": status.OK} {
		cc, err := rpc.Dial(s.addr, rpc.DialOptions{ClusterID: func() ident.ClusterID { return id }})
		require.NoError(t, err)
		resp, err := nyalav1.NewServerServiceClient(cc).GetStatus(t.Context(), &nyalav1.GetStatusRequest{})
		require.Equal(t, want, status.CodeOf(status.FromGRPC(err)), "%q: %v", id, err)
		if want == status.OK {
			require.Equal(t, string(s.n.ServerID()), resp.GetServerId())
			require.Equal(t, uint64(1), resp.GetIncarnation())
			require.True(t, resp.GetReady())
		}
		require.NoError(t, cc.Close())
	}
}

// TestIncarnations: each start has a higher number, and the same server id and cluster.
func TestIncarnations(t *testing.T) {
	r := newRig(t, 1)
	s := r.servers[0]
	var id ident.ServerID
	for start := range uint64(3) {
		s.start()
		require.Equal(t, start+1, s.n.Incarnation())
		require.Equal(t, r.cluster, s.n.ClusterID())
		if start == 0 {
			id = s.n.ServerID()
		}
		require.Equal(t, id, s.n.ServerID())
		s.kill()
	}
}

// TestOpenFails: whatever can't be opened, all that was is given back, so that the next try may succeed.
func TestOpenFails(t *testing.T) {
	cfg := DefaultNodeConfig()
	cfg.FS = fs.Config{WALDir: t.TempDir(), Role: fs.TabletServer}
	cfg.RPC.BindAddresses = []string{"127.0.0.1:0"}
	cfg.Logger = slog.New(slog.DiscardHandler)
	for name, edit := range map[string]func(*NodeConfig){
		"folder":    func(c *NodeConfig) { c.FS.WALDir = "" },
		"clock":     func(c *NodeConfig) { c.Clock.MaxClockSyncError = 0 },
		"address":   func(c *NodeConfig) { c.RPC.BindAddresses = []string{"192.0.2.1:7050"} },
		"peers":     func(c *NodeConfig) { c.Peers.BatchBytes = 0 },
		"store":     func(c *NodeConfig) { c.Tablet.MaxL0Sublevels = 1 },
		"consensus": func(c *NodeConfig) { c.Consensus.MaxMissedHeartbeats = 0 },
	} {
		c := cfg
		edit(&c)
		n, err := OpenNode(c)
		require.Error(t, err, name)
		require.Nil(t, n, name)
	}
	n, err := OpenNode(cfg)
	require.NoError(t, err)
	_, err = OpenNode(cfg)
	require.ErrorContains(t, err, cfg.FS.WALDir, "the folder is taken")
	require.NoError(t, n.Close())
	require.NoError(t, n.Close())
	_, err = n.Dial("127.0.0.1:1")
	require.Equal(t, status.ServiceUnavailable, status.CodeOf(err), "nothing is opened after the end")
}

// TestRoleFails: a role that fails ends the node with its error, and everything is closed.
func TestRoleFails(t *testing.T) {
	r := newRig(t, 1)
	s := r.servers[0]
	s.open()
	failed := errors.New("the role failed")
	err := s.n.Run(t.Context(), func(context.Context) error { return failed })
	require.ErrorIs(t, err, failed)
	s.n = nil
	s.start()
}

// TestStepDown hands a leadership to a server by name, and says what can't be done.
func TestStepDown(t *testing.T) {
	r := newRig(t, 3).startAll()
	id := r.create(r.servers...)
	leader := r.leader(id)
	to := r.followers(id)[1]
	rep := leader.replica(id)
	err := rep.StepDown(t.Context(), "nobody")
	require.Equal(t, status.InvalidArgument, status.CodeOf(err), "%v", err)
	err = rep.StepDown(t.Context(), leader.n.ServerID())
	require.Equal(t, status.InvalidArgument, status.CodeOf(err), "%v", err)
	err = to.replica(id).StepDown(t.Context(), "")
	require.Equal(t, status.NotTheLeader, status.CodeOf(err), "%v", err)
	require.NoError(t, rep.StepDown(t.Context(), to.n.ServerID()))
	require.Same(t, to, r.leader(id))
	require.NoError(t, to.replica(id).StepDown(t.Context(), ""))
	require.NotSame(t, to, r.leader(id))
	alone := r.create(to)
	require.Same(t, to, r.leader(alone))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	require.Error(t, to.replica(alone).StepDown(ctx, ""))
}

// TestChanges: what changes is told once, until it is put back.
func TestChanges(t *testing.T) {
	r := newRig(t, 1)
	s := r.servers[0]
	s.open()
	changes := s.n.Replicas.Subscribe()
	s.run()
	id := r.create(s)
	r.leader(id)
	seen := map[ident.TabletID]bool{}
	r.until("the leadership is told", func() bool {
		for _, id := range changes.Take() {
			seen[id] = true
		}
		return seen[id]
	})
	st, creating := s.n.Replicas.Status(id)
	require.False(t, creating)
	require.Equal(t, string(id), st.GetTabletId())
	changes.PutBack([]ident.TabletID{id})
	require.Equal(t, []ident.TabletID{id}, changes.Take())
	require.NoError(t, s.n.Replicas.Delete(t.Context(), id))
	<-changes.Wake()
	require.Contains(t, changes.Take(), id)
	st, creating = s.n.Replicas.Status(id)
	require.Nil(t, st)
	require.False(t, creating)
}
