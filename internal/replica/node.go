package replica

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/clock"
	"github.com/nyaladb/nyala/internal/consensus"
	"github.com/nyaladb/nyala/internal/fs"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/memory"
	"github.com/nyaladb/nyala/internal/rpc"
	"github.com/nyaladb/nyala/internal/tablet"
	"github.com/nyaladb/nyala/internal/wal"
)

// NodeConfig is what a server of either role is made of. The parts' own configs are filled in by OpenNode where they
// depend on each other: ids, addresses, loggers, registerers.
type NodeConfig struct {
	FS        fs.Config
	RPC       rpc.ServerConfig
	Peers     rpc.PeerConfig
	Clock     clock.Config
	Consensus consensus.Config
	Tablet    tablet.Options
	WAL       wal.Config
	Copy      CopyConfig
	// Memory says when writes must wait for memory; nil: never. It is the process's, and outlives the node.
	Memory *memory.Limit
	// AdvertisedAddresses are what others are told to call; empty: the bound ones.
	AdvertisedAddresses []string
	// OpenParallel is how many replicas are opened at once at the start; 0: twice the processors.
	OpenParallel int
	// Source is what the clock reads; nil: the machine's clocks, or made-up ones where Clock.TimeSource is mock. One that has to
	// be run (Run(ctx) error) runs with the node.
	Source clock.Source
	// MockOffset is how far a mock wall clock is off at the start; only with a Clock.TimeSource of mock.
	MockOffset time.Duration
	// StepDownTimeout bounds the handing over of leaderships at a graceful stop.
	StepDownTimeout time.Duration
	Version         string
	Logger          *slog.Logger
	Registerer      prometheus.Registerer
}

// DefaultNodeConfig returns the defaults of all parts.
func DefaultNodeConfig() NodeConfig {
	return NodeConfig{
		RPC: rpc.DefaultServerConfig(), Peers: rpc.DefaultPeerConfig(), Clock: clock.DefaultConfig(), Consensus: consensus.DefaultConfig(),
		Copy: DefaultCopyConfig(), Tablet: tablet.DefaultOptions(), WAL: wal.Config{CacheBytes: wal.DefaultCacheBytes, ReservedBytes: -1}, StepDownTimeout: 5 * time.Second,
	}
}

// entryOverhead is more than an entry's message to another replica holds beside it: its place, the batch, a beat.
const entryOverhead = 4 << 10

// incarnationKey names the number of this server's starts in the WAL's small values.
const incarnationKey = wal.MetaKey("incarnation")

// Node is what a server of either role is built on: its folders, WAL, clock, connections, store, and replicas.
type Node struct {
	cfg         NodeConfig
	layout      *fs.Layout
	log         wal.Store
	store       *tablet.Store
	host        *consensus.Host
	transport   *rpc.PeerTransport
	beater      *beater
	mock        *clock.Mock   // nil: the machine's clocks are read
	clockNews   chan struct{} // the clock was fenced or opened; capacity 1
	incarnation uint64
	advertised  []string
	web         []string
	ready       func() (bool, string) // of the role; nil: none is set

	// Replicas are this server's.
	Replicas *Manager
	// Clock gives its timestamps.
	Clock *clock.Clock
	// RPC is its gRPC server: a role registers its services before Run.
	RPC *rpc.Server

	connsMu sync.Mutex
	conns   map[string]*grpc.ClientConn
	closed  bool
}

// OpenNode takes the folders, binds the ports and opens what is on disk. It starts nothing: no call is answered before Run.
// After an error everything is given back.
func OpenNode(cfg NodeConfig) (n *Node, err error) {
	n = &Node{cfg: cfg, conns: map[string]*grpc.ClientConn{}, clockNews: make(chan struct{}, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
			n = nil
		}
	}()
	if n.layout, err = fs.Open(cfg.FS); err != nil {
		return n, err
	}
	if err = n.openWAL(); err != nil {
		return n, err
	}
	if err = n.openClock(); err != nil {
		return n, err
	}
	if err = n.openRPC(); err != nil {
		return n, err
	}
	if err = n.openReplicas(); err != nil {
		return n, err
	}
	// Both exist and nothing was acknowledged so far: from now on a start without them is refused.
	return n, n.layout.MarkStoresCreated()
}

// openWAL opens the log and counts this start.
func (n *Node) openWAL() error {
	cfg := n.cfg.WAL
	cfg.Path, cfg.Logger, cfg.Registerer = n.layout.WALPath(), n.cfg.Logger, n.cfg.Registerer
	log, err := wal.OpenBolt(cfg)
	if err != nil {
		return fmt.Errorf("open the WAL: %w", err)
	}
	n.log = log
	if b := log.Meta(incarnationKey); len(b) == 8 {
		n.incarnation = binary.BigEndian.Uint64(b)
	}
	n.incarnation++
	var b wal.Batch
	b.SetMeta(incarnationKey, binary.BigEndian.AppendUint64(nil, n.incarnation))
	if err := log.Commit(&b); err != nil {
		return fmt.Errorf("write to the WAL: %w", err)
	}
	return nil
}

func (n *Node) openClock() (err error) {
	cfg := n.cfg.Clock
	cfg.Logger, cfg.Registerer = n.cfg.Logger, n.cfg.Registerer
	cfg.BeatInterval = n.cfg.Consensus.HeartbeatInterval
	cfg.OnChange = func(clock.Status) { n.clockChanged() }
	// Whom it knew before its stop it can ask about its clock, but for those that the master no longer names.
	known := decodeServers(n.log.Meta(serversKey))
	cfg.OtherServers = max(cfg.OtherServers, len(known))
	n.Clock, err = clock.New(cfg, n.timeSource(cfg.TimeSource), clock.Marks{
		Clock: n.log.Meta(consensus.MetaClockMark), Promise: n.log.Meta(consensus.MetaPromiseMark),
	})
	if err != nil {
		return fmt.Errorf("start the clock: %w", err)
	}
	n.beater = &beater{self: n.ServerID(), interval: cfg.BeatInterval, clock: n.Clock}
	if len(known) > 0 {
		n.beater.set(0, known)
	}
	if last := n.log.LastTimestamp(); last != 0 {
		if err := n.Clock.AdvanceTo(last); err != nil {
			// An entry from a clock that had jumped costs its tablet: each group stamps above its own log, or not at all.
			n.cfg.Logger.Error("a timestamp in the log is far ahead of this server's clock: its tablet takes no writes here until the clock is there",
				"timestamp", last.String(), "err", err)
		}
	}
	return nil
}

// timeSource returns what the clock reads.
func (n *Node) timeSource(name string) clock.Source {
	if n.cfg.Source != nil {
		return n.cfg.Source
	}
	real := clock.SystemSource()
	if name != clock.SourceMock {
		return real
	}
	n.mock = clock.NewMock(real)
	n.mock.Change(func(f *clock.Faults) { f.Offset = n.cfg.MockOffset })
	return n.mock
}

func (n *Node) openRPC() (err error) {
	cfg := n.cfg.RPC
	cfg.ClusterID, cfg.ServerID = n.ClusterID, n.ServerID()
	cfg.Logger, cfg.Registerer = n.cfg.Logger, n.cfg.Registerer
	cfg.MemoryFull = n.cfg.Memory.Full
	if n.RPC, err = rpc.NewServer(cfg); err != nil {
		return err
	}
	if err := n.RPC.Listen(); err != nil {
		return err
	}
	if n.advertised, err = rpc.AdvertisedAddresses(n.cfg.AdvertisedAddresses, n.RPC.Addresses()); err != nil {
		return err
	}
	peers := n.cfg.Peers
	peers.ServerID, peers.Incarnation = n.ServerID(), n.incarnation
	peers.Address = func() string { return n.advertised[0] }
	peers.ClusterID = n.ClusterID
	peers.Stamp = func() (hybridtime.Timestamp, bool) {
		_, fenced := n.Clock.Fenced()
		return n.Clock.Latest(), fenced
	}
	peers.Logger, peers.Registerer = n.cfg.Logger, n.cfg.Registerer
	if n.transport, err = rpc.NewPeerTransport(peers); err != nil {
		return err
	}
	n.beater.sender = n.transport
	nyalav1.RegisterPeerServiceServer(n.RPC, n.transport)
	nyalav1.RegisterServerServiceServer(n.RPC, &serverService{n: n})
	if n.cfg.FS.Role == fs.TabletServer { // a catalog is written to by its master alone
		nyalav1.RegisterForwardServiceServer(n.RPC, &forwardService{n: n})
	}
	return nil
}

func (n *Node) openReplicas() (err error) {
	opts := n.cfg.Tablet
	opts.Dir, opts.Logger, opts.Registerer = n.layout.StoreDir(), n.cfg.Logger, n.cfg.Registerer
	m := &Manager{
		cfg: ManagerConfig{
			ServerID: n.ServerID(), OpenParallel: n.cfg.OpenParallel, Logger: n.cfg.Logger,
			MaxEntryBytes:     n.cfg.Peers.MaxMessageSize - entryOverhead,
			RememberResponses: n.cfg.Tablet.RememberResponsesTTL, RememberClients: n.cfg.Tablet.RememberClientsTTL,
		},
		log:      n.log,
		clock:    n.Clock,
		memory:   n.cfg.Memory,
		replicas: map[ident.TabletID]*Replica{},
		byNumber: map[ident.LocalNumber]*Replica{},
	}
	if m.cfg.OpenParallel == 0 {
		m.cfg.OpenParallel = 2 * runtime.GOMAXPROCS(0)
	}
	if m.metrics, err = newMetrics(m, n.cfg.Registerer); err != nil {
		return fmt.Errorf("replicas: metrics: %w", err)
	}
	m.forwards = &forwards{dial: n.Dial, metrics: m.metrics}
	n.Replicas = m
	opts.OnDurable = m.durable
	if n.store, err = tablet.Open(opts); err != nil {
		return fmt.Errorf("open the store: %w", err)
	}
	m.store = n.store
	cfg := n.cfg.Consensus
	cfg.ServerID, cfg.Address, cfg.Incarnation = n.ServerID(), n.advertised[0], n.incarnation
	cfg.Logger, cfg.Registerer = n.cfg.Logger, n.cfg.Registerer
	n.host, err = consensus.NewHost(cfg, consensus.Deps{
		Log: n.log, Clock: n.Clock, Transport: transport{n.transport}, Applier: m, Observer: m,
		Blamed: func() bool { return n.Clock.Status().Opinion.Blame },
	})
	if err != nil {
		return err
	}
	m.host, n.beater.host = n.host, n.host
	n.transport.Handle(peerHandler{n.host, n.Clock})
	for _, g := range n.log.Groups() {
		m.register(g)
	}
	if m.copies, err = newCopier(n); err != nil {
		return err
	}
	nyalav1.RegisterTabletCopyServiceServer(n.RPC, &copyService{c: m.copies})
	return m.sweep()
}

// transport is the rpc package's, in consensus' words.
type transport struct{ t *rpc.PeerTransport }

var _ consensus.Transport = transport{}

func (t transport) Send(to ident.ServerID, address string, ch consensus.Channel, msgs []*nyalav1.GroupMessage) {
	channel := rpc.Data
	if ch == consensus.Control {
		channel = rpc.Control
	}
	t.t.Send(to, address, channel, msgs)
}

// ServerID is this server's id, made at its first start.
func (n *Node) ServerID() ident.ServerID { return n.layout.ServerID() }

// ClusterID is the cluster that this server belongs to; empty: none so far.
func (n *Node) ClusterID() ident.ClusterID { return n.layout.ClusterID() }

// SetClusterID makes this server a member of a cluster for good. Another cluster's id is refused.
func (n *Node) SetClusterID(id ident.ClusterID) error { return n.layout.SetClusterID(id) }

// Incarnation counts this server's starts.
func (n *Node) Incarnation() uint64 { return n.incarnation }

// Addresses are what others are told to call, host:port each.
func (n *Node) Addresses() []string { return n.advertised }

// SetWebAddresses tells the node where its daemon's web server is. It comes before Run.
func (n *Node) SetWebAddresses(addresses []string) { n.web = addresses }

// SetReady tells the node how to ask its role whether it may be given work. It comes before Run.
func (n *Node) SetReady(ready func() (bool, string)) { n.ready = ready }

// Dial returns the node's connection to an address; it connects at the first call. It must not be closed.
func (n *Node) Dial(address string) (grpc.ClientConnInterface, error) {
	n.connsMu.Lock()
	defer n.connsMu.Unlock()
	if n.closed {
		return nil, errStopping()
	}
	if c, ok := n.conns[address]; ok {
		return c, nil
	}
	c, err := rpc.Dial(address, rpc.DialOptions{MaxMessageSize: n.cfg.RPC.MaxMessageSize, ClusterID: n.ClusterID})
	if err != nil {
		return nil, err
	}
	n.conns[address] = c
	return c, nil
}

// AwaitClock returns once the clock may give timestamps out: once somebody steers it, where somebody must. It comes before
// Run. It gives up after the clock's time for that, or with ctx.
func (n *Node) AwaitClock(ctx context.Context) error { return n.Clock.WaitSynchronized(ctx) }

// Run opens the replicas and answers calls until ctx ends or a part fails. role is what the server does beside; it runs
// from when calls are answered, and is the first to be stopped. Before a stop that was asked for, leaderships are handed
// over. When Run returns, everything is closed.
func (n *Node) Run(ctx context.Context, role func(context.Context) error) error {
	// The parts outlive ctx, for the handing over.
	parts, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	eg, parts := errgroup.WithContext(parts)
	run := []func(context.Context) error{n.Clock.Run, n.transport.Run, n.beater.run, n.host.Run, n.watchClock, n.Replicas.copies.run, n.RPC.Run}
	if s, ok := n.cfg.Source.(interface{ Run(context.Context) error }); ok {
		run = append(run, s.Run)
	}
	for _, run := range run {
		eg.Go(func() error { return run(parts) })
	}
	eg.Go(func() error {
		roleCtx, cancel := context.WithCancel(ctx)
		defer cancel()
		roles, roleCtx := errgroup.WithContext(roleCtx)
		roles.Go(func() error { return n.openAndServe(roleCtx) })
		roles.Go(func() error { return role(roleCtx) })
		// A part that fails ends the role, and a role that fails ends the parts.
		unhook := context.AfterFunc(parts, cancel)
		defer unhook()
		err := roles.Wait()
		if ctx.Err() != nil && parts.Err() == nil {
			n.handOver(parts)
		}
		// Calls that wait for an outcome end before the parts stop that would bring it: the RPC server waits for them.
		n.Replicas.stop()
		stop()
		return err
	})
	err := eg.Wait()
	return errors.Join(err, n.Close())
}

func (n *Node) openAndServe(ctx context.Context) error {
	start := time.Now()
	if err := n.Replicas.open(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("open the replicas: %w", err)
	}
	n.RPC.SetServing(true)
	n.cfg.Logger.Info("replicas opened", "replicas", len(n.Replicas.all()), "took", time.Since(start).Round(time.Millisecond))
	<-ctx.Done()
	return nil
}

func (n *Node) handOver(ctx context.Context) {
	n.RPC.SetServing(false)
	ctx, cancel := context.WithTimeout(ctx, n.cfg.StepDownTimeout)
	defer cancel()
	if err := n.host.StepDownAll(ctx); err != nil {
		n.cfg.Logger.Warn("not every leadership was handed over before the stop", "err", err)
	}
}

// Close gives back what a node holds that never ran. After Run it does nothing.
func (n *Node) Close() error {
	var errs []error
	if n.RPC != nil {
		n.RPC.Close()
	}
	n.connsMu.Lock()
	for _, c := range n.conns {
		errs = append(errs, c.Close())
	}
	clear(n.conns)
	n.closed = true
	n.connsMu.Unlock()
	if n.Replicas != nil {
		n.Replicas.forwards.close()
		if n.Replicas.copies != nil {
			n.Replicas.copies.metrics.unregister()
		}
		n.Replicas.metrics.unregister()
	}
	if n.store != nil {
		errs = append(errs, n.store.Close())
	}
	if n.log != nil {
		errs = append(errs, n.log.Close())
	}
	if n.layout != nil {
		errs = append(errs, n.layout.Close())
	}
	return errors.Join(errs...)
}
