package replica

import (
	"context"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/consensus"
	"github.com/nyaladb/nyala/internal/ident"
)

// ChangeConfig changes the tablet's members in one step, on its leader (see consensus.Host.ChangeConfig).
func (m *Manager) ChangeConfig(ctx context.Context, id ident.TabletID, ch consensus.ConfigChange) (*nyalav1.RaftConfig, error) {
	return m.host.ChangeConfig(ctx, id, ch)
}

// NeedsCopy is called by the host of a leader whose log doesn't reach a member.
func (m *Manager) NeedsCopy(id ident.TabletID, peer *nyalav1.Peer, _ *nyalav1.RaftConfig) {
	m.cfg.Logger.Warn("a member of the group needs a copy", "tablet_id", string(id), "replica", peer.GetReplicaId(), "server", peer.GetServerId())
}

// ReplicaRemoved is called by the host when the replica here is no member of its group any more.
func (m *Manager) ReplicaRemoved(id ident.TabletID, replica ident.ReplicaID) {
	m.cfg.Logger.Info("the replica is no member of its group any more", "tablet_id", string(id), "replica", uint64(replica))
}
