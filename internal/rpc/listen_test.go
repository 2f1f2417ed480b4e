package rpc

import (
	"net"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestListen shows connections over IPv4, IPv6 and both, and that the port of a closed listener can be had again.
func TestListen(t *testing.T) {
	for _, c := range []struct{ address, from string }{
		{"127.0.0.1:0", "127.0.0.1"},
		{"localhost:0", "localhost"},
		{"[::1]:0", "::1"},
		{":0", "127.0.0.1"},
		{"[::]:0", "127.0.0.1"},
		{"0.0.0.0:0", "127.0.0.1"},
	} {
		if c.from == "::1" && !haveIPv6() {
			continue
		}
		for _, backlog := range []int{DefaultBacklog, 1, -1} {
			ln, err := Listen(c.address, backlog)
			require.NoError(t, err, c.address)
			_, port, err := net.SplitHostPort(ln.Addr().String())
			require.NoError(t, err)
			accepted := make(chan error, 1)
			go func() {
				conn, err := ln.Accept()
				if err == nil {
					err = conn.Close()
				}
				accepted <- err
			}()
			conn, err := net.Dial("tcp", net.JoinHostPort(c.from, port))
			require.NoError(t, err, c.address)
			require.NoError(t, <-accepted)
			require.NoError(t, conn.Close())
			require.NoError(t, ln.Close())

			// The connection that we closed first stands in TIME_WAIT now.
			again, err := Listen(ln.Addr().String(), backlog)
			require.NoError(t, err)
			require.NoError(t, again.Close())
		}
	}
}

func haveIPv6() bool {
	ln, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		return false
	}
	ln.Close()
	return true
}

// TestListenErrors shows errors that name the address and what to do.
func TestListenErrors(t *testing.T) {
	ln, err := Listen("127.0.0.1:0", DefaultBacklog)
	require.NoError(t, err)
	defer ln.Close()
	taken := ln.Addr().String()
	for address, want := range map[string]string{
		taken:                  "listen on " + taken + ": the port is taken: stop the process that holds it",
		"198.51.100.7:0":       "listen on 198.51.100.7:0: no interface of this machine has this address: give one that it has in --rpc_bind_addresses",
		"no-such-host.test.:0": "listen on no-such-host.test.:0: ",
	} {
		_, err := Listen(address, DefaultBacklog)
		require.ErrorContains(t, err, want)
	}
	for _, backlog := range []int{0, -2} {
		_, err := Listen("127.0.0.1:0", backlog)
		require.ErrorContains(t, err, "--rpc_acceptor_listen_backlog")
	}
	_, err = Listen("[fe80::1%no-such-zone]:0", DefaultBacklog)
	if runtime.GOOS == "linux" {
		require.ErrorContains(t, err, "no-such-zone")
	}
}
