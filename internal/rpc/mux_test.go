package rpc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
)

// exchange sends bytes on a new connection and returns what comes back until the server closes it.
func exchange(t *testing.T, address string, send []byte) (string, error) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer conn.Close()
	_, _ = conn.Write(send) // the server may have cut it off before the end
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
	answer, err := io.ReadAll(conn)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "not cut off")
	return string(answer), err
}

// TestWrongLanguage shows each other protocol on the port closed within a second, with one line in the log that names it
// however many come, counted by kind, and a good client served beside them (T46).
func TestWrongLanguage(t *testing.T) {
	ts := startServer(t, func(c *ServerConfig) {
		c.HandshakeTimeout = time.Second
		c.WebAddress = func() string { return "[::]:8050" }
	})
	ts.service.status = func(context.Context) error { return nil }
	clientHello := append([]byte{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3}, make([]byte, 508)...)
	noise := make([]byte, 4096)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(noise)
	for _, c := range []struct {
		reason, line string
		send         []byte
		clean        bool // closed, not reset
		answer       string
	}{
		{"tls", "TLS on a plaintext port", clientHello, true, ""},
		{"http1", "HTTP client on the RPC port", []byte("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), true, "The web server is at http://127.0.0.1:8050/\n"},
		{"kudu", "Kudu client on the RPC port", []byte("hrpc\x09\x00\x00\x00\x00\x00\x20"), true, ""},
		{"garbage", "unknown protocol on the RPC port", noise, false, ""},
		{"garbage", "unknown protocol on the RPC port", bytes.Repeat([]byte{0xff}, 64), false, ""},
		{"garbage", "unknown protocol on the RPC port", make([]byte, 64), false, ""},
		{"garbage", "unknown protocol on the RPC port", []byte("PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n"), false, ""},
	} {
		before := series(t, ts.reg, "rpc_connections_refused_total", "reason", c.reason)
		start := time.Now()
		const n = 5
		for range n {
			answer, err := exchange(t, ts.address, c.send)
			if c.clean {
				require.NoError(t, err, c.reason)
			}
			if c.answer == "" {
				require.Empty(t, answer)
			} else {
				require.True(t, strings.HasPrefix(answer, "HTTP/1.1 400 "), answer)
				require.True(t, strings.HasSuffix(answer, c.answer), answer)
			}
		}
		require.Less(t, time.Since(start), n*time.Second)
		require.Eventually(t, func() bool {
			return series(t, ts.reg, "rpc_connections_refused_total", "reason", c.reason) == before+n
		}, 5*time.Second, time.Millisecond)
		require.Equal(t, 1, strings.Count(ts.log.String(), c.line), c.line)
	}
	_, err := nyalav1.NewServerServiceClient(dial(t, ts.address, DialOptions{})).GetStatus(t.Context(), &nyalav1.GetStatusRequest{})
	require.NoError(t, err)
	require.EqualValues(t, 1, series(t, ts.reg, "rpc_connections_open", "protocol", "grpc"))
	require.Eventually(t, func() bool { return series(t, ts.reg, "rpc_connections_open", "protocol", "unknown") == 0 }, 5*time.Second, time.Millisecond)
}

// TestSlowPreambles shows 1,000 connections that say nothing, or a byte now and then: each is cut off at the time limit,
// costs little memory until then, and good clients connect at once beside them; at the end all is given back (T47).
func TestSlowPreambles(t *testing.T) {
	const slow, limit = 1000, 700 * time.Millisecond
	ts := startServer(t, func(c *ServerConfig) { c.HandshakeTimeout = limit })
	ts.service.status = func(context.Context) error { return nil }
	filesBefore, goroutinesBefore := openFiles(t), runtime.NumGoroutine()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var conns []net.Conn
	for i := range slow {
		conn, err := net.Dial("tcp", ts.address)
		if errors.Is(err, syscall.EMFILE) {
			t.Skip("too few files may be open here")
		}
		require.NoError(t, err)
		defer conn.Close()
		if i%2 == 0 {
			_, err = conn.Write([]byte("PRI"))
			require.NoError(t, err)
		}
		conns = append(conns, conn)
	}
	runtime.ReadMemStats(&after)
	inUse := int64(after.HeapAlloc+after.StackInuse) - int64(before.HeapAlloc+before.StackInuse)
	if !raceDetector {
		// Clients' halves are in it: a connection, a goroutine's stack and the poller's notes cost about 4 KiB; gRPC's
		// buffers alone would be 64.
		require.Less(t, inUse, int64(slow*16<<10))
	}
	for range 5 {
		conn, err := Dial(ts.address, DialOptions{})
		require.NoError(t, err)
		start := time.Now()
		_, err = nyalav1.NewServerServiceClient(conn).GetStatus(t.Context(), &nyalav1.GetStatusRequest{})
		require.NoError(t, err)
		require.Less(t, time.Since(start), time.Second)
		require.NoError(t, conn.Close())
	}
	ctx, cancel := context.WithCancel(t.Context())
	var drips sync.WaitGroup
	for _, conn := range conns[:10] {
		drips.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				if _, err := conn.Write([]byte(" * HTTP/2.0\r\n\r\nSM\r\n")[i%20 : i%20+1]); err != nil {
					return
				}
				select {
				case <-time.After(limit / 10):
				case <-ctx.Done():
				}
			}
		})
	}
	for i, conn := range conns {
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
		_, err := conn.Read(make([]byte, 1))
		require.Error(t, err)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, i)
		conn.Close()
	}
	cancel()
	drips.Wait()
	require.EqualValues(t, slow, series(t, ts.reg, "rpc_connections_refused_total", "reason", "slow_preamble")+
		series(t, ts.reg, "rpc_connections_refused_total", "reason", "garbage"))
	require.Eventually(t, func() bool {
		return series(t, ts.reg, "rpc_connections_open", "protocol", "unknown")+series(t, ts.reg, "rpc_connections_open", "protocol", "grpc") == 0 &&
			openFiles(t) <= filesBefore+5 && runtime.NumGoroutine() <= goroutinesBefore+10
	}, 10*time.Second, 10*time.Millisecond)
}

// openFiles returns how many files the process has open, 0 where that isn't shown.
func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(entries)
}

// TestManyConnections shows 10,000 connections opened and closed in every way that a client can: all are accepted and
// counted, and nothing of them stays.
func TestManyConnections(t *testing.T) {
	const n, workers = 10_000, 16
	ts := startServer(t, nil)
	filesBefore, goroutinesBefore := openFiles(t), runtime.NumGoroutine()
	var wg sync.WaitGroup
	failed := make(chan error, workers)
	for w := range workers {
		wg.Go(func() {
			for i := range n / workers {
				conn, err := net.Dial("tcp", ts.address)
				if err != nil {
					failed <- err
					return
				}
				if (i+w)%3 == 1 {
					_, _ = conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
				}
				if (i+w)%2 == 1 {
					_ = conn.(*net.TCPConn).SetLinger(0)
				}
				conn.Close()
			}
		})
	}
	wg.Wait()
	select {
	case err := <-failed:
		t.Fatal(err)
	default:
	}
	require.Eventually(t, func() bool {
		return series(t, ts.reg, "rpc_connections_accepted", "address", ts.address, "socket", "0") == n &&
			series(t, ts.reg, "rpc_connections_open", "protocol", "unknown")+series(t, ts.reg, "rpc_connections_open", "protocol", "grpc") == 0 &&
			openFiles(t) <= filesBefore+5 && runtime.NumGoroutine() <= goroutinesBefore+10
	}, 20*time.Second, 10*time.Millisecond)
}

// TestConnectionLimits shows the caps in total and per address, what is logged and counted, and room given back.
func TestConnectionLimits(t *testing.T) {
	ts := startServer(t, func(c *ServerConfig) {
		c.MaxConnections, c.MaxConnectionsPerAddress = 5, 3
		c.BindAddresses = []string{"127.0.0.1:0"}
	})
	from := func(host string) net.Conn {
		t.Helper()
		conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(host)}}).Dial("tcp", ts.address)
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	count := func(reason string) float64 {
		return series(t, ts.reg, "rpc_connections_refused_total", "reason", reason)
	}
	var conns []net.Conn
	for range 3 {
		conns = append(conns, from("127.0.0.1"))
	}
	from("127.0.0.1")
	require.Eventually(t, func() bool { return count("max_connections_per_address") == 1 }, 5*time.Second, time.Millisecond)
	from("127.0.0.2")
	from("127.0.0.3")
	from("127.0.0.4")
	require.Eventually(t, func() bool { return count("max_connections") == 1 }, 5*time.Second, time.Millisecond)
	require.Contains(t, ts.log.String(), "--rpc_max_connections are open")
	require.Contains(t, ts.log.String(), "--rpc_max_connections_per_address are open")
	conns[0].Close()
	require.Eventually(t, func() bool { return count("silent") == 1 }, 5*time.Second, time.Millisecond)
	ts.service.status = func(context.Context) error { return nil }
	_, err := nyalav1.NewServerServiceClient(dial(t, ts.address, DialOptions{})).GetStatus(t.Context(), &nyalav1.GetStatusRequest{})
	require.NoError(t, err)
}

// TestStopWhilePreamble shows connections that say nothing not holding up a stop, and one whose preface is on its way
// served its last word rather than cut off.
func TestStopWhilePreamble(t *testing.T) {
	ts := startServer(t, func(c *ServerConfig) { c.HandshakeTimeout = time.Minute })
	for range 3 {
		conn, err := net.Dial("tcp", ts.address)
		require.NoError(t, err)
		defer conn.Close()
	}
	require.Eventually(t, func() bool { return series(t, ts.reg, "rpc_connections_open", "protocol", "unknown") == 3 }, 5*time.Second, time.Millisecond)
	start := time.Now()
	ts.stop()
	require.Less(t, time.Since(start), 5*time.Second)
}

// TestTellProtocol shows that each preamble is told, whole and never sooner, and how it is named.
func TestTellProtocol(t *testing.T) {
	for _, p := range preambles {
		require.LessOrEqual(t, len(p.bytes), preambleSize)
		for i := range p.bytes {
			got, more := tellProtocol(p.bytes[:i])
			require.Equal(t, protocolUnknown, got)
			require.True(t, more)
		}
		got, more := tellProtocol(append(bytes.Clone(p.bytes), 'x'))
		require.Equal(t, p.protocol, got)
		require.False(t, more)
		for _, q := range preambles {
			require.False(t, !bytes.Equal(p.bytes, q.bytes) && bytes.HasPrefix(p.bytes, q.bytes), "%q, %q", p.bytes, q.bytes)
		}
	}
}

// chunks is a socket that gives its bytes a few at a time, then the end.
type chunks struct {
	data   []byte
	size   int
	sent   bytes.Buffer
	closed int
}

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.data) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.data[:min(c.size, len(c.data))])
	c.data = c.data[n:]
	return n, nil
}

func (c *chunks) Write(p []byte) (int, error)         { return c.sent.Write(p) }
func (c *chunks) Close() error                        { c.closed++; return nil }
func (*chunks) SetDeadline(time.Time) error           { return nil }
func (*chunks) SetReadDeadline(time.Time) error       { return nil }
func (*chunks) SetWriteDeadline(time.Time) error      { return nil }
func (*chunks) SyscallConn() (syscall.RawConn, error) { return nil, errors.ErrUnsupported }

// refusals is how many connections were refused for these reasons.
func refusals(m *muxMetrics, reasons ...string) (n float64) {
	for _, r := range reasons {
		var d dto.Metric
		_ = m.refused[r].Write(&d) // which doesn't fail for a counter
		n += d.GetCounter().GetValue()
	}
	return n
}

// FuzzMux shows that any bytes, in pieces of any size, are sorted the same way: what begins with HTTP/2's preface goes to
// gRPC with every byte in its place, all else is closed once, counted once, and answered only if it is HTTP/1.
func FuzzMux(f *testing.F) {
	for _, p := range preambles {
		f.Add(p.bytes, uint8(1))
		f.Add(append(bytes.Clone(p.bytes), "and more bytes than the buffer has room for"...), uint8(7))
		f.Add(p.bytes[:len(p.bytes)-1], uint8(0))
	}
	f.Add([]byte{}, uint8(0))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff}, uint8(3))
	f.Fuzz(func(t *testing.T, data []byte, size uint8) {
		metrics, err := newMuxMetrics(nil)
		require.NoError(t, err)
		m := newMux(muxConfig{
			addr: &net.TCPAddr{}, preambleTimeout: time.Second, admission: newAdmission(nil, 10, 10), metrics: metrics,
			webAddress: func() string { return "host:8050" }, log: slog.New(slog.DiscardHandler),
		})
		from := netip.MustParseAddrPort("10.0.0.1:5")
		require.Equal(t, admitted, m.cfg.admission.admit(from.Addr()))
		s := &chunks{data: data, size: int(size) + 1}
		m.receive(&connection{socket: s, remote: from})

		want := "garbage"
		method, _, isHTTP := strings.Cut(string(data), " ")
		switch {
		case strings.HasPrefix(string(data), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
			want = "grpc"
		case len(data) >= 3 && data[0] == 0x16 && data[1] == 3 && data[2] <= 3:
			want = "tls"
		case strings.HasPrefix(string(data), "hrpc"):
			want = "kudu"
		case isHTTP && strings.Contains(" GET HEAD POST PUT PATCH DELETE OPTIONS CONNECT TRACE ", " "+method+" ") && method != "":
			want = "http1"
		case len(data) == 0:
			want = "silent"
		default:
			if _, more := tellProtocol(data); more {
				want = "broken_preamble"
			}
		}
		if want == "grpc" {
			conn, err := m.Accept()
			require.NoError(t, err)
			all, err := io.ReadAll(conn)
			require.NoError(t, err)
			require.Equal(t, data, all)
			require.NoError(t, conn.Close())
			require.Error(t, conn.Close())
		}
		m.sorting.Wait()
		require.Equal(t, 1, s.closed)
		require.Equal(t, want == "http1", s.sent.Len() > 0)
		if want != "grpc" {
			require.EqualValues(t, 1, refusals(metrics, want))
		}
		require.LessOrEqual(t, refusals(metrics, "tls", "kudu", "http1", "garbage", "silent", "broken_preamble", "slow_preamble"), 1.0)
		require.Zero(t, m.cfg.admission.open)
		require.Empty(t, m.cfg.admission.byAddress)
		require.Empty(t, m.pending)
		m.stop()
	})
}

// TestConnectionErrors shows the errors of a connection in the form that the net package's have, and its addresses.
func TestConnectionErrors(t *testing.T) {
	m, err := newMuxMetrics(nil)
	require.NoError(t, err)
	r := newAcceptorRig(t, nil)
	x := newMux(muxConfig{addr: r.sockets[0].addr, preambleTimeout: time.Minute, admission: newAdmission(nil, 9, 9), metrics: m, log: slog.New(slog.DiscardHandler)})
	var wg sync.WaitGroup
	wg.Go(func() { r.run(x.take) }) // nobody is trusted, but for those on this machine
	client, err := net.Dial("tcp", r.address)
	require.NoError(t, err)
	_, err = client.Write(preambles[0].bytes)
	require.NoError(t, err)
	conn, err := x.Accept()
	require.NoError(t, err)
	require.Equal(t, client.LocalAddr().String(), conn.RemoteAddr().String())
	require.Equal(t, client.RemoteAddr().String(), conn.LocalAddr().String())
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Millisecond)))
	_, err = io.ReadAll(conn)
	var op *net.OpError
	require.ErrorAs(t, err, &op)
	require.True(t, op.Timeout())
	require.NoError(t, conn.Close())
	_, err = conn.Write([]byte("x"))
	require.ErrorIs(t, err, net.ErrClosed)
	r.stop()
	wg.Wait()
	x.stop()
	_, err = x.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	require.NoError(t, client.Close())
}

// TestPreambleNotLost is gRPC over the mux with a preface that comes in pieces.
func TestPreambleNotLost(t *testing.T) {
	ts := startServer(t, nil)
	ts.service.status = func(context.Context) error { return nil }
	conn, err := grpc.NewClient("passthrough:///"+ts.address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(func(ctx context.Context, a string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", a)
		return &slowWriter{Conn: c}, err
	}))
	require.NoError(t, err)
	defer conn.Close()
	_, err = nyalav1.NewServerServiceClient(conn).GetStatus(t.Context(), &nyalav1.GetStatusRequest{})
	require.NoError(t, err)
}

// slowWriter sends its first bytes one by one.
type slowWriter struct {
	net.Conn
	sent int
}

func (w *slowWriter) Write(p []byte) (int, error) {
	for i := range p {
		if w.sent >= 40 {
			n, err := w.Conn.Write(p[i:])
			return i + n, err
		}
		w.sent++
		if _, err := w.Conn.Write(p[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(p), nil
}
