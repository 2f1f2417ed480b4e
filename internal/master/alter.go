package master

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// An ALTER is one write to the catalog: the table as it is to be, the tablets of new ranges, and those of dropped ones marked so.
// From there on it can't fail any more. What follows from it is told to tablet servers until they have done it, by this master or
// by one that leads later: leaders put the new schema in their tablets' logs, replicas of dropped tablets are removed, those of new
// ones are made. Until every tablet has the new schema clients are told of the one before, which every tablet knows.

// rememberedAlters is how many changes of a table are known by their request ids.
const rememberedAlters = 16

func (m *Master) alterTable(ctx context.Context, req *nyalav1.AlterTableRequest) (*nyalav1.AlterTableResponse, error) {
	if n := len(req.GetRequestId()); n != 0 && n != requestIDBytes {
		return nil, status.New(status.InvalidArgument, "the request id has %d bytes, want %d or none", n, requestIDBytes)
	}
	if err := m.catalog.lockDDL(ctx); err != nil {
		return nil, err
	}
	defer m.catalog.unlockDDL()
	if err := m.freshForChange(ctx); err != nil {
		return nil, err
	}
	m.catalog.mu.RLock()
	t, err := m.catalog.findLocked(req.GetTable())
	m.catalog.mu.RUnlock()
	if err != nil {
		return nil, err
	}
	if id := req.GetRequestId(); len(id) > 0 && slices.ContainsFunc(t.meta.GetAlterRequestIds(), func(b []byte) bool { return string(b) == string(id) }) {
		return alterResponse(t.id, t.meta), nil
	}
	a, err := m.beginAlteration(t)
	if err != nil {
		return nil, err
	}
	for i, s := range req.GetSteps() {
		if err := a.step(s); err != nil {
			return nil, status.Wrap(status.CodeOf(err), err, "alter table %q%s: nothing was changed", t.meta.GetName(), nth(i, len(req.GetSteps())))
		}
	}
	if !a.changes() {
		return nil, status.New(status.InvalidArgument, "alter table %q: the request changes nothing", t.meta.GetName())
	}
	if err := m.carryOut(ctx, a, req.GetRequestId()); err != nil {
		return nil, err
	}
	return alterResponse(t.id, t.meta), nil
}

func nth(i, n int) string {
	if n == 1 {
		return ""
	}
	return fmt.Sprintf(", step %d of %d", i+1, n)
}

func alterResponse(id ident.TableID, meta *nyalav1.CatalogTable) *nyalav1.AlterTableResponse {
	return &nyalav1.AlterTableResponse{TableId: string(id), SchemaVersion: meta.GetSchema().GetVersion()}
}

// carryOut writes an alteration to the catalog, shows it, and tells the tablet servers. The caller holds the DDL token.
func (m *Master) carryOut(ctx context.Context, a *alteration, requestID []byte) error {
	meta, err := a.meta(requestID)
	if err != nil {
		return err
	}
	rows := []catalogRow{{kind: entryTable, id: string(a.t.id), metadata: meta}}
	for _, ti := range a.dropped {
		gone := proto.CloneOf(ti.meta)
		gone.Deleted = true
		rows = append(rows, catalogRow{kind: entryTablet, id: string(ti.id), metadata: gone})
	}
	// Where there are other tablets, new ones are made with what clients know, and then given the latest schema like all.
	added, err := m.newTablets(a, clientSchema(meta).GetVersion())
	if err != nil {
		return err
	}
	rows = append(rows, added...)
	if err := m.change(ctx, rows); err != nil {
		return err
	}

	m.catalog.mu.Lock()
	defer m.catalog.mu.Unlock()
	t := m.catalog.putTableLocked(a.t.id, meta)
	for i, ti := range a.dropped {
		t.drop(ti, rows[1+i].metadata.(*nyalav1.CatalogTablet))
		for _, p := range ti.meta.GetConfig().GetPeers() {
			m.servers.tell(ident.ServerID(p.GetServerId()), ti.id, false)
		}
	}
	for _, r := range added {
		ti := m.catalog.putTabletLocked(ident.TabletID(r.id), r.metadata.(*nyalav1.CatalogTablet))
		for _, p := range ti.meta.GetConfig().GetPeers() {
			m.servers.tell(ident.ServerID(p.GetServerId()), ti.id, true)
		}
	}
	t.sortTablets()
	if len(a.dropped) > 0 && !meta.GetAllReplicasMade() && t.firstHeld() {
		m.catalog.made[t] = struct{}{}
		poke(m.made)
	}
	m.pushSchemaLocked(t)
	m.cfg.Logger.Info("altered table", "table", meta.GetName(), "table_id", string(t.id), "schema_version", meta.GetSchema().GetVersion(),
		"tablets_added", len(added), "tablets_dropped", len(a.dropped))
	return nil
}

// newTablets places the tablets of an alteration's new ranges, which are made with a version of the schema.
func (m *Master) newTablets(a *alteration, version uint32) ([]catalogRow, error) {
	if len(a.added) == 0 {
		return nil, nil
	}
	partitions, err := a.ps.PartitionsOf(a.added)
	if err != nil {
		return nil, err
	}
	replicas := int(a.t.meta.GetNumReplicas())
	candidates := m.candidates(time.Now())
	if len(candidates) < replicas {
		return nil, cmp.Or(m.stillGathering(time.Now()),
			error(status.New(status.TooFewTabletServers, "alter table %q: nothing was changed: %d tablet servers are alive, the table's %d replicas need %d",
				a.t.meta.GetName(), len(candidates), replicas, replicas)))
	}
	rows := make([]catalogRow, len(partitions))
	configs := place(candidates, len(partitions), replicas)
	for i, p := range partitions {
		rows[i] = catalogRow{kind: entryTablet, id: ident.New(), metadata: &nyalav1.CatalogTablet{
			TableId: string(a.t.id), Partition: p.ToProto(), Config: configs[i], Added: true, CreatedSchemaVersion: version,
		}}
	}
	return rows, nil
}

// clientSchema is the schema that clients are told of, and new tablets are made with: every tablet knows it.
func clientSchema(meta *nyalav1.CatalogTable) *nyalav1.Schema {
	if s := meta.GetAppliedSchema(); s != nil {
		return s
	}
	return meta.GetSchema()
}

// schemaAt returns a version of the schema that replicas may still have to be made with, nil if the catalog doesn't have it.
func schemaAt(meta *nyalav1.CatalogTable, version uint32) *nyalav1.Schema {
	for _, s := range append([]*nyalav1.Schema{meta.GetSchema(), meta.GetAppliedSchema()}, meta.GetEarlierSchemas()...) {
		if s != nil && s.GetVersion() == version {
			return s
		}
	}
	return nil
}

// keepSchemas sets the earlier schemas of a table's new metadata: those of the old one that replicas of the given tablets may still
// have to be made with. All replicas of a tablet are made with one version, whenever that is: their logs begin with it.
func keepSchemas(meta, old *nyalav1.CatalogTable, tablets []*tabletInfo) {
	meta.EarlierSchemas = nil
	for _, ti := range tablets {
		if v := ti.meta.GetCreatedSchemaVersion(); !ti.made() && schemaAt(meta, v) == nil {
			if s := schemaAt(old, v); s != nil {
				meta.EarlierSchemas = append(meta.EarlierSchemas, s)
			}
		}
	}
}

// checkSize refuses what the catalog's row has no room for.
func checkSize(meta *nyalav1.CatalogTable) error {
	if n := proto.Size(meta); n > schema.MaxCellSize {
		return status.New(status.InvalidArgument, "table %q: its description takes %d bytes, the most is %d: fewer columns, or shorter names and comments",
			meta.GetName(), n, schema.MaxCellSize)
	}
	return nil
}

func (m *Master) isAlterTableDone(t *table) *nyalav1.IsAlterTableDoneResponse {
	resp := &nyalav1.IsAlterTableDoneResponse{NumTablets: uint32(len(t.tablets))}
	for _, ti := range t.tablets {
		if ti.behind() {
			resp.NumTabletsBehind++
		}
		if ti.meta.GetAdded() && ti.leader == 0 {
			resp.NumTabletsWithoutLeader++
		}
	}
	for _, ti := range t.dropped {
		// Once most of its replicas are gone nobody can write to it any more, or read what is the latest.
		if 2*len(ti.removedFrom) <= len(ti.meta.GetConfig().GetPeers()) {
			resp.NumTabletsToDrop++
		}
	}
	resp.Done = resp.NumTabletsBehind+resp.NumTabletsWithoutLeader+resp.NumTabletsToDrop == 0 && t.meta.GetAppliedSchema() == nil
	return resp
}
