package rpc

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
)

// muxConfig is what a mux is told.
type muxConfig struct {
	addr            net.Addr // stands for all that is listened on
	preambleTimeout time.Duration
	admission       *admission
	webAddress      func() string // "": no web server
	log             *slog.Logger
	metrics         *muxMetrics
}

// farewellTimeout bounds what closing a connection may take whose other end is told something.
const farewellTimeout = 200 * time.Millisecond

// mux sorts connections by their first bytes: one port for every protocol. To gRPC it is a net.Listener.
//
// A connection that has not said what it speaks costs a goroutine and a buffer of preambleSize bytes, for preambleTimeout at
// most. It gets to gRPC, which makes room of its own, only after its whole preface.
type mux struct {
	cfg  muxConfig
	grpc chan net.Conn
	done chan struct{} // closed when gRPC takes no more
	once sync.Once

	// Log lines that anybody can cause.
	said    [numProtocols]occasional
	refused [numRefusals]occasional

	sorting sync.WaitGroup

	mu      sync.Mutex
	pending map[*connection]struct{} // being sorted
	cut     bool                     // no connection may wait any more
	empty   chan struct{}            // if not nil, closed when pending is empty
}

var _ net.Listener = (*mux)(nil)

func newMux(cfg muxConfig) *mux {
	m := &mux{cfg: cfg, grpc: make(chan net.Conn), done: make(chan struct{}), pending: map[*connection]struct{}{}}
	for i := range m.said {
		m.said[i].every = 10 * time.Second
	}
	for i := range m.refused {
		m.refused[i].every = 10 * time.Second
	}
	return m
}

// take lets a connection in, or not. It doesn't block.
func (m *mux) take(a accepted) {
	from, adm := a.remote.Addr().WithZone(""), m.cfg.admission
	var r refusal
	// Who comes from the very address that it came to is on this machine, whatever the address.
	if !adm.trusts(from) && a.local().Addr().WithZone("") != from {
		r = refusedUntrusted
	} else {
		if a.gone() {
			a.refuse()
			m.cfg.metrics.refused["silent"].Inc()
			return
		}
		r = adm.admit(from)
	}
	if r != admitted {
		a.refuse()
		m.refuse(r, a.remote)
		return
	}
	m.receive(&connection{socket: a.open(), remote: a.remote})
}

// receive sorts a connection that was let in.
func (m *mux) receive(c *connection) {
	c.left = func() {
		m.cfg.admission.leave(c.remote.Addr().WithZone(""))
		m.cfg.metrics.sorting.Dec()
	}
	m.cfg.metrics.sorting.Inc()
	m.mu.Lock()
	if m.cut {
		m.mu.Unlock()
		c.Close()
		return
	}
	m.pending[c] = struct{}{}
	m.sorting.Add(1)
	m.mu.Unlock()
	go m.sort(c)
}

// refuse counts and says who wasn't let in.
func (m *mux) refuse(r refusal, from netip.AddrPort) {
	m.cfg.metrics.refused[r.String()].Inc()
	n, ok := m.refused[r].now()
	if !ok {
		return
	}
	a := m.cfg.admission
	switch r {
	case refusedUntrusted:
		m.cfg.log.Warn("connection refused: its address is not in --trusted_subnets", "from", from.String(), "not_logged", n)
	case refusedTooMany:
		m.cfg.log.Warn("connection refused: --rpc_max_connections are open", "from", from.String(), "limit", a.max, "not_logged", n)
	case refusedTooManyOfAddress:
		m.cfg.log.Warn("connection refused: --rpc_max_connections_per_address are open", "from", from.String(), "limit", a.perAddress, "not_logged", n)
	default:
	}
}

// sort finds out what a connection speaks and hands it over or closes it.
func (m *mux) sort(c *connection) {
	defer m.sorting.Done()
	defer m.sorted(c)
	if !m.allowPreamble(c) {
		c.Close()
		return
	}
	p, err := c.tell()
	switch {
	case err != nil:
		m.broken(c, err)
	case p == protocolGRPC:
		m.handOver(c)
	default:
		m.cfg.metrics.refused[p.String()].Inc()
		m.say(c, p)
		m.sendAway(c, p)
	}
}

// allowPreamble sets the time by which a connection must have said what it is. It returns false when it's too late.
func (m *mux) allowPreamble(c *connection) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.cut && c.socket.SetReadDeadline(time.Now().Add(m.cfg.preambleTimeout)) == nil
}

func (m *mux) sorted(c *connection) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.pending, c)
	if len(m.pending) == 0 && m.empty != nil {
		close(m.empty)
		m.empty = nil
	}
}

// broken closes a connection that was too slow, or whose other end went away, before it was clear what it speaks.
func (m *mux) broken(c *connection, err error) {
	kind := "broken_preamble"
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		kind = "slow_preamble"
	case c.have == 0:
		kind = "silent" // a port scanner, a health check by connecting
	}
	m.cfg.metrics.refused[kind].Inc()
	c.Close()
}

// handOver gives a connection to gRPC.
func (m *mux) handOver(c *connection) {
	m.cfg.metrics.sorting.Dec()
	m.cfg.metrics.grpc.Inc()
	c.left = func() {
		m.cfg.admission.leave(c.remote.Addr().WithZone(""))
		m.cfg.metrics.grpc.Dec()
	}
	select {
	case m.grpc <- c:
	case <-m.done:
		c.Close()
	}
}

// say logs what came to the wrong port, now and then.
func (m *mux) say(c *connection, p protocol) {
	n, ok := m.said[p].now()
	if !ok {
		return
	}
	from, log := c.remote.String(), m.cfg.log
	switch p {
	case protocolTLS:
		log.Warn("TLS on a plaintext port", "from", from, "not_logged", n)
	case protocolHTTP1:
		log.Warn("HTTP client on the RPC port", "from", from, "web", m.webURL(c), "not_logged", n)
	case protocolKudu:
		log.Warn("Kudu client on the RPC port, whose protocol is not spoken here", "from", from, "not_logged", n)
	default:
		log.Warn("unknown protocol on the RPC port", "from", from, "first_bytes", fmt.Sprintf("%q", c.buf[:c.have]), "not_logged", n)
	}
}

// sendAway closes a connection that isn't gRPC's.
func (m *mux) sendAway(c *connection, p protocol) {
	switch p {
	case protocolHTTP1:
		line := "This is the RPC port, which speaks gRPC. "
		if url := m.webURL(c); url != "" {
			line += "The web server is at " + url + "\n"
		} else {
			line += "This server has no web port.\n"
		}
		c.finish(fmt.Sprintf("HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s",
			len(line), line), farewellTimeout)
	case protocolKudu, protocolTLS:
		c.finish("", farewellTimeout)
	default:
		c.Close()
	}
}

// webURL is where the caller finds the web server: at the address it called, where that server listens on all.
func (m *mux) webURL(c *connection) string {
	if m.cfg.webAddress == nil {
		return ""
	}
	host, port, err := net.SplitHostPort(m.cfg.webAddress())
	if err != nil {
		return ""
	}
	if host == "" || isUnspecified(host) {
		if tcp, ok := c.LocalAddr().(*net.TCPAddr); ok {
			host = tcp.IP.String()
		}
	}
	return "http://" + net.JoinHostPort(host, port) + "/"
}

// Accept implements net.Listener for gRPC.
func (m *mux) Accept() (net.Conn, error) {
	select {
	case c := <-m.grpc:
		return c, nil
	case <-m.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener: gRPC takes no more.
func (m *mux) Close() error {
	m.once.Do(func() { close(m.done) })
	return nil
}

// Addr implements net.Listener.
func (m *mux) Addr() net.Addr { return m.cfg.addr }

// settle waits until no connection is being sorted, at most so long.
func (m *mux) settle(limit time.Duration) {
	m.mu.Lock()
	if len(m.pending) == 0 {
		m.mu.Unlock()
		return
	}
	if m.empty == nil {
		m.empty = make(chan struct{})
	}
	empty := m.empty
	m.mu.Unlock()
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-empty:
	case <-t.C:
	}
}

// stop cuts off what is being sorted, and waits for it.
func (m *mux) stop() {
	m.Close()
	m.mu.Lock()
	m.cut = true
	for c := range m.pending {
		_ = c.socket.SetDeadline(time.Unix(1, 0))
	}
	m.mu.Unlock()
	m.sorting.Wait()
}
