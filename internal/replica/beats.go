package replica

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/clock"
	"github.com/nyaladb/nyala/internal/consensus"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/rpc"
	"github.com/nyaladb/nyala/internal/wal"
)

// Beats. Each pair of servers of a cluster, masters too, swaps one small message per heartbeat interval each way, whatever
// the number of their tablets. It says how the sender's clock stands, which process it is, and how many tablets are quiet between
// the two; that it comes at all is by what servers know that another lives. Who the others are is the leading master's to say:
// SetServers; what it said last stands in the WAL, so that a server knows after a start whom to ask about its clock.

// serversKey names the list of servers in the WAL's small values.
const serversKey = wal.MetaKey("servers")

// Server is a server of the cluster, whatever its role.
type Server struct {
	ID      ident.ServerID
	Address string
	Master  bool
}

// beatSender is what a beater sends through.
type beatSender interface {
	SendBeat(to ident.ServerID, address string, due time.Time, stamp func() *nyalav1.Beat)
}

// beatClock is what beats are about.
type beatClock interface {
	Beat(to ident.ServerID) clock.Beat
	SetPeers(others int)
	ForgetPeer(id ident.ServerID)
}

// beatHost is what consensus has to say in a beat.
type beatHost interface {
	StampBeat(to ident.ServerID, b *nyalav1.Beat)
}

// beater sends this server's beats.
type beater struct {
	self     ident.ServerID
	interval time.Duration
	clock    beatClock
	sender   beatSender
	host     beatHost

	mu      sync.Mutex
	version uint64
	others  []Server // by id
}

// run sends one beat to each other server per interval until ctx ends.
func (b *beater) run(ctx context.Context) error {
	due := time.Now()
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		b.beat(due)
		// Those that have been missed aren't sent any more: the one that came so late stands for them.
		due = due.Add(b.interval * (1 + time.Since(due)/b.interval))
		t.Reset(time.Until(due))
	}
}

func (b *beater) beat(due time.Time) {
	for _, s := range b.servers() {
		b.sender.SendBeat(s.ID, s.Address, due, func() *nyalav1.Beat {
			beat := beatToProto(b.clock.Beat(s.ID))
			b.host.StampBeat(s.ID, beat)
			return beat
		})
	}
}

// servers returns the other servers, by id. The slice isn't changed any more.
func (b *beater) servers() []Server {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.others
}

// set takes a list over, which may hold this server itself, and says whether it differs from the one before.
func (b *beater) set(version uint64, servers []Server) (changed bool) {
	var others []Server
	for _, s := range servers {
		if _, err := ident.Bytes(string(s.ID)); err == nil && s.ID != b.self && s.Address != "" {
			others = append(others, s)
		}
	}
	slices.SortFunc(others, func(a, b Server) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	others = slices.CompactFunc(others, func(a, b Server) bool { return a.ID == b.ID })
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.others
	b.version, b.others = version, others
	if slices.Equal(before, others) {
		return false
	}
	for _, old := range before {
		if !slices.ContainsFunc(others, func(s Server) bool { return s.ID == old.ID }) {
			b.clock.ForgetPeer(old.ID)
		}
	}
	b.clock.SetPeers(len(others))
	return true
}

// SetServers tells the node which servers the cluster has, by the leading master's word. Lists have versions; which one is
// newer is the master's business.
func (n *Node) SetServers(version uint64, servers []Server) {
	if !n.beater.set(version, servers) {
		return
	}
	n.cfg.Logger.Info("servers of the cluster changed", "others", len(n.beater.servers()), "version", version)
	var b wal.Batch
	b.SetMeta(serversKey, encodeServers(n.beater.servers()))
	if err := n.log.Commit(&b); err != nil {
		// Nothing rests on it but how soon a server that starts knows whom to ask.
		n.cfg.Logger.Warn("can't note the servers of the cluster", "err", err)
	}
}

// ServersVersion is the version of the list that SetServers was given last since the start; 0: none.
func (n *Node) ServersVersion() uint64 {
	n.beater.mu.Lock()
	defer n.beater.mu.Unlock()
	return n.beater.version
}

func encodeServers(servers []Server) []byte {
	list := &nyalav1.KnownServers{}
	for _, s := range servers {
		list.Servers = append(list.Servers, &nyalav1.ServerAddress{ServerId: string(s.ID), RpcAddress: s.Address, Master: s.Master})
	}
	b, err := proto.Marshal(list)
	if err != nil {
		return nil // strings that aren't UTF-8: nothing is noted
	}
	return b
}

// decodeServers returns nothing where b can't be read: the list is a convenience.
func decodeServers(b []byte) []Server {
	list := &nyalav1.KnownServers{}
	if proto.Unmarshal(b, list) != nil {
		return nil
	}
	return ServersFromProto(list.GetServers())
}

// ServersFromProto takes a list over as it came.
func ServersFromProto(list []*nyalav1.ServerAddress) []Server {
	servers := make([]Server, 0, len(list))
	for _, s := range list {
		servers = append(servers, Server{ID: ident.ServerID(s.GetServerId()), Address: s.GetRpcAddress(), Master: s.GetMaster()})
	}
	return servers
}

// peerHandler takes what other servers send: beats for the clock, all else for consensus.
type peerHandler struct {
	*consensus.Host
	clock *clock.Clock
}

var _ rpc.PeerHandler = peerHandler{}

// HearBeat gives a beat to the clock, for which each moment counts, and to consensus.
func (h peerHandler) HearBeat(from ident.ServerID, b *nyalav1.Beat) {
	h.clock.HearBeat(from, beatFromProto(b))
	h.Host.HearBeat(from, b)
}

func beatToProto(b clock.Beat) *nyalav1.Beat {
	return &nyalav1.Beat{
		Sent: b.Sent, Wall: b.Wall, MaxError: int64(b.MaxError), Verdict: uint32(b.Verdict), State: uint32(b.State),
		Echo: b.Echo, EchoWall: b.EchoWall,
	}
}

// beatFromProto takes a beat over. A state or verdict of a later version is taken for the worst: who sent it accuses nobody.
func beatFromProto(b *nyalav1.Beat) clock.Beat {
	out := clock.Beat{
		Sent: b.GetSent(), Wall: b.GetWall(), MaxError: time.Duration(b.GetMaxError()),
		Verdict: clock.Unsynchronised, State: clock.Fenced, Echo: b.GetEcho(), EchoWall: b.GetEchoWall(),
	}
	if v := b.GetVerdict(); v <= uint32(clock.Unsynchronised) {
		out.Verdict = clock.Verdict(v)
	}
	if s := b.GetState(); s <= uint32(clock.Fenced) {
		out.State = clock.State(s)
	}
	return out
}
