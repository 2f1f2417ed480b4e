package master

import (
	"context"
	"slices"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

// Service is the master's RPC surface.
type Service struct {
	nyalav1.UnimplementedMasterServiceServer
	m *Master
}

var _ nyalav1.MasterServiceServer = (*Service)(nil)

// Service returns the master's RPC surface.
func (m *Master) Service() *Service { return &Service{m: m} }

// defaultMaxLocations is how many tablets one answer names where the caller doesn't say.
const defaultMaxLocations = 1000

// GetClusterInfo names the cluster and its masters. Any master answers; the one that leads is marked.
func (s *Service) GetClusterInfo(context.Context, *nyalav1.GetClusterInfoRequest) (*nyalav1.GetClusterInfoResponse, error) {
	return &nyalav1.GetClusterInfoResponse{
		ClusterId: string(s.m.node.ClusterID()),
		Masters:   s.m.masters(),
	}, nil
}

// masters lists the members of the catalog's group; what is known of this master is whole, of others their address.
func (m *Master) masters() []*nyalav1.MasterInfo {
	ready, _ := m.Ready()
	self := &nyalav1.MasterInfo{
		ServerId: m.self.GetServerId(), RpcAddresses: m.self.GetRpcAddresses(), WebAddresses: m.self.GetWebAddresses(),
		Role: nyalav1.Role_ROLE_FOLLOWER,
	}
	if ready {
		self.Role = nyalav1.Role_ROLE_LEADER
	}
	out := []*nyalav1.MasterInfo{self}
	r, err := m.node.Replicas.Replica(ident.CatalogTablet)
	if err != nil {
		return out
	}
	st := r.Status()
	for _, p := range st.GetConfig().GetPeers() {
		if p.GetServerId() == m.self.GetServerId() {
			continue
		}
		role := nyalav1.Role_ROLE_FOLLOWER
		if p.GetReplicaId() == st.GetLeaderReplicaId() {
			role = nyalav1.Role_ROLE_LEADER
		}
		out = append(out, &nyalav1.MasterInfo{ServerId: p.GetServerId(), RpcAddresses: []string{p.GetAddress()}, Role: role})
	}
	return out
}

// CreateTable makes a table and places its replicas. It returns once the catalog has it; IsCreateTableDone says when every
// tablet has a leader.
func (s *Service) CreateTable(ctx context.Context, req *nyalav1.CreateTableRequest) (*nyalav1.CreateTableResponse, error) {
	return s.m.createTable(ctx, req)
}

// DeleteTable removes a table at once; its replicas are removed from the tablet servers behind that.
func (s *Service) DeleteTable(ctx context.Context, req *nyalav1.DeleteTableRequest) (*nyalav1.DeleteTableResponse, error) {
	return s.m.deleteTable(ctx, req)
}

// AlterTable changes a table by steps, all or none. It returns once the catalog has them; IsAlterTableDone says when every tablet
// has them too.
func (s *Service) AlterTable(ctx context.Context, req *nyalav1.AlterTableRequest) (*nyalav1.AlterTableResponse, error) {
	return s.m.alterTable(ctx, req)
}

// IsAlterTableDone says how far the tablets have come with the changes of their table.
func (s *Service) IsAlterTableDone(_ context.Context, req *nyalav1.IsAlterTableDoneRequest) (*nyalav1.IsAlterTableDoneResponse, error) {
	c := s.m.catalog
	c.mu.RLock()
	defer c.mu.RUnlock()
	if err := s.m.leadingLocked(); err != nil {
		return nil, err
	}
	t, err := c.findLocked(req.GetTable())
	if err != nil {
		return nil, err
	}
	return s.m.isAlterTableDone(t), nil
}

// IsCreateTableDone counts the tablets that have a leader.
func (s *Service) IsCreateTableDone(_ context.Context, req *nyalav1.IsCreateTableDoneRequest) (*nyalav1.IsCreateTableDoneResponse, error) {
	c := s.m.catalog
	c.mu.RLock()
	defer c.mu.RUnlock()
	if err := s.m.leadingLocked(); err != nil {
		return nil, err
	}
	t, err := c.findLocked(req.GetTable())
	if err != nil {
		return nil, err
	}
	led := t.withLeader()
	return &nyalav1.IsCreateTableDoneResponse{
		Done: led == len(t.tablets), NumTablets: uint32(len(t.tablets)), NumTabletsWithLeader: uint32(led),
	}, nil
}

// ListTables lists the tables whose names contain the filter, by name.
func (s *Service) ListTables(_ context.Context, req *nyalav1.ListTablesRequest) (*nyalav1.ListTablesResponse, error) {
	c := s.m.catalog
	c.mu.RLock()
	defer c.mu.RUnlock()
	if err := s.m.leadingLocked(); err != nil {
		return nil, err
	}
	resp := &nyalav1.ListTablesResponse{}
	for _, t := range c.listLocked(req.GetNameFilter()) {
		resp.Tables = append(resp.Tables, t.info())
	}
	return resp, nil
}

func (t *table) info() *nyalav1.TableInfo {
	info := &nyalav1.TableInfo{
		Id:          string(t.id),
		Name:        t.meta.GetName(),
		State:       nyalav1.TableState_TABLE_STATE_RUNNING,
		NumTablets:  uint32(len(t.tablets)),
		NumReplicas: t.meta.GetNumReplicas(),
	}
	switch {
	case t.deleted():
		info.State = nyalav1.TableState_TABLE_STATE_DELETING
	case slices.ContainsFunc(t.tablets, func(ti *tabletInfo) bool { return ti.leaderTerm == 0 }):
		info.State = nyalav1.TableState_TABLE_STATE_CREATING
	}
	return info
}

// GetTable describes one table.
func (s *Service) GetTable(_ context.Context, req *nyalav1.GetTableRequest) (*nyalav1.GetTableResponse, error) {
	c := s.m.catalog
	c.mu.RLock()
	defer c.mu.RUnlock()
	if err := s.m.leadingLocked(); err != nil {
		return nil, err
	}
	t, err := c.findLocked(req.GetTable())
	if err != nil {
		return nil, err
	}
	return &nyalav1.GetTableResponse{
		Table: t.info(), Schema: clientSchema(t.meta), PartitionSchema: t.meta.GetPartitionSchema(), PartitionVersion: t.meta.GetPartitionVersion(),
	}, nil
}

// GetTableLocations says where tablets are, in the order of their partitions, from the one that holds the given key on.
func (s *Service) GetTableLocations(_ context.Context, req *nyalav1.GetTableLocationsRequest) (*nyalav1.GetTableLocationsResponse, error) {
	c := s.m.catalog
	c.mu.RLock()
	defer c.mu.RUnlock()
	if err := s.m.leadingLocked(); err != nil {
		return nil, err
	}
	t, err := c.findLocked(req.GetTable())
	if err != nil {
		return nil, err
	}
	limit := int(req.GetMaxTablets())
	if limit == 0 {
		limit = defaultMaxLocations
	}
	resp := &nyalav1.GetTableLocationsResponse{
		TtlMs: uint32(s.m.cfg.LocationTTL.Milliseconds()), PartitionVersion: t.meta.GetPartitionVersion(),
	}
	if req.GetPartitionVersion() != resp.GetPartitionVersion() {
		resp.PartitionSchema = t.meta.GetPartitionSchema()
	}
	for _, ti := range t.tablets {
		end := ti.meta.GetPartition().GetPartitionKeyEnd()
		if len(end) > 0 && slices.Compare(end, req.GetPartitionKeyStart()) <= 0 {
			continue
		}
		if len(resp.Tablets) == limit {
			resp.HasMore = true
			break
		}
		resp.Tablets = append(resp.Tablets, s.m.locationLocked(ti))
	}
	return resp, nil
}

func (m *Master) locationLocked(ti *tabletInfo) *nyalav1.TabletLocations {
	loc := &nyalav1.TabletLocations{TabletId: string(ti.id), Partition: ti.meta.GetPartition()}
	for _, p := range ti.meta.GetConfig().GetPeers() {
		role := nyalav1.Role_ROLE_FOLLOWER
		switch {
		case p.GetLearner():
			role = nyalav1.Role_ROLE_LEARNER
		case ident.ReplicaID(p.GetReplicaId()) == ti.leader:
			role = nyalav1.Role_ROLE_LEADER
		}
		loc.Replicas = append(loc.Replicas, &nyalav1.ReplicaLocation{
			ServerId: p.GetServerId(), ReplicaId: p.GetReplicaId(), Role: role,
			Address: m.servers.address(ident.ServerID(p.GetServerId()), p.GetAddress()),
		})
	}
	return loc
}

// ListTabletServers lists the tablet servers heard since this master began to lead.
func (s *Service) ListTabletServers(context.Context, *nyalav1.ListTabletServersRequest) (*nyalav1.ListTabletServersResponse, error) {
	s.m.catalog.mu.RLock()
	err := s.m.leadingLocked()
	s.m.catalog.mu.RUnlock()
	if err != nil {
		return nil, err
	}
	return &nyalav1.ListTabletServersResponse{Servers: s.m.servers.list(time.Now())}, nil
}

// TSHeartbeat takes in what a tablet server reports. A master that doesn't lead only names the cluster.
func (s *Service) TSHeartbeat(_ context.Context, req *nyalav1.TSHeartbeatRequest) (*nyalav1.TSHeartbeatResponse, error) {
	if _, err := ident.Bytes(req.GetServerId()); err != nil {
		return nil, status.Wrap(status.InvalidArgument, err, "heartbeat")
	}
	resp := &nyalav1.TSHeartbeatResponse{ClusterId: string(s.m.node.ClusterID()), Clock: uint64(s.m.node.Clock.Latest())}
	s.m.catalog.mu.RLock()
	term := s.m.catalog.term
	s.m.catalog.mu.RUnlock()
	resp.Leader, resp.NeedsFullReport = s.m.heartbeat(term, req)
	if resp.Leader {
		resp.Servers, resp.ServersVersion = s.m.members.newer(req.GetServersVersion())
	}
	return resp, nil
}
