package master

import (
	"context"
	"slices"

	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
)

// Who is in a tablet's group is decided by the group: the master learns it from reports. A config that a replica has applied is
// committed, and one of a later entry is the later one. It is written to the catalog first and shown after, as all that the
// catalog holds. A server that has a replica that a known config is without, and whose id that config has handed out before, is
// told to delete it: the replica may have missed its own removal.

// membersLocked takes in what a replica that runs reports of its group's members. The caller holds catalog.mu.
func (m *Master) membersLocked(ts *tserver, ti *tabletInfo, s *nyalav1.ReplicaStatus) {
	config := s.GetConfig()
	if newer := config.GetOpidIndex() > ti.latestConfig().GetOpidIndex(); newer && len(config.GetOutgoingVoters()) == 0 {
		ti.newConfig, ti.newConfigTerm = config, s.GetTerm()
		m.catalog.moved[ti.table] = struct{}{}
		poke(m.moved)
	}
	m.staleLocked(ts, ti, s.GetReplicaId())
}

// latestConfig is the latest config that is known of the tablet, in the catalog or on its way there.
func (ti *tabletInfo) latestConfig() *nyalav1.RaftConfig {
	if ti.newConfig != nil {
		return ti.newConfig
	}
	return ti.meta.GetConfig()
}

// staleLocked has a server delete its replica if that was removed from its group. The caller holds catalog.mu.
func (m *Master) staleLocked(ts *tserver, ti *tabletInfo, replica uint64) {
	c := ti.latestConfig()
	if replica == 0 || replica >= c.GetNextReplicaId() ||
		slices.ContainsFunc(c.GetPeers(), func(p *nyalav1.Peer) bool { return p.GetReplicaId() == replica }) {
		return
	}
	if ti.stale == nil {
		ti.stale = map[ident.ServerID]ident.ReplicaID{}
	}
	ti.stale[ts.id] = ident.ReplicaID(replica)
	m.servers.tell(ts.id, ti.id, false)
}

// leaves says whether a server's replica of the tablet is one that its group has done without.
func (ti *tabletInfo) leaves(server ident.ServerID) bool {
	return !slices.ContainsFunc(ti.latestConfig().GetPeers(), func(p *nyalav1.Peer) bool { return p.GetServerId() == string(server) })
}

// keepConfigs writes configs that were reported to the catalog.
func (m *Master) keepConfigs(ctx context.Context) error {
	return m.settle(ctx, m.moved, func() map[*table]struct{} { return m.catalog.moved }, "note its tablets' members", m.keepConfigsOf)
}

func (m *Master) keepConfigsOf(ctx context.Context, t *table) error {
	if err := m.catalog.lockDDL(ctx); err != nil {
		return err
	}
	defer m.catalog.unlockDDL()
	if err := m.freshForChange(ctx); err != nil {
		return err
	}
	m.catalog.mu.Lock()
	delete(m.catalog.moved, t)
	metas := map[*tabletInfo]*nyalav1.CatalogTablet{}
	var rows []catalogRow
	for _, ti := range t.tablets {
		if ti.newConfig == nil || ti.deleted() {
			continue
		}
		meta := proto.CloneOf(ti.meta)
		meta.Config, meta.ConfigTerm = ti.newConfig, ti.newConfigTerm
		metas[ti] = meta
		rows = append(rows, catalogRow{kind: entryTablet, id: string(ti.id), metadata: meta})
	}
	m.catalog.mu.Unlock()
	if len(rows) == 0 {
		return nil // the catalog was read anew, or the table was deleted meanwhile
	}
	if err := m.change(ctx, rows); err != nil {
		m.catalog.mu.Lock()
		defer m.catalog.mu.Unlock()
		m.catalog.moved[t] = struct{}{}
		return err
	}
	m.catalog.mu.Lock()
	defer m.catalog.mu.Unlock()
	for ti, meta := range metas {
		ti.meta = meta
		if ti.newConfig == meta.GetConfig() {
			ti.newConfig = nil
		} else { // a later one has come
			m.catalog.moved[t] = struct{}{}
			poke(m.moved)
		}
		m.noteHeldLocked(ti)
	}
	m.cfg.Logger.Info("tablets' members have changed", "table", t.meta.GetName(), "tablets", len(metas))
	return nil
}
