package replica

import (
	"context"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

// StepDown asks this replica to hand its leadership to the replica on the given server, or to any that is up to date where
// none is named. It returns once this replica no longer leads.
func (r *Replica) StepDown(ctx context.Context, to ident.ServerID) error {
	st, ok := r.m.host.Status(r.id)
	if !ok || st.Role != nyalav1.Role_ROLE_LEADER {
		return r.notTheLeader()
	}
	var target ident.ReplicaID
	if to != "" {
		for _, p := range st.Config.GetPeers() {
			if p.GetServerId() == string(to) {
				target = ident.ReplicaID(p.GetReplicaId())
			}
		}
		switch target {
		case 0:
			return status.New(status.InvalidArgument, "tablet %s: no replica on server %s", r.id, to)
		case st.Replica:
			return status.New(status.InvalidArgument, "tablet %s: server %s leads already", r.id, to)
		}
	}
	return r.hostError(r.m.host.TransferLeadership(ctx, r.id, target))
}

// Leadership returns the term, and whether this replica leads in it and takes writes: it has committed an entry of the term.
func (r *Replica) Leadership() (ident.Term, bool) {
	st, ok := r.m.host.Status(r.id)
	return st.Term, ok && st.Ready
}
