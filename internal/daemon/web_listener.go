package daemon

import (
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"time"
)

// httpListener gives connections that are closed as soon as their first byte can't be a request's: a TLS client would
// otherwise wait, without a word, for as long as a request may take.
type httpListener struct {
	net.Listener
	log  *slog.Logger
	said atomic.Int64 // when it last was logged, Unix seconds
}

// Accept implements net.Listener.
func (l *httpListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &httpConn{Conn: conn, from: l}, nil
}

type httpConn struct {
	net.Conn
	from  *httpListener
	known bool // what it speaks; only its reader looks
}

// Read implements net.Conn.
func (c *httpConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.known || n == 0 {
		return n, err
	}
	c.known = true
	// Each method that is served begins with a capital.
	if b := p[0]; b >= 'A' && b <= 'Z' {
		return n, err
	}
	c.from.refused(c.RemoteAddr(), p[0])
	return 0, io.EOF
}

// refused says so, now and then.
func (l *httpListener) refused(from net.Addr, first byte) {
	now := time.Now().Unix()
	if last := l.said.Load(); now-last < 10 || !l.said.CompareAndSwap(last, now) {
		return
	}
	if first == 0x16 {
		l.log.Warn("TLS on a plaintext port", "port", "web", "from", from.String())
		return
	}
	l.log.Warn("unknown protocol on the web port", "from", from.String())
}
