package cli

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/client"
)

// soundFacts are those of a healthy cluster: three servers and one tablet, led by the replica on s1 in term 4.
func soundFacts() *ksckFacts {
	f := &ksckFacts{clusterID: "c1", masters: []masterFacts{{
		addr: "m1:7051", leader: true, status: &nyalav1.GetStatusResponse{ServerId: "m1", ClusterId: "c1", Ready: true},
	}}}
	tablet := client.Tablet{ID: "t1"}
	for i, id := range []string{"s1", "s2", "s3"} {
		role := nyalav1.Role_ROLE_FOLLOWER
		if i == 0 {
			role = nyalav1.Role_ROLE_LEADER
		}
		replica := uint64(i + 1)
		tablet.Replicas = append(tablet.Replicas, client.Replica{ID: replica, ServerID: id, Address: id + ":7050", Role: role})
		f.servers = append(f.servers, serverFacts{
			known:  client.TabletServer{ID: id, RPCAddresses: []string{id + ":7050"}, Alive: true},
			status: &nyalav1.GetStatusResponse{ServerId: id, Ready: true},
			replicas: []*nyalav1.ReplicaStatus{{
				TabletId: "t1", State: nyalav1.TabletState_TABLET_STATE_RUNNING, Role: role, Term: 4, LeaderReplicaId: 1, ReplicaId: replica,
			}},
		})
	}
	f.tables = []tableFacts{{
		info:    client.TableInfo{ID: "d1", Name: "t", State: client.TableRunning, Tablets: 1, Replicas: 3},
		tablets: []client.Tablet{tablet},
	}}
	return f
}

// TestJudge shows what ksck makes of faults, one by one: the tablet's health, and the problems that it names.
func TestJudge(t *testing.T) {
	gone := errors.New("no server listens at it")
	for _, c := range []struct {
		name     string
		change   func(f *ksckFacts)
		health   tabletHealth
		problems []string // beginnings
	}{
		{"all well", func(*ksckFacts) {}, healthy, nil},
		{"no servers, no tables", func(f *ksckFacts) { f.servers, f.tables = nil, nil }, "", []string{"no tablet server has registered"}},
		{"a follower's server is gone", func(f *ksckFacts) {
			f.servers[1].status, f.servers[1].replicas, f.servers[1].err = nil, nil, gone
		}, underReplicated, []string{
			"tablet server s2:7050: no server listens",
			`tablet t1 of table "t" is UNDER_REPLICATED: replica on s2:7050: server unreachable`,
		}},
		{"a follower is brought up by a copy", func(f *ksckFacts) {
			f.servers[1].replicas = append(f.servers[1].replicas, &nyalav1.ReplicaStatus{
				TabletId: "t1", State: nyalav1.TabletState_TABLET_STATE_COPYING, ReplicaId: 2, CopiedBytes: 5 << 20,
			})
		}, recovering, []string{`tablet t1 of table "t" is RECOVERING: replica on s2:7050: copying (5120 KiB so far)`}},
		{"a new replica is being copied", func(f *ksckFacts) {
			tb := &f.tables[0].tablets[0]
			tb.Replicas = append(tb.Replicas, client.Replica{ID: 4, ServerID: "s4", Address: "s4:7050", Role: nyalav1.Role_ROLE_LEARNER})
			f.servers = append(f.servers, serverFacts{
				known:  client.TabletServer{ID: "s4", RPCAddresses: []string{"s4:7050"}, Alive: true},
				status: &nyalav1.GetStatusResponse{ServerId: "s4", Ready: true},
				replicas: []*nyalav1.ReplicaStatus{
					{TabletId: "t1", State: nyalav1.TabletState_TABLET_STATE_COPYING, ReplicaId: 4},
					{TabletId: "t9", State: nyalav1.TabletState_TABLET_STATE_COPYING, ReplicaId: 4},
				},
			})
		}, healthy, nil},
		{"two servers are gone", func(f *ksckFacts) {
			for i := range 2 {
				f.servers[i].status, f.servers[i].replicas, f.servers[i].err = nil, nil, gone
			}
		}, unavailable, []string{"tablet server s1", "tablet server s2", `tablet t1 of table "t" is UNAVAILABLE: 1 of 3 replicas run;`}},
		{"a replica is missing", func(f *ksckFacts) { f.servers[2].replicas = nil }, underReplicated, []string{
			`tablet t1 of table "t" is UNDER_REPLICATED: replica on s3:7050: missing`,
		}},
		{"a replica opens", func(f *ksckFacts) {
			f.servers[2].replicas[0].State = nyalav1.TabletState_TABLET_STATE_BOOTSTRAPPING
		}, recovering, []string{`tablet t1 of table "t" is RECOVERING: replica on s3:7050: bootstrapping`}},
		{"a replica failed", func(f *ksckFacts) {
			f.servers[2].replicas[0].State = nyalav1.TabletState_TABLET_STATE_FAILED
			f.servers[2].replicas[0].Error = "bad page 7"
		}, underReplicated, []string{`tablet t1 of table "t" is UNDER_REPLICATED: replica on s3:7050: failed (bad page 7)`}},
		{"a replica waits for clocks", func(f *ksckFacts) {
			f.servers[2].replicas[0].Clocks = "clocks: entry 7.12 is 40 years ahead"
		}, underReplicated, []string{
			`tablet t1 of table "t" is UNDER_REPLICATED: replica on s3:7050: held up by clocks (clocks: entry 7.12 is 40 years ahead)`,
		}},
		{"nobody leads", func(f *ksckFacts) {
			f.servers[0].replicas[0].Role = nyalav1.Role_ROLE_FOLLOWER
		}, unavailable, []string{`tablet t1 of table "t" is UNAVAILABLE: no replica leads`}},
		{"an older leader", func(f *ksckFacts) {
			r := f.servers[1].replicas[0]
			r.Role, r.Term, r.LeaderReplicaId = nyalav1.Role_ROLE_LEADER, 3, 2
		}, mismatch, []string{`tablet t1 of table "t" is CONSENSUS_MISMATCH: the replica on s2:7050 follows replica 2, not the leader, replica 1`}},
		{"two leaders of a term", func(f *ksckFacts) {
			r := f.servers[1].replicas[0]
			r.Role, r.LeaderReplicaId = nyalav1.Role_ROLE_LEADER, 2
		}, mismatch, []string{`tablet t1 of table "t" is CONSENSUS_MISMATCH: 2 replicas lead in term 4`}},
		{"a later term", func(f *ksckFacts) { f.servers[1].replicas[0].Term = 5 }, mismatch, []string{
			`tablet t1 of table "t" is CONSENSUS_MISMATCH: the replica on s2:7050 is in term 5, its leader in 4`,
		}},
		{"a follower knows no leader", func(f *ksckFacts) { f.servers[1].replicas[0].LeaderReplicaId = 0 }, mismatch, []string{
			`tablet t1 of table "t" is CONSENSUS_MISMATCH: the replica on s2:7050 follows nobody`,
		}},
		{"a later config", func(f *ksckFacts) {
			f.servers[1].replicas[0].Config = &nyalav1.RaftConfig{OpidIndex: 9}
		}, mismatch, []string{`tablet t1 of table "t" is CONSENSUS_MISMATCH: the replica on s2:7050 has a later config`}},
		{"fewer replicas than wanted", func(f *ksckFacts) { f.tables[0].info.Replicas = 5 }, underReplicated, []string{
			`tablet t1 of table "t" is UNDER_REPLICATED: it has 3 of 5 replicas`,
		}},
		{"a learner is no voter", func(f *ksckFacts) {
			f.tables[0].tablets[0].Replicas[2].Role = client.RoleLearner
		}, underReplicated, []string{`tablet t1 of table "t" is UNDER_REPLICATED: it has 2 of 3 replicas`}},
		{"another server at the address", func(f *ksckFacts) { f.servers[2].status.ServerId = "s9" }, underReplicated, []string{
			"tablet server s3:7050: the server there is s9, not s3",
			`tablet t1 of table "t" is UNDER_REPLICATED: replica on s3:7050: server unreachable (another server has its address)`,
		}},
		{"a server is starting", func(f *ksckFacts) {
			f.servers[2].status.Ready, f.servers[2].status.State = false, "opening tablets: 3 of 9"
		}, healthy, []string{"tablet server s3:7050 is starting: opening tablets: 3 of 9"}},
		{"no heartbeat", func(f *ksckFacts) { f.servers[2].known.Alive = false }, healthy, []string{
			"tablet server s3:7050 answers, but the master last heard from it 0.00 s ago",
		}},
		{"no master leads", func(f *ksckFacts) { f.masters[0].leader = false }, healthy, []string{"no master leads"}},
		{"a master is gone", func(f *ksckFacts) {
			f.masters = append(f.masters, masterFacts{addr: "m2:7051", err: gone})
		}, healthy, []string{"master m2:7051: no server listens"}},
		{"a master of another cluster", func(f *ksckFacts) { f.masters[0].status.ClusterId = "c2" }, healthy, []string{
			"master m1:7051 belongs to another cluster, c2",
		}},
		{"a stray replica", func(f *ksckFacts) {
			f.servers[0].replicas = append(f.servers[0].replicas, &nyalav1.ReplicaStatus{TabletId: "t9"})
		}, healthy, []string{"tablet server s1:7050 has 1 replica of tablets that no table has"}},
		{"tablets are missing", func(f *ksckFacts) { f.tables[0].info.Tablets = 2 }, healthy, []string{
			`table "t": the master lists 1 of its 2 tablets`,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := soundFacts()
			c.change(f)
			r := judge(f)
			require.Len(t, r.Problems, len(c.problems), "%q", r.Problems)
			for i, p := range c.problems {
				require.Truef(t, strings.HasPrefix(r.Problems[i], p), "%q doesn't begin with %q", r.Problems[i], p)
			}
			if c.health != "" {
				require.Equal(t, c.health, r.Tablets[0].Health)
			}
			if len(c.problems) == 0 {
				require.Equal(t, verdictOK, r.Verdict)
			} else {
				require.Equal(t, verdictFailed, r.Verdict)
			}
			require.NoError(t, r.print(&strings.Builder{}, true))
		})
	}
}
