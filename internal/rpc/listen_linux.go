package rpc

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// listen makes the socket itself, since net.Listen takes no backlog, and hands it over to the runtime's poller.
func listen(address string, backlog int) (net.Listener, error) {
	f, err := listenFile(address, backlog, false)
	if err != nil {
		return nil, err
	}
	defer f.Close() // FileListener makes a duplicate of its own
	return net.FileListener(f)
}

// listenFile returns a listening socket in the runtime's poller. With reusePort others may be bound to the same address.
func listenFile(address string, backlog int, reusePort bool) (_ *os.File, err error) {
	addr, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return nil, err
	}
	family, sa, dual, err := sockaddr(addr)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
	if errors.Is(err, unix.EAFNOSUPPORT) && dual {
		// A machine without IPv6: all interfaces are the IPv4 ones.
		family, sa = unix.AF_INET, &unix.SockaddrInet4{Port: addr.Port}
		fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
	}
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	// The file owns fd from here on, and is made last: a socket that doesn't listen yet is not for the poller.
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	if family == unix.AF_INET6 {
		only := 1
		if dual {
			only = 0
		}
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, only); err != nil {
			return nil, os.NewSyscallError("setsockopt IPV6_V6ONLY", err)
		}
	}
	// A restarted server must not wait for connections of its former life in TIME_WAIT.
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return nil, os.NewSyscallError("setsockopt SO_REUSEADDR", err)
	}
	if reusePort {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
			return nil, os.NewSyscallError("setsockopt SO_REUSEPORT", err)
		}
	}
	if err := unix.Bind(fd, sa); err != nil {
		return nil, os.NewSyscallError("bind", err)
	}
	// The kernel takes the number as unsigned and caps it at somaxconn: -1 is that cap.
	if err := unix.Listen(fd, backlog); err != nil {
		return nil, os.NewSyscallError("listen", err)
	}
	return os.NewFile(uintptr(fd), "listener "+address), nil
}

// sockaddr returns the address family and address for the kernel; dual says that both families are meant.
func sockaddr(a *net.TCPAddr) (family int, sa unix.Sockaddr, dual bool, err error) {
	if ip4 := a.IP.To4(); ip4 != nil {
		return unix.AF_INET, &unix.SockaddrInet4{Port: a.Port, Addr: [4]byte(ip4)}, false, nil
	}
	sa6 := &unix.SockaddrInet6{Port: a.Port}
	if len(a.IP) == 0 || a.IP.IsUnspecified() {
		return unix.AF_INET6, sa6, true, nil
	}
	copy(sa6.Addr[:], a.IP.To16())
	if a.Zone != "" {
		ifi, err := net.InterfaceByName(a.Zone)
		if err != nil {
			n, nerr := strconv.ParseUint(a.Zone, 10, 32)
			if nerr != nil {
				return 0, nil, false, fmt.Errorf("zone %q: %w", a.Zone, err)
			}
			sa6.ZoneId = uint32(n)
		} else {
			sa6.ZoneId = uint32(ifi.Index)
		}
	}
	return unix.AF_INET6, sa6, false, nil
}
