package master

import (
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
)

// heartbeat takes in one heartbeat of a tablet server and says whether a full report is needed.
func (m *Master) heartbeat(req *nyalav1.TSHeartbeatRequest) (needsFull bool) {
	report := req.GetReport()
	ts, isNew, needsFull := m.servers.heartbeat(req, time.Now())
	if isNew {
		m.cfg.Logger.Info("tablet server registered", "server", req.GetServerId(), "addresses", req.GetRegistration().GetRpcAddresses())
		m.reconcile.mu.Lock()
		if m.reconcile.run != nil {
			m.reconcile.run(ts)
		}
		m.reconcile.mu.Unlock()
	}
	if report == nil || needsFull {
		return needsFull
	}
	m.takeReport(ts, report)
	return false
}

// takeReport brings the memory up to what a tablet server reports, and finds what it has to be told: to create what the
// catalog wants on it and it doesn't have, to remove what the catalog says is deleted.
func (m *Master) takeReport(ts *tserver, report *nyalav1.TabletReport) {
	m.catalog.mu.Lock()
	defer m.catalog.mu.Unlock()
	for _, s := range report.GetUpdated() {
		id := ident.TabletID(s.GetTabletId())
		m.servers.setReplica(ts, id, true, s.GetRole() == nyalav1.Role_ROLE_LEADER)
		ti := m.catalog.tablets[id]
		switch {
		case ti == nil:
			m.cfg.Logger.Warn("tablet server holds a replica that the catalog doesn't know; left alone",
				"server", string(ts.id), "tablet_id", string(id))
		case ti.table.deleted():
			m.servers.tell(ts.id, id, false)
		case s.GetState() == nyalav1.TabletState_TABLET_STATE_RUNNING:
			ti.reportLeader(ident.Term(s.GetTerm()), ident.ReplicaID(s.GetLeaderReplicaId()))
		}
	}
	for _, id := range report.GetRemovedTabletIds() {
		m.servers.setReplica(ts, ident.TabletID(id), false, false)
	}
	if !report.GetFull() {
		return
	}
	for id, ti := range m.catalog.tablets {
		if ti.replicaOn(ts.id) == nil || m.servers.holds(ts, id) {
			continue
		}
		if ti.table.deleted() {
			m.removedLocked(ti, ts.id)
		} else {
			m.servers.tell(ts.id, id, true)
		}
	}
}

// removedLocked notes that a server holds no replica of a deleted tablet any more; once no server does, the table leaves
// the catalog for good.
func (m *Master) removedLocked(ti *tabletInfo, server ident.ServerID) {
	if ti.removedFrom == nil {
		ti.removedFrom = map[ident.ServerID]struct{}{}
	}
	ti.removedFrom[server] = struct{}{}
	for _, other := range ti.table.tablets {
		for _, p := range other.meta.GetConfig().GetPeers() {
			if _, gone := other.removedFrom[ident.ServerID(p.GetServerId())]; !gone {
				return
			}
		}
	}
	select {
	case m.purge <- ti.table:
	default: // the next full report brings it up again
	}
}
