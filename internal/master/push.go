package master

import (
	"context"
	"slices"

	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

// A tablet that doesn't have its table's latest schema is given it through its leader. How far each has come is learned from the
// leaders' answers and from reports, so that a master that has just begun to lead goes on where the one before stopped.

// behind says whether the tablet isn't known to have its table's latest schema.
func (ti *tabletInfo) behind() bool {
	return !ti.schemaKnown || ti.schemaVersion < ti.table.meta.GetSchema().GetVersion()
}

// pushSchemaLocked has the leaders of a table's tablets told of its schema. The caller holds catalog.mu.
func (m *Master) pushSchemaLocked(t *table) {
	for _, ti := range t.tablets {
		m.pushTabletLocked(ti)
	}
	m.noteAppliedLocked(t)
}

// pushTabletLocked has the leader of a tablet told, where one is known and the tablet is behind. The caller holds catalog.mu.
func (m *Master) pushTabletLocked(ti *tabletInfo) {
	if ti.deleted() || ti.leader == 0 || ti.table.meta.GetAppliedSchema() == nil || !ti.behind() {
		return
	}
	for _, p := range slices.Concat(ti.meta.GetConfig().GetPeers(), ti.newConfig.GetPeers()) {
		if ident.ReplicaID(p.GetReplicaId()) == ti.leader {
			m.servers.tellAlter(ident.ServerID(p.GetServerId()), ti.id)
		}
	}
}

// hasSchemaLocked notes that a replica has applied a version of its table's schema, which so is in its tablet's log for good. The
// caller holds catalog.mu.
func (m *Master) hasSchemaLocked(ti *tabletInfo, version uint32) {
	was := ti.behind()
	ti.schemaKnown, ti.schemaVersion = true, max(ti.schemaVersion, version)
	if was && !ti.behind() {
		m.noteAppliedLocked(ti.table)
	}
}

// noteAppliedLocked finds out whether clients can be told of a table's latest schema. The caller holds catalog.mu.
func (m *Master) noteAppliedLocked(t *table) {
	if t.deleted() || t.meta.GetAppliedSchema() == nil {
		return
	}
	for _, ti := range t.tablets {
		if ti.behind() {
			return
		}
	}
	m.catalog.applied[t] = struct{}{}
	poke(m.applied)
}

// showSchemas tells clients of schemas that all tablets have by now.
func (m *Master) showSchemas(ctx context.Context) error {
	return m.settle(ctx, m.applied, func() map[*table]struct{} { return m.catalog.applied }, "show its latest schema", m.showSchema)
}

func (m *Master) showSchema(ctx context.Context, t *table) error {
	if err := m.catalog.lockDDL(ctx); err != nil {
		return err
	}
	defer m.catalog.unlockDDL()
	if err := m.freshForChange(ctx); err != nil {
		return err
	}
	m.catalog.mu.Lock()
	_, due := m.catalog.applied[t]
	delete(m.catalog.applied, t)
	for _, ti := range t.tablets {
		due = due && !ti.behind() // another change may have come in between
	}
	due = due && !t.deleted() && t.meta.GetAppliedSchema() != nil
	meta := proto.CloneOf(t.meta)
	meta.AppliedSchema = nil
	keepSchemas(meta, t.meta, t.tablets)
	m.catalog.mu.Unlock()
	if !due {
		return nil
	}
	if err := m.change(ctx, []catalogRow{{kind: entryTable, id: string(t.id), metadata: meta}}); err != nil {
		return err
	}
	m.catalog.mu.Lock()
	defer m.catalog.mu.Unlock()
	m.catalog.putTableLocked(t.id, meta)
	m.cfg.Logger.Info("all tablets have the table's latest schema", "table", meta.GetName(), "schema_version", meta.GetSchema().GetVersion())
	return nil
}

// alterOn gives a tablet its table's schema, through its leader on ts.
func (m *Master) alterOn(ctx context.Context, ts *tserver, id ident.TabletID) error {
	m.catalog.mu.RLock()
	ti := m.catalog.tablets[id]
	if ti == nil || ti.deleted() || !ti.behind() {
		m.catalog.mu.RUnlock()
		return nil // no longer wanted
	}
	req := &nyalav1.AlterTabletRequest{
		DestServerId: string(ts.id), TabletId: string(id), Schema: ti.table.meta.GetSchema(), TableName: ti.table.meta.GetName(),
	}
	address := ti.replicaOn(ts.id).GetAddress()
	m.catalog.mu.RUnlock()
	version, err := m.calls.alter(ctx, m.servers.address(ts.id, address), req)
	switch {
	case err == nil:
		m.catalog.mu.Lock()
		defer m.catalog.mu.Unlock()
		if m.catalog.tablets[id] == ti {
			m.hasSchemaLocked(ti, version)
		}
		return nil
	case status.CodeOf(err) == status.NotTheLeader:
		return nil // who leads now reports it, and is told then
	}
	return err
}

func (c tabletServerCalls) alter(ctx context.Context, address string, req *nyalav1.AlterTabletRequest) (uint32, error) {
	conn, err := c.dial(address)
	if err != nil {
		return 0, err
	}
	resp, err := nyalav1.NewTabletAdminServiceClient(conn).AlterTablet(ctx, req)
	return resp.GetSchemaVersion(), status.FromGRPC(err)
}
