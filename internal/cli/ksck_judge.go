package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/client"
)

var errNoAddress = errors.New("the master knows no address of it")

// The verdicts.
const (
	verdictOK     = "OK"
	verdictFailed = "FAILED"
)

// tabletHealth is how a tablet is, best first.
type tabletHealth string

const (
	healthy         tabletHealth = "HEALTHY"
	recovering      tabletHealth = "RECOVERING"         // a replica is opening, or brought up to date by a copy
	mismatch        tabletHealth = "CONSENSUS_MISMATCH" // its replicas don't agree on leader or members
	underReplicated tabletHealth = "UNDER_REPLICATED"   // a replica is missing, a majority runs
	unavailable     tabletHealth = "UNAVAILABLE"        // no majority, or no leader
)

// ksckReport is what ksck prints; its JSON form is `cluster ksck --format json`.
type ksckReport struct {
	ClusterID string       `json:"cluster_id"`
	Masters   []ksckServer `json:"masters"`
	Servers   []ksckServer `json:"tablet_servers"`
	Tables    []ksckTable  `json:"tables"`
	Tablets   []ksckTablet `json:"tablets"`
	Replicas  int          `json:"replicas"`
	Running   int          `json:"replicas_running"`
	Leaders   int          `json:"leaders"`
	Verdict   string       `json:"verdict"`
	Problems  []string     `json:"problems"`
}

type ksckServer struct {
	UUID    string `json:"uuid"`
	RPC     string `json:"rpc"`
	State   string `json:"state"` // alive, starting, unreachable, wrong server
	Role    string `json:"role,omitempty"`
	Version string `json:"version"`
	Clock   string `json:"clock,omitempty"` // open, held, fenced; empty: not known
	Detail  string `json:"detail,omitempty"`

	Replicas int `json:"replicas"`
	Leaders  int `json:"leaders"`
}

type ksckTable struct {
	Name     string               `json:"name"`
	ID       string               `json:"id"`
	State    string               `json:"state"`
	Replicas int                  `json:"replicas"`
	Tablets  int                  `json:"tablets"`
	Health   map[tabletHealth]int `json:"health"`
	Detail   string               `json:"detail,omitempty"`
}

type ksckTablet struct {
	ID       string        `json:"id"`
	Table    string        `json:"table"`
	Health   tabletHealth  `json:"health"`
	Detail   string        `json:"detail,omitempty"`
	Leader   string        `json:"leader"` // uuid; empty: none
	Term     uint64        `json:"term"`
	Replicas []ksckReplica `json:"replicas"`
}

type ksckReplica struct {
	ReplicaID uint64 `json:"replica_id"`
	UUID      string `json:"uuid"`
	RPC       string `json:"rpc"`
	State     string `json:"state"` // running, bootstrapping, failed, …, missing, server unreachable
	Role      string `json:"role"`
	Term      uint64 `json:"term"`
	Last      uint64 `json:"last_index"`
	Committed uint64 `json:"commit_index"`
	Applied   uint64 `json:"applied_index"`
	Detail    string `json:"detail,omitempty"`

	status  *nyalav1.ReplicaStatus
	learner bool
}

const (
	stateRunning     = "running"
	stateMissing     = "missing"
	stateCopying     = "copying"
	stateUnreachable = "server unreachable"
	stateClocks      = "held up by clocks"
)

// judge turns facts into a report. It asks nobody.
func judge(f *ksckFacts) *ksckReport {
	r := &ksckReport{
		ClusterID: f.clusterID, Masters: []ksckServer{}, Servers: []ksckServer{}, Tables: []ksckTable{}, Tablets: []ksckTablet{},
		Problems: []string{},
	}
	for _, m := range f.masters {
		r.Masters = append(r.Masters, r.judgeMaster(m))
	}
	if !slices.ContainsFunc(f.masters, func(m masterFacts) bool { return m.leader }) {
		r.problem("no master leads")
	}
	byID := map[string]*serverFacts{}
	for i := range f.servers {
		s := &f.servers[i]
		byID[s.known.ID] = s
		r.Servers = append(r.Servers, r.judgeServer(s))
	}
	if len(f.servers) == 0 {
		r.problem("no tablet server has registered with the master")
	}
	known := map[string]bool{}
	for _, t := range f.tables {
		r.judgeTable(t, byID)
		for _, tb := range t.tablets {
			known[tb.ID] = true
		}
	}
	r.strays(f, known)
	r.judgeClocks(f)
	r.Verdict = verdictOK
	if len(r.Problems) > 0 {
		r.Verdict = verdictFailed
	}
	return r
}

func (r *ksckReport) problem(format string, args ...any) {
	r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
}

func (r *ksckReport) judgeMaster(m masterFacts) ksckServer {
	s := ksckServer{RPC: m.addr, State: "alive", Role: "follower", UUID: m.status.GetServerId(), Version: m.status.GetVersion(), Clock: m.clock.GetState()}
	if m.leader {
		s.Role = "leader"
	}
	switch {
	case m.err != nil:
		s.State, s.Detail = "unreachable", m.err.Error()
		r.problem("master %s: %v", m.addr, m.err)
	case m.status.GetClusterId() != "" && m.status.GetClusterId() != r.ClusterID:
		s.State, s.Detail = "wrong server", "it belongs to cluster "+m.status.GetClusterId()
		r.problem("master %s belongs to another cluster, %s", m.addr, m.status.GetClusterId())
	}
	return s
}

func (r *ksckReport) judgeServer(f *serverFacts) ksckServer {
	s := ksckServer{UUID: f.known.ID, RPC: strings.Join(f.known.RPCAddresses, ","), State: "alive", Version: f.known.Version, Clock: f.clock.GetState()}
	for _, rep := range f.replicas {
		if rep.GetState() == nyalav1.TabletState_TABLET_STATE_COPYING {
			continue // no replica yet
		}
		s.Replicas++
		if rep.GetRole() == nyalav1.Role_ROLE_LEADER {
			s.Leaders++
		}
	}
	switch {
	case f.err != nil:
		s.State, s.Detail = "unreachable", f.err.Error()
		r.problem("tablet server %s: %v", s.RPC, f.err)
	case f.status.GetServerId() != f.known.ID:
		s.State, s.Detail = "wrong server", "the server there is "+f.status.GetServerId()
		r.problem("tablet server %s: the server there is %s, not %s", s.RPC, f.status.GetServerId(), f.known.ID)
	case !f.status.GetReady():
		s.State, s.Detail = "starting", f.status.GetState()
		r.problem("tablet server %s is starting: %s", s.RPC, orDash(f.status.GetState()))
	case !f.known.Alive:
		s.State, s.Detail = "no heartbeat", fmt.Sprintf("the master last heard from it %s ago", took(f.known.SinceHeartbeat))
		r.problem("tablet server %s answers, but the master last heard from it %s ago", s.RPC, took(f.known.SinceHeartbeat))
	}
	return s
}

func (r *ksckReport) judgeTable(f tableFacts, servers map[string]*serverFacts) {
	t := ksckTable{
		Name: f.info.Name, ID: f.info.ID, State: tableState(f.info.State), Replicas: f.info.Replicas, Tablets: f.info.Tablets,
		Health: map[tabletHealth]int{},
	}
	switch {
	case f.err != nil:
		t.Detail = f.err.Error()
		r.problem("table %q: %v", t.Name, f.err)
	case f.info.State == client.TableRunning && len(f.tablets) != f.info.Tablets:
		t.Detail = fmt.Sprintf("the master lists %d of its %d tablets", len(f.tablets), f.info.Tablets)
		r.problem("table %q: %s", t.Name, t.Detail)
	}
	for _, tb := range f.tablets {
		j := judgeTablet(f.info, tb, servers)
		t.Health[j.Health]++
		if j.Health != healthy {
			r.problem("tablet %s of table %q is %s: %s", j.ID, t.Name, j.Health, j.Detail)
		}
		if j.Leader != "" {
			r.Leaders++
		}
		r.Replicas += len(j.Replicas)
		for _, rep := range j.Replicas {
			if rep.State == stateRunning {
				r.Running++
			}
		}
		r.Tablets = append(r.Tablets, j)
	}
	r.Tables = append(r.Tables, t)
}

// judgeTablet compares the master's word on a tablet with that of the servers.
func judgeTablet(table client.TableInfo, tb client.Tablet, servers map[string]*serverFacts) ksckTablet {
	t := ksckTablet{ID: tb.ID, Table: table.Name, Replicas: []ksckReplica{}}
	for _, rep := range tb.Replicas {
		t.Replicas = append(t.Replicas, judgeReplica(tb.ID, rep, servers[rep.ServerID]))
	}
	leaders := t.findLeader()
	voters, running, opening := 0, 0, 0
	var faults []string
	for _, rep := range t.Replicas {
		if rep.learner {
			continue
		}
		voters++
		switch rep.State {
		case stateRunning:
			running++
		case "bootstrapping", stateCopying:
			opening++
			fallthrough
		default:
			fault := fmt.Sprintf("replica on %s: %s", rep.RPC, rep.State)
			if rep.Detail != "" {
				fault += " (" + rep.Detail + ")"
			}
			faults = append(faults, fault)
		}
	}
	if missing := table.Replicas - voters; missing > 0 {
		faults = append(faults, fmt.Sprintf("it has %d of %d replicas", voters, table.Replicas))
	}
	disagreement := t.disagreement(leaders)
	switch {
	case running <= max(voters, table.Replicas)/2:
		t.Health = unavailable
		faults = append([]string{fmt.Sprintf("%d of %d replicas run", running, max(voters, table.Replicas))}, faults...)
	case t.Leader == "":
		t.Health = unavailable
		faults = append([]string{"no replica leads"}, faults...)
	case len(faults) > 0 && opening == len(faults):
		t.Health = recovering
	case len(faults) > 0:
		t.Health = underReplicated
	case disagreement != "":
		t.Health = mismatch
		faults = append(faults, disagreement)
	default:
		t.Health = healthy
	}
	t.Detail = strings.Join(faults, "; ")
	return t
}

func judgeReplica(tabletID string, r client.Replica, server *serverFacts) ksckReplica {
	k := ksckReplica{
		ReplicaID: r.ID, UUID: r.ServerID, RPC: r.Address, State: stateMissing, Role: "unknown",
		learner: r.Role == client.RoleLearner,
	}
	switch {
	case server == nil:
		k.State, k.Detail = stateUnreachable, "the master doesn't know the server"
		return k
	case server.err != nil:
		k.State = stateUnreachable
		return k
	case server.status.GetServerId() != server.known.ID:
		k.State, k.Detail = stateUnreachable, "another server has its address"
		return k
	}
	for _, s := range server.replicas {
		if s.GetTabletId() != tabletID {
			continue
		}
		if s.GetState() == nyalav1.TabletState_TABLET_STATE_COPYING { // behind the replica that it is to replace, if there is one
			k.State, k.Detail = stateCopying, fmt.Sprintf("%d KiB so far", s.GetCopiedBytes()>>10)
			continue
		}
		k.status = s
		k.State = strings.ToLower(strings.TrimPrefix(s.GetState().String(), "TABLET_STATE_"))
		k.Role, k.Detail = roleName(s.GetRole()), s.GetError()
		if clocks := s.GetClocks(); clocks != "" && k.State == stateRunning {
			k.State, k.Detail = stateClocks, clocks
		}
		k.Term, k.Last, k.Committed, k.Applied = s.GetTerm(), s.GetLastIndex(), s.GetCommitIndex(), s.GetAppliedIndex()
	}
	return k
}

// findLeader sets the tablet's leader and term: the running replica that leads in the highest term. It returns how many
// lead in that term.
func (t *ksckTablet) findLeader() int {
	n := 0
	for _, r := range t.Replicas {
		if r.State != stateRunning || r.Role != "leader" {
			continue
		}
		switch {
		case t.Leader == "" || r.Term > t.Term:
			t.Leader, t.Term, n = r.UUID, r.Term, 1
		case r.Term == t.Term:
			n++
		}
	}
	return n
}

// disagreement says in what the running replicas differ from their leader; empty: in nothing.
func (t *ksckTablet) disagreement(leaders int) string {
	if leaders > 1 {
		return fmt.Sprintf("%d replicas lead in term %d", leaders, t.Term)
	}
	i := slices.IndexFunc(t.Replicas, func(r ksckReplica) bool { return r.UUID == t.Leader })
	if i < 0 {
		return ""
	}
	leader := t.Replicas[i]
	for _, r := range t.Replicas {
		switch {
		case r.State != stateRunning || r.UUID == leader.UUID:
		case r.Term > leader.Term:
			return fmt.Sprintf("the replica on %s is in term %d, its leader in %d", r.RPC, r.Term, leader.Term)
		case r.status.GetLeaderReplicaId() != leader.ReplicaID:
			return fmt.Sprintf("the replica on %s follows %s, not the leader, replica %d", r.RPC, replicaName(r.status.GetLeaderReplicaId()),
				leader.ReplicaID)
		case r.Role == "leader":
			return fmt.Sprintf("the replica on %s still leads in the older term %d", r.RPC, r.Term)
		case r.status.GetConfig().GetOpidIndex() > leader.status.GetConfig().GetOpidIndex():
			return fmt.Sprintf("the replica on %s has a later config than the leader", r.RPC)
		}
	}
	return ""
}

func replicaName(id uint64) string {
	if id == 0 {
		return "nobody"
	}
	return fmt.Sprintf("replica %d", id)
}

// strays names replicas that servers have of tablets that no table has.
func (r *ksckReport) strays(f *ksckFacts, known map[string]bool) {
	for _, t := range f.tables {
		if t.err != nil {
			return // not all tablets are known: a stray may be one of this table's
		}
	}
	for _, s := range f.servers {
		n := 0
		for _, rep := range s.replicas {
			switch rep.GetState() {
			case nyalav1.TabletState_TABLET_STATE_DELETING, nyalav1.TabletState_TABLET_STATE_COPYING:
			default:
				if !known[rep.GetTabletId()] {
					n++
				}
			}
		}
		if n > 0 {
			r.problem("tablet server %s has %s of tablets that no table has; the master deletes such replicas in time",
				strings.Join(s.known.RPCAddresses, ","), plural(n, "replica"))
		}
	}
}
