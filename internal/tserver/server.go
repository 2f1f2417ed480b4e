package tserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/replica"
)

// Config is what a tablet server is told by its flags.
type Config struct {
	// Masters are the addresses of all masters.
	Masters []string
	// HeartbeatInterval is the pause between two heartbeats to a master when nothing changes.
	HeartbeatInterval time.Duration
	// ScannerTTL is how long a scanner lives that nobody calls, MaxScanners how many there may be.
	ScannerTTL  time.Duration
	MaxScanners int
	// Registration is what masters are told of this server.
	Registration *nyalav1.TSRegistration
	Logger       *slog.Logger
	Registerer   prometheus.Registerer
}

// DefaultConfig returns Kudu's defaults.
func DefaultConfig() Config {
	return Config{HeartbeatInterval: time.Second, ScannerTTL: time.Minute, MaxScanners: 10_000}
}

// Validate returns all faults of c in one error.
func (c *Config) Validate() error {
	var errs []error
	if len(c.Masters) == 0 {
		errs = append(errs, errors.New("tserver_master_addrs is empty: name every master"))
	}
	if c.HeartbeatInterval <= 0 {
		errs = append(errs, fmt.Errorf("heartbeat_interval_ms is %v: want more than 0", c.HeartbeatInterval))
	}
	if c.ScannerTTL <= 0 {
		errs = append(errs, fmt.Errorf("scanner_ttl_ms is %v: want more than 0", c.ScannerTTL))
	}
	if c.MaxScanners < 1 {
		errs = append(errs, fmt.Errorf("scanner_max_open is %d: want at least 1", c.MaxScanners))
	}
	return errors.Join(errs...)
}

// Server is a tablet server.
type Server struct {
	cfg      Config
	node     *replica.Node
	logger   *slog.Logger
	scanners *scanners
	steps    chan struct{} // a token for each step of a scan under way
	metrics  *metrics
	heard    atomic.Bool // the leading master has answered
}

// New returns a tablet server on node. It starts nothing.
func New(cfg Config, node *replica.Node) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, node: node, logger: cfg.Logger, scanners: newScanners(cfg.ScannerTTL, cfg.MaxScanners),
		steps: make(chan struct{}, runtime.GOMAXPROCS(0)),
	}
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	var err error
	if s.metrics, err = newMetrics(s.scanners, cfg.Registerer); err != nil {
		return nil, fmt.Errorf("tablet server: metrics: %w", err)
	}
	return s, nil
}

// Service returns what clients call.
func (s *Server) Service() *Service { return &Service{s: s} }

// AdminService returns what masters and tools call.
func (s *Server) AdminService() *AdminService { return &AdminService{s: s} }

// Ready says whether this server's tablets are open and a master knows it.
func (s *Server) Ready() (bool, string) {
	if ok, why := s.node.Replicas.Ready(); !ok {
		return false, why
	}
	if !s.heard.Load() {
		return false, "no leading master has answered so far"
	}
	return true, ""
}

// Run keeps the masters told and expires scanners until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	defer s.metrics.unregister()
	eg, ctx := errgroup.WithContext(ctx)
	for _, master := range s.cfg.Masters {
		h := &heartbeater{
			node: s.node, master: master, interval: s.cfg.HeartbeatInterval, registration: s.cfg.Registration,
			logger: s.logger, heard: &s.heard, changes: s.node.Replicas.Subscribe(),
		}
		eg.Go(func() error { return h.run(ctx) })
	}
	eg.Go(func() error {
		defer s.scanners.closeAll()
		tick := time.NewTicker(max(s.cfg.ScannerTTL/12, 10*time.Millisecond))
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case now := <-tick.C:
				s.metrics.expired.Add(float64(s.scanners.expire(now)))
			}
		}
	})
	return eg.Wait()
}
