package rpc

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/status"
)

// TestParseSubnets shows lists as flags have them, and faults that say what to write.
func TestParseSubnets(t *testing.T) {
	for list, want := range map[string]string{
		"":                             "[]",
		" 10.0.0.0/8 , ,fc00::/7":      "[10.0.0.0/8 fc00::/7]",
		"192.0.2.1":                    "[192.0.2.1/32]",
		"::1,::ffff:192.0.2.1":         "[::1/128 192.0.2.1/32]",
		"0.0.0.0/0,::/0":               "[0.0.0.0/0 ::/0]",
		DefaultTrustedSubnets + ",1::": "[127.0.0.0/8 10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 169.254.0.0/16 ::1/128 fc00::/7 fe80::/10 1::/128]",
	} {
		got, err := ParseSubnets(list)
		require.NoError(t, err)
		require.Equal(t, want, "["+join(subnetStrings(got))+"]")
	}
	for list, want := range map[string]string{
		"10.0.0.0/33":  "want address/bits",
		"all":          "want address/bits",
		"10.1.0.0/8":   "write 10.0.0.0/8",
		"fe80::1%eth0": "want address/bits",
	} {
		_, err := ParseSubnets(list)
		require.ErrorContains(t, err, want)
	}
}

func join(list []string) (out string) {
	for i, s := range list {
		if i > 0 {
			out += " "
		}
		out += s
	}
	return out
}

// TestDefaultTrustedSubnets shows whom the default lets in.
func TestDefaultTrustedSubnets(t *testing.T) {
	trusted, err := ParseSubnets(DefaultTrustedSubnets)
	require.NoError(t, err)
	a := newAdmission(trusted, 1, 1)
	for address, want := range map[string]bool{
		"127.0.0.1": true, "127.255.255.255": true, "10.1.2.3": true, "172.16.0.1": true, "172.31.255.255": true, "192.168.1.1": true, "169.254.1.1": true,
		"::1": true, "fd00::1": true, "fe80::1%eth0": true,
		"8.8.8.8": false, "172.32.0.1": false, "192.169.0.1": false, "100.64.0.1": false, "2001:db8::1": false, "::2": false, "0.0.0.0": false,
	} {
		require.Equal(t, want, a.trusts(netip.MustParseAddr(address)), address)
	}
}

// TestUntrusted shows a connection from outside refused with a line in the log that names the flag, what its caller is
// told, and that a process on the same machine gets in whatever its address is.
func TestUntrusted(t *testing.T) {
	ts := startServer(t, func(c *ServerConfig) { c.TrustedSubnets = []netip.Prefix{netip.MustParsePrefix("127.0.0.9/32")} })
	ts.service.status = func(context.Context) error { return nil }
	_, err := nyalav1.NewServerServiceClient(dial(t, ts.address, DialOptions{})).GetStatus(t.Context(), &nyalav1.GetStatusRequest{})
	require.NoError(t, err, "from the address that it came to")

	conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).Dial("tcp", ts.address)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(5*time.Second)))
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	require.Eventually(t, func() bool {
		return series(t, ts.reg, "rpc_connections_refused_total", "reason", "untrusted_subnet") == 1
	}, 5*time.Second, time.Millisecond)
	require.Contains(t, ts.log.String(), "not in --trusted_subnets")
	require.Contains(t, ts.log.String(), "127.0.0.2:")
}

// TestRefusedCaller shows what a caller is told whose connections are closed at once: where to look.
func TestRefusedCaller(t *testing.T) {
	ln, err := Listen("127.0.0.1:0", 10)
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	c := nyalav1.NewServerServiceClient(dial(t, ln.Addr().String(), DialOptions{}))
	// Where the system finds out only as the client writes, it can't be told from a connection that broke.
	require.Eventually(t, func() bool {
		_, err = c.GetStatus(t.Context(), &nyalav1.GetStatusRequest{})
		return strings.Contains(requireCode(t, status.ServiceUnavailable, err).Msg, "--trusted_subnets")
	}, 10*time.Second, time.Millisecond)
	ln.Close()
	<-done
}

// TestPublicAddresses shows which bound addresses call for a warning.
func TestPublicAddresses(t *testing.T) {
	interfaces := func() ([]net.Addr, error) {
		return []net.Addr{
			&net.IPNet{IP: net.ParseIP("127.0.0.1")}, &net.IPNet{IP: net.ParseIP("10.0.0.7")}, &net.IPNet{IP: net.ParseIP("203.0.113.5")},
			&net.IPNet{IP: net.ParseIP("2001:db8::5")}, &net.IPNet{IP: net.ParseIP("fe80::5")},
		}, nil
	}
	of := func(addresses ...string) []string {
		var bound []net.Addr
		for _, a := range addresses {
			bound = append(bound, net.TCPAddrFromAddrPort(netip.MustParseAddrPort(a)))
		}
		return publicAddresses(bound, interfaces)
	}
	require.Empty(t, of("127.0.0.1:1", "10.1.1.1:1", "[::1]:1"))
	require.Equal(t, []string{"198.51.100.1"}, of("127.0.0.1:1", "198.51.100.1:1", "198.51.100.1:2"))
	require.Equal(t, []string{"203.0.113.5", "2001:db8::5"}, of("0.0.0.0:1", "[::]:1"))
	require.Empty(t, publicAddresses([]net.Addr{&net.TCPAddr{}}, func() ([]net.Addr, error) { return nil, errors.New("not here") }))
}

// TestConnectionLimitsFilledIn shows what -1 stands for.
func TestConnectionLimitsFilledIn(t *testing.T) {
	total, perAddress := connectionLimits(-1, -1)
	require.Positive(t, total)
	require.LessOrEqual(t, total, mostConnections)
	require.Equal(t, max(total/2, 1), perAddress)
	total, perAddress = connectionLimits(7, 9)
	require.Equal(t, []int{7, 9}, []int{total, perAddress})
	require.NoError(t, validateConnectionLimits(-1, 1))
	err := validateConnectionLimits(0, -2)
	require.ErrorContains(t, err, "--rpc_max_connections 0")
	require.ErrorContains(t, err, "--rpc_max_connections_per_address -2")
}

// TestPublicAddressWarned shows the line in the log at the start for an address that the world may reach, a stronger one when
// everybody is trusted, and none for private addresses.
func TestPublicAddressWarned(t *testing.T) {
	for _, c := range []struct {
		bound, trusted, line string
	}{
		{"203.0.113.5:7050", DefaultTrustedSubnets, "connections from outside --trusted_subnets are refused"},
		{"203.0.113.5:7050", "0.0.0.0/0", "--trusted_subnets lets anybody read, change and delete all data"},
		{"10.0.0.5:7050", "0.0.0.0/0", ""},
		{"127.0.0.1:7050", DefaultTrustedSubnets, ""},
	} {
		log := &syncBuffer{}
		cfg := DefaultServerConfig()
		cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
		var err error
		cfg.TrustedSubnets, err = ParseSubnets(c.trusted)
		require.NoError(t, err)
		d, err := newFrontDoor(cfg)
		require.NoError(t, err)
		d.warnPublic([]net.Addr{net.TCPAddrFromAddrPort(netip.MustParseAddrPort(c.bound))})
		d.close()
		if c.line == "" {
			require.Empty(t, log.String())
			continue
		}
		require.Contains(t, log.String(), "level=WARN")
		require.Contains(t, log.String(), c.line)
		require.Contains(t, log.String(), "203.0.113.5")
	}
}
