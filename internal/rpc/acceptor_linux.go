package rpc

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// missingQueueStats says what a system doesn't show when the queue can't be read.
const missingQueueStats = "TCP_INFO of a listening socket"

// errAcceptorStopped is what a socketAcceptor that was interrupted returns.
var errAcceptorStopped = errors.New("the acceptors stop")

// boundSocket is a listening socket, with a duplicate of its descriptor for each acceptor after the first: the poller lets
// one goroutine at a time wait on one descriptor.
type boundSocket struct {
	addr      *net.TCPAddr
	acceptors []*socketAcceptor // at least one
	control   syscall.RawConn   // the first one's, for looks from outside
}

// socketAcceptor is a descriptor of a listening socket that is in the runtime's poller. Its methods, but interrupt, are for
// one goroutine.
type socketAcceptor struct {
	file *os.File
	fd   int // file's; stays open as long as the acceptor runs
	raw  syscall.RawConn
	once func(fd uintptr) bool // a.try, made once so that accept allocates no closure

	// What try found.
	conn  int
	peer  unix.RawSockaddrAny
	errno syscall.Errno

	info tcpInfo // room for sample
}

// accepted is a connection that nobody has looked at; in no poller, so that refusing it costs little.
type accepted struct {
	fd     int
	remote netip.AddrPort
}

// bindSocket binds address, as listenFile does, for n acceptors.
func bindSocket(address string, backlog int, reusePort bool, n int) (*boundSocket, error) {
	f, err := listenFile(address, backlog, reusePort)
	if err != nil {
		return nil, err
	}
	s := &boundSocket{}
	if err := s.add(f); err != nil {
		return nil, err
	}
	for range n - 1 {
		fd, err := unix.FcntlInt(uintptr(s.acceptors[0].fd), unix.F_DUPFD_CLOEXEC, 0)
		if err == nil {
			err = s.add(os.NewFile(uintptr(fd), f.Name()))
		}
		if err != nil {
			s.close()
			return nil, os.NewSyscallError("dup", err)
		}
	}
	s.control = s.acceptors[0].raw
	fd := s.acceptors[0].fd
	if err := setAcceptedOptions(fd); err != nil {
		s.close()
		return nil, err
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		s.close()
		return nil, os.NewSyscallError("getsockname", err)
	}
	s.addr = net.TCPAddrFromAddrPort(addrPort(sa))
	return s, nil
}

// add gives the socket an acceptor with this descriptor, or closes it.
func (s *boundSocket) add(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return err
	}
	a := &socketAcceptor{file: f, raw: raw}
	a.once = a.try
	if err := raw.Control(func(fd uintptr) { a.fd = int(fd) }); err != nil {
		f.Close()
		return err
	}
	s.acceptors = append(s.acceptors, a)
	return nil
}

// setAcceptedOptions sets on a listening socket what accepted ones inherit on Linux, which saves five system calls each.
// The numbers are the net package's, but that data which nobody acknowledges ends the connection as soon as gRPC's own
// keepalive would: gRPC sets that by itself only on a *net.TCPConn.
func setAcceptedOptions(fd int) error {
	for _, o := range []struct {
		name                 string
		level, option, value int
	}{
		{"TCP_NODELAY", unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
		{"SO_KEEPALIVE", unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{"TCP_KEEPIDLE", unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 15},
		{"TCP_KEEPINTVL", unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 15},
		{"TCP_USER_TIMEOUT", unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(keepaliveTimeout.Milliseconds())},
	} {
		if err := unix.SetsockoptInt(fd, o.level, o.option, o.value); err != nil {
			return os.NewSyscallError("setsockopt "+o.name, err)
		}
	}
	return nil
}

// close closes all descriptors. No acceptor may be at work.
func (s *boundSocket) close() {
	for _, a := range s.acceptors {
		a.file.Close()
	}
}

// accept waits for the next connection.
func (a *socketAcceptor) accept() (accepted, error) {
	if err := a.raw.Read(a.once); err != nil {
		// A deadline in the past, which interrupt set, or the file was closed.
		return accepted{}, errAcceptorStopped
	}
	return a.result()
}

// acceptNow is accept for a connection that waits already; without one it fails.
func (a *socketAcceptor) acceptNow() (accepted, error) {
	if !a.try(uintptr(a.fd)) {
		return accepted{}, unix.EAGAIN
	}
	return a.result()
}

func (a *socketAcceptor) result() (accepted, error) {
	if a.errno != 0 {
		return accepted{}, os.NewSyscallError("accept4", a.errno)
	}
	return accepted{fd: a.conn, remote: rawAddrPort(&a.peer)}, nil
}

// try makes one attempt and says whether it came to an end; if not, there is nothing to accept. The call doesn't sleep, so the
// scheduler needn't be told: it would give the acceptor's processor away whenever the system runs something else meanwhile, and
// the queue would fill until another one is free.
func (a *socketAcceptor) try(fd uintptr) bool {
	for {
		size := uint32(unsafe.Sizeof(a.peer))
		conn, _, errno := unix.RawSyscall6(unix.SYS_ACCEPT4, fd, uintptr(unsafe.Pointer(&a.peer)), uintptr(unsafe.Pointer(&size)),
			unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
		if errno != unix.EINTR {
			a.conn, a.errno = int(conn), errno
			return errno != unix.EAGAIN
		}
	}
}

// interrupt has accept return errAcceptorStopped, now and from now on.
func (a *socketAcceptor) interrupt() { _ = a.file.SetReadDeadline(time.Unix(1, 0)) } // a closed one returns anyway

// acceptErrorKind names an error of accept for the metrics; transient ones concern the one connection.
func acceptErrorKind(err error) (kind string, transient bool) {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return "other", false
	}
	switch errno {
	case unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM:
		return unix.ErrnoName(errno), false
	case unix.ECONNABORTED, unix.EPROTO, unix.EPERM, unix.ENETDOWN, unix.ENOPROTOOPT, unix.EHOSTDOWN, unix.ENONET, unix.EHOSTUNREACH,
		unix.EOPNOTSUPP, unix.ENETUNREACH:
		return "connection", true
	default:
		return "other", false
	}
}

// tcpInfo is the beginning of the kernel's struct tcp_info, as far as it says something of a listening socket; the kernel
// fills in as much as there is room for.
type tcpInfo struct {
	_       [24]byte
	unacked uint32 // of a listening socket: connections that wait
	sacked  uint32 // and how many may
}

// sample reads the queue's state: one system call that doesn't sleep (the kernel reads two words without the socket's
// lock), so the scheduler needn't be told.
func (a *socketAcceptor) sample() (acceptQueue, error) { return readQueue(a.fd, &a.info) }

func readQueue(fd int, info *tcpInfo) (acceptQueue, error) {
	size := uint32(unsafe.Sizeof(*info))
	if _, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_TCP, unix.TCP_INFO,
		uintptr(unsafe.Pointer(info)), uintptr(unsafe.Pointer(&size)), 0); errno != 0 {
		return acceptQueue{}, os.NewSyscallError("getsockopt TCP_INFO", errno)
	}
	return acceptQueue{waiting: info.unacked, limit: info.sacked}, nil
}

// queue is sample for any goroutine.
func (s *boundSocket) queue() (q acceptQueue, err error) {
	if cerr := s.control.Control(func(fd uintptr) {
		var info tcpInfo
		q, err = readQueue(int(fd), &info)
	}); cerr != nil {
		return q, cerr
	}
	return q, err
}

// dropCount returns how many connections the socket dropped in its life, in 32 bits: the last of SO_MEMINFO's numbers.
func (s *boundSocket) dropCount() (n uint32, err error) {
	var info [9]uint32
	if cerr := s.control.Control(func(fd uintptr) {
		size := uint32(unsafe.Sizeof(info))
		if _, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_MEMINFO,
			uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0); errno != 0 {
			err = os.NewSyscallError("getsockopt SO_MEMINFO", errno)
		}
	}); cerr != nil {
		return 0, cerr
	}
	return info[len(info)-1], err
}

// addrPort is a socket address without what the kernel adds: IPv4 in IPv6 is IPv4.
func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		a := netip.AddrFrom16(sa.Addr).Unmap()
		if sa.ZoneId != 0 && a.Is6() {
			a = a.WithZone(strconv.FormatUint(uint64(sa.ZoneId), 10))
		}
		return netip.AddrPortFrom(a, uint16(sa.Port))
	}
	return netip.AddrPort{}
}

// rawAddrPort is addrPort of what the kernel wrote, without an allocation for IPv4 and for IPv6 without a zone.
func rawAddrPort(sa *unix.RawSockaddrAny) netip.AddrPort {
	port := func(raw *uint16) uint16 {
		b := (*[2]byte)(unsafe.Pointer(raw)) // in the network's order
		return uint16(b[0])<<8 | uint16(b[1])
	}
	switch sa.Addr.Family {
	case unix.AF_INET:
		in := (*unix.RawSockaddrInet4)(unsafe.Pointer(sa))
		return netip.AddrPortFrom(netip.AddrFrom4(in.Addr), port(&in.Port))
	case unix.AF_INET6:
		in := (*unix.RawSockaddrInet6)(unsafe.Pointer(sa))
		a := netip.AddrFrom16(in.Addr).Unmap()
		if in.Scope_id != 0 && a.Is6() {
			a = a.WithZone(strconv.FormatUint(uint64(in.Scope_id), 10))
		}
		return netip.AddrPortFrom(a, port(&in.Port))
	}
	return netip.AddrPort{}
}

// open puts the connection in the runtime's poller.
func (a accepted) open() socket { return os.NewFile(uintptr(a.fd), "connection") }

// local asks for the connection's own address.
func (a accepted) local() netip.AddrPort { return localOf(a.fd) }

func localOf(fd int) netip.AddrPort {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}
	}
	return addrPort(sa)
}

// localAddrPort is the own address of a socket that was opened.
func localAddrPort(s socket) (a netip.AddrPort) {
	if raw, err := s.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { a = localOf(int(fd)) }) // closed: no address
	}
	return a
}

// gone says whether the client has left again without a word, by a look that takes nothing and waits for nothing. Whoever
// comes in storms, or waited in the queue longer than he would, is often gone, and then costs neither a goroutine nor a place
// in the poller.
func (a accepted) gone() bool {
	var b byte
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(a.fd), uintptr(unsafe.Pointer(&b)), 1, unix.MSG_PEEK|unix.MSG_DONTWAIT, 0, 0)
	return errno == 0 && n == 0 || errno != 0 && errno != unix.EAGAIN && errno != unix.EINTR
}

// refuse closes a connection that nothing was read from.
func (a accepted) refuse() { unix.Close(a.fd) }

// shutdownWrite ends what we send, so that the other end reads all of it before the connection is closed.
func shutdownWrite(s socket) {
	if raw, err := s.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) })
	}
}
