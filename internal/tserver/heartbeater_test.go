package tserver

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

// TestReports follows what a master is told: everything at first, then what changes, everything again when it asks or when
// an answer was lost, and nothing but a sign of life where it doesn't lead.
func TestReports(t *testing.T) {
	m := newFakeMaster(t)
	s := newServer(t, m.addr).start()
	first := m.next("the first, with all that is here", full)
	require.Equal(t, string(s.n.ServerID()), first.GetServerId())
	require.Equal(t, uint64(1), first.GetIncarnation())
	require.Equal(t, []string{s.addr}, first.GetRegistration().GetRpcAddresses())
	require.Empty(t, first.GetReport().GetUpdated())
	m.next("nothing has changed", noReport)
	require.Equal(t, ident.ClusterID(cluster), s.n.ClusterID())
	ok, why := s.s.Ready()
	require.True(t, ok, why)

	id := create(t, s)
	leads := func(b *nyalav1.TSHeartbeatRequest) bool {
		return slices.ContainsFunc(b.GetReport().GetUpdated(), func(r *nyalav1.ReplicaStatus) bool {
			return r.GetTabletId() == id && r.GetRole() == nyalav1.Role_ROLE_LEADER
		})
	}
	b := m.next("the new replica and that it leads", leads)
	require.False(t, b.GetReport().GetFull())
	next := uint32(0)
	m.mu.Lock()
	for _, b := range m.beats {
		if b.GetReport() != nil {
			require.Equal(t, next, b.GetReport().GetSequence(), "they rise by one")
			next++
		}
	}
	m.mu.Unlock()

	m.does(func(b *nyalav1.TSHeartbeatRequest) (*nyalav1.TSHeartbeatResponse, error) {
		return &nyalav1.TSHeartbeatResponse{ClusterId: cluster, Leader: true, NeedsFullReport: !b.GetReport().GetFull()}, nil
	})
	require.True(t, leads(m.next("all, as it was asked for", full)))

	m.does(func(*nyalav1.TSHeartbeatRequest) (*nyalav1.TSHeartbeatResponse, error) {
		return nil, status.New(status.ServiceUnavailable, "the answer is lost")
	})
	m.next("a try", func(*nyalav1.TSHeartbeatRequest) bool { return true })
	m.does(leading)
	require.True(t, leads(m.next("all: what arrived isn't known", full)))

	m.does(func(*nyalav1.TSHeartbeatRequest) (*nyalav1.TSHeartbeatResponse, error) {
		return &nyalav1.TSHeartbeatResponse{ClusterId: cluster}, nil
	})
	m.next("a sign of life to who doesn't lead", noReport)
	m.does(func(b *nyalav1.TSHeartbeatRequest) (*nyalav1.TSHeartbeatResponse, error) {
		return &nyalav1.TSHeartbeatResponse{ClusterId: cluster}, nil
	})
	_, err := s.admin.DeleteTablet(t.Context(), &nyalav1.DeleteTabletRequest{TabletId: id})
	require.NoError(t, err)
	m.next("a sign of life", noReport)
	m.mu.Lock()
	for _, b := range m.beats {
		require.Nil(t, b.GetReport(), "who doesn't lead takes none")
	}
	m.mu.Unlock()
	m.does(func(b *nyalav1.TSHeartbeatRequest) (*nyalav1.TSHeartbeatResponse, error) {
		return &nyalav1.TSHeartbeatResponse{ClusterId: cluster, Leader: true, NeedsFullReport: !b.GetReport().GetFull()}, nil
	})
	b = m.next("all, to who leads now", full)
	require.Empty(t, b.GetReport().GetUpdated())
	m.does(leading)
	id = create(t, s)
	m.next("the new one", leads)
	_, err = s.admin.DeleteTablet(t.Context(), &nyalav1.DeleteTabletRequest{TabletId: id})
	require.NoError(t, err)
	m.next("that it is gone", func(b *nyalav1.TSHeartbeatRequest) bool {
		return slices.Equal(b.GetReport().GetRemovedTabletIds(), []string{id})
	})

	s.stop()
	m.does(leading)
	s.start()
	b = m.next("all, from the next start", full)
	require.Equal(t, uint64(2), b.GetIncarnation())
	require.Zero(t, b.GetReport().GetSequence())
}

// TestMasterAway: a master that isn't up is tried on and on, and said so of once, and once that it is back.
func TestMasterAway(t *testing.T) {
	m := newFakeMaster(t)
	m.stop()
	s := newServer(t, m.addr).start()
	until(t, "it is said", func() bool { return s.log.count("heartbeat to master failed") == 1 })
	ok, why := s.s.Ready()
	require.False(t, ok)
	require.Equal(t, "no leading master has answered so far", why)
	m.start()
	m.next("one", full)
	until(t, "it is said", func() bool { return s.log.count("master answers again") == 1 })
	ok, why = s.s.Ready()
	require.True(t, ok, why)
	m.does(func(*nyalav1.TSHeartbeatRequest) (*nyalav1.TSHeartbeatResponse, error) {
		return nil, status.New(status.ServiceUnavailable, "not now")
	})
	until(t, "it was tried again and again", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.beats) > 3
	})
	require.Equal(t, 2, s.log.count("heartbeat to master failed"), "once for each time it goes away")
	m.does(func(*nyalav1.TSHeartbeatRequest) (*nyalav1.TSHeartbeatResponse, error) {
		return nil, status.New(status.WrongServerID, "another fault")
	})
	until(t, "another fault is said", func() bool { return s.log.count("another fault") == 1 })
	ok, _ = s.s.Ready()
	require.True(t, ok, "its tablets serve without a master")
}

// TestMasterOfAnotherCluster: its word isn't taken, it is said which clusters don't fit, and nothing is deleted (I1).
func TestMasterOfAnotherCluster(t *testing.T) {
	m := newFakeMaster(t)
	s := newServer(t, m.addr).start()
	m.next("one", full)
	id := create(t, s)
	load(t, id, 10, s)
	s.stop()
	other := ident.New()
	m.does(func(*nyalav1.TSHeartbeatRequest) (*nyalav1.TSHeartbeatResponse, error) {
		return &nyalav1.TSHeartbeatResponse{ClusterId: other, Leader: true}, nil
	})
	s.start()
	until(t, "it is said", func() bool { return s.log.count(other) > 0 })
	until(t, "several were tried", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.beats) > 2
	})
	require.Equal(t, 1, s.log.count(cluster), "once, with both names")
	ok, _ := s.s.Ready()
	require.False(t, ok)
	require.Equal(t, ident.ClusterID(cluster), s.n.ClusterID())
	require.Len(t, s.n.Replicas.Statuses(), 1)
}

// TestAdmin: calls for another server, for tablets that aren't here, and without a place for this server are refused by name.
func TestAdmin(t *testing.T) {
	m := newFakeMaster(t)
	s := newServer(t, m.addr).start()
	id := create(t, s)
	load(t, id, 1, s)
	wrong := ident.New()
	_, err := s.admin.CreateTablet(t.Context(), &nyalav1.CreateTabletRequest{DestServerId: wrong})
	require.Equal(t, status.WrongServerID, status.CodeOf(status.FromGRPC(err)))
	require.ErrorContains(t, err, "this is server "+string(s.n.ServerID())+", the call is for "+wrong)
	_, err = s.admin.DeleteTablet(t.Context(), &nyalav1.DeleteTabletRequest{DestServerId: wrong, TabletId: id})
	require.Equal(t, status.WrongServerID, status.CodeOf(status.FromGRPC(err)))
	_, err = s.admin.LeaderStepDown(t.Context(), &nyalav1.LeaderStepDownRequest{DestServerId: wrong, TabletId: id})
	require.Equal(t, status.WrongServerID, status.CodeOf(status.FromGRPC(err)))
	nowhere := ident.New()
	_, err = s.admin.CreateTablet(t.Context(), &nyalav1.CreateTabletRequest{TabletId: nowhere})
	require.Equal(t, status.InvalidArgument, status.CodeOf(status.FromGRPC(err)))
	_, err = s.admin.DeleteTablet(t.Context(), &nyalav1.DeleteTabletRequest{TabletId: nowhere})
	require.Equal(t, status.TabletNotFound, status.CodeOf(status.FromGRPC(err)))
	_, err = s.admin.LeaderStepDown(t.Context(), &nyalav1.LeaderStepDownRequest{TabletId: nowhere})
	require.Equal(t, status.TabletNotFound, status.CodeOf(status.FromGRPC(err)))
	_, err = s.Write(t.Context(), &nyalav1.WriteRequest{TabletId: nowhere})
	require.Equal(t, status.TabletNotFound, status.CodeOf(status.FromGRPC(err)))
	_, err = s.Scan(t.Context(), &nyalav1.ScanRequest{Target: &nyalav1.ScanRequest_NewScan{NewScan: &nyalav1.NewScan{TabletId: nowhere}}})
	require.Equal(t, status.TabletNotFound, status.CodeOf(status.FromGRPC(err)))
	for want, ids := range map[int][]string{1: nil, 0: {nowhere}} {
		list, err := s.admin.ListTablets(t.Context(), &nyalav1.ListTabletsRequest{TabletIds: ids})
		require.NoError(t, err)
		require.Len(t, list.GetReplicas(), want)
	}
}

// TestConfig: all faults are named at once.
func TestConfig(t *testing.T) {
	cfg := Config{}
	err := cfg.Validate()
	for _, name := range []string{"tserver_master_addrs", "heartbeat_interval_ms", "scanner_ttl_ms", "scanner_max_open"} {
		require.ErrorContains(t, err, name)
	}
	cfg = DefaultConfig()
	cfg.Masters = []string{"m:7051"}
	require.NoError(t, cfg.Validate())
	require.Equal(t, time.Minute, cfg.ScannerTTL)
}
