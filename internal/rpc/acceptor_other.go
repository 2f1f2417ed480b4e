//go:build !linux

package rpc

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// missingQueueStats says what isn't there off Linux.
const missingQueueStats = "the queue's size and limit, its drops, --rpc_acceptor_listen_backlog and --rpc_reuseport"

var (
	errAcceptorStopped = errors.New("the acceptors stop")
	errNotLinux        = errors.New("only on Linux")
)

// boundSocket is a listener of the net package.
type boundSocket struct {
	addr      *net.TCPAddr
	listener  *net.TCPListener
	acceptors []*socketAcceptor
	closeOnce sync.Once
}

type socketAcceptor struct{ listener *net.TCPListener }

// accepted is a connection that nobody has looked at.
type accepted struct {
	conn   *net.TCPConn
	remote netip.AddrPort
}

func bindSocket(address string, _ int, _ bool, n int) (*boundSocket, error) {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	tcp, ok := ln.(*net.TCPListener)
	if !ok {
		ln.Close()
		return nil, errors.New("not a TCP address")
	}
	s := &boundSocket{listener: tcp}
	s.addr, _ = tcp.Addr().(*net.TCPAddr)
	for range n {
		s.acceptors = append(s.acceptors, &socketAcceptor{listener: tcp})
	}
	return s, nil
}

func (s *boundSocket) close() { s.closeOnce.Do(func() { s.listener.Close() }) }

func (s *boundSocket) queue() (acceptQueue, error) { return acceptQueue{}, errNotLinux }

func (s *boundSocket) dropCount() (uint32, error) { return 0, errNotLinux }

func (a *socketAcceptor) accept() (accepted, error) {
	conn, err := a.listener.AcceptTCP()
	if err != nil {
		var timeout net.Error
		if errors.Is(err, net.ErrClosed) || errors.As(err, &timeout) && timeout.Timeout() {
			return accepted{}, errAcceptorStopped
		}
		return accepted{}, err
	}
	_ = conn.SetKeepAlivePeriod(15 * time.Second) // as on Linux; without it the default stands
	ap := conn.RemoteAddr().(*net.TCPAddr).AddrPort()
	return accepted{conn: conn, remote: netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())}, nil
}

func (a *socketAcceptor) acceptNow() (accepted, error) {
	_ = a.listener.SetDeadline(time.Now().Add(time.Millisecond))
	return a.accept()
}

func (a *socketAcceptor) sample() (acceptQueue, error) { return acceptQueue{}, errNotLinux }

func (a *socketAcceptor) interrupt() { _ = a.listener.SetDeadline(time.Unix(1, 0)) }

func acceptErrorKind(err error) (kind string, transient bool) {
	switch {
	case errors.Is(err, syscall.EMFILE):
		return "EMFILE", false
	case errors.Is(err, syscall.ENFILE):
		return "ENFILE", false
	case errors.Is(err, syscall.ECONNABORTED):
		return "connection", true
	}
	return "other", false
}

func (a accepted) open() socket { return a.conn }

func (a accepted) local() netip.AddrPort { return localAddrPort(a.conn) }

// localAddrPort is the own address of a socket that was opened.
func localAddrPort(s socket) netip.AddrPort {
	tcp, ok := s.(*net.TCPConn)
	if !ok {
		return netip.AddrPort{}
	}
	ap := tcp.LocalAddr().(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

func (accepted) gone() bool { return false } // it shows soon enough

func (a accepted) refuse() { a.conn.Close() }

func shutdownWrite(s socket) {
	if tcp, ok := s.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
}
