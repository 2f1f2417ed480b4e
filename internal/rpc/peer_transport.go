package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/invariant"
)

// The channels between two servers, a connection each.
const (
	Control = nyalav1.PeerChannel_PEER_CHANNEL_CONTROL // beats, heartbeats, votes: small, and never behind data
	Data    = nyalav1.PeerChannel_PEER_CHANNEL_DATA    // appends, commit notices
)

var channels = [...]nyalav1.PeerChannel{Control, Data}

// PeerHandler takes what a PeerTransport brings.
type PeerHandler interface {
	// Receive takes a batch, which it owns from then on. It is called from one goroutine at a time per peer and channel;
	// while it blocks, that stream stands still and in the end the peer's queue fills.
	Receive(from ident.ServerID, batch *nyalav1.PeerBatch)
	// HearBeat takes the beat of a batch, ahead of the batch, from the goroutine that calls Receive. It must not block: how
	// long it takes counts as time that the beat was on its way.
	HearBeat(from ident.ServerID, beat *nyalav1.Beat)
	// Unreachable says that these messages to a server were lost, or may have been.
	Unreachable(to ident.ServerID, dropped []*nyalav1.GroupMessage)
}

// PeerConfig is what a PeerTransport may be told. DefaultPeerConfig fills in all but who the server is.
type PeerConfig struct {
	ServerID    ident.ServerID
	Incarnation uint64
	// Address is this server's advertised RPC address; asked at each hello, since a port may be known late.
	Address func() string
	// ClusterID is asked at each hello; "" while the server is in no cluster. nil: never in one.
	ClusterID func() ident.ClusterID
	// Stamp is asked as each batch leaves: the hybrid clock's reading, and whether others must not take it over.
	Stamp func() (clock hybridtime.Timestamp, fenced bool)

	// ControlQueueBytes and DataQueueBytes bound what waits for one peer.
	ControlQueueBytes, DataQueueBytes int
	// BatchBytes is where a batch ends; a single larger message goes as a batch of its own.
	BatchBytes int
	// ControlSingly sends each message of the control channel in a batch of its own.
	ControlSingly bool
	// MaxMessageSize bounds a batch (--rpc_max_message_size); a message that can't fit is dropped.
	MaxMessageSize int
	// HelloTimeout bounds an attempt to connect, hello included.
	HelloTimeout time.Duration
	// QueueWait is how long messages wait for a peer that must dial and was asked to.
	QueueWait time.Duration
	// BackoffMin and BackoffMax bound the time between attempts to connect.
	BackoffMin, BackoffMax time.Duration
	// Linger is how long a lost connection is sought again after the last message.
	Linger time.Duration

	Logger     *slog.Logger          // nil: slog.Default()
	Registerer prometheus.Registerer // nil: no metrics
}

// DefaultPeerConfig returns the defaults.
func DefaultPeerConfig() PeerConfig {
	return PeerConfig{
		ControlQueueBytes: 4 << 20,
		DataQueueBytes:    32 << 20,
		BatchBytes:        1 << 20,
		MaxMessageSize:    DefaultMaxMessageSize,
		HelloTimeout:      2 * time.Second,
		QueueWait:         time.Second,
		BackoffMin:        50 * time.Millisecond,
		BackoffMax:        500 * time.Millisecond,
		Linger:            time.Minute,
	}
}

// Validate returns all faults of c as one error.
func (c PeerConfig) Validate() error {
	var errs []error
	if _, err := ident.Bytes(string(c.ServerID)); err != nil {
		errs = append(errs, fmt.Errorf("server id: %w", err))
	}
	if c.Address == nil || c.Stamp == nil {
		errs = append(errs, errors.New("address and clock stamp must be given"))
	}
	if c.ControlQueueBytes <= 0 || c.DataQueueBytes <= 0 || c.BatchBytes <= 0 || c.MaxMessageSize <= batchSlack {
		errs = append(errs, errors.New("queue, batch and message sizes must be above zero"))
	}
	if c.HelloTimeout <= 0 || c.QueueWait <= 0 || c.BackoffMin <= 0 || c.BackoffMax < c.BackoffMin || c.Linger <= 0 {
		errs = append(errs, errors.New("timeouts must be above zero, and the longest backoff not below the shortest"))
	}
	return errors.Join(errs...)
}

// maxPeers bounds the servers that are remembered: far above any cluster, it only keeps made-up ids from filling memory.
const maxPeers = 4096

var (
	errStopping   = errors.New("this server is stopping")
	errSuperseded = errors.New("a newer stream took its place")
)

// PeerTransport carries group messages between this server and others: two streams per pair of servers, one per channel.
// It is the PeerService of its server and must be registered there.
type PeerTransport struct {
	nyalav1.UnimplementedPeerServiceServer
	cfg     PeerConfig
	log     *slog.Logger
	metrics *peerMetrics
	drops   dropReports
	handler PeerHandler // set before Run

	fresh    chan struct{} // there are links to start
	stopping chan struct{} // closed when Run's context ended
	handlers sync.WaitGroup

	mu          sync.Mutex
	running     bool
	stopped     bool
	peers       map[ident.ServerID]*peer
	toStart     []*link
	lastRefusal string // of a hello, as logged
	lastRefused time.Time
}

// NewPeerTransport returns a transport that connects to nobody yet.
func NewPeerTransport(cfg PeerConfig) (*PeerTransport, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("peer transport: %w", err)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.ClusterID == nil {
		cfg.ClusterID = func() ident.ClusterID { return "" }
	}
	t := &PeerTransport{
		cfg:      cfg,
		log:      cfg.Logger,
		fresh:    make(chan struct{}, 1),
		stopping: make(chan struct{}),
		peers:    map[ident.ServerID]*peer{},
	}
	m, err := newPeerMetrics(cfg.Registerer)
	if err != nil {
		return nil, fmt.Errorf("peer transport: metrics: %w", err)
	}
	t.metrics = m
	t.drops.init(cfg.DataQueueBytes, m)
	return t, nil
}

// Handle says who takes the messages. It must come before Run; until then peers are told to come later.
func (t *PeerTransport) Handle(h PeerHandler) {
	t.mu.Lock()
	defer t.mu.Unlock()
	invariant.Check(!t.running, "PeerTransport.Handle after Run")
	t.handler = h
}

// Run connects and sends until ctx ends and every goroutine of the transport has joined. It runs once.
func (t *PeerTransport) Run(ctx context.Context) error {
	t.mu.Lock()
	if t.handler == nil || t.running || t.stopped {
		t.mu.Unlock()
		return errors.New("peer transport: it runs once, and after Handle")
	}
	t.running = true
	t.mu.Unlock()
	defer t.metrics.unregister()

	var links sync.WaitGroup
	links.Go(func() { t.drops.run(ctx, t.handler) })
	for ctx.Err() == nil {
		t.mu.Lock()
		start := t.toStart
		t.toStart = nil
		t.mu.Unlock()
		for _, l := range start {
			links.Go(func() { l.run(ctx) })
		}
		select {
		case <-t.fresh:
		case <-ctx.Done():
		}
	}
	t.mu.Lock()
	t.stopped = true
	t.mu.Unlock()
	close(t.stopping)
	links.Wait()
	t.handlers.Wait()
	return nil
}

// Send queues messages for a server, whose address, as far as the caller knows it, goes along (may be empty). The slice
// may be used again at once, the messages are the transport's. It never blocks: what finds no room is reported to the
// handler from another goroutine.
func (t *PeerTransport) Send(to ident.ServerID, address string, ch nyalav1.PeerChannel, msgs []*nyalav1.GroupMessage) {
	if len(msgs) == 0 {
		return
	}
	p := t.peer(to)
	if p == nil {
		t.drops.add(to, ch, dropRefused, msgs)
		return
	}
	p.learn(address)
	p.link(ch).enqueue(msgs)
}

// SendBeat has a beat sent to a server that was due at a moment, alone or with the messages that leave next on the control
// channel. stamp makes it as it leaves, so that it says how things stand then. At most one waits per peer: the latest one's stamp
// counts, and the time at which the first of them was due. One that finds no connection is dropped, and sought is the connection
// all the same. stamp must not block.
func (t *PeerTransport) SendBeat(to ident.ServerID, address string, due time.Time, stamp func() *nyalav1.Beat) {
	p := t.peer(to)
	if p == nil {
		return
	}
	p.learn(address)
	p.link(Control).setBeat(due, stamp)
}

// Incarnation returns the number that a peer gave itself at its last start, false if it was never heard.
func (t *PeerTransport) Incarnation(id ident.ServerID) (uint64, bool) {
	t.mu.Lock()
	p := t.peers[id]
	t.mu.Unlock()
	if p == nil {
		return 0, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.incarnation, p.wasHeard
}

// PeerStatus is how things stand with one peer.
type PeerStatus struct {
	ServerID      ident.ServerID
	Address       string
	Incarnation   uint64 // 0: never heard
	Control, Data bool   // connected
	QueuedBytes   int
	LastError     string // of the last attempt to connect; empty once it worked
}

// Peers returns how things stand with all peers, by server id.
func (t *PeerTransport) Peers() []PeerStatus {
	t.mu.Lock()
	peers := make([]*peer, 0, len(t.peers))
	for _, p := range t.peers {
		peers = append(peers, p)
	}
	t.mu.Unlock()
	out := make([]PeerStatus, 0, len(peers))
	for _, p := range peers {
		out = append(out, p.status())
	}
	slices.SortFunc(out, func(a, b PeerStatus) int { return strings.Compare(string(a.ServerID), string(b.ServerID)) })
	return out
}

// peer returns the peer, made if it is new; nil when the transport stopped, for this server itself, or when too many are
// known already.
func (t *PeerTransport) peer(id ident.ServerID) *peer {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.peers[id]; p != nil && !t.stopped {
		return p
	}
	if t.stopped || id == t.cfg.ServerID || len(t.peers) >= maxPeers {
		return nil
	}
	p := newPeer(t, id)
	t.peers[id] = p
	t.toStart = append(t.toStart, p.links[:]...)
	signal(t.fresh)
	return p
}

// signal wakes who waits on a channel with room for one; a signal that is already there serves.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
