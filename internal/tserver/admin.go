package tserver

import (
	"context"
	"slices"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/consensus"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

// AdminService does what masters and the command line ask for.
type AdminService struct {
	nyalav1.UnimplementedTabletAdminServiceServer
	s *Server
}

var _ nyalav1.TabletAdminServiceServer = (*AdminService)(nil)

// forUs refuses a call that was meant for another server, as after an address changed hands.
func (v *AdminService) forUs(dest string) error {
	if own := v.s.node.ServerID(); dest != "" && dest != string(own) {
		return status.New(status.WrongServerID, "this is server %s, the call is for %s", own, dest)
	}
	return nil
}

// CreateTablet makes a replica of a tablet here.
func (v *AdminService) CreateTablet(ctx context.Context, req *nyalav1.CreateTabletRequest) (*nyalav1.CreateTabletResponse, error) {
	if err := v.forUs(req.GetDestServerId()); err != nil {
		return nil, err
	}
	rec := &nyalav1.ReplicaRecord{
		TabletId: req.GetTabletId(), TableId: req.GetTableId(), TableName: req.GetTableName(), Schema: req.GetSchema(),
		PartitionSchema: req.GetPartitionSchema(), Partition: req.GetPartition(), Config: req.GetConfig(),
	}
	for _, p := range req.GetConfig().GetPeers() {
		if p.GetServerId() == string(v.s.node.ServerID()) {
			rec.ReplicaId = p.GetReplicaId()
		}
	}
	if rec.GetReplicaId() == 0 {
		return nil, status.New(status.InvalidArgument, "tablet %s: its config has no replica on this server", req.GetTabletId())
	}
	if err := v.s.node.Replicas.Create(ctx, rec); err != nil {
		return nil, err
	}
	return &nyalav1.CreateTabletResponse{}, nil
}

// DeleteTablet removes this server's replica of a tablet, and its rows.
func (v *AdminService) DeleteTablet(ctx context.Context, req *nyalav1.DeleteTabletRequest) (*nyalav1.DeleteTabletResponse, error) {
	if err := v.forUs(req.GetDestServerId()); err != nil {
		return nil, err
	}
	id := ident.TabletID(req.GetTabletId())
	if req.GetReplicaId() == 0 {
		// Otherwise a copy that comes in may be of the replica that takes this one's place.
		if err := v.s.node.Replicas.GiveUpCopy(ctx, id); err != nil {
			return nil, err
		}
	}
	if _, err := v.s.node.Replicas.Replica(id); err != nil {
		return nil, err
	}
	v.s.logger.Info("deleting replica", "tablet_id", req.GetTabletId(), "replica", req.GetReplicaId(), "reason", req.GetReason())
	if err := v.s.node.Replicas.DeleteReplica(ctx, id, ident.ReplicaID(req.GetReplicaId())); err != nil {
		return nil, err
	}
	return &nyalav1.DeleteTabletResponse{}, nil
}

// AlterTablet gives a tablet a later version of its table's schema, and the table's name, and returns once it is in force here, on the leader.
func (v *AdminService) AlterTablet(ctx context.Context, req *nyalav1.AlterTabletRequest) (*nyalav1.AlterTabletResponse, error) {
	if err := v.forUs(req.GetDestServerId()); err != nil {
		return nil, err
	}
	r, err := v.s.node.Replicas.Replica(ident.TabletID(req.GetTabletId()))
	if err != nil {
		return nil, err
	}
	version, err := r.Alter(ctx, req.GetSchema(), req.GetTableName())
	if err != nil {
		return nil, err
	}
	return &nyalav1.AlterTabletResponse{SchemaVersion: version}, nil
}

// ChangeConfig changes a tablet's members in one step, where this server's replica leads it.
func (v *AdminService) ChangeConfig(ctx context.Context, req *nyalav1.ChangeConfigRequest) (*nyalav1.ChangeConfigResponse, error) {
	if err := v.forUs(req.GetDestServerId()); err != nil {
		return nil, err
	}
	r, err := v.s.node.Replicas.Replica(ident.TabletID(req.GetTabletId()))
	if err != nil {
		return nil, err
	}
	ch := consensus.ConfigChange{Add: req.GetAdd(), Promote: replicaIDs(req.GetPromote()), Remove: replicaIDs(req.GetRemove())}
	if req.ExpectOpidIndex != nil {
		ch.ExpectIndex = new(ident.Index(req.GetExpectOpidIndex()))
	}
	config, err := r.ChangeConfig(ctx, ch)
	if err != nil {
		return nil, err
	}
	return &nyalav1.ChangeConfigResponse{Config: config}, nil
}

func replicaIDs(ids []uint64) []ident.ReplicaID {
	var out []ident.ReplicaID
	for _, id := range ids {
		out = append(out, ident.ReplicaID(id))
	}
	return out
}

// ListTablets describes the replicas here, or those asked for, and behind them the copies that are being made.
func (v *AdminService) ListTablets(_ context.Context, req *nyalav1.ListTabletsRequest) (*nyalav1.ListTabletsResponse, error) {
	resp := &nyalav1.ListTabletsResponse{}
	if len(req.GetTabletIds()) == 0 {
		resp.Replicas = v.s.node.Replicas.Statuses()
	}
	for _, id := range req.GetTabletIds() {
		if r, err := v.s.node.Replicas.Replica(ident.TabletID(id)); err == nil {
			resp.Replicas = append(resp.Replicas, r.Status())
		}
	}
	if req.GetSizes() {
		for _, s := range resp.Replicas {
			r, err := v.s.node.Replicas.Replica(ident.TabletID(s.GetTabletId()))
			if err != nil {
				continue // deleted just now
			}
			if s.OnDiskBytes, err = r.DiskBytes(); err != nil {
				return nil, err
			}
		}
	}
	for _, s := range v.s.node.Replicas.Copying() {
		if len(req.GetTabletIds()) == 0 || slices.Contains(req.GetTabletIds(), s.GetTabletId()) {
			resp.Replicas = append(resp.Replicas, s)
		}
	}
	return resp, nil
}

// LeaderStepDown asks this server's replica to hand its leadership to another.
func (v *AdminService) LeaderStepDown(ctx context.Context, req *nyalav1.LeaderStepDownRequest) (*nyalav1.LeaderStepDownResponse, error) {
	if err := v.forUs(req.GetDestServerId()); err != nil {
		return nil, err
	}
	r, err := v.s.node.Replicas.Replica(ident.TabletID(req.GetTabletId()))
	if err != nil {
		return nil, err
	}
	if err := r.StepDown(ctx, ident.ServerID(req.GetNewLeaderServerId())); err != nil {
		return nil, err
	}
	return &nyalav1.LeaderStepDownResponse{}, nil
}

// ListScanners describes the scans that clients have open here.
func (v *AdminService) ListScanners(_ context.Context, req *nyalav1.ListScannersRequest) (*nyalav1.ListScannersResponse, error) {
	if err := v.forUs(req.GetDestServerId()); err != nil {
		return nil, err
	}
	return &nyalav1.ListScannersResponse{Scanners: v.s.scanners.list(time.Now()), TtlMs: v.s.scanners.ttl.Milliseconds()}, nil
}
