package cli

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// fakeCluster is one master and some tablet servers that speak the real protocol on loopback and keep rows in memory. All
// replicas of a tablet are one and the same state; any of them takes writes.
type fakeCluster struct {
	clusterID string
	master    *fakeServer
	servers   []*fakeServer

	mu      sync.Mutex
	clock   uint64
	tables  []*fakeTable
	tablets map[string]*fakeTablet
	nextID  int
	// hold makes writes wait until it is closed.
	hold chan struct{}
	held int // writes that wait or waited
	// strip makes ListTablets leave a replica out, by server id and tablet id.
	strip map[[2]string]bool
}

type fakeServer struct {
	c    *fakeCluster
	id   string
	addr string
	gs   *grpc.Server
	log  []*nyalav1.WALEntry
	dead bool

	clock    *nyalav1.GetClockResponse
	accepted []string // reasons
	faults   *nyalav1.MockClockRequest
}

type fakeTable struct {
	id, name  string
	schema    *schema.Schema
	partition *schema.PartitionSchema
	replicas  int
	tablets   []*fakeTablet
}

type fakeTablet struct {
	id        string
	table     *fakeTable
	partition schema.Partition
	hosts     []*fakeServer
	leader    int // position in hosts
	term      uint64
	rows      map[string][]schema.Value
	index     uint64
	first     uint64 // index in the log
}

// fakeID makes ids that are the same in each run.
func fakeID(kind string, n int) string {
	return fmt.Sprintf("%s%0*d", kind, 32-len(kind), n)
}

func newFakeCluster(t *testing.T, tservers int) *fakeCluster {
	c := &fakeCluster{clusterID: fakeID("c", 1), tablets: map[string]*fakeTablet{}, strip: map[[2]string]bool{}}
	c.clock = uint64(hybridtime.FromMicros(1357034400000000, 0)) // 2013-01-01T10:00:00Z
	c.master = c.serve(t, fakeID("a", 1), func(gs *grpc.Server, s *fakeServer) {
		nyalav1.RegisterMasterServiceServer(gs, &fakeMaster{c: c})
	})
	for i := range tservers {
		c.servers = append(c.servers, c.serve(t, fakeID("b", i+1), func(gs *grpc.Server, s *fakeServer) {
			nyalav1.RegisterTabletServiceServer(gs, &fakeTabletService{s: s})
			nyalav1.RegisterTabletAdminServiceServer(gs, &fakeAdmin{s: s})
		}))
	}
	return c
}

func (c *fakeCluster) serve(t *testing.T, id string, register func(*grpc.Server, *fakeServer)) *fakeServer {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &fakeServer{c: c, id: id, addr: l.Addr().String(), gs: grpc.NewServer(grpc.UnaryInterceptor(
		func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
			resp, err := h(ctx, req)
			return resp, status.ToGRPC(err)
		}))}
	s.clock = &nyalav1.GetClockResponse{
		State: "open", Verdict: "ok", Source: "mock", Detection: true, MaxErrorUsec: 1500, Now: c.clock, Latest: c.clock + 1,
		Opinion: "there is no other server", MaxClockSyncErrorUsec: 10_000_000, Mock: true,
	}
	register(s.gs, s)
	nyalav1.RegisterServerServiceServer(s.gs, &fakeServerService{s: s})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.gs.Serve(l)
	}()
	t.Cleanup(func() {
		s.gs.Stop()
		<-done
	})
	return s
}

// kill stops a server for good.
func (c *fakeCluster) kill(s *fakeServer) {
	s.gs.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	s.dead = true
}

func (c *fakeCluster) tickLocked() uint64 {
	c.clock += 1000 << hybridtime.LogicalBits
	return c.clock
}

func (c *fakeCluster) tableLocked(id *nyalav1.TableIdentifier) (*fakeTable, error) {
	for _, t := range c.tables {
		if t.id == id.GetId() || id.GetId() == "" && t.name == id.GetName() {
			return t, nil
		}
	}
	return nil, status.New(status.TableNotFound, "there is no table %q", id.GetName()+id.GetId())
}

// fakeMaster is the master's service.
type fakeMaster struct {
	nyalav1.UnimplementedMasterServiceServer
	c *fakeCluster
}

func (m *fakeMaster) GetClusterInfo(context.Context, *nyalav1.GetClusterInfoRequest) (*nyalav1.GetClusterInfoResponse, error) {
	return &nyalav1.GetClusterInfoResponse{ClusterId: m.c.clusterID, Masters: []*nyalav1.MasterInfo{{
		ServerId: m.c.master.id, RpcAddresses: []string{m.c.master.addr}, Role: nyalav1.Role_ROLE_LEADER,
	}}}, nil
}

func (m *fakeMaster) CreateTable(_ context.Context, req *nyalav1.CreateTableRequest) (*nyalav1.CreateTableResponse, error) {
	c := m.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.tableLocked(&nyalav1.TableIdentifier{Name: req.GetName()}); err == nil {
		return nil, status.New(status.TableAlreadyPresent, "table %q is already present", req.GetName())
	}
	alive := 0
	for _, s := range c.servers {
		if !s.dead {
			alive++
		}
	}
	if alive < int(req.GetNumReplicas()) {
		return nil, status.New(status.TooFewTabletServers, "too few tablet servers")
	}
	s, err := schema.FromProto(req.GetSchema())
	if err != nil {
		return nil, err
	}
	c.nextID++
	t := &fakeTable{id: fakeID("d", c.nextID), name: req.GetName(), schema: s, replicas: int(req.GetNumReplicas()), partition: &schema.PartitionSchema{}}
	for i := range s.NumKeyColumns() {
		t.partition.Range = append(t.partition.Range, s.Column(i).ID)
	}
	for _, h := range req.GetHash() {
		d := schema.HashDimension{Buckets: h.GetNumBuckets(), Seed: h.GetSeed()}
		for _, name := range h.GetColumns() {
			d.Columns = append(d.Columns, s.Column(s.IndexOf(name)).ID)
		}
		t.partition.Hash = append(t.partition.Hash, d)
	}
	for i, p := range t.partition.Partitions() {
		tb := &fakeTablet{id: fakeID(fmt.Sprintf("%da", c.nextID), i+1), table: t, partition: p, term: 1, rows: map[string][]schema.Value{}}
		for k := range t.replicas {
			tb.hosts = append(tb.hosts, c.servers[(i+k)%len(c.servers)])
		}
		t.tablets = append(t.tablets, tb)
		c.tablets[tb.id] = tb
	}
	c.tables = append(c.tables, t)
	return &nyalav1.CreateTableResponse{TableId: t.id, NumTablets: uint32(len(t.tablets))}, nil
}

func (m *fakeMaster) IsCreateTableDone(context.Context, *nyalav1.IsCreateTableDoneRequest) (*nyalav1.IsCreateTableDoneResponse, error) {
	return &nyalav1.IsCreateTableDoneResponse{Done: true}, nil
}

func (m *fakeMaster) DeleteTable(_ context.Context, req *nyalav1.DeleteTableRequest) (*nyalav1.DeleteTableResponse, error) {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	t, err := m.c.tableLocked(req.GetTable())
	if err != nil {
		return nil, err
	}
	m.c.tables = slices.DeleteFunc(m.c.tables, func(o *fakeTable) bool { return o == t })
	return &nyalav1.DeleteTableResponse{}, nil
}

func (t *fakeTable) info() *nyalav1.TableInfo {
	return &nyalav1.TableInfo{
		Id: t.id, Name: t.name, State: nyalav1.TableState_TABLE_STATE_RUNNING, NumTablets: uint32(len(t.tablets)),
		NumReplicas: uint32(t.replicas),
	}
}

func (m *fakeMaster) ListTables(_ context.Context, req *nyalav1.ListTablesRequest) (*nyalav1.ListTablesResponse, error) {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	resp := &nyalav1.ListTablesResponse{}
	for _, t := range m.c.tables {
		if strings.Contains(t.name, req.GetNameFilter()) {
			resp.Tables = append(resp.Tables, t.info())
		}
	}
	return resp, nil
}

func (m *fakeMaster) GetTable(_ context.Context, req *nyalav1.GetTableRequest) (*nyalav1.GetTableResponse, error) {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	t, err := m.c.tableLocked(req.GetTable())
	if err != nil {
		return nil, err
	}
	return &nyalav1.GetTableResponse{Table: t.info(), Schema: t.schema.ToProto(), PartitionSchema: t.partition.ToProto()}, nil
}

func (m *fakeMaster) GetTableLocations(_ context.Context, req *nyalav1.GetTableLocationsRequest) (*nyalav1.GetTableLocationsResponse, error) {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	t, err := m.c.tableLocked(req.GetTable())
	if err != nil {
		return nil, err
	}
	resp := &nyalav1.GetTableLocationsResponse{TtlMs: 60_000}
	for _, tb := range t.tablets {
		if len(tb.partition.End) > 0 && string(tb.partition.End) <= string(req.GetPartitionKeyStart()) {
			continue
		}
		l := &nyalav1.TabletLocations{TabletId: tb.id, Partition: tb.partition.ToProto()}
		for i, h := range tb.hosts {
			l.Replicas = append(l.Replicas, &nyalav1.ReplicaLocation{ServerId: h.id, Address: h.addr, Role: tb.role(i), ReplicaId: uint64(i + 1)})
		}
		resp.Tablets = append(resp.Tablets, l)
	}
	return resp, nil
}

func (t *fakeTablet) role(host int) nyalav1.Role {
	if host == t.leader {
		return nyalav1.Role_ROLE_LEADER
	}
	return nyalav1.Role_ROLE_FOLLOWER
}

func (m *fakeMaster) ListTabletServers(context.Context, *nyalav1.ListTabletServersRequest) (*nyalav1.ListTabletServersResponse, error) {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	resp := &nyalav1.ListTabletServersResponse{}
	for i, s := range m.c.servers {
		info := &nyalav1.TabletServerInfo{
			ServerId: s.id, RpcAddresses: []string{s.addr}, WebAddresses: []string{fmt.Sprintf("127.0.0.1:805%d", i)},
			MsSinceHeartbeat: 340, Alive: !s.dead, Version: "v1.2.3",
		}
		for _, tb := range m.c.tablets {
			if k := slices.Index(tb.hosts, s); k >= 0 {
				info.NumReplicas++
				if k == tb.leader {
					info.NumLeaders++
				}
			}
		}
		resp.Servers = append(resp.Servers, info)
	}
	return resp, nil
}

// fakeServerService is what every server answers.
type fakeServerService struct {
	nyalav1.UnimplementedServerServiceServer
	s *fakeServer
}

func (f *fakeServerService) GetStatus(context.Context, *nyalav1.GetStatusRequest) (*nyalav1.GetStatusResponse, error) {
	return &nyalav1.GetStatusResponse{ServerId: f.s.id, ClusterId: f.s.c.clusterID, Version: "v1.2.3", Ready: true}, nil
}

func (f *fakeServerService) GetClock(context.Context, *nyalav1.GetClockRequest) (*nyalav1.GetClockResponse, error) {
	f.s.c.mu.Lock()
	defer f.s.c.mu.Unlock()
	return proto.CloneOf(f.s.clock), nil
}

func (f *fakeServerService) AcceptClock(_ context.Context, req *nyalav1.AcceptClockRequest) (*nyalav1.AcceptClockResponse, error) {
	f.s.c.mu.Lock()
	defer f.s.c.mu.Unlock()
	f.s.accepted = append(f.s.accepted, req.GetReason())
	f.s.clock.State, f.s.clock.Reason = "open", ""
	return &nyalav1.AcceptClockResponse{}, nil
}

func (f *fakeServerService) MockClock(_ context.Context, req *nyalav1.MockClockRequest) (*nyalav1.MockClockResponse, error) {
	f.s.c.mu.Lock()
	defer f.s.c.mu.Unlock()
	if !f.s.clock.GetMock() {
		return nil, status.New(status.IllegalState, "this server reads the machine's own clock")
	}
	f.s.faults = req
	return &nyalav1.MockClockResponse{}, nil
}

// fence makes a server's clock give nothing out, as seen by all others.
func (c *fakeCluster) fence(s *fakeServer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.clock.State, s.clock.Verdict, s.clock.DisplacedUsec = "fenced", "stepped_forward", 901_000_000
	s.clock.Reason = "clock fenced: the wall clock jumped"
	s.clock.Mock = false
	s.clock.Peers = []*nyalav1.ClockPeer{{
		ServerId: c.master.id, OffsetUsec: -901_000_250, BoundUsec: 420, AgeMs: 130, Verdict: "ok", State: "open", Known: true,
	}, {ServerId: "left"}}
}

// differ makes two servers see each other's clocks a minute apart.
func (c *fakeCluster) differ(a, b *fakeServer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a.clock.Peers = append(a.clock.Peers, &nyalav1.ClockPeer{ServerId: b.id, OffsetUsec: 60_000_000, BoundUsec: 420, Known: true, State: "open"})
	b.clock.Peers = append(b.clock.Peers, &nyalav1.ClockPeer{ServerId: a.id, OffsetUsec: -60_000_000, BoundUsec: 420, Known: true, State: "open"})
}

func (f *fakeServerService) DumpWAL(req *nyalav1.DumpWALRequest, stream grpc.ServerStreamingServer[nyalav1.DumpWALResponse]) error {
	for _, e := range f.s.log {
		if req.GetTabletId() != "" && req.GetTabletId() != e.GetTabletId() {
			continue
		}
		if err := stream.Send(&nyalav1.DumpWALResponse{Entries: []*nyalav1.WALEntry{e}}); err != nil {
			return err
		}
	}
	return nil
}
