package master

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/nyaladb/nyala/internal/ident"
)

// Until all replicas of a new table have been seen on their servers, one that is missing is made. From then on it isn't: it
// would be a replica that was lost (I4). The catalog remembers which of the two it is, so that the next leader knows too.

// heldLocked notes that a server has reported a replica. The caller holds catalog.mu.
func (m *Master) heldLocked(ti *tabletInfo, server ident.ServerID) {
	t := ti.table
	if t.meta.GetAllReplicasMade() || ti.replicaOn(server) == nil {
		return
	}
	if _, known := ti.heldBy[server]; known {
		return
	}
	if ti.heldBy == nil {
		ti.heldBy = map[ident.ServerID]struct{}{}
	}
	ti.heldBy[server] = struct{}{}
	t.held++
	if t.held == t.numReplicas() {
		m.catalog.made[t] = struct{}{}
		poke(m.made)
	}
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
	meta := proto.CloneOf(t.meta)
	m.catalog.mu.RUnlock()
	if !due {
		return nil // the catalog was read anew: the next full reports bring it up again
	}
	meta.AllReplicasMade = true
	if err := m.change(ctx, []catalogRow{{kind: entryTable, id: string(t.id), metadata: meta}}); err != nil {
		return err
	}
	m.catalog.mu.Lock()
	defer m.catalog.mu.Unlock()
	m.catalog.putTableLocked(t.id, meta)
	for _, ti := range t.tablets {
		ti.heldBy = nil
	}
	delete(m.catalog.made, t)
	return nil
}
