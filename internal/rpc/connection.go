package rpc

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// socket is a connected socket in the runtime's poller.
type socket interface {
	io.ReadWriteCloser
	SetDeadline(time.Time) error
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
	SyscallConn() (syscall.RawConn, error)
}

// connection is a connection that was let in. What was read of it to learn its protocol is read again by whoever gets it.
type connection struct {
	socket
	remote netip.AddrPort
	left   func() // called once, when it is closed
	closed atomic.Bool

	localOnce sync.Once
	localAddr net.Addr

	buf        [preambleSize]byte
	have, read uint8 // of buf: filled, and read again
}

var _ net.Conn = (*connection)(nil)

// tell reads until the protocol is clear. An error is the socket's.
func (c *connection) tell() (protocol, error) {
	for {
		n, err := c.socket.Read(c.buf[c.have:])
		c.have += uint8(n)
		p, more := tellProtocol(c.buf[:c.have])
		if n > 0 && !more {
			return p, nil
		}
		if err != nil {
			return protocolUnknown, err
		}
	}
}

// Read implements net.Conn.
func (c *connection) Read(p []byte) (int, error) {
	if c.read < c.have {
		n := copy(p, c.buf[c.read:c.have])
		c.read += uint8(n)
		return n, nil
	}
	n, err := c.socket.Read(p)
	if err != nil && err != io.EOF { //nolint:errorlint // a socket's end of file is never wrapped, and this is a hot path
		err = c.describe("read", err)
	}
	return n, err
}

// Write implements net.Conn.
func (c *connection) Write(p []byte) (int, error) {
	n, err := c.socket.Write(p)
	if err != nil {
		err = c.describe("write", err)
	}
	return n, err
}

// describe gives a file's error the form that the net package's have.
func (c *connection) describe(op string, err error) error {
	var path *os.PathError
	if !errors.As(err, &path) {
		return err
	}
	cause := path.Err
	if errors.Is(cause, os.ErrClosed) {
		cause = net.ErrClosed
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: cause}
}

// Close implements net.Conn.
func (c *connection) Close() error {
	if c.closed.Swap(true) {
		return net.ErrClosed
	}
	err := c.socket.Close()
	c.left()
	return err
}

// RemoteAddr implements net.Conn.
func (c *connection) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.remote) }

// LocalAddr implements net.Conn. It asks the system, once: few need it.
func (c *connection) LocalAddr() net.Addr {
	c.localOnce.Do(func() { c.localAddr = net.TCPAddrFromAddrPort(localAddrPort(c.socket)) })
	return c.localAddr
}

// finish says last words and closes the connection so that they arrive: data that was never read would have the system
// reset it. It takes no longer than limit and no more than a little data.
func (c *connection) finish(words string, limit time.Duration) {
	_ = c.SetDeadline(time.Now().Add(limit))
	if words != "" {
		_, _ = fmt.Fprint(c, words)
	}
	shutdownWrite(c.socket)
	var rest [512]byte
	for range 32 {
		if _, err := c.socket.Read(rest[:]); err != nil {
			break
		}
	}
	c.Close()
}
