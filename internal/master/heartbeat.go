package master

import (
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
)

// heartbeat takes in one heartbeat of a tablet server. It says whether this master leads, in the term in which the call was
// let in, and whether a full report is needed.
func (m *Master) heartbeat(term ident.Term, req *nyalav1.TSHeartbeatRequest) (leads, needsFull bool) {
	h := m.servers.heartbeat(term, req, time.Now())
	if h.ts == nil {
		return h.leads, false
	}
	if h.isNew {
		m.cfg.Logger.Info("tablet server registered", "server", req.GetServerId(), "addresses", req.GetRegistration().GetRpcAddresses())
		m.beginConversation(h.ts)
		poke(m.members.wake)
	}
	if h.take {
		m.takeReport(h.ts, req.GetReport())
	}
	return true, h.needsFull
}

// takeReport brings the memory up to what a tablet server reports, and finds what it has to be told: to create what the
// catalog wants on it and it never had, to remove what the catalog says is deleted.
func (m *Master) takeReport(ts *tserver, report *nyalav1.TabletReport) {
	m.catalog.mu.Lock()
	defer m.catalog.mu.Unlock()
	gone := m.servers.report(ts, report)
	var unknown []ident.TabletID
	for _, s := range report.GetUpdated() {
		id := ident.TabletID(s.GetTabletId())
		ti := m.catalog.tablets[id]
		switch {
		case ti == nil:
			unknown = append(unknown, id)
		case ti.deleted():
			m.servers.tell(ts.id, id, false)
		default:
			m.heldLocked(ti, ts.id)
			if s.GetState() == nyalav1.TabletState_TABLET_STATE_RUNNING {
				ti.reportLeader(ident.Term(s.GetTerm()), ident.ReplicaID(s.GetLeaderReplicaId()))
				m.membersLocked(ts, ti, s)
				m.hasSchemaLocked(ti, s.GetSchemaVersion())
				m.pushTabletLocked(ti)
			}
		}
	}
	if len(unknown) > 0 {
		m.cfg.Logger.Warn("tablet server holds replicas that the catalog doesn't know; left alone",
			"server", string(ts.id), "replicas", len(unknown), "tablet_id", string(unknown[0]))
	}
	for _, id := range gone {
		if ti := m.catalog.tablets[id]; ti != nil && !ti.deleted() && ti.replicaOn(ts.id) != nil && !ti.leaves(ts.id) {
			m.lostReplica(ts, ti)
		}
	}
	if report.GetFull() {
		m.compareLocked(ts)
	}
}

// compareLocked finds what a tablet server that has reported has to be told. The caller holds catalog.mu.
func (m *Master) compareLocked(ts *tserver) {
	for id, ti := range m.catalog.tablets {
		if ti.replicaOn(ts.id) == nil {
			continue
		}
		if ti.deleted() {
			if _, gone := ti.removedFrom[ts.id]; !gone {
				m.servers.tell(ts.id, id, false)
			}
		} else if m.servers.lacks(ts, id) {
			switch {
			case ti.replicaOn(ts.id).GetLearner(): // its leader has it copied
			case ti.made() || ti.changed():
				m.lostReplica(ts, ti)
			default:
				m.servers.tell(ts.id, id, true)
			}
		}
	}
}

// lostReplica notes that a server had a replica and has it no more. Made anew it would vote under an id that has voted and
// acknowledged before, and could lose what others rest on.
func (m *Master) lostReplica(ts *tserver, ti *tabletInfo) {
	m.servers.lost(ts, ti.id)
	m.cfg.Logger.Error("tablet server has lost a replica; it is not made anew under the same id",
		"server", string(ts.id), "tablet_id", string(ti.id), "table", ti.table.meta.GetName())
}
