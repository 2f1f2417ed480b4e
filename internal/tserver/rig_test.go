package tserver

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/fs"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/replica"
	"github.com/nyaladb/nyala/internal/rpc"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// server is a tablet server in this process, with folders and ports of its own, over its starts.
type server struct {
	t    *testing.T
	dir  string
	addr string
	cfg  Config
	log  logLines

	n     *replica.Node
	s     *Server
	stops context.CancelFunc
	ended chan error
	nyalav1.TabletServiceClient
	admin nyalav1.TabletAdminServiceClient
}

// newServer returns a server that speaks to the given master and isn't started.
func newServer(t *testing.T, master string) *server {
	t.Helper()
	s := &server{t: t, dir: t.TempDir(), addr: "127.0.0.1:0", cfg: DefaultConfig()}
	s.cfg.Masters, s.cfg.HeartbeatInterval = []string{master}, 30*time.Millisecond
	s.cfg.Logger = slog.New(slog.NewTextHandler(&s.log, nil))
	t.Cleanup(func() {
		if s.n != nil {
			s.stop()
		}
	})
	return s
}

func (s *server) start() *server {
	s.t.Helper()
	cfg := replica.DefaultNodeConfig()
	cfg.FS = fs.Config{WALDir: s.dir, Role: fs.TabletServer}
	cfg.RPC.BindAddresses = []string{s.addr}
	cfg.RPC.StopTimeout = 30 * time.Second // a call that isn't ended by the stop itself fails the test by its time
	cfg.Peers.BackoffMin, cfg.Peers.BackoffMax = 10*time.Millisecond, 30*time.Millisecond
	cfg.Consensus.HeartbeatInterval = 40 * time.Millisecond
	cfg.Tablet.CacheBytes, cfg.Tablet.MemtableBytes = 8<<20, 1<<20
	cfg.WAL.ReservedBytes = 0
	cfg.Logger = slog.New(slog.DiscardHandler)
	n, err := replica.OpenNode(cfg)
	require.NoError(s.t, err)
	s.n, s.addr = n, n.Addresses()[0]
	s.cfg.Registration = &nyalav1.TSRegistration{RpcAddresses: n.Addresses(), Version: "test"}
	if s.cfg.Registerer != nil {
		s.cfg.Registerer = prometheus.NewPedanticRegistry()
	}
	s.s, err = New(s.cfg, n)
	require.NoError(s.t, err)
	nyalav1.RegisterTabletServiceServer(n.RPC, s.s.Service())
	nyalav1.RegisterTabletAdminServiceServer(n.RPC, s.s.AdminService())
	ctx, cancel := context.WithCancel(context.Background())
	s.stops, s.ended = cancel, make(chan error, 1)
	go func() { s.ended <- n.Run(ctx, s.s.Run) }()
	until(s.t, "the replicas are open", func() bool {
		ok, _ := n.Replicas.Ready()
		return ok
	})
	cc, err := rpc.Dial(s.addr, rpc.DialOptions{})
	require.NoError(s.t, err)
	s.t.Cleanup(func() { cc.Close() })
	s.TabletServiceClient, s.admin = nyalav1.NewTabletServiceClient(cc), nyalav1.NewTabletAdminServiceClient(cc)
	return s
}

func (s *server) stop() {
	s.t.Helper()
	s.stops()
	require.NoError(s.t, <-s.ended)
	s.n = nil
}

// until waits for a condition.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// logLines gathers what was logged.
type logLines struct {
	mu    sync.Mutex
	lines []string
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(p))
	return len(p), nil
}

// count returns how many lines have text in them.
func (l *logLines) count(text string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// fakeMaster takes heartbeats and answers as it is told.
type fakeMaster struct {
	nyalav1.UnimplementedMasterServiceServer
	t    *testing.T
	addr string
	srv  *grpc.Server
	done chan struct{}

	mu     sync.Mutex
	beats  []*nyalav1.TSHeartbeatRequest
	answer func(*nyalav1.TSHeartbeatRequest) (*nyalav1.TSHeartbeatResponse, error)
}

var cluster = ident.New()

// leading answers as the leading master does that wants nothing.
func leading(*nyalav1.TSHeartbeatRequest) (*nyalav1.TSHeartbeatResponse, error) {
	return &nyalav1.TSHeartbeatResponse{ClusterId: cluster, Leader: true}, nil
}

func newFakeMaster(t *testing.T) *fakeMaster {
	m := &fakeMaster{t: t, addr: "127.0.0.1:0", answer: leading}
	m.start()
	t.Cleanup(m.stop)
	return m
}

func (m *fakeMaster) start() {
	m.t.Helper()
	var l net.Listener
	var err error
	until(m.t, "the master's port is free again", func() bool {
		l, err = net.Listen("tcp", m.addr)
		return err == nil
	})
	m.addr = l.Addr().String()
	m.srv, m.done = grpc.NewServer(), make(chan struct{})
	nyalav1.RegisterMasterServiceServer(m.srv, m)
	go func() {
		defer close(m.done)
		_ = m.srv.Serve(l)
	}()
}

func (m *fakeMaster) stop() {
	m.srv.Stop()
	<-m.done
}

// TSHeartbeat notes the heartbeat.
func (m *fakeMaster) TSHeartbeat(_ context.Context, req *nyalav1.TSHeartbeatRequest) (*nyalav1.TSHeartbeatResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.beats = append(m.beats, req)
	resp, err := m.answer(req)
	return resp, status.ToGRPC(err)
}

// does says how heartbeats are answered from now on.
func (m *fakeMaster) does(answer func(*nyalav1.TSHeartbeatRequest) (*nyalav1.TSHeartbeatResponse, error)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.beats, m.answer = nil, answer
}

// next waits for a heartbeat that came since does and fits.
func (m *fakeMaster) next(what string, fits func(*nyalav1.TSHeartbeatRequest) bool) *nyalav1.TSHeartbeatRequest {
	m.t.Helper()
	var found *nyalav1.TSHeartbeatRequest
	until(m.t, "a heartbeat comes: "+what, func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, b := range m.beats {
			if fits(b) {
				found = b
				return true
			}
		}
		return false
	})
	return found
}

func full(b *nyalav1.TSHeartbeatRequest) bool     { return b.GetReport().GetFull() }
func noReport(b *nyalav1.TSHeartbeatRequest) bool { return b.GetReport() == nil }

func testSchema(t testing.TB) *schema.Schema {
	t.Helper()
	s, err := schema.NewTable([]schema.Column{
		{Name: "id", Type: schema.Int64, Key: true},
		{Name: "v", Type: schema.String, Nullable: true},
	})
	require.NoError(t, err)
	return s
}

// create makes a tablet with a replica on each server.
func create(t *testing.T, on ...*server) string {
	t.Helper()
	id := ident.New()
	config := &nyalav1.RaftConfig{NextReplicaId: uint64(len(on)) + 1}
	for i := len(on) - 1; i >= 0; i-- { // the last one campaigns, when the others are there
		config.Peers = append(config.Peers, &nyalav1.Peer{ReplicaId: uint64(i) + 1, ServerId: string(on[i].n.ServerID()), Address: on[i].addr})
	}
	for _, s := range on {
		_, err := s.admin.CreateTablet(t.Context(), &nyalav1.CreateTabletRequest{
			DestServerId: string(s.n.ServerID()), TabletId: id, TableId: ident.New(), TableName: "t", Schema: testSchema(t).ToProto(),
			PartitionSchema: &nyalav1.PartitionSchema{}, Partition: &nyalav1.Partition{}, Config: config,
		})
		require.NoError(t, status.FromGRPC(err))
	}
	return id
}

// rowsOf encodes an INSERT of each id.
func rowsOf(t testing.TB, ids ...int64) *nyalav1.RowOperations {
	t.Helper()
	s := testSchema(t)
	enc := schema.NewOpsEncoder(s)
	set := schema.NewBitmap(s.NumColumns())
	set.Set(0)
	set.Set(1)
	for _, id := range ids {
		require.NoError(t, enc.Append(schema.Insert, []schema.Value{schema.IntValue(id), schema.StringValue(strings.Repeat("x", 100))}, set))
	}
	rows, indirect := enc.Bytes()
	return &nyalav1.RowOperations{Rows: rows, IndirectData: indirect}
}

// load inserts the first rows, at whoever leads.
func load(t *testing.T, id string, rows int, on ...*server) (leader *server) {
	t.Helper()
	ops := rowsOf(t, upTo(rows)...)
	until(t, "a leader takes the rows", func() bool {
		for _, s := range on {
			resp, err := s.Write(t.Context(), &nyalav1.WriteRequest{TabletId: id, RowOperations: ops})
			if err == nil {
				require.Empty(t, resp.GetRowErrors())
				leader = s
				return true
			}
		}
		return false
	})
	return leader
}
