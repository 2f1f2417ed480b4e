package rpc

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"syscall"
)

// DefaultBacklog is the accept queue's limit where nothing else is asked for. Kudu's --rpc_acceptor_listen_backlog is 512,
// which a client that connects as fast as it can fills in 12 ms; a thread that has had its share of the processor may have to
// wait longer for the next one, and who comes to a full queue tries again after a second. 4096 is what Linux allows by itself.
const DefaultBacklog = 4096

// Listen returns a TCP listener on host:port (IPv4, IPv6; an empty host or "::" takes both, port 0 any free port) whose
// accept queue holds up to backlog connections; -1 is the system's own limit (somaxconn), which caps any other number too.
// Off Linux the backlog is the system's. Errors name the address and say what to do.
func Listen(address string, backlog int) (net.Listener, error) {
	if backlog != -1 && backlog < 1 {
		return nil, fmt.Errorf("listen on %s: backlog %d: want 1 or more, or -1 for the system's limit (--rpc_acceptor_listen_backlog)", address, backlog)
	}
	ln, err := listen(address, backlog)
	if err != nil {
		return nil, DescribeListenError(address, err, "--rpc_bind_addresses")
	}
	return ln, nil
}

// DescribeListenError says what to do about an address that couldn't be bound; flag is where another one can be given.
func DescribeListenError(address string, err error, flag string) error {
	_, port, _ := net.SplitHostPort(address)
	var dns *net.DNSError
	var what string
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		what = fmt.Sprintf("the port is taken: stop the process that holds it (ss -ltnp 'sport = :%s' shows it) or choose another port with %s", port, flag)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		what = fmt.Sprintf("no interface of this machine has this address: give one that it has in %s (and the outer one in --rpc_advertised_addresses)", flag)
	case errors.Is(err, fs.ErrPermission):
		what = fmt.Sprintf("not permitted: ports below 1024 need privileges; choose another port with %s", flag)
	case errors.As(err, &dns):
		what = fmt.Sprintf("the host name is not known here: correct it in %s", flag)
	default:
		return fmt.Errorf("listen on %s (%s): %w", address, flag, err)
	}
	return fmt.Errorf("listen on %s: %s: %w", address, what, err)
}
