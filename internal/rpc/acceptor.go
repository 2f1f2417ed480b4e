package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// Defaults of the acceptors.
const (
	// DefaultAcceptors is Kudu's --rpc_num_acceptors_per_address.
	DefaultAcceptors = 1
	// DefaultSampleEveryLog2 has the accept queue looked at after each accept: one getsockopt costs less than what Kudu's
	// every eighth sample through sock_diag adds to an accept on the average.
	DefaultSampleEveryLog2 = 0
	// MaxSampleEveryLog2 is the largest that makes sense: one sample in 2^30 accepts.
	MaxSampleEveryLog2 = 30
)

// queueWatchInterval is how often the accept queues are looked at, whatever the acceptors do: an acceptor that is stuck
// samples nothing.
const queueWatchInterval = 250 * time.Millisecond

// Backoff of an acceptor that can't accept: no file descriptors, no memory.
const (
	minAcceptBackoff = 5 * time.Millisecond
	maxAcceptBackoff = time.Second
)

// acceptorConfig is what the acceptors of a server are told.
type acceptorConfig struct {
	addresses  []string
	backlog    int  // -1: the system's limit
	perAddress int  // acceptors of each address
	reusePort  bool // each with a socket of its own
	everyLog2  int  // a sample of the queue after every 2^everyLog2-th accept of each acceptor; -1: none
	log        *slog.Logger
	metrics    *acceptorMetrics

	// afterAccept, if not nil, is called between an accept and its sample; a test holds the acceptors with it.
	afterAccept func()
}

// acceptQueue is the state of a listening socket's accept queue.
type acceptQueue struct {
	waiting uint32 // connections that were established and not accepted
	limit   uint32 // the backlog; the kernel lets one more in, and then the queue is full
}

func (q acceptQueue) full() bool { return q.waiting > q.limit }

// acceptors accept the connections of all bound addresses. Each is a goroutine that waits in the runtime's poller; what it
// accepts it hands over at once, and work on a connection is never done in it.
//
// A listening socket that is closed resets the connections that wait in its queue, whose clients believe that they are
// connected. So stop accepts what waits before it closes.
type acceptors struct {
	cfg     acceptorConfig
	sockets []*listenSocket
	every   atomic.Int64 // acceptorConfig.everyLog2
	failed  occasional   // to accept
	filled  occasional   // queues

	stopping chan struct{}
	stopped  chan struct{} // closed when the sockets are
	stopOnce sync.Once
	closing  sync.Once
}

// listenSocket is one listening socket and what is known of it. The platform's part is in boundSocket.
type listenSocket struct {
	*boundSocket
	label   string // which of the address's sockets
	metrics *socketMetrics

	mu          sync.Mutex // guards what follows
	closed      bool
	fullSeconds float64
	drops       uint64
	lastDrops   uint32 // as the kernel counts, in 32 bits
}

// listenAcceptors binds all addresses, or none. Connections queue from now on.
func listenAcceptors(cfg acceptorConfig) (*acceptors, error) {
	p := &acceptors{cfg: cfg, stopping: make(chan struct{}), stopped: make(chan struct{})}
	p.every.Store(int64(cfg.everyLog2))
	p.failed.every, p.filled.every = time.Minute, time.Minute
	for _, address := range cfg.addresses {
		n, perSocket := 1, cfg.perAddress
		if cfg.reusePort {
			n, perSocket = cfg.perAddress, 1
		}
		for i := range n {
			if i > 0 {
				// The first one's port, where any free one was asked for.
				address = p.sockets[len(p.sockets)-1].addr.String()
			}
			b, err := bindSocket(address, cfg.backlog, cfg.reusePort, perSocket)
			if err != nil {
				p.close()
				return nil, DescribeListenError(address, err, "--rpc_bind_addresses")
			}
			s := &listenSocket{boundSocket: b, label: fmt.Sprint(i)}
			s.metrics = cfg.metrics.socket(b.addr.String(), s.label)
			p.sockets = append(p.sockets, s)
		}
	}
	p.warnCapped()
	cfg.metrics.watch(p)
	return p, nil
}

// warnCapped says so where the system holds fewer connections than were asked for.
func (p *acceptors) warnCapped() {
	for _, s := range p.sockets {
		q, err := s.queue()
		if err != nil {
			p.cfg.log.Warn("accept queues can't be watched here", "missing", missingQueueStats, "error", err)
			return
		}
		if p.cfg.backlog > 0 && int64(q.limit) < int64(p.cfg.backlog) {
			p.cfg.log.Warn("backlog capped by the system: raise net.core.somaxconn", "rpc_acceptor_listen_backlog", p.cfg.backlog, "somaxconn", q.limit)
			return
		}
	}
}

// addresses returns what is bound, each address once.
func (p *acceptors) addresses() []net.Addr {
	var out []net.Addr
	for _, s := range p.sockets {
		if s.label == "0" {
			out = append(out, s.addr)
		}
	}
	return out
}

// run accepts until stop, and hands each connection to take, which must not block. When it returns, what waited has been
// handed over too, and the sockets are closed. It runs once.
func (p *acceptors) run(take func(accepted)) {
	var g errgroup.Group
	for _, s := range p.sockets {
		for _, a := range s.acceptors {
			g.Go(func() error {
				p.accept(s, a, take)
				return nil
			})
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var watch errgroup.Group
	watch.Go(func() error {
		p.watch(ctx)
		return nil
	})
	_ = g.Wait() // it returns nil
	cancel()
	_ = watch.Wait()
	p.close()
}

// accept is one acceptor.
func (p *acceptors) accept(s *listenSocket, a *socketAcceptor, take func(accepted)) {
	var n uint64
	backoff := minAcceptBackoff
	for {
		conn, err := a.accept()
		if err != nil {
			if errors.Is(err, errAcceptorStopped) {
				break
			}
			if !p.failedToAccept(s, err, &backoff) {
				break
			}
			continue
		}
		backoff = minAcceptBackoff
		n++
		p.dispatch(s, a, conn, n, take)
	}
	// What waits, and no more: clients that go on connecting must not hold up the stop.
	left := uint32(math.MaxUint16)
	if q, err := a.sample(); err == nil {
		left = q.waiting
	}
	for ; left > 0; left-- {
		conn, err := a.acceptNow()
		if err != nil {
			break
		}
		take(conn)
		s.metrics.accepted.Inc()
	}
}

// dispatch looks at the queue, where it is the turn of this acceptor's n-th connection, and hands the connection over.
func (p *acceptors) dispatch(s *listenSocket, a *socketAcceptor, conn accepted, n uint64, take func(accepted)) {
	start := time.Now()
	if p.cfg.afterAccept != nil {
		p.cfg.afterAccept()
	}
	if every := p.every.Load(); every >= 0 && n&(1<<every-1) == 0 {
		if q, err := a.sample(); err == nil {
			s.metrics.queueSize.Observe(float64(q.waiting))
		}
	}
	take(conn)
	s.metrics.accepted.Inc()
	s.metrics.dispatch.Observe(float64(time.Since(start).Nanoseconds()) / 1e3)
}

// failedToAccept counts and says what was wrong and waits, where waiting helps. It returns false when the acceptors stop.
func (p *acceptors) failedToAccept(s *listenSocket, err error, backoff *time.Duration) bool {
	kind, transient := acceptErrorKind(err)
	p.cfg.metrics.acceptError(kind)
	if transient {
		return true // that connection's fault; the next may be well
	}
	if n, ok := p.failed.now(); ok {
		p.cfg.log.Warn("can't accept connections, trying again", "address", s.addr.String(), "error", err, "not_logged", n)
	}
	t := time.NewTimer(*backoff)
	defer t.Stop()
	*backoff = min(2**backoff, maxAcceptBackoff)
	select {
	case <-t.C:
		return true
	case <-p.stopping:
		return false
	}
}

// watch looks at the queues from time to time.
func (p *acceptors) watch(ctx context.Context) {
	t := time.NewTicker(queueWatchInterval)
	defer t.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			for _, s := range p.sockets {
				q, err := s.queue()
				if err != nil || !q.full() {
					continue
				}
				s.mu.Lock()
				s.fullSeconds += now.Sub(last).Seconds()
				s.mu.Unlock()
				if n, ok := p.filled.now(); ok {
					p.cfg.log.Warn("accept queue is full: new connections are dropped", "address", s.addr.String(), "waiting", q.waiting,
						"drops", s.dropped(), "not_logged", n)
				}
			}
			last = now
		}
	}
}

// dropped returns the connections that this socket's queue had no room for.
func (s *listenSocket) dropped() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return s.drops
	}
	if now, err := s.dropCount(); err == nil {
		s.drops += uint64(now - s.lastDrops) // in 32 bits, so that a counter that wrapped is no matter
		s.lastDrops = now
	}
	return s.drops
}

// setEvery changes how often the acceptors sample.
func (p *acceptors) setEvery(log2 int) { p.every.Store(int64(log2)) }

// stop has run accept what waits, close the sockets and return.
func (p *acceptors) stop() {
	p.stopOnce.Do(func() { close(p.stopping) })
	for _, s := range p.sockets {
		for _, a := range s.acceptors {
			a.interrupt()
		}
	}
}

// close closes the sockets. Nothing accepts any more.
func (p *acceptors) close() {
	p.closing.Do(func() {
		for _, s := range p.sockets {
			s.mu.Lock()
			s.closed = true
			s.mu.Unlock()
			s.close()
		}
		close(p.stopped)
	})
}
