package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/nyaladb/nyala/internal/ident"
)

// ServerConfig is what a Server may be told. DefaultServerConfig fills in all but the addresses.
type ServerConfig struct {
	// BindAddresses are host:port each, at least one; port 0 is any free one.
	BindAddresses []string
	// Backlog is the accept queue's limit per address, -1 the system's (--rpc_acceptor_listen_backlog).
	Backlog int
	// Acceptors is how many accept each address's connections (--rpc_num_acceptors_per_address); ReusePort gives each a
	// socket of its own (--rpc_reuseport).
	Acceptors int
	ReusePort bool
	// SampleEveryLog2: each acceptor looks at the accept queue after every 2^SampleEveryLog2-th accept, -1: never
	// (--rpc_listen_socket_stats_every_log2). SetSampleEveryLog2 changes it.
	SampleEveryLog2 int
	// TrustedSubnets are where connections may come from (--trusted_subnets); nil: DefaultTrustedSubnets.
	TrustedSubnets []netip.Prefix
	// MaxConnections and MaxConnectionsPerAddress bound open connections; -1: as many as half of the files that the process
	// may open, and half of MaxConnections.
	MaxConnections, MaxConnectionsPerAddress int
	// IdleTimeout closes a connection that had no call for so long (--rpc_default_keepalive_time_ms); negative: never.
	IdleTimeout time.Duration
	// ServiceThreads calls of one service are worked on at once, ServiceQueueLength more may wait
	// (--rpc_num_service_threads, --rpc_service_queue_length).
	ServiceThreads, ServiceQueueLength int
	// MemoryFull says why no write can be taken, "" while one can: a write's body is received only then. nil: always.
	MemoryFull func() (why string)
	// WebAddress says where the web server is, for those who come to the wrong port; nil: nowhere.
	WebAddress func() string
	// MaxMessageSize bounds requests and answers, in bytes (--rpc_max_message_size).
	MaxMessageSize int
	// MaxConcurrentStreams bounds the calls under way on one connection.
	MaxConcurrentStreams uint32
	// MaxDeadline is the longest that one call that isn't a stream may take, whatever its caller says or doesn't say.
	MaxDeadline time.Duration
	// HandshakeTimeout is how long a new connection may take to say what it is.
	HandshakeTimeout time.Duration
	// StopTimeout bounds the graceful stop; calls still under way then are cut off.
	StopTimeout time.Duration
	// ClusterID says which cluster this server belongs to, "" while it doesn't know. nil: never known.
	ClusterID func() ident.ClusterID
	// ServerID stands in messages of refused callers.
	ServerID ident.ServerID

	Logger     *slog.Logger          // nil: slog.Default()
	Registerer prometheus.Registerer // nil: no metrics
}

// DefaultIdleTimeout is Kudu's --rpc_default_keepalive_time_ms.
const DefaultIdleTimeout = 65 * time.Second

// DefaultServerConfig returns the defaults, which listen nowhere.
func DefaultServerConfig() ServerConfig {
	return ServerConfig{
		Backlog:                  DefaultBacklog,
		Acceptors:                DefaultAcceptors,
		SampleEveryLog2:          DefaultSampleEveryLog2,
		MaxConnections:           -1,
		MaxConnectionsPerAddress: -1,
		IdleTimeout:              DefaultIdleTimeout,
		ServiceThreads:           DefaultServiceThreads,
		ServiceQueueLength:       DefaultServiceQueueLength,
		MaxMessageSize:           DefaultMaxMessageSize,
		MaxConcurrentStreams:     1024,
		MaxDeadline:              30 * time.Minute,
		HandshakeTimeout:         3 * time.Second,
		StopTimeout:              5 * time.Second,
	}
}

// Validate returns all faults of c as one error.
func (c ServerConfig) Validate() error {
	var errs []error
	if len(c.BindAddresses) == 0 {
		errs = append(errs, errors.New("no address to listen on (--rpc_bind_addresses)"))
	}
	for _, a := range c.BindAddresses {
		if _, _, err := net.SplitHostPort(a); err != nil {
			errs = append(errs, fmt.Errorf("--rpc_bind_addresses: %w", err))
		}
	}
	if c.Backlog != -1 && c.Backlog < 1 {
		errs = append(errs, fmt.Errorf("--rpc_acceptor_listen_backlog %d: want 1 or more, or -1", c.Backlog))
	}
	if c.Acceptors < 1 {
		errs = append(errs, fmt.Errorf("--rpc_num_acceptors_per_address %d: want 1 or more", c.Acceptors))
	}
	if c.SampleEveryLog2 < -1 || c.SampleEveryLog2 > MaxSampleEveryLog2 {
		errs = append(errs, fmt.Errorf("--rpc_listen_socket_stats_every_log2 %d: want -1 to %d", c.SampleEveryLog2, MaxSampleEveryLog2))
	}
	errs = append(errs, validateConnectionLimits(c.MaxConnections, c.MaxConnectionsPerAddress))
	if c.ServiceThreads < 1 || c.ServiceQueueLength < 1 {
		errs = append(errs, errors.New("--rpc_num_service_threads and --rpc_service_queue_length: want 1 or more"))
	}
	if c.MaxMessageSize < 1<<20 {
		errs = append(errs, fmt.Errorf("--rpc_max_message_size %d: want 1048576 (1 MiB) or more", c.MaxMessageSize))
	}
	if c.MaxConcurrentStreams == 0 || c.MaxDeadline <= 0 || c.HandshakeTimeout <= 0 || c.StopTimeout <= 0 {
		errs = append(errs, errors.New("streams per connection, deadline cap, handshake and stop timeouts must be above zero"))
	}
	return errors.Join(errs...)
}

// Server is a gRPC server with the limits, checks, metrics, health and reflection services of every daemon.
type Server struct {
	cfg      ServerConfig
	log      *slog.Logger
	grpc     *grpc.Server
	health   *health.Server
	metrics  *serverMetrics
	door     *frontDoor
	stopping chan struct{} // closed when Run begins to stop

	mu       sync.Mutex
	serving  bool
	services []string
	calls    []*methodCalls
	bound    []net.Addr // not nil: Listen did it
	closed   bool
}

var _ reflection.GRPCServer = (*Server)(nil)

// NewServer returns a server that listens nowhere yet.
func NewServer(cfg ServerConfig) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("rpc server: %w", err)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	m, err := newServerMetrics(cfg.Registerer)
	if err != nil {
		return nil, fmt.Errorf("rpc server: metrics: %w", err)
	}
	door, err := newFrontDoor(cfg)
	if err != nil {
		m.unregister()
		return nil, fmt.Errorf("rpc server: metrics: %w", err)
	}
	s := &Server{cfg: cfg, log: cfg.Logger, metrics: m, door: door, health: health.NewServer(), stopping: make(chan struct{})}
	s.grpc = grpc.NewServer(
		grpc.MaxRecvMsgSize(cfg.MaxMessageSize),
		grpc.MaxSendMsgSize(cfg.MaxMessageSize),
		grpc.MaxConcurrentStreams(cfg.MaxConcurrentStreams),
		grpc.MaxHeaderListSize(64<<10),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.ConnectionTimeout(cfg.HandshakeTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: keepaliveTime, Timeout: keepaliveTimeout, MaxConnectionIdle: max(cfg.IdleTimeout, 0), // 0 is never
		}),
		// Half of what our own connections do: who pings faster than that is cut off.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveTime / 2, PermitWithoutStream: true}),
	)
	s.services = []string{""}
	s.SetServing(false)
	healthpb.RegisterHealthServer(s, s.health)
	reflection.Register(s)
	return s, nil
}

// RegisterService adds a service, whose calls then go through the server's checks. It must come before Run.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, impl any) {
	wrapped := *desc
	queue := s.door.limits.queue(desc.ServiceName, s.cfg.ServiceThreads, s.cfg.ServiceQueueLength)
	wrapped.Methods = slices.Clone(desc.Methods)
	for i, m := range wrapped.Methods {
		wrapped.Methods[i].Handler = s.unaryHandler(desc.ServiceName+"/"+m.MethodName, queue, m.Handler)
	}
	wrapped.Streams = slices.Clone(desc.Streams)
	for i, m := range wrapped.Streams {
		wrapped.Streams[i].Handler = s.streamHandler(desc.ServiceName+"/"+m.StreamName, queue, m.Handler)
	}
	s.mu.Lock()
	s.services = append(s.services, desc.ServiceName)
	s.mu.Unlock()
	s.grpc.RegisterService(&wrapped, impl)
}

// GetServiceInfo lists the services for reflection.
func (s *Server) GetServiceInfo() map[string]grpc.ServiceInfo { return s.grpc.GetServiceInfo() }

// SetServing says through gRPC's health service whether the server is ready for calls; it begins as not ready.
func (s *Server) SetServing(ready bool) {
	st := healthpb.HealthCheckResponse_NOT_SERVING
	if ready {
		st = healthpb.HealthCheckResponse_SERVING
	}
	s.mu.Lock()
	services := slices.Clone(s.services)
	s.mu.Unlock()
	for _, name := range services {
		s.health.SetServingStatus(name, st)
	}
}

// Listen binds all addresses, so that Addresses is known and connections queue; Run answers them. Without it Run does it.
func (s *Server) Listen() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errors.New("rpc server: it was stopped")
	}
	if s.bound != nil {
		return nil
	}
	bound, err := s.door.listen()
	if err != nil {
		return err
	}
	s.bound = bound
	return nil
}

// Addresses returns the bound addresses with their actual ports, nil before Listen.
func (s *Server) Addresses() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, a := range s.bound {
		out = append(out, a.String())
	}
	return out
}

// SetSampleEveryLog2 changes ServerConfig.SampleEveryLog2 of a server that may be running.
func (s *Server) SetSampleEveryLog2(log2 int) error {
	if log2 < -1 || log2 > MaxSampleEveryLog2 {
		return fmt.Errorf("want -1 to %d", MaxSampleEveryLog2)
	}
	s.door.setSampleEvery(log2)
	return nil
}

// Close gives back what a server holds that never ran; after Run it does nothing.
func (s *Server) Close() {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return
	}
	s.grpc.Stop()
	s.door.close()
	s.metrics.unregister()
}

// Run answers calls until ctx ends, then lets those under way finish, at most for the stop timeout. It runs once.
func (s *Server) Run(ctx context.Context) error {
	if err := s.Listen(); err != nil {
		return err
	}
	s.mu.Lock()
	if s.serving || s.closed {
		s.mu.Unlock()
		return errors.New("rpc server: it runs once")
	}
	s.serving = true
	s.mu.Unlock()
	defer s.Close()

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		s.door.run()
		return nil
	})
	g.Go(func() error {
		if err := s.grpc.Serve(s.door.mux); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			return fmt.Errorf("rpc server on %s: %w", s.door.mux.Addr(), err)
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		s.stop()
		return nil
	})
	return g.Wait()
}

// stop takes in what waited to be accepted, so that it is told where it stands and not reset, and lets calls finish within
// the bound.
func (s *Server) stop() {
	close(s.stopping)
	s.health.Shutdown()
	s.door.stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.grpc.GracefulStop()
	}()
	t := time.NewTimer(s.cfg.StopTimeout)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		s.log.Warn("calls still under way are cut off", "after", s.cfg.StopTimeout)
		s.grpc.Stop()
		<-done
	}
}
