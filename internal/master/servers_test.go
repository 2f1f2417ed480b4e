package master

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
)

// TestHeartbeats: which reports are taken, and when a full one is asked for, over restarts of either side, lost reports and
// heartbeats that were overtaken.
func TestHeartbeats(t *testing.T) {
	const full = true
	beat := func(incarnation uint64) *nyalav1.TSHeartbeatRequest {
		return &nyalav1.TSHeartbeatRequest{ServerId: "s", Incarnation: incarnation, Registration: &nyalav1.TSRegistration{RpcAddresses: []string{"a:1"}}}
	}
	report := func(incarnation uint64, full bool, seq uint32) *nyalav1.TSHeartbeatRequest {
		b := beat(incarnation)
		b.Report = &nyalav1.TabletReport{Full: full, Sequence: seq}
		return b
	}
	s := newServers(time.Minute)
	now := time.Now()
	for _, c := range []struct {
		what  string
		begin int // of a leadership of that term
		term  ident.Term
		req   *nyalav1.TSHeartbeatRequest
		want  heard // but ts
		takes bool  // anything is learned from it
	}{
		{what: "nobody leads", term: 0, req: beat(1)},
		{what: "let in before this leadership", begin: 3, term: 2, req: beat(1)},
		{what: "new, without a report", term: 3, req: beat(1), want: heard{leads: true, isNew: true, needsFull: true}, takes: true},
		{what: "an incremental one isn't enough", term: 3, req: report(1, false, 4), want: heard{leads: true, needsFull: true}, takes: true},
		{what: "the full one", term: 3, req: report(1, full, 5), want: heard{leads: true, take: true}, takes: true},
		{what: "the next", term: 3, req: report(1, false, 6), want: heard{leads: true, take: true}, takes: true},
		{what: "nothing new", term: 3, req: beat(1), want: heard{leads: true}, takes: true},
		{what: "again, late", term: 3, req: report(1, false, 6), want: heard{leads: true}},
		{what: "the old full one, late", term: 3, req: report(1, full, 5), want: heard{leads: true}},
		{what: "one was lost", term: 3, req: report(1, false, 9), want: heard{leads: true, needsFull: true}, takes: true},
		{what: "still", term: 3, req: beat(1), want: heard{leads: true, needsFull: true}, takes: true},
		{what: "full", term: 3, req: report(1, full, 10), want: heard{leads: true, take: true}, takes: true},
		{what: "restarted", term: 3, req: beat(2), want: heard{leads: true, needsFull: true}, takes: true},
		{what: "from before the restart", term: 3, req: report(1, false, 11), want: heard{leads: true}},
		{what: "its first", term: 3, req: report(2, full, 0), want: heard{leads: true, take: true}, takes: true},
		{what: "restarted, full at once", term: 3, req: report(3, full, 0), want: heard{leads: true, take: true}, takes: true},
		{what: "the leadership of before", begin: 4, term: 3, req: beat(3)},
		{what: "the next one begins with nothing", term: 4, req: report(3, false, 1), want: heard{leads: true, isNew: true, needsFull: true}, takes: true},
	} {
		if c.begin != 0 {
			s.begin(ident.Term(c.begin))
		}
		got := s.heartbeat(c.term, c.req, now)
		require.Equal(t, c.takes, got.ts != nil, c.what)
		got.ts = nil
		require.Equal(t, c.want, got, c.what)
	}
	require.Len(t, s.alive(now), 1)
	require.Empty(t, s.alive(now.Add(2*time.Minute)))
	require.Equal(t, uint64(3), s.list(now)[0].GetIncarnation())
}

// TestReports: what a server holds and doesn't any more.
func TestReports(t *testing.T) {
	s := newServers(time.Minute)
	s.begin(1)
	ts := s.heartbeat(1, &nyalav1.TSHeartbeatRequest{ServerId: "s", Report: &nyalav1.TabletReport{Full: true}}, time.Now()).ts
	status := func(ids ...string) (out []*nyalav1.ReplicaStatus) {
		for _, id := range ids {
			out = append(out, &nyalav1.ReplicaStatus{TabletId: id, Role: nyalav1.Role_ROLE_LEADER})
		}
		return out
	}
	s.tell("s", "b", true)
	require.Empty(t, s.report(ts, &nyalav1.TabletReport{Full: true, Updated: status("a", "b")}))
	create, _ := s.tasks(ts, 10)
	require.Empty(t, create, "it is there")
	require.True(t, s.lacks(ts, "c"))
	require.False(t, s.lacks(ts, "a"))
	require.Empty(t, s.report(ts, &nyalav1.TabletReport{Updated: status("c"), RemovedTabletIds: []string{"never"}}))
	require.Equal(t, []ident.TabletID{"a"}, s.report(ts, &nyalav1.TabletReport{RemovedTabletIds: []string{"a"}}))
	require.Equal(t, []ident.TabletID{"b"}, s.report(ts, &nyalav1.TabletReport{Full: true, Updated: status("c", "d")}))
	s.lost(ts, "b")
	require.False(t, s.lacks(ts, "b"), "what is lost isn't made anew")
	s.report(ts, &nyalav1.TabletReport{Updated: status("b")})
	require.Empty(t, ts.lost, "it is back")
	require.Equal(t, uint32(3), s.list(time.Now())[0].GetNumReplicas())

	// What it has said it made it has, although a report that was on its way doesn't name it; a later one counts.
	for _, id := range []ident.TabletID{"e", "f"} {
		s.tell("s", id, true)
		s.told(ts, id, true)
	}
	require.Empty(t, s.report(ts, &nyalav1.TabletReport{Full: true, Updated: status("b", "c", "d")}))
	require.False(t, s.lacks(ts, "e"))
	require.Equal(t, []ident.TabletID{"e"}, s.report(ts, &nyalav1.TabletReport{RemovedTabletIds: []string{"e"}}))
	s.heartbeat(1, &nyalav1.TSHeartbeatRequest{ServerId: "s", Incarnation: 9}, time.Now())
	require.Equal(t, []ident.TabletID{"f"}, s.report(ts, &nyalav1.TabletReport{Full: true, Updated: status("b", "c", "d")}))
}

// TestLeaderReports: whom the catalog believes of who leads.
func TestLeaderReports(t *testing.T) {
	ti := &tabletInfo{}
	for _, c := range []struct {
		term   ident.Term
		leader ident.ReplicaID
		want   ident.ReplicaID
	}{
		{1, 2, 2}, {1, 0, 2}, {0, 3, 2}, {2, 0, 0}, {1, 2, 0}, {2, 3, 3}, {5, 1, 1},
	} {
		ti.reportLeader(c.term, c.leader)
		require.Equal(t, c.want, ti.leader, "after %+v", c)
	}
}

// TestMissingServerHeals creates a table while one of its servers is away: it works without, and is made whole when the
// server comes.
func TestMissingServerHeals(t *testing.T) {
	r := newRig(t, 3)
	away := r.ts[2]
	away.kill() // the master doesn't know so far
	resp := r.create(tableRequest("t", 4, 3))
	require.Equal(t, uint32(4), resp.GetNumTablets())
	for id, n := range r.held() {
		require.Equal(t, 2, n, "tablet %s", id)
	}
	away.start()
	r.until("its replicas are there", func() bool {
		held := r.held()
		for _, n := range held {
			if n != 3 {
				return false
			}
		}
		return len(held) == 4
	})
	list, err := r.master.dial().ListTabletServers(t.Context(), &nyalav1.ListTabletServersRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetServers(), 3)
	for _, s := range list.GetServers() {
		require.True(t, s.GetAlive())
		if s.GetServerId() == string(away.n.ServerID()) {
			require.Equal(t, uint64(2), s.GetIncarnation())
		}
	}
}

// TestLocationsFollowLeader: after a leader has gone, by its will or not, the master soon names the next one.
func TestLocationsFollowLeader(t *testing.T) {
	r := newRig(t, 3)
	r.create(tableRequest("t", 1, 3))
	first := leaderOf(r.locations("t")[0])
	next := ""
	var leader *server
	for _, s := range r.ts {
		if string(s.n.ServerID()) == first.GetServerId() {
			leader = s
		} else {
			next = string(s.n.ServerID())
		}
	}
	_, err := leader.dial().LeaderStepDown(t.Context(), &nyalav1.LeaderStepDownRequest{
		DestServerId: first.GetServerId(), TabletId: r.locations("t")[0].GetTabletId(), NewLeaderServerId: next,
	})
	require.NoError(t, err)
	r.until("the master names the next leader", func() bool { return leaderOf(r.locations("t")[0]).GetServerId() == next })
	for _, s := range r.ts {
		if string(s.n.ServerID()) == next {
			s.kill()
		}
	}
	r.until("the master names the third", func() bool {
		l := leaderOf(r.locations("t")[0]).GetServerId()
		return l != "" && l != next
	})
}

// TestUnknownReplicaIsLeftAlone: a replica that the catalog doesn't know stays, whatever is reported and restarted (I3).
func TestUnknownReplicaIsLeftAlone(t *testing.T) {
	r := newRig(t, 1)
	r.create(tableRequest("t", 1, 1))
	s := r.ts[0]
	st := s.n.Replicas.Statuses()[0]
	rep, err := s.n.Replicas.Replica(ident.TabletID(st.GetTabletId()))
	require.NoError(t, err)
	rec := rep.Record()
	stray := ident.New()
	_, err = s.dial().CreateTablet(t.Context(), &nyalav1.CreateTabletRequest{
		TabletId: stray, TableId: ident.New(), TableName: "x", Schema: rec.GetSchema(), PartitionSchema: rec.GetPartitionSchema(),
		Partition: rec.GetPartition(), Config: rec.GetConfig(),
	})
	require.NoError(t, err)
	r.master.kill()
	r.master.start()
	r.awaitLeaders("t")
	_, err = r.master.dial().DeleteTable(t.Context(), &nyalav1.DeleteTableRequest{Table: byName("t")})
	require.NoError(t, err)
	r.until("the table's replica is gone", func() bool { return len(r.held()) == 1 })
	s.kill()
	s.start()
	require.Contains(t, r.held(), ident.TabletID(stray))
}

// TestLostReplicaIsNotMadeAnew: a replica that a server had and lost must not vote again under its id.
func TestLostReplicaIsNotMadeAnew(t *testing.T) {
	r := newRig(t, 3)
	r.create(tableRequest("t", 1, 3))
	id := r.locations("t")[0].GetTabletId()
	marked := func() bool {
		r.master.m.catalog.mu.RLock()
		defer r.master.m.catalog.mu.RUnlock()
		t := r.master.m.catalog.byName["t"]
		return t != nil && t.meta.GetAllReplicasMade()
	}
	r.until("the catalog says that all replicas were made", marked)
	s := r.ts[0]
	ts := func() *tserver {
		for _, ts := range r.master.m.servers.all() {
			if ts.id == s.n.ServerID() {
				return ts
			}
		}
		return nil
	}
	_, err := s.dial().DeleteTablet(t.Context(), &nyalav1.DeleteTabletRequest{TabletId: id})
	require.NoError(t, err)
	lost := func() bool {
		r.master.m.servers.mu.Lock()
		defer r.master.m.servers.mu.Unlock()
		_, ok := r.master.m.servers.byID[s.n.ServerID()].lost[ident.TabletID(id)]
		return ok
	}
	r.until("the loss is noted", lost)
	s.kill()
	s.start()
	r.until("it has reported anew", func() bool {
		r.master.m.servers.mu.Lock()
		defer r.master.m.servers.mu.Unlock()
		x := r.master.m.servers.byID[s.n.ServerID()]
		return x.incarnation == 2 && x.reported
	})
	require.True(t, lost())
	create, _ := r.master.m.servers.tasks(ts(), 10)
	require.Empty(t, create)
	require.Equal(t, 2, r.held()[ident.TabletID(id)])
	r.awaitLeaders("t")

	// The next leader of the catalog has never seen the replica there, and knows that it was.
	r.master.kill()
	r.master.start()
	r.until("the loss is noted by the next leader", func() bool {
		r.master.m.servers.mu.Lock()
		defer r.master.m.servers.mu.Unlock()
		x := r.master.m.servers.byID[s.n.ServerID()]
		if x == nil {
			return false
		}
		_, ok := x.lost[ident.TabletID(id)]
		return ok
	})
	require.True(t, marked())
	create, _ = r.master.m.servers.tasks(ts(), 10)
	require.Empty(t, create)
}

// TestPlacementEvensOut: what the catalog has placed counts for the next table, leaders to be too, at once.
func TestPlacementEvensOut(t *testing.T) {
	r := newRig(t, 3)
	c := r.master.dial()
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		_, err := c.CreateTable(t.Context(), tableRequest(name, 1, 1))
		require.NoError(t, err)
	}
	for _, cand := range r.master.m.candidates(time.Now()) {
		require.Equal(t, 2, cand.replicas, "%+v", cand)
		require.Equal(t, 2, cand.first, "%+v", cand)
	}
}
