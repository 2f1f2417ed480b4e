package rpc

import (
	"log/slog"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// acceptorRig is a set of acceptors whose connections are counted and closed.
type acceptorRig struct {
	*acceptors
	reg     *prometheus.Registry
	log     *syncBuffer
	address string
	taken   atomic.Int64
	end     func() // stop, and wait
}

func newAcceptorRig(t *testing.T, edit func(*acceptorConfig)) *acceptorRig {
	t.Helper()
	r := &acceptorRig{reg: prometheus.NewRegistry(), log: &syncBuffer{}}
	m, err := newAcceptorMetrics(r.reg)
	require.NoError(t, err)
	cfg := acceptorConfig{
		addresses: []string{"127.0.0.1:0"}, backlog: DefaultBacklog, perAddress: 1,
		log: slog.New(slog.NewTextHandler(r.log, nil)), metrics: m,
	}
	if edit != nil {
		edit(&cfg)
	}
	r.acceptors, err = listenAcceptors(cfg)
	require.NoError(t, err)
	r.address = r.addresses()[0].String()
	return r
}

func (r *acceptorRig) start(t *testing.T) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() {
		r.run(func(a accepted) {
			r.taken.Add(1)
			a.refuse()
		})
	})
	r.end = sync.OnceFunc(func() {
		r.stop()
		wg.Wait()
	})
	t.Cleanup(r.end)
}

// connect makes n connections one after the other and returns when all were accepted.
func (r *acceptorRig) connect(t *testing.T, n int) {
	t.Helper()
	want := r.taken.Load() + int64(n)
	for range n {
		conn, err := net.Dial("tcp", r.address)
		require.NoError(t, err)
		conn.Close()
	}
	require.Eventually(t, func() bool { return r.taken.Load() == want }, 5*time.Second, time.Millisecond)
}

// of returns a series of one socket.
func (r *acceptorRig) of(t *testing.T, name, socket string) float64 {
	t.Helper()
	return series(t, r.reg, name, "address", r.address, "socket", socket)
}

// TestAcceptors shows every connection accepted once, by one acceptor or several, on one socket, on several, and on
// several addresses, with the metrics of each socket, and ports given back at the end.
func TestAcceptors(t *testing.T) {
	for name, edit := range map[string]func(*acceptorConfig){
		"one":       func(*acceptorConfig) {},
		"four":      func(c *acceptorConfig) { c.perAddress = 4 },
		"reuseport": func(c *acceptorConfig) { c.perAddress, c.reusePort = 3, true },
		"addresses": func(c *acceptorConfig) { c.addresses = []string{"127.0.0.1:0", "127.0.0.2:0"} },
	} {
		t.Run(name, func(t *testing.T) {
			if !queuesSeen && name != "one" && name != "four" {
				t.Skip("needs Linux")
			}
			r := newAcceptorRig(t, edit)
			r.start(t)
			const n = 60
			total := 0
			for _, a := range r.addresses() {
				r.address = a.String()
				r.connect(t, n)
				total += n
			}
			r.end() // counters are complete
			accepted, dispatched, sampled := 0.0, 0.0, 0.0
			for _, s := range r.sockets {
				r.address = s.addr.String()
				accepted += r.of(t, "rpc_connections_accepted", s.label)
				dispatched += r.of(t, "acceptor_dispatch_times", s.label)
				sampled += r.of(t, "rpc_listened_socket_rx_queue_size", s.label)
			}
			require.EqualValues(t, total, accepted)
			require.EqualValues(t, total, dispatched)
			if queuesSeen {
				require.EqualValues(t, total, sampled)
			}
			for _, a := range r.addresses() {
				_, err := net.Dial("tcp", a.String())
				require.Error(t, err)
			}
		})
	}
}

// TestSampleEvery shows how often the queue is looked at, and that it can be changed while connections come.
func TestSampleEvery(t *testing.T) {
	if !queuesSeen {
		t.Skip("needs Linux")
	}
	r := newAcceptorRig(t, func(c *acceptorConfig) { c.everyLog2 = 3 })
	r.start(t)
	const name = "rpc_listened_socket_rx_queue_size"
	for _, c := range []struct {
		log2, connect int
		samples       float64
	}{{3, 17, 2}, {0, 7, 9}, {-1, 40, 9}, {2, 16, 13}} {
		r.setEvery(c.log2)
		r.connect(t, c.connect)
		// The acceptor samples a connection before it hands it over.
		require.Equal(t, c.samples, r.of(t, name, "0"), "2^%d", c.log2)
	}
}

// TestAcceptorsNeverRun shows sockets given back whose acceptors never ran, and none kept when one can't be bound.
func TestAcceptorsNeverRun(t *testing.T) {
	r := newAcceptorRig(t, nil)
	m, err := newAcceptorMetrics(nil)
	require.NoError(t, err)
	_, err = listenAcceptors(acceptorConfig{
		addresses: []string{"127.0.0.1:0", r.address}, backlog: 1, perAddress: 2, log: slog.New(slog.DiscardHandler), metrics: m,
	})
	require.ErrorContains(t, err, "the port is taken")
	r.stop()
	r.close()
	_, err = net.Dial("tcp", r.address)
	require.Error(t, err)
}

// TestOccasional shows the first line logged, the next ones counted, and the count given with the next that is.
func TestOccasional(t *testing.T) {
	o := occasional{every: time.Hour}
	n, ok := o.now()
	require.True(t, ok)
	require.Zero(t, n)
	for range 3 {
		_, ok = o.now()
		require.False(t, ok)
	}
	o.last = o.last.Add(-2 * time.Hour)
	n, ok = o.now()
	require.True(t, ok)
	require.Equal(t, 3, n)
}

// TestListenCounts shows what is found in the kernel's text.
func TestListenCounts(t *testing.T) {
	overflows, drops, err := parseListenCounts([]byte("TcpExt: SyncookiesSent ListenOverflows ListenDrops TCPHPHits\nTcpExt: 1 22 333 4\nIpExt: InNoRoutes\nIpExt: 0\n"))
	require.NoError(t, err)
	require.EqualValues(t, 22, overflows)
	require.EqualValues(t, 333, drops)
	for _, text := range []string{"", "TcpExt:\nTcpExt:\n", "TcpExt: ListenOverflows ListenDrops\n", "TcpExt: ListenOverflows ListenDrops\nTcpExt: 1\n", "TcpExt: ListenDrops ListenOverflows\nTcpExt: x 1\n"} {
		_, _, err := parseListenCounts([]byte(text))
		require.Error(t, err, strconv.Quote(text))
	}
}
