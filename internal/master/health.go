package master

import (
	"time"

	"github.com/nyaladb/nyala/internal/ident"
)

// tableHealth says how many of a table's tablets aren't as they should be, by what tablet servers last reported.
type tableHealth struct {
	id   ident.TableID
	name string
	// tablets counts all of them; each of the others is part of it.
	tablets         int
	withoutLeader   int // no living server is known to lead
	underReplicated int // a replica isn't held by a living server
	unavailable     int // so many aren't that the rest is no majority
}

// clusterHealth is what the leading master knows of its cluster.
type clusterHealth struct {
	leads       bool // false: nothing else is known
	tables      []tableHealth
	alive, dead int // tablet servers; dead: silent, or named by the catalog and not heard in this leadership
}

// health judges the cluster at a time. Its cost goes with the number of replicas: a few lookups each.
func (m *Master) health(now time.Time) clusterHealth {
	m.catalog.mu.RLock()
	defer m.catalog.mu.RUnlock()
	if m.leadingLocked() != nil {
		return clusterHealth{}
	}
	m.servers.mu.Lock()
	defer m.servers.mu.Unlock()
	h := clusterHealth{leads: true}
	dead := map[ident.ServerID]struct{}{}
	alive := map[ident.ServerID]*tserver{}
	for id, ts := range m.servers.byID {
		if ts.aliveAt(now, m.servers.unresponsive) {
			alive[id] = ts
		} else {
			dead[id] = struct{}{}
		}
	}
	for _, t := range m.catalog.listLocked("") {
		th := tableHealth{id: t.id, name: t.meta.GetName(), tablets: len(t.tablets)}
		for _, ti := range t.tablets {
			held, voters, led := 0, 0, false
			for _, p := range ti.meta.GetConfig().GetPeers() {
				if p.GetLearner() {
					continue
				}
				voters++
				id := ident.ServerID(p.GetServerId())
				ts := alive[id]
				if ts == nil {
					dead[id] = struct{}{}
					continue
				}
				if _, has := ts.replicas[ti.id]; has {
					held++
				}
				led = led || ti.leader != 0 && ident.ReplicaID(p.GetReplicaId()) == ti.leader
			}
			if !led {
				th.withoutLeader++
			}
			if held < voters {
				th.underReplicated++
			}
			if held <= voters/2 {
				th.unavailable++
			}
		}
		h.tables = append(h.tables, th)
	}
	h.alive, h.dead = len(alive), len(dead)
	return h
}
