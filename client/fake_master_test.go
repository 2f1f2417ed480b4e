package client

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// fakeTable is a table in the fake catalog.
type fakeTable struct {
	id, name  string
	schema    *schema.Schema
	partition *schema.PartitionSchema
	replicas  int
	tablets   []*fakeTablet
	polls     int
}

// fakeMaster is the MasterService of one fake server.
type fakeMaster struct {
	nyalav1.UnimplementedMasterServiceServer
	s *fakeServer
}

func (m *fakeMaster) index() int { return slices.Index(m.s.c.masters, m.s) }

// lead locks the cluster if this master leads.
func (m *fakeMaster) lead() error {
	if m.index() < 0 {
		return status.New(status.NotSupported, "unknown service nyala.v1.MasterService")
	}
	c := m.s.c
	c.mu.Lock()
	if c.leader == m.index() {
		return nil
	}
	defer c.mu.Unlock()
	e := status.New(status.NotTheLeader, "this master doesn't lead")
	if c.leader >= 0 {
		e.Leader = &nyalav1.Peer{ServerId: c.masters[c.leader].id, Address: c.masters[c.leader].addr}
	}
	return e
}

func (m *fakeMaster) GetClusterInfo(context.Context, *nyalav1.GetClusterInfoRequest) (*nyalav1.GetClusterInfoResponse, error) {
	if m.index() < 0 {
		return nil, status.New(status.NotSupported, "unknown service nyala.v1.MasterService")
	}
	c := m.s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	resp := &nyalav1.GetClusterInfoResponse{ClusterId: fakeClusterID}
	for i, s := range c.masters {
		role := nyalav1.Role_ROLE_FOLLOWER
		if i == c.leader {
			role = nyalav1.Role_ROLE_LEADER
		}
		resp.Masters = append(resp.Masters, &nyalav1.MasterInfo{ServerId: s.id, RpcAddresses: []string{s.addr}, Role: role})
	}
	return resp, nil
}

func (m *fakeMaster) CreateTable(_ context.Context, req *nyalav1.CreateTableRequest) (*nyalav1.CreateTableResponse, error) {
	if err := m.lead(); err != nil {
		return nil, err
	}
	c := m.s.c
	defer c.mu.Unlock()
	if id, again := c.creates[string(req.GetRequestId())]; again {
		return &nyalav1.CreateTableResponse{TableId: id, NumTablets: uint32(len(c.tables[id].tablets))}, nil
	}
	if c.byName[req.GetName()] != "" {
		return nil, status.New(status.TableAlreadyPresent, "table %q exists", req.GetName())
	}
	n := max(int(req.GetNumReplicas()), 1)
	if n > len(c.servers) {
		return nil, status.New(status.TooFewTabletServers, "only %d tablet servers are alive", len(c.servers))
	}
	s, err := schema.FromProto(req.GetSchema())
	if err != nil {
		return nil, err
	}
	ps := &schema.PartitionSchema{}
	for i := range s.NumKeyColumns() {
		ps.Range = append(ps.Range, s.Column(i).ID)
	}
	for _, h := range req.GetHash() {
		d := schema.HashDimension{Buckets: h.GetNumBuckets(), Seed: h.GetSeed()}
		for _, name := range h.GetColumns() {
			d.Columns = append(d.Columns, s.Column(s.IndexOf(name)).ID)
		}
		ps.Hash = append(ps.Hash, d)
	}
	t := c.addTableLocked(req.GetName(), s, ps, n)
	c.creates[string(req.GetRequestId())] = t.id
	return &nyalav1.CreateTableResponse{TableId: t.id, NumTablets: uint32(len(t.tablets))}, nil
}

// addTableLocked makes a table whose tablets' leaders are spread over the servers.
func (c *fakeCluster) addTableLocked(name string, s *schema.Schema, ps *schema.PartitionSchema, replicas int) *fakeTable {
	c.nextID++
	t := &fakeTable{
		id: fmt.Sprintf("table-%d", c.nextID), name: name, schema: s, partition: ps, replicas: replicas,
		polls: c.pollsUntilLeader,
	}
	for i, p := range ps.Partitions() {
		tb := &fakeTablet{
			c: c, table: t, id: fmt.Sprintf("%s-tablet-%d", t.id, i), partition: p, rows: map[string][]fakeVersion{},
			answers: map[string]map[uint64]*nyalav1.WriteResponse{}, stale: map[string]uint64{}, applied: map[string]int{},
		}
		for k := range replicas {
			tb.hosts = append(tb.hosts, c.servers[(i+k)%len(c.servers)].id)
		}
		tb.leader, tb.listed = tb.hosts[0], tb.hosts
		t.tablets = append(t.tablets, tb)
		c.tablets[tb.id] = tb
	}
	c.tables[t.id], c.byName[name] = t, t.id
	return t
}

func (c *fakeCluster) tableLocked(id *nyalav1.TableIdentifier) (*fakeTable, error) {
	key := id.GetId()
	if key == "" {
		key = c.byName[id.GetName()]
	}
	t := c.tables[key]
	if t == nil {
		return nil, status.New(status.TableNotFound, "no table %s%s", id.GetId(), id.GetName())
	}
	return t, nil
}

func (m *fakeMaster) IsCreateTableDone(_ context.Context, req *nyalav1.IsCreateTableDoneRequest) (*nyalav1.IsCreateTableDoneResponse, error) {
	if err := m.lead(); err != nil {
		return nil, err
	}
	c := m.s.c
	defer c.mu.Unlock()
	t, err := c.tableLocked(req.GetTable())
	if err != nil {
		return nil, err
	}
	resp := &nyalav1.IsCreateTableDoneResponse{NumTablets: uint32(len(t.tablets))}
	if t.polls > 0 {
		t.polls--
		resp.NumTabletsWithLeader = 1
		return resp, nil
	}
	resp.Done, resp.NumTabletsWithLeader = true, resp.NumTablets
	return resp, nil
}

func (m *fakeMaster) DeleteTable(_ context.Context, req *nyalav1.DeleteTableRequest) (*nyalav1.DeleteTableResponse, error) {
	if err := m.lead(); err != nil {
		return nil, err
	}
	c := m.s.c
	defer c.mu.Unlock()
	t, err := c.tableLocked(req.GetTable())
	if err != nil {
		return nil, err
	}
	delete(c.tables, t.id)
	delete(c.byName, t.name)
	for _, tb := range t.tablets {
		delete(c.tablets, tb.id)
	}
	return &nyalav1.DeleteTableResponse{}, nil
}

func (t *fakeTable) info() *nyalav1.TableInfo {
	return &nyalav1.TableInfo{
		Id: t.id, Name: t.name, State: nyalav1.TableState_TABLE_STATE_RUNNING,
		NumTablets: uint32(len(t.tablets)), NumReplicas: uint32(t.replicas),
	}
}

func (m *fakeMaster) ListTables(_ context.Context, req *nyalav1.ListTablesRequest) (*nyalav1.ListTablesResponse, error) {
	if err := m.lead(); err != nil {
		return nil, err
	}
	c := m.s.c
	defer c.mu.Unlock()
	resp := &nyalav1.ListTablesResponse{}
	for _, t := range c.tables {
		if strings.Contains(t.name, req.GetNameFilter()) {
			resp.Tables = append(resp.Tables, t.info())
		}
	}
	return resp, nil
}

func (m *fakeMaster) GetTable(_ context.Context, req *nyalav1.GetTableRequest) (*nyalav1.GetTableResponse, error) {
	if err := m.lead(); err != nil {
		return nil, err
	}
	c := m.s.c
	defer c.mu.Unlock()
	t, err := c.tableLocked(req.GetTable())
	if err != nil {
		return nil, err
	}
	return &nyalav1.GetTableResponse{Table: t.info(), Schema: t.schema.ToProto(), PartitionSchema: t.partition.ToProto()}, nil
}

func (m *fakeMaster) GetTableLocations(_ context.Context, req *nyalav1.GetTableLocationsRequest) (*nyalav1.GetTableLocationsResponse, error) {
	if err := m.lead(); err != nil {
		return nil, err
	}
	c := m.s.c
	defer c.mu.Unlock()
	t, err := c.tableLocked(req.GetTable())
	if err != nil {
		return nil, err
	}
	most := int(req.GetMaxTablets())
	if c.pageSize > 0 {
		most = min(most, c.pageSize)
	}
	resp := &nyalav1.GetTableLocationsResponse{TtlMs: c.ttlMs}
	for _, tb := range t.tablets {
		if len(tb.partition.End) > 0 && bytes.Compare(tb.partition.End, req.GetPartitionKeyStart()) <= 0 {
			continue
		}
		if len(resp.Tablets) == most {
			resp.HasMore = true
			break
		}
		resp.Tablets = append(resp.Tablets, tb.locationsLocked())
	}
	return resp, nil
}

func (m *fakeMaster) ListTabletServers(context.Context, *nyalav1.ListTabletServersRequest) (*nyalav1.ListTabletServersResponse, error) {
	if err := m.lead(); err != nil {
		return nil, err
	}
	c := m.s.c
	defer c.mu.Unlock()
	resp := &nyalav1.ListTabletServersResponse{}
	for _, s := range c.servers {
		resp.Servers = append(resp.Servers, &nyalav1.TabletServerInfo{ServerId: s.id, RpcAddresses: []string{s.addr}, Alive: true})
	}
	return resp, nil
}
