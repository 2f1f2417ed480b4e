package rpc

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// queuesSeen says whether this system shows accept queues.
const queuesSeen = true

// rawClients are sockets whose connecting doesn't wait.
type rawClients []int

func newRawClients(t *testing.T, n int) rawClients {
	t.Helper()
	var c rawClients
	for range n {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		c = append(c, fd)
	}
	t.Cleanup(func() { c.close() })
	return c
}

func (c rawClients) connect(t *testing.T, s *listenSocket) {
	t.Helper()
	sa := &unix.SockaddrInet4{Port: s.addr.Port, Addr: [4]byte(s.addr.IP.To4())}
	for _, fd := range c {
		if err := unix.Connect(fd, sa); err != nil {
			require.ErrorIs(t, err, unix.EINPROGRESS)
		}
	}
}

func (c rawClients) close() {
	for i, fd := range c {
		if fd >= 0 {
			unix.Close(fd)
		}
		c[i] = -1
	}
}

// kudusBacklog is Kudu's default.
const kudusBacklog = 512

// TestAcceptorsHeld shows what the metrics say while no acceptor accepts, and of the samples once they go on: 1 and 5
// clients, and 600 and twice as many as fit, of which a backlog of 512 holds 513. Drops are counted, and time with a full queue
// is. (Fault 26.)
func TestAcceptorsHeld(t *testing.T) {
	for _, clients := range []int{1, 5, 600, 2 * (kudusBacklog + 1)} {
		t.Run(fmt.Sprintf("clients=%d", clients), func(t *testing.T) {
			held, release := make(chan struct{}, 1), make(chan struct{})
			r := newAcceptorRig(t, func(c *acceptorConfig) {
				c.backlog = kudusBacklog
				c.afterAccept = func() {
					select {
					case held <- struct{}{}:
					default:
					}
					<-release
				}
			})
			if limit := r.of(t, "rpc_pending_connections_limit", "0"); limit != kudusBacklog {
				close(release)
				r.close()
				t.Skipf("net.core.somaxconn is %v", limit)
			}
			r.start(t)
			const inHand = 1
			first := newRawClients(t, inHand)
			first.connect(t, r.sockets[0])
			<-held
			overflowsBefore, _, err := namespaceListenCounts()
			require.NoError(t, err)

			all := newRawClients(t, clients)
			all.connect(t, r.sockets[0])
			waiting := min(clients, kudusBacklog+1)
			require.EqualValues(t, waiting, r.of(t, "rpc_pending_connections", "0"))
			if dropped := clients - waiting; dropped > 0 {
				require.GreaterOrEqual(t, r.of(t, "rpc_accept_queue_drops_total", "0"), float64(dropped))
				require.GreaterOrEqual(t, series(t, r.reg, "rpc_netns_listen_overflows_total"), float64(overflowsBefore)+float64(dropped))
				for _, more := range []float64{0.2, 0.7} {
					require.Eventually(t, func() bool { return r.of(t, "rpc_accept_queue_full_seconds_total", "0") > more }, 5*time.Second, 10*time.Millisecond)
				}
				require.Contains(t, r.log.String(), "accept queue is full")
			} else {
				require.Zero(t, r.of(t, "rpc_accept_queue_drops_total", "0"))
				require.Zero(t, r.of(t, "rpc_accept_queue_full_seconds_total", "0"))
			}
			all.close() // who was dropped doesn't try again, who waits is still accepted
			close(release)
			require.Eventually(t, func() bool { return r.taken.Load() == int64(waiting+inHand) }, 5*time.Second, time.Millisecond)
			require.Zero(t, r.of(t, "rpc_pending_connections", "0"))
			r.end()
			// The samples are what waited then, and one less after each accept.
			require.EqualValues(t, waiting+inHand, r.of(t, "rpc_listened_socket_rx_queue_size", "0"))
			families, err := r.reg.Gather()
			require.NoError(t, err)
			for _, f := range families {
				if f.GetName() != "rpc_listened_socket_rx_queue_size" {
					continue
				}
				h := f.GetMetric()[0].GetHistogram()
				require.EqualValues(t, waiting*(waiting+1)/2, h.GetSampleSum())
				require.Len(t, h.GetBucket(), 18)
				require.Equal(t, 0.0, h.GetBucket()[0].GetUpperBound())
				require.Equal(t, 65536.0, h.GetBucket()[17].GetUpperBound())
			}
		})
	}
}

// TestBacklogCapped shows the word at the start when the system holds less than was asked for, and none when it doesn't.
func TestBacklogCapped(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/net/core/somaxconn")
	require.NoError(t, err)
	somaxconn, err := strconv.Atoi(string(text[:len(text)-1]))
	require.NoError(t, err)
	for _, c := range []struct {
		backlog int
		limit   int
		capped  bool
	}{{-1, somaxconn, false}, {somaxconn, somaxconn, false}, {somaxconn + 1, somaxconn, true}, {1, 1, false}} {
		r := newAcceptorRig(t, func(a *acceptorConfig) { a.backlog = c.backlog })
		require.EqualValues(t, c.limit, r.of(t, "rpc_pending_connections_limit", "0"))
		if c.capped {
			require.Contains(t, r.log.String(), "net.core.somaxconn")
		} else {
			require.Empty(t, r.log.String())
		}
		r.close()
	}
}

// TestStopAcceptsWhatWaits shows that connections that wait when the acceptors are stopped are accepted and not reset.
func TestStopAcceptsWhatWaits(t *testing.T) {
	for _, reusePort := range []bool{false, true} {
		held, release := make(chan struct{}, 100), make(chan struct{})
		r := newAcceptorRig(t, func(c *acceptorConfig) {
			c.reusePort = reusePort
			c.afterAccept = func() {
				held <- struct{}{}
				<-release
			}
		})
		r.start(t)
		clients := newRawClients(t, 20)
		clients.connect(t, r.sockets[0])
		<-held
		r.stop()
		close(release)
		r.end()
		require.EqualValues(t, 20, r.taken.Load())
		require.EqualValues(t, 20, r.of(t, "rpc_connections_accepted", "0"))
	}
}

// TestFileLimit shows the process running out of file descriptors: the acceptor waits and counts, and goes on when there
// are some again.
func TestFileLimit(t *testing.T) {
	var before unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	r := newAcceptorRig(t, nil)
	r.start(t)
	clients := newRawClients(t, 50)
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	highest := 0
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		require.NoError(t, err)
		highest = max(highest, n)
	}
	// Fill the holes, so that no descriptor is left.
	var fill []int
	restore := func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before)) }
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(highest) + 1, Max: before.Max}); err != nil {
		t.Skipf("the limit of open files can't be set here: %v", err)
	}
	t.Cleanup(restore)
	for {
		fd, err := unix.Dup(clients[0])
		if err != nil {
			require.ErrorIs(t, err, unix.EMFILE)
			break
		}
		fill = append(fill, fd)
	}
	clients.connect(t, r.sockets[0])
	errorCount := func() float64 { return series(t, r.reg, "rpc_accept_errors_total", "error", "EMFILE") }
	start := time.Now()
	require.Eventually(t, func() bool { return errorCount() >= 4 }, 5*time.Second, time.Millisecond)
	// It waits 5 ms, then twice as long each time: a busy loop would count tens of thousands.
	require.LessOrEqual(t, errorCount(), 10+float64(time.Since(start).Milliseconds())/5)
	require.EqualValues(t, 50, r.of(t, "rpc_pending_connections", "0"))
	require.Zero(t, r.taken.Load())
	require.Contains(t, r.log.String(), "too many open files")
	restore()
	for _, fd := range fill {
		unix.Close(fd)
	}
	require.Eventually(t, func() bool { return r.taken.Load() == 50 }, 5*time.Second, time.Millisecond)
}

// TestGoneBeforeAccepted shows clients that left while they waited in the queue closed at once, counted as silent and given no
// place; one that said something first, and then left, is still sorted by what it said, and so is one that stays.
func TestGoneBeforeAccepted(t *testing.T) {
	metrics, err := newMuxMetrics(nil)
	require.NoError(t, err)
	r := newAcceptorRig(t, nil)
	m := newMux(muxConfig{
		addr: r.sockets[0].addr, preambleTimeout: time.Minute, admission: newAdmission(nil, 9, 9), metrics: metrics, log: slog.New(slog.DiscardHandler),
	})
	defer m.stop()
	dial := func() *net.TCPConn {
		t.Helper()
		conn, err := net.Dial("tcp", r.address)
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		return conn.(*net.TCPConn)
	}
	const n = 20
	for i := range n {
		conn := dial()
		if i%2 == 0 {
			require.NoError(t, conn.SetLinger(0)) // Close resets it
		}
		conn.Close()
	}
	spoke, stays := dial(), dial()
	_, err = spoke.Write([]byte("hrpc\x09\x00\x00"))
	require.NoError(t, err)
	spoke.Close()
	a := r.sockets[0].acceptors[0]
	for i := range n + 2 {
		if i == n {
			require.EqualValues(t, n, refusals(metrics, "silent"))
			require.Zero(t, m.cfg.admission.open)
			require.Empty(t, m.pending)
		}
		conn, err := a.accept()
		require.NoError(t, err)
		m.take(conn)
	}
	require.Eventually(t, func() bool { return refusals(metrics, "kudu") == 1 }, 5*time.Second, time.Millisecond)
	_, err = stays.Write(preambles[0].bytes)
	require.NoError(t, err)
	conn, err := m.Accept()
	require.NoError(t, err)
	require.Equal(t, stays.LocalAddr().String(), conn.RemoteAddr().String())
	require.NoError(t, conn.Close())
	require.EqualValues(t, n, refusals(metrics, "silent"))
	r.stop()
	r.close()
}

// TestRawAddrPort shows the addresses that the kernel writes, IPv4 in IPv6 as IPv4, and zones.
func TestRawAddrPort(t *testing.T) {
	raw := func(family uint16, fill func(unsafe.Pointer)) *unix.RawSockaddrAny {
		sa := &unix.RawSockaddrAny{}
		fill(unsafe.Pointer(sa))
		sa.Addr.Family = family
		return sa
	}
	port := [2]byte{0x1b, 0x8a} // 7050
	v6 := func(addr string, scope uint32) *unix.RawSockaddrAny {
		return raw(unix.AF_INET6, func(p unsafe.Pointer) {
			in := (*unix.RawSockaddrInet6)(p)
			in.Addr, in.Scope_id = netip.MustParseAddr(addr).As16(), scope
			*(*[2]byte)(unsafe.Pointer(&in.Port)) = port
		})
	}
	v4 := raw(unix.AF_INET, func(p unsafe.Pointer) {
		in := (*unix.RawSockaddrInet4)(p)
		in.Addr = [4]byte{10, 1, 2, 3}
		*(*[2]byte)(unsafe.Pointer(&in.Port)) = port
	})
	for want, sa := range map[string]*unix.RawSockaddrAny{
		"10.1.2.3:7050":      v4,
		"10.9.8.7:7050":      v6("::ffff:10.9.8.7", 0),
		"[fd00::1]:7050":     v6("fd00::1", 0),
		"[fe80::1%3]:7050":   v6("fe80::1", 3),
		"invalid AddrPort":   raw(unix.AF_UNIX, func(unsafe.Pointer) {}),
		"127.0.0.1:7050":     v6("::ffff:127.0.0.1", 3),
		"[2001:db8::1]:7050": v6("2001:db8::1", 0),
	} {
		require.Equal(t, want, rawAddrPort(sa).String())
	}
}
