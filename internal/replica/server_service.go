package replica

import (
	"context"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/fs"
)

// serverService answers what every server is asked: who it is, and what its log holds.
type serverService struct {
	nyalav1.UnimplementedServerServiceServer
	n *Node
}

var _ nyalav1.ServerServiceServer = (*serverService)(nil)

// GetStatus says who this server is and whether it may be given work.
func (s *serverService) GetStatus(context.Context, *nyalav1.GetStatusRequest) (*nyalav1.GetStatusResponse, error) {
	n := s.n
	resp := &nyalav1.GetStatusResponse{
		Role:         nyalav1.ServerRole_SERVER_ROLE_TABLET_SERVER,
		ServerId:     string(n.ServerID()),
		ClusterId:    string(n.ClusterID()),
		Version:      n.cfg.Version,
		RpcAddresses: n.Addresses(),
		WebAddresses: n.web,
		Incarnation:  n.Incarnation(),
		Clock:        n.ClockTrouble(),
	}
	if n.cfg.FS.Role == fs.Master {
		resp.Role = nyalav1.ServerRole_SERVER_ROLE_MASTER
	}
	if resp.Ready, resp.State = n.Replicas.Ready(); resp.GetReady() && n.ready != nil {
		resp.Ready, resp.State = n.ready()
	}
	return resp, nil
}
