package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/status"
)

const fakeClusterID = "0123456789abcdef0123456789abcdef"

// fakeCluster is masters and tablet servers in this process, on loopback connections, over one shared state in maps: what a
// real cluster would replicate is simply the same for all. Faults come in by hook, kill and the fields of fakeTablet.
type fakeCluster struct {
	tb      testing.TB
	masters []*fakeServer
	servers []*fakeServer
	clock   atomic.Uint64

	mu      sync.Mutex
	leader  int // the leading master; -1: none
	tables  map[string]*fakeTable
	byName  map[string]string
	creates map[string]string // request id -> table id
	tablets map[string]*fakeTablet
	nextID  int
	scanSeq int
	scans   map[string]*fakeScanner
	ttlMs   uint32
	// pollsUntilLeader is how often IsCreateTableDone says no.
	pollsUntilLeader int
	pageSize         int
	// rowsPerBatch is how many rows a scan's answer holds.
	rowsPerBatch int
	// forwards: a replica that doesn't lead has the leader take a write.
	forwards bool
	// hook sees each call before and after it is carried out.
	hook func(call *fakeCall) error
	// answer changes a scan's answer.
	answer func(*nyalav1.ScanResponse)
	// withoutID counts calls that came without the cluster id, by method.
	withoutID map[string]int
	badID     int
	calls     map[string]int
}

// fakeCall is one call at one server. A hook that returns an error makes that the answer; after says that the call has been
// carried out already.
type fakeCall struct {
	ctx    context.Context
	server *fakeServer
	method string
	req    any
	after  bool
}

// errLost is what a caller sees whose connection broke.
var errLost = grpcstatus.Error(codes.Unavailable, "error reading from server: EOF")

// fakeServer is one process: a listener and a gRPC server that can be killed and started again at the same address.
type fakeServer struct {
	c    *fakeCluster
	id   string
	addr string

	mu  sync.Mutex
	srv *grpc.Server
}

func newFakeCluster(tb testing.TB, masters, servers int) *fakeCluster {
	c := &fakeCluster{
		tb: tb, tables: map[string]*fakeTable{}, byName: map[string]string{}, creates: map[string]string{},
		tablets: map[string]*fakeTablet{}, scans: map[string]*fakeScanner{}, ttlMs: 300_000, rowsPerBatch: 7,
		withoutID: map[string]int{}, calls: map[string]int{},
	}
	c.clock.Store(1_700_000_000_000_000 << 12)
	for i := range masters {
		c.masters = append(c.masters, c.newServer(fmt.Sprintf("master-%d", i)))
	}
	for i := range servers {
		c.servers = append(c.servers, c.newServer(fmt.Sprintf("ts-%d", i)))
	}
	tb.Cleanup(func() {
		for _, s := range append(c.masters, c.servers...) {
			s.kill()
		}
	})
	return c
}

func (c *fakeCluster) newServer(id string) *fakeServer {
	s := &fakeServer{c: c, id: id}
	s.start()
	return s
}

// start listens, on the address that the server had before if there was one.
func (s *fakeServer) start() {
	addr := s.addr
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	lis, err := net.Listen("tcp", addr)
	for range 100 { // another process's connection may have the port for a moment
		if err == nil {
			break
		}
		<-time.After(10 * time.Millisecond)
		lis, err = net.Listen("tcp", addr)
	}
	if err != nil {
		s.c.tb.Errorf("listen: %v", err)
		return
	}
	if s.addr == "" {
		s.addr = lis.Addr().String()
	}
	srv := grpc.NewServer(grpc.UnaryInterceptor(s.intercept), grpc.MaxRecvMsgSize(DefaultMaxMessageSize))
	nyalav1.RegisterMasterServiceServer(srv, &fakeMaster{s: s})
	nyalav1.RegisterTabletServiceServer(srv, &fakeTabletService{s: s})
	s.mu.Lock()
	s.srv = srv
	s.mu.Unlock()
	go func() {
		if err := srv.Serve(lis); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			s.c.tb.Errorf("%s: %v", s.id, err)
		}
	}()
}

// kill ends the process: connections break, calls under way get no answer.
func (s *fakeServer) kill() {
	s.mu.Lock()
	srv := s.srv
	s.srv = nil
	s.mu.Unlock()
	if srv != nil {
		srv.Stop()
	}
}

func (s *fakeServer) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	c := s.c
	md, _ := metadata.FromIncomingContext(ctx)
	method := info.FullMethod[len("/nyala.v1."):]
	c.mu.Lock()
	hook := c.hook
	c.calls[method]++
	switch id := md.Get(clusterIDKey); {
	case len(id) == 0:
		c.withoutID[method]++
	case id[0] != fakeClusterID:
		c.badID++
	}
	c.mu.Unlock()
	call := &fakeCall{ctx: ctx, server: s, method: method, req: req}
	if hook != nil {
		if err := hook(call); err != nil {
			return nil, asGRPC(err)
		}
	}
	resp, err := handle(ctx, req)
	if hook != nil && err == nil {
		call.after = true
		if err := hook(call); err != nil {
			return nil, asGRPC(err)
		}
	}
	return resp, asGRPC(err)
}

// asGRPC gives our own errors their form on the wire, and leaves gRPC's as they are.
func asGRPC(err error) error {
	if _, ok := grpcstatus.FromError(err); ok {
		return err
	}
	return status.ToGRPC(err)
}

func (c *fakeCluster) setHook(hook func(*fakeCall) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hook = hook
}

func (c *fakeCluster) callCount(method string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[method]
}

// now gives out rising timestamps.
func (c *fakeCluster) now() uint64 { return c.clock.Add(1 << 12) }

// server finds a tablet server by id.
func (c *fakeCluster) server(id string) *fakeServer {
	for _, s := range c.servers {
		if s.id == id {
			return s
		}
	}
	c.tb.Fatalf("no server %s", id)
	return nil
}

func (c *fakeCluster) masterAddrs() []string {
	var addrs []string
	for _, m := range c.masters {
		addrs = append(addrs, m.addr)
	}
	return addrs
}

// connect returns a client that the test closes at its end.
func (c *fakeCluster) connect(o Options) *Client {
	c.tb.Helper()
	if o.Masters == nil {
		o.Masters = c.masterAddrs()
	}
	cl, err := Connect(context.Background(), o)
	if err != nil {
		c.tb.Fatalf("connect: %v", err)
	}
	c.tb.Cleanup(func() { cl.Close() })
	return cl
}
