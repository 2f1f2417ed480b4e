package master

import (
	"context"
	"slices"

	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
)

// Until all replicas of a new table have been seen on their servers, one that is missing is made. From then on it isn't: it
// would be a replica that was lost (I4). The catalog remembers which of the two it is, so that the next leader knows too: for the
// tablets that the table was created with in the table's row, for each that was added later in its own.

// made says whether all of the tablet's replicas are known to have been made once.
func (ti *tabletInfo) made() bool {
	if ti.meta.GetAdded() {
		return ti.meta.GetAllReplicasMade()
	}
	return ti.table.meta.GetAllReplicasMade()
}

// changed says whether the tablet's members aren't those any more that it was created with. Then none is made: who is missing is
// the business of the tablet's leader.
func (ti *tabletInfo) changed() bool { return ti.meta.GetConfig().GetOpidIndex() > 0 }

// held says whether all of the tablet's replicas have been reported, of those that it was created with.
func (ti *tabletInfo) held() bool {
	return ti.changed() || len(ti.heldBy) == len(ti.meta.GetConfig().GetPeers())
}

// heldLocked notes that a server has reported a replica. The caller holds catalog.mu.
func (m *Master) heldLocked(ti *tabletInfo, server ident.ServerID) {
	if ti.made() || ti.replicaOn(server) == nil {
		return
	}
	if _, known := ti.heldBy[server]; known {
		return
	}
	if ti.heldBy == nil {
		ti.heldBy = map[ident.ServerID]struct{}{}
	}
	ti.heldBy[server] = struct{}{}
	m.noteHeldLocked(ti)
}

// noteHeldLocked finds out whether a tablet, or its table, can be marked as made. The caller holds catalog.mu.
func (m *Master) noteHeldLocked(ti *tabletInfo) {
	if !ti.made() && ti.held() && (ti.meta.GetAdded() || ti.table.firstHeld()) {
		m.catalog.made[ti.table] = struct{}{}
		poke(m.made)
	}
}

// firstHeld says whether all replicas of the tablets that the table was created with have been reported.
func (t *table) firstHeld() bool {
	return !slices.ContainsFunc(t.tablets, func(ti *tabletInfo) bool { return !ti.meta.GetAdded() && !ti.held() })
}

// markMade marks in the catalog the tables whose replicas have all been seen.
func (m *Master) markMade(ctx context.Context) error {
	return m.settle(ctx, m.made, func() map[*table]struct{} { return m.catalog.made }, "mark its replicas as made", m.markTable)
}

func (m *Master) markTable(ctx context.Context, t *table) error {
	if err := m.catalog.lockDDL(ctx); err != nil {
		return err
	}
	defer m.catalog.unlockDDL()
	if err := m.freshForChange(ctx); err != nil {
		return err
	}
	m.catalog.mu.RLock()
	_, due := m.catalog.made[t]
	due = due && !t.deleted()
	rows, metas := t.marks()
	m.catalog.mu.RUnlock()
	if !due {
		return nil // the catalog was read anew: the next full reports bring it up again
	}
	if err := m.change(ctx, rows); err != nil {
		return err
	}
	m.catalog.mu.Lock()
	defer m.catalog.mu.Unlock()
	for ti, meta := range metas {
		ti.meta = meta
	}
	m.catalog.putTableLocked(t.id, rows[0].metadata.(*nyalav1.CatalogTable))
	delete(m.catalog.made, t)
	for _, ti := range t.tablets {
		switch {
		case ti.made():
			ti.heldBy = nil
		case ti.held() && ti.meta.GetAdded(): // since the look above
			m.catalog.made[t] = struct{}{}
			poke(m.made)
		}
	}
	return nil
}

// marks are the rows that say what is known to be made, the table's first, and the metadata of the tablets among them.
func (t *table) marks() ([]catalogRow, map[*tabletInfo]*nyalav1.CatalogTablet) {
	meta := proto.CloneOf(t.meta)
	meta.AllReplicasMade = meta.GetAllReplicasMade() || t.firstHeld()
	rows := []catalogRow{{kind: entryTable, id: string(t.id), metadata: meta}}
	metas := map[*tabletInfo]*nyalav1.CatalogTablet{}
	var unmade []*tabletInfo
	for _, ti := range t.tablets {
		switch {
		case ti.made() || !ti.meta.GetAdded() && meta.GetAllReplicasMade():
		case ti.meta.GetAdded() && ti.held():
			m := proto.CloneOf(ti.meta)
			m.AllReplicasMade = true
			metas[ti] = m
			rows = append(rows, catalogRow{kind: entryTablet, id: string(ti.id), metadata: m})
		default:
			unmade = append(unmade, ti)
		}
	}
	keepSchemas(meta, t.meta, unmade)
	return rows, metas
}
