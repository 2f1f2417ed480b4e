package rpc

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	grpcstatus "google.golang.org/grpc/status"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

// service is a tablet server and a server service whose methods a test sets.
type service struct {
	nyalav1.UnimplementedTabletServiceServer
	nyalav1.UnimplementedServerServiceServer
	write  func(context.Context, *nyalav1.WriteRequest) (*nyalav1.WriteResponse, error)
	scan   func(context.Context, *nyalav1.ScanRequest) (*nyalav1.ScanResponse, error)
	status func(context.Context) error
	dump   func(nyalav1.ServerService_DumpWALServer) error
}

func (s *service) Write(ctx context.Context, r *nyalav1.WriteRequest) (*nyalav1.WriteResponse, error) {
	return s.write(ctx, r)
}

func (s *service) Scan(ctx context.Context, r *nyalav1.ScanRequest) (*nyalav1.ScanResponse, error) {
	return s.scan(ctx, r)
}

func (s *service) GetStatus(ctx context.Context, _ *nyalav1.GetStatusRequest) (*nyalav1.GetStatusResponse, error) {
	return &nyalav1.GetStatusResponse{}, s.status(ctx)
}

func (s *service) DumpWAL(_ *nyalav1.DumpWALRequest, stream nyalav1.ServerService_DumpWALServer) error {
	return s.dump(stream)
}

// testServer is a running Server with a service on it.
type testServer struct {
	*Server
	service *service
	address string
	reg     *prometheus.Registry
	log     *syncBuffer
	stop    func() // and wait
}

// syncBuffer is a bytes.Buffer for several goroutines.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func startServer(t *testing.T, edit func(*ServerConfig)) *testServer {
	t.Helper()
	cfg := DefaultServerConfig()
	cfg.BindAddresses = []string{"127.0.0.1:0"}
	ts := &testServer{service: &service{}, reg: prometheus.NewRegistry(), log: &syncBuffer{}}
	cfg.Registerer, cfg.Logger = ts.reg, slog.New(slog.NewTextHandler(ts.log, nil))
	cfg.ServerID = lowID
	if edit != nil {
		edit(&cfg)
	}
	var err error
	ts.Server, err = NewServer(cfg)
	require.NoError(t, err)
	nyalav1.RegisterTabletServiceServer(ts, ts.service)
	nyalav1.RegisterServerServiceServer(ts, ts.service)
	require.NoError(t, ts.Listen())
	ts.address = ts.Addresses()[0]
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := ts.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	ts.stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	t.Cleanup(ts.stop)
	return ts
}

func dial(t *testing.T, address string, o DialOptions) *grpc.ClientConn {
	t.Helper()
	conn, err := Dial(address, o)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// requireCode shows that err is a *status.Error of this code.
func requireCode(t *testing.T, want status.Code, err error) *status.Error {
	t.Helper()
	var e *status.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, want, e.Code, "%v", err)
	return e
}

// TestErrorsTravel shows a handler's error reaching the caller whole, from a call and from a stream, and a panic becoming
// an error with a stack in the log while the server goes on.
func TestErrorsTravel(t *testing.T) {
	ts := startServer(t, nil)
	conn := dial(t, ts.address, DialOptions{})
	c := nyalav1.NewServerServiceClient(conn)

	ts.service.status = func(context.Context) error {
		return fmt.Errorf("tablet x: %w", &status.Error{Code: status.NotTheLeader, Msg: "not the leader", Term: 7, RetryAfter: time.Second, Leader: &nyalav1.Peer{ServerId: "b"}})
	}
	_, err := c.GetStatus(t.Context(), &nyalav1.GetStatusRequest{})
	e := requireCode(t, status.NotTheLeader, err)
	require.Equal(t, "tablet x: not the leader", e.Msg)
	require.Equal(t, "b", e.Leader.GetServerId())
	require.EqualValues(t, 7, e.Term)

	ts.service.dump = func(s nyalav1.ServerService_DumpWALServer) error {
		if err := s.Send(&nyalav1.DumpWALResponse{}); err != nil {
			return err
		}
		return status.New(status.Corruption, "bad entry")
	}
	stream, err := c.DumpWAL(t.Context(), &nyalav1.DumpWALRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	_, err = stream.Recv()
	requireCode(t, status.Corruption, err)
	ts.service.dump = func(nyalav1.ServerService_DumpWALServer) error { return nil }
	stream, err = c.DumpWAL(t.Context(), &nyalav1.DumpWALRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.Equal(t, io.EOF, err)

	ts.service.status = func(context.Context) error { panic("index out of range") }
	_, err = c.GetStatus(t.Context(), &nyalav1.GetStatusRequest{})
	requireCode(t, status.Unknown, err)
	plain, err := grpc.NewClient("passthrough:///"+ts.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer plain.Close()
	_, err = nyalav1.NewServerServiceClient(plain).GetStatus(t.Context(), &nyalav1.GetStatusRequest{})
	require.Equal(t, codes.Internal, grpcstatus.Code(err))
	ts.service.dump = func(nyalav1.ServerService_DumpWALServer) error { panic("map is nil") }
	stream, err = c.DumpWAL(t.Context(), &nyalav1.DumpWALRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.ErrorContains(t, err, "internal error in nyala.v1.ServerService/DumpWAL: map is nil")
	require.Contains(t, ts.log.String(), "server_test.go")

	ts.service.status = func(context.Context) error { return nil }
	_, err = c.GetStatus(t.Context(), &nyalav1.GetStatusRequest{})
	require.NoError(t, err)
	_, err = nyalav1.NewMasterServiceClient(conn).ListTables(t.Context(), &nyalav1.ListTablesRequest{})
	requireCode(t, status.NotSupported, err)
}

// TestMessageSize shows that a request or an answer over the limit is refused with an error that names the flag, at the
// end that has the lower limit, that one at the limit passes, and that the connection lives on.
func TestMessageSize(t *testing.T) {
	const limit = 2 << 20
	ts := startServer(t, func(c *ServerConfig) { c.MaxMessageSize = limit })
	body := func(n int) *nyalav1.WriteRequest {
		return &nyalav1.WriteRequest{RowOperations: &nyalav1.RowOperations{Rows: make([]byte, n)}}
	}
	ts.service.write = func(context.Context, *nyalav1.WriteRequest) (*nyalav1.WriteResponse, error) {
		return &nyalav1.WriteResponse{}, nil
	}
	answer := 0
	ts.service.scan = func(context.Context, *nyalav1.ScanRequest) (*nyalav1.ScanResponse, error) {
		return &nyalav1.ScanResponse{ArrowIpc: make([]byte, answer)}, nil
	}
	const flag = "--rpc_max_message_size"
	for name, maxSize := range map[string]int{"server": 50 << 20, "client": limit} {
		t.Run(name, func(t *testing.T) {
			c := nyalav1.NewTabletServiceClient(dial(t, ts.address, DialOptions{MaxMessageSize: maxSize}))
			_, err := c.Write(t.Context(), body(limit+1))
			e := requireCode(t, status.TooLarge, err)
			require.Contains(t, e.Msg, flag)
			require.Contains(t, e.Msg, "nyala.v1.TabletService/Write")
			require.Contains(t, e.Msg, fmt.Sprintf("over the limit of %d bytes", limit))
			_, err = c.Write(t.Context(), body(limit-16))
			require.NoError(t, err)

			answer = limit + 1
			_, err = c.Scan(t.Context(), &nyalav1.ScanRequest{})
			require.Contains(t, requireCode(t, status.TooLarge, err).Msg, flag)
			answer = limit - 16
			_, err = c.Scan(t.Context(), &nyalav1.ScanRequest{})
			require.NoError(t, err)
		})
	}
	small := nyalav1.NewTabletServiceClient(dial(t, ts.address, DialOptions{MaxMessageSize: 1 << 20}))
	_, err := small.Scan(t.Context(), &nyalav1.ScanRequest{})
	require.Contains(t, requireCode(t, status.TooLarge, err).Msg, flag)

	ts.service.dump = func(s nyalav1.ServerService_DumpWALServer) error {
		return s.Send(&nyalav1.DumpWALResponse{Entries: []*nyalav1.WALEntry{{Value: strings.Repeat("x", limit)}}})
	}
	stream, err := nyalav1.NewServerServiceClient(dial(t, ts.address, DialOptions{})).DumpWAL(t.Context(), &nyalav1.DumpWALRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.Contains(t, requireCode(t, status.TooLarge, err).Msg, flag)
}

// TestClusterID shows who is let in: callers of the same cluster, callers that don't say, and all while the server itself
// doesn't know.
func TestClusterID(t *testing.T) {
	var known atomic.Value
	ts := startServer(t, func(c *ServerConfig) { c.ClusterID = func() ident.ClusterID { return known.Load().(ident.ClusterID) } })
	ts.service.status = func(context.Context) error { return nil }
	ts.service.dump = func(nyalav1.ServerService_DumpWALServer) error { return nil }
	var mine ident.ClusterID
	c := nyalav1.NewServerServiceClient(dial(t, ts.address, DialOptions{ClusterID: func() ident.ClusterID { return mine }}))
	call := func() (unary, stream error) {
		_, unary = c.GetStatus(t.Context(), &nyalav1.GetStatusRequest{})
		s, err := c.DumpWAL(t.Context(), &nyalav1.DumpWALRequest{})
		require.NoError(t, err)
		if _, stream = s.Recv(); errors.Is(stream, io.EOF) {
			stream = nil
		}
		return unary, stream
	}
	for _, ids := range [][2]ident.ClusterID{{"", ""}, {"", cluster}, {cluster, ""}, {cluster, cluster}} {
		known.Store(ids[0])
		mine = ids[1]
		unary, stream := call()
		require.NoError(t, unary)
		require.NoError(t, stream)
	}
	known.Store(cluster)
	mine = "dddddddddddddddddddddddddddddddd"
	unary, stream := call()
	for _, err := range []error{unary, stream} {
		e := requireCode(t, status.ClusterIDMismatch, err)
		require.Contains(t, e.Msg, string(cluster))
		require.Contains(t, e.Msg, string(mine))
		require.Contains(t, e.Msg, string(lowID))
	}
}

// TestDeadlines shows a caller's deadline reaching the handler and the cap standing where there is none.
func TestDeadlines(t *testing.T) {
	ts := startServer(t, func(c *ServerConfig) { c.MaxDeadline = 40 * time.Millisecond })
	ts.service.status = func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	c := nyalav1.NewServerServiceClient(dial(t, ts.address, DialOptions{}))
	_, err := c.GetStatus(t.Context(), &nyalav1.GetStatusRequest{})
	requireCode(t, status.TimedOut, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = c.GetStatus(ctx, &nyalav1.GetStatusRequest{})
	requireCode(t, status.TimedOut, err)
}

// TestNoServer shows what a caller is told at once when nobody is there, and that the connection heals by itself.
func TestNoServer(t *testing.T) {
	ln, err := Listen("127.0.0.1:0", 1)
	require.NoError(t, err)
	address := ln.Addr().String()
	require.NoError(t, ln.Close())
	c := nyalav1.NewServerServiceClient(dial(t, address, DialOptions{}))
	_, err = c.GetStatus(t.Context(), &nyalav1.GetStatusRequest{})
	require.Equal(t, "no answer from "+address+": dial tcp "+address+": connect: connection refused", requireCode(t, status.ServiceUnavailable, err).Msg)

	ts := startServer(t, func(c *ServerConfig) { c.BindAddresses = []string{address} })
	ts.service.status = func(context.Context) error { return nil }
	require.Eventually(t, func() bool {
		_, err := c.GetStatus(t.Context(), &nyalav1.GetStatusRequest{})
		return err == nil
	}, 5*time.Second, 10*time.Millisecond)
}

// TestWrongBytes shows that what isn't HTTP/2 is cut off, soon, silence too, and that others are served on.
func TestWrongBytes(t *testing.T) {
	ts := startServer(t, func(c *ServerConfig) { c.HandshakeTimeout = 100 * time.Millisecond })
	ts.service.status = func(context.Context) error { return nil }
	noise := make([]byte, 64<<10)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(noise)
	for name, send := range map[string][]byte{
		"silence":             nil,
		"one byte":            []byte("P"),
		"half a preface":      []byte("PRI * HTTP/2.0\r\n"),
		"preface and noise":   append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), noise...),
		"http/1":              []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"tls":                 {0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03},
		"kudu":                []byte("hrpc\x09\x00\x00"),
		"length of 4 GiB":     bytes.Repeat([]byte{0xff}, 64),
		"noise":               noise,
		"preface, huge frame": append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 0xff, 0xff, 0xff, 4, 0, 0, 0, 0, 0),
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", ts.address)
			require.NoError(t, err)
			defer conn.Close()
			_, _ = conn.Write(send) // the server may have cut it off before the end
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(5*time.Second)))
			_, err = io.Copy(io.Discard, bufio.NewReader(conn))
			var timeout net.Error
			require.False(t, errors.As(err, &timeout) && timeout.Timeout(), "not cut off")
		})
	}
	c := nyalav1.NewServerServiceClient(dial(t, ts.address, DialOptions{}))
	_, err := c.GetStatus(t.Context(), &nyalav1.GetStatusRequest{})
	require.NoError(t, err)
}

// TestIdle shows a connection without calls closed after its time, one with a call kept, and the next call connecting anew.
func TestIdle(t *testing.T) {
	ts := startServer(t, func(c *ServerConfig) { c.IdleTimeout = 50 * time.Millisecond })
	release := make(chan struct{})
	ts.service.dump = func(nyalav1.ServerService_DumpWALServer) error {
		<-release
		return nil
	}
	ts.service.status = func(context.Context) error { return nil }
	idle, busy := dial(t, ts.address, DialOptions{}), dial(t, ts.address, DialOptions{})
	stream, err := nyalav1.NewServerServiceClient(busy).DumpWAL(t.Context(), &nyalav1.DumpWALRequest{})
	require.NoError(t, err)
	c := nyalav1.NewServerServiceClient(idle)
	for range 3 {
		_, err = c.GetStatus(t.Context(), &nyalav1.GetStatusRequest{})
		require.NoError(t, err)
		require.Eventually(t, func() bool { return series(t, ts.reg, "rpc_connections_open", "protocol", "grpc") == 1 }, 5*time.Second, time.Millisecond)
	}
	close(release)
	_, err = stream.Recv()
	require.Equal(t, io.EOF, err)
}

// TestHealthAndReflection shows gRPC's two standard services: readiness follows SetServing, all services are listed, and a
// watcher doesn't hold up the stop.
func TestHealthAndReflection(t *testing.T) {
	ts := startServer(t, func(c *ServerConfig) { c.StopTimeout = time.Minute })
	conn, err := grpc.NewClient("passthrough:///"+ts.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	h := healthpb.NewHealthClient(conn)
	for _, service := range []string{"", "nyala.v1.ServerService"} {
		for _, serving := range []bool{false, true, false} {
			ts.SetServing(serving)
			resp, err := h.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
			require.NoError(t, err)
			require.Equal(t, serving, resp.GetStatus() == healthpb.HealthCheckResponse_SERVING)
		}
	}
	refl, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	require.NoError(t, err)
	require.NoError(t, refl.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}))
	listed, err := refl.Recv()
	require.NoError(t, err)
	require.NoError(t, refl.CloseSend())
	require.Contains(t, fmt.Sprint(listed.GetListServicesResponse().GetService()), "nyala.v1.TabletService")
	_, err = refl.Recv()
	require.Equal(t, io.EOF, err)

	watch, err := h.Watch(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = watch.Recv()
	require.NoError(t, err)
	ts.stop()
}

// TestGracefulStop shows a call under way finishing while the server stops, new ones being refused, and a call that
// doesn't finish being cut off at the bound.
func TestGracefulStop(t *testing.T) {
	ts := startServer(t, func(c *ServerConfig) { c.StopTimeout = time.Minute })
	begun, release := make(chan struct{}), make(chan struct{})
	ts.service.status = func(context.Context) error {
		close(begun)
		<-release
		return nil
	}
	c := nyalav1.NewServerServiceClient(dial(t, ts.address, DialOptions{}))
	answer := make(chan error, 1)
	go func() {
		_, err := c.GetStatus(t.Context(), &nyalav1.GetStatusRequest{})
		answer <- err
	}()
	<-begun
	go ts.stop()
	<-ts.stopping
	close(release)
	require.NoError(t, <-answer)
	ts.stop()
	_, err := c.GetStatus(t.Context(), &nyalav1.GetStatusRequest{})
	requireCode(t, status.ServiceUnavailable, err)

	ts = startServer(t, func(c *ServerConfig) { c.StopTimeout = 20 * time.Millisecond })
	begun = make(chan struct{})
	ts.service.status = func(ctx context.Context) error {
		close(begun)
		<-ctx.Done()
		return ctx.Err()
	}
	c = nyalav1.NewServerServiceClient(dial(t, ts.address, DialOptions{}))
	go func() {
		_, err := c.GetStatus(t.Context(), &nyalav1.GetStatusRequest{})
		answer <- err
	}()
	<-begun
	ts.stop()
	require.Error(t, <-answer)
	require.Contains(t, ts.log.String(), "cut off")
}

// TestServerLifeCycle shows faults of a config joined, a port taken found by Listen, ports given back by Close, metrics by
// both, and that Run runs once.
func TestServerLifeCycle(t *testing.T) {
	_, err := NewServer(ServerConfig{})
	require.ErrorContains(t, err, "--rpc_bind_addresses")
	require.ErrorContains(t, err, "--rpc_max_message_size")

	cfg := DefaultServerConfig()
	cfg.BindAddresses = []string{"127.0.0.1:0"}
	cfg.Registerer = prometheus.NewRegistry()
	first, err := NewServer(cfg)
	require.NoError(t, err)
	_, err = NewServer(cfg)
	require.ErrorContains(t, err, "metrics") // the same registry twice
	require.NoError(t, first.Listen())

	cfg.Registerer = nil
	cfg.BindAddresses = []string{"127.0.0.1:0", first.Addresses()[0]}
	second, err := NewServer(cfg)
	require.NoError(t, err)
	require.ErrorContains(t, second.Run(t.Context()), "the port is taken")
	second.Close()
	addresses := first.Addresses()
	first.Close()
	first.Close()
	require.Error(t, first.Run(t.Context()))

	cfg.BindAddresses = addresses
	third, err := NewServer(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, third.Run(ctx))
	require.Error(t, third.Run(ctx))
	require.Error(t, third.Listen())
}
