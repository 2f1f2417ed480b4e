package master

import (
	"cmp"
	"context"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

const (
	// maxTableName is the longest table name in bytes, as Kudu's.
	maxTableName   = 256
	requestIDBytes = 16
)

func (m *Master) createTable(ctx context.Context, req *nyalav1.CreateTableRequest) (*nyalav1.CreateTableResponse, error) {
	if err := checkTableName(req.GetName()); err != nil {
		return nil, err
	}
	if n := len(req.GetRequestId()); n != 0 && n != requestIDBytes {
		return nil, status.New(status.InvalidArgument, "the request id has %d bytes, want %d or none", n, requestIDBytes)
	}
	s, ps, ranges, err := tableSchema(req)
	if err != nil {
		return nil, err
	}
	replicas, err := m.replicationFactor(req.GetNumReplicas())
	if err != nil {
		return nil, err
	}
	partitions, err := m.partitionsOf(req, ps, ranges)
	if err != nil {
		return nil, err
	}
	meta := &nyalav1.CatalogTable{
		Name: req.GetName(), Schema: s.ToProto(), PartitionSchema: ps.ToProto(), NumReplicas: uint32(replicas),
		State: nyalav1.CatalogTableState_CATALOG_TABLE_STATE_PRESENT, RequestId: req.GetRequestId(), CreatedUsec: time.Now().UnixMicro(),
	}
	if err := checkSize(meta); err != nil {
		return nil, err
	}
	if err := m.catalog.lockDDL(ctx); err != nil {
		return nil, err
	}
	defer m.catalog.unlockDDL()
	if err := m.freshForChange(ctx); err != nil {
		return nil, err
	}
	if done, resp, err := m.existing(req); done {
		return resp, err
	}
	candidates := m.candidates(time.Now())
	if len(candidates) < replicas {
		return nil, cmp.Or(m.stillGathering(time.Now()), tooFewServers(len(candidates), replicas))
	}
	tableID := ident.TableID(ident.New())
	rows := []catalogRow{{kind: entryTable, id: string(tableID), metadata: meta}}
	configs := place(candidates, len(partitions), replicas)
	for i, p := range partitions {
		rows = append(rows, catalogRow{kind: entryTablet, id: ident.New(), metadata: &nyalav1.CatalogTablet{
			TableId: string(tableID), Partition: p.ToProto(), Config: configs[i],
		}})
	}
	if err := m.change(ctx, rows); err != nil {
		return nil, err
	}

	m.catalog.mu.Lock()
	t := m.catalog.putTableLocked(tableID, meta)
	for _, r := range rows[1:] {
		m.catalog.putTabletLocked(ident.TabletID(r.id), r.metadata.(*nyalav1.CatalogTablet))
	}
	t.sortTablets()
	m.catalog.mu.Unlock()
	for _, ti := range t.tablets {
		for _, p := range ti.meta.GetConfig().GetPeers() {
			m.servers.tell(ident.ServerID(p.GetServerId()), ti.id, true)
		}
	}
	m.cfg.Logger.Info("created table", "table", req.GetName(), "table_id", string(tableID), "tablets", len(partitions), "replicas", replicas)
	return &nyalav1.CreateTableResponse{TableId: string(tableID), NumTablets: uint32(len(partitions))}, nil
}

// partitionsOf are the partitions of a new table.
func (m *Master) partitionsOf(req *nyalav1.CreateTableRequest, ps *schema.PartitionSchema, ranges []schema.RangeWithHash) ([]schema.Partition, error) {
	if req.GetNoRanges() {
		return nil, nil
	}
	if n := ps.NumPartitionsOf(ranges); n > uint64(m.cfg.TabletsPerTable) {
		return nil, status.New(status.InvalidArgument, "table %q would have %d tablets, the most is %d (--max_create_tablets_per_table)",
			req.GetName(), n, m.cfg.TabletsPerTable)
	}
	return ps.PartitionsOf(ranges)
}

// existing answers a request that was carried out before, with the first answer, also where the table was renamed or deleted
// since, and one for a name that is taken.
func (m *Master) existing(req *nyalav1.CreateTableRequest) (done bool, resp *nyalav1.CreateTableResponse, err error) {
	m.catalog.mu.RLock()
	defer m.catalog.mu.RUnlock()
	if t := m.catalog.byRequest[string(req.GetRequestId())]; t != nil {
		if name := createdName(t.meta); name != req.GetName() {
			return true, nil, status.New(status.InvalidArgument, "request id %x was used for table %q before", req.GetRequestId(), name)
		}
		return true, &nyalav1.CreateTableResponse{TableId: string(t.id), NumTablets: uint32(len(t.tablets))}, nil
	}
	if m.catalog.byName[req.GetName()] != nil {
		return true, nil, status.New(status.TableAlreadyPresent, "table %q already exists", req.GetName())
	}
	return false, nil, nil
}

// candidates returns the servers that are alive with what the catalog has placed on them.
func (m *Master) candidates(now time.Time) []candidate {
	alive := m.servers.alive(now)
	at := make(map[ident.ServerID]*candidate, len(alive))
	for i := range alive {
		at[alive[i].id] = &alive[i]
	}
	m.catalog.mu.RLock()
	defer m.catalog.mu.RUnlock()
	for _, ti := range m.catalog.tablets {
		if ti.deleted() {
			continue
		}
		for i, p := range ti.meta.GetConfig().GetPeers() {
			if c := at[ident.ServerID(p.GetServerId())]; c != nil {
				c.replicas++
				if i == 0 {
					c.first++
				}
			}
		}
	}
	return alive
}

// stillGathering is of a master that has just begun to lead and may not have heard all tablet servers yet that hold replicas; nil:
// it has.
func (m *Master) stillGathering(now time.Time) error {
	m.catalog.mu.RLock()
	defer m.catalog.mu.RUnlock()
	for _, ti := range m.catalog.tablets {
		for _, p := range ti.meta.GetConfig().GetPeers() {
			if m.servers.awaited(ident.ServerID(p.GetServerId()), now) {
				return status.New(status.ServiceUnavailable, "this master has just begun to lead and hasn't heard tablet server %s yet", p.GetServerId())
			}
		}
	}
	return nil
}

func tooFewServers(alive, replicas int) error {
	largest := alive
	if largest%2 == 0 {
		largest--
	}
	switch alive {
	case 0:
		return status.New(status.TooFewTabletServers, "no tablet server is alive; start one, or wait until one has registered")
	case 1:
		return status.New(status.TooFewTabletServers, "only 1 tablet server is alive; add --replicas 1")
	default:
		return status.New(status.TooFewTabletServers, "only %d tablet servers are alive, %d replicas need %d; add --replicas %d",
			alive, replicas, replicas, largest)
	}
}

func checkTableName(name string) error {
	switch {
	case name == "":
		return status.New(status.InvalidArgument, "the table has no name")
	case len(name) > maxTableName:
		return status.New(status.InvalidArgument, "table name has %d bytes, the most is %d", len(name), maxTableName)
	case !utf8.ValidString(name):
		return status.New(status.InvalidArgument, "table name %q isn't valid UTF-8", name)
	case strings.ContainsRune(name, 0):
		return status.New(status.InvalidArgument, "table name %q has a NUL byte in it", name)
	}
	return nil
}

func (m *Master) replicationFactor(asked uint32) (int, error) {
	n := int(asked)
	if n == 0 {
		n = m.cfg.DefaultReplicas
	}
	if n%2 == 0 || n > m.cfg.MaxReplicas {
		return 0, status.New(status.InvalidArgument, "replication factor is %d: want an odd number from 1 to %d", n, m.cfg.MaxReplicas)
	}
	return n, nil
}

// tableSchema checks what a new table is to look like and gives its columns their ids.
func tableSchema(req *nyalav1.CreateTableRequest) (*schema.Schema, *schema.PartitionSchema, []schema.RangeWithHash, error) {
	columns, err := schema.ColumnsFromProto(req.GetSchema().GetColumns())
	if err != nil {
		return nil, nil, nil, err
	}
	s, err := schema.NewTable(columns)
	if err != nil {
		return nil, nil, nil, err
	}
	ps, ranges, err := partitionSchema(s, req)
	return s, ps, ranges, err
}

func (m *Master) deleteTable(ctx context.Context, req *nyalav1.DeleteTableRequest) (*nyalav1.DeleteTableResponse, error) {
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
	meta := proto.CloneOf(t.meta)
	meta.State = nyalav1.CatalogTableState_CATALOG_TABLE_STATE_DELETED
	if err := m.change(ctx, []catalogRow{{kind: entryTable, id: string(t.id), metadata: meta}}); err != nil {
		return nil, err
	}
	m.catalog.mu.Lock()
	m.catalog.putTableLocked(t.id, meta)
	m.catalog.mu.Unlock()
	for _, ti := range t.tablets {
		for _, p := range ti.meta.GetConfig().GetPeers() {
			m.servers.tell(ident.ServerID(p.GetServerId()), ti.id, false)
		}
	}
	m.cfg.Logger.Info("deleted table", "table", meta.GetName(), "table_id", string(t.id))
	return &nyalav1.DeleteTableResponse{}, nil
}
