package master

import (
	"testing"

	"github.com/stretchr/testify/require"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

// on is the running tablet server with an id.
func (r *rig) on(id string) *server {
	for _, s := range r.ts {
		if s.n != nil && string(s.n.ServerID()) == id {
			return s
		}
	}
	return nil
}

// change changes the members of a table's only tablet, at its leader.
func (r *rig) change(name string, edit func(*nyalav1.ChangeConfigRequest)) *nyalav1.RaftConfig {
	r.t.Helper()
	var config *nyalav1.RaftConfig
	r.until("the members are changed", func() bool {
		l := r.locations(name)[0]
		leader := leaderOf(l)
		if r.on(leader.GetServerId()) == nil {
			return false
		}
		req := &nyalav1.ChangeConfigRequest{DestServerId: leader.GetServerId(), TabletId: l.GetTabletId()}
		edit(req)
		resp, err := r.on(leader.GetServerId()).dial().ChangeConfig(r.t.Context(), req)
		err = status.FromGRPC(err)
		if code := status.CodeOf(err); code == status.IllegalState || code == status.NotTheLeader {
			return false // it has just begun to lead, or a learner isn't level yet
		}
		require.NoError(r.t, err)
		config = resp.GetConfig()
		return true
	})
	return config
}

// members lists the servers and roles that the master names, by server.
func (r *rig) members(name string) map[string]nyalav1.Role {
	out := map[string]nyalav1.Role{}
	for _, p := range r.locations(name)[0].GetReplicas() {
		out[p.GetServerId()] = p.GetRole()
	}
	return out
}

// TestMembersAreLearned: the master names members that came by a change of the config, and no longer those that went, also after
// a restart; a server that was away when its replica was removed is told to delete it.
func TestMembersAreLearned(t *testing.T) {
	r := newRig(t, 4)
	r.create(tableRequest("t", 1, 3))
	id := ident.TabletID(r.locations("t")[0].GetTabletId())
	r.until("all replicas are made", func() bool { return r.held()[id] == 3 })
	var free *server
	for _, s := range r.ts {
		if _, has := r.members("t")[string(s.n.ServerID())]; !has {
			free = s
		}
	}
	var away *server // that loses its replica while it is down
	for server, role := range r.members("t") {
		if role != nyalav1.Role_ROLE_LEADER {
			away = r.on(server)
		}
	}
	st, _ := away.n.Replicas.Status(id)
	gone, own := st.GetReplicaId(), string(away.n.ServerID())
	away.kill()
	newcomer := string(free.n.ServerID())
	config := r.change("t", func(q *nyalav1.ChangeConfigRequest) {
		q.Add = []*nyalav1.Peer{{ServerId: newcomer, Address: free.addr}}
	})
	require.EqualValues(t, 5, config.GetNextReplicaId())
	r.until("the master names the learner", func() bool { return r.members("t")[newcomer] == nyalav1.Role_ROLE_LEARNER })
	r.change("t", func(q *nyalav1.ChangeConfigRequest) { q.Promote, q.Remove = []uint64{4}, []uint64{gone} })
	named := func() bool {
		m := r.members("t")
		_, still := m[own]
		return len(m) == 3 && !still && (m[newcomer] == nyalav1.Role_ROLE_FOLLOWER || m[newcomer] == nyalav1.Role_ROLE_LEADER)
	}
	r.until("the master names the new members", named)
	r.master.kill()
	r.master.start()
	r.awaitLeaders("t")
	require.True(t, named())
	require.Equal(t, 3, r.held()[id])
	away.start()
	r.until("the removed replica is deleted", func() bool { _, has := away.n.Replicas.Status(id); return !has && len(away.n.Replicas.Statuses()) == 0 })
	require.Equal(t, 3, r.held()[id])

	// It comes back as another replica, and is left alone.
	r.change("t", func(q *nyalav1.ChangeConfigRequest) {
		q.Add = []*nyalav1.Peer{{ServerId: own, Address: away.addr}}
	})
	r.until("it is named again", func() bool { return r.members("t")[own] == nyalav1.Role_ROLE_LEARNER })
	r.until("it holds a replica again", func() bool { return r.held()[id] == 4 })
	_, err := r.master.dial().DeleteTable(t.Context(), &nyalav1.DeleteTableRequest{Table: byName("t")})
	require.NoError(t, err)
	r.until("all replicas are gone", func() bool { return len(r.held()) == 0 })
	r.until("the table has left the catalog", func() bool {
		r.master.m.catalog.mu.RLock()
		defer r.master.m.catalog.mu.RUnlock()
		return len(r.master.m.catalog.tables) == 0
	})
}

// TestStaleReplicas: only a replica that a known config is without, and whose id it has handed out, is told to go.
func TestStaleReplicas(t *testing.T) {
	m := &Master{catalog: newCatalog(), servers: newServers(0), moved: make(chan struct{}, 1)}
	ts := &tserver{id: "s", remove: map[ident.TabletID]struct{}{}, wake: make(chan struct{}, 1)}
	m.servers.byID["s"] = ts
	tb := m.catalog.putTableLocked("t", &nyalav1.CatalogTable{Name: "t"})
	ti := m.catalog.putTabletLocked("x", &nyalav1.CatalogTablet{TableId: "t", Config: &nyalav1.RaftConfig{
		Peers: []*nyalav1.Peer{{ReplicaId: 1}, {ReplicaId: 3}}, OpidIndex: 7, NextReplicaId: 4,
	}})
	for replica, stale := range map[uint64]bool{0: false, 1: false, 2: true, 3: false, 4: false, 9: false} {
		clear(ts.remove)
		m.staleLocked(ts, ti, replica)
		require.Equal(t, stale, len(ts.remove) == 1, "replica %d", replica)
	}
	report := func(index, next uint64, outgoing ...uint64) {
		m.membersLocked(ts, ti, &nyalav1.ReplicaStatus{ReplicaId: 1, Config: &nyalav1.RaftConfig{
			Peers: []*nyalav1.Peer{{ReplicaId: 1}}, OpidIndex: index, NextReplicaId: next, OutgoingVoters: outgoing,
		}})
	}
	report(6, 4)
	report(7, 4)
	report(8, 4, 1, 3)
	require.Empty(t, m.catalog.moved, "older, the same, joint")
	report(9, 5)
	require.Contains(t, m.catalog.moved, tb)
	report(8, 4)
	require.EqualValues(t, 9, ti.latestConfig().GetOpidIndex())
}
