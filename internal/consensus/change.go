package consensus

import (
	"slices"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

// ConfigChange says how a tablet's members are to change, all in one step.
type ConfigChange struct {
	// ExpectIndex, unless nil, is the opid_index of the config that the change was decided on: another one refuses it.
	ExpectIndex *ident.Index
	// Add are new members: server id and address. They begin as learners; the leader gives them ids that no replica of the
	// tablet has ever had.
	Add []*nyalav1.Peer
	// Promote are learners that become voters; each must have caught up (see Limits.PromoteLag).
	Promote []ident.ReplicaID
	// Remove are members that go.
	Remove []ident.ReplicaID
}

// maxMembers bounds the members of a tablet.
const maxMembers = 15

// plannedChange is a change as it stands in the log.
type plannedChange struct {
	// config is the one that the entry makes, without its index; joint if the voters change.
	config *nyalav1.RaftConfig
	// raft is what raft is told.
	raft *raftpb.ConfChangeV2
}

// planChange turns a change of a config that isn't joint into an entry. Voters change by way of a joint config, and so does
// more than one member; one learner comes or goes in one simple step, which moves no majority.
func planChange(tablet ident.TabletID, c *nyalav1.RaftConfig, ch *ConfigChange) (plannedChange, error) {
	refuse := func(format string, args ...any) (plannedChange, error) {
		return plannedChange{}, status.New(status.InvalidArgument, "tablet %s: change the config: "+format, append([]any{tablet}, args...)...)
	}
	if len(ch.Add)+len(ch.Promote)+len(ch.Remove) == 0 {
		return refuse("nothing is to change")
	}
	next := proto.CloneOf(c)
	next.OpidIndex = 0
	cc := &raftpb.ConfChangeV2{}
	tell := func(t raftpb.ConfChangeType, id uint64) {
		cc.Changes = append(cc.Changes, &raftpb.ConfChangeSingle{Type: t.Enum(), NodeId: new(id)})
	}
	joint := false
	seen := map[ident.ReplicaID]bool{}
	find := func(id ident.ReplicaID) (int, error) {
		i := slices.IndexFunc(next.Peers, func(p *nyalav1.Peer) bool { return p.GetReplicaId() == uint64(id) })
		if i < 0 || seen[id] {
			_, err := refuse("replica %d is no member, or is named twice", id)
			return 0, err
		}
		seen[id] = true
		return i, nil
	}
	for _, id := range ch.Promote {
		i, err := find(id)
		if err != nil {
			return plannedChange{}, err
		}
		if !next.Peers[i].GetLearner() {
			return refuse("replica %d is a voter already", id)
		}
		next.Peers[i].Learner, joint = false, true
		tell(raftpb.ConfChangeAddNode, uint64(id))
	}
	for _, id := range ch.Remove {
		i, err := find(id)
		if err != nil {
			return plannedChange{}, err
		}
		if p := next.Peers[i]; !p.GetLearner() {
			next.OutgoingPeers, joint = append(next.OutgoingPeers, p), true
		}
		next.Peers = slices.Delete(next.Peers, i, i+1)
		tell(raftpb.ConfChangeRemoveNode, uint64(id))
	}
	next.NextReplicaId = nextReplicaID(c)
	for _, p := range ch.Add {
		if p.GetServerId() == "" || p.GetAddress() == "" {
			return refuse("a new replica needs its server's id and address")
		}
		if i := slices.IndexFunc(members(next), func(o *nyalav1.Peer) bool { return o.GetServerId() == p.GetServerId() }); i >= 0 {
			return plannedChange{}, status.New(status.AlreadyPresent, "tablet %s: change the config: server %s holds replica %d already", tablet,
				p.GetServerId(), members(next)[i].GetReplicaId())
		}
		next.Peers = append(next.Peers, &nyalav1.Peer{
			ReplicaId: next.NextReplicaId, ServerId: p.GetServerId(), Address: p.GetAddress(), Learner: true,
		})
		tell(raftpb.ConfChangeAddLearnerNode, next.NextReplicaId)
		next.NextReplicaId++
	}
	switch {
	case len(voterIDs(next)) == 0:
		return refuse("no voter would be left")
	case len(members(next)) > maxMembers:
		return refuse("%d members, of at most %d", len(members(next)), maxMembers)
	}
	if joint || len(cc.Changes) > 1 {
		// Explicit: it is left by an entry of ours, which carries a timestamp; raft's own wouldn't.
		cc.Transition = raftpb.ConfChangeTransitionJointExplicit.Enum()
		next.OutgoingVoters = voterIDs(c)
	}
	return plannedChange{next, cc}, nil
}

// planLeave is the entry that leaves a joint config.
func planLeave(c *nyalav1.RaftConfig) plannedChange {
	next := proto.CloneOf(c)
	next.OpidIndex, next.OutgoingVoters, next.OutgoingPeers = 0, nil, nil
	return plannedChange{next, &raftpb.ConfChangeV2{}}
}

// members are all replicas of a config: with the voters of the old half that go.
func members(c *nyalav1.RaftConfig) []*nyalav1.Peer {
	if len(c.GetOutgoingPeers()) == 0 {
		return c.GetPeers()
	}
	return slices.Concat(c.GetPeers(), c.GetOutgoingPeers())
}

// memberOf is a member of the config; nil if there is none of that id.
func memberOf(c *nyalav1.RaftConfig, id ident.ReplicaID) *nyalav1.Peer {
	for _, ps := range [2][]*nyalav1.Peer{c.GetPeers(), c.GetOutgoingPeers()} {
		for _, p := range ps {
			if p.GetReplicaId() == uint64(id) {
				return p
			}
		}
	}
	return nil
}

// voterIDs are the voters of a config's new half.
func voterIDs(c *nyalav1.RaftConfig) (ids []uint64) {
	for _, p := range c.GetPeers() {
		if !p.GetLearner() {
			ids = append(ids, p.GetReplicaId())
		}
	}
	return ids
}

// nextReplicaID is an id that no replica of the tablet has had: above the counter, or all members where a config lacks it.
func nextReplicaID(c *nyalav1.RaftConfig) uint64 {
	next := c.GetNextReplicaId()
	for _, p := range members(c) {
		next = max(next, p.GetReplicaId()+1)
	}
	return next
}

func isJoint(c *nyalav1.RaftConfig) bool { return len(c.GetOutgoingVoters()) > 0 }
