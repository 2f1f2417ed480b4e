package rpc

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
)

// inTurns runs off and on in turns, either one first by chance (a fixed pattern falls in with the collector's), and returns the medians of on's costs over off's in each
// pair, of what on costs more in each pair, and of off's costs. What else the machine does then falls on both.
func inTurns[C ~[]float64](pairs int, off, on func() C) (ratios, added, offs C) {
	var r, a, b []C
	for range pairs {
		var x, y C
		if rand.N(2) == 0 {
			x = off()
			y = on()
		} else {
			y = on()
			x = off()
		}
		ratio, more := make(C, len(x)), make(C, len(x))
		for k := range x {
			ratio[k], more[k] = y[k]/x[k], y[k]-x[k]
		}
		r, a, b = append(r, ratio), append(a, more), append(b, x)
	}
	return medians(r), medians(a), medians(b)
}

func medians[C ~[]float64](rows []C) C {
	out := make(C, len(rows[0]))
	for k := range out {
		var column []float64
		for _, row := range rows {
			column = append(column, row[k])
		}
		slices.Sort(column)
		out[k] = column[len(column)/2]
	}
	return out
}

// dispatchTimes is an observer that keeps the numbers of the table that Kudu's change came with.
type dispatchTimes struct {
	mu            sync.Mutex
	n             int
	min, max, sum float64
}

func (d *dispatchTimes) Observe(v float64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.n == 0 || v < d.min {
		d.min = v
	}
	d.max = max(d.max, v)
	d.sum += v
	d.n++
}

// take returns the numbers and begins anew.
func (d *dispatchTimes) take() (n int, least, most, sum float64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, least, most, sum = d.n, d.min, d.max, d.sum
	d.n, d.min, d.max, d.sum = 0, 0, 0, 0
	return n, least, most, sum
}

// benchDoor is acceptors and a mux as a server has them, without gRPC behind.
type benchDoor struct {
	*acceptors
	mux   *mux
	times dispatchTimes
	to    *unix.SockaddrInet4
}

func openDoor(b *testing.B) *benchDoor {
	b.Helper()
	log := slog.New(slog.DiscardHandler)
	am, err := newAcceptorMetrics(nil)
	if err != nil {
		b.Fatal(err)
	}
	mm, err := newMuxMetrics(nil)
	if err != nil {
		b.Fatal(err)
	}
	trusted, err := ParseSubnets(DefaultTrustedSubnets)
	if err != nil {
		b.Fatal(err)
	}
	d := &benchDoor{}
	d.acceptors, err = listenAcceptors(acceptorConfig{addresses: []string{"127.0.0.1:0"}, backlog: kudusBacklog, perAddress: 1, log: log, metrics: am})
	if err != nil {
		b.Fatal(err)
	}
	addr := d.sockets[0].addr
	d.to = &unix.SockaddrInet4{Port: addr.Port, Addr: [4]byte(addr.IP.To4())}
	d.sockets[0].metrics.dispatch = &d.times
	d.mux = newMux(muxConfig{
		addr: addr, preambleTimeout: 3 * time.Second, admission: newAdmission(trusted, math.MaxInt32, math.MaxInt32), log: log, metrics: mm,
	})
	return d
}

// connect connects a socket. Closing it resets the connection, so that no port waits.
func connect(to unix.Sockaddr) (fd int, err error) {
	if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, err
	}
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	if err = unix.Connect(fd, to); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// BenchmarkAcceptRatio is what a look at the accept queue costs: an acceptor's time for each connection of a queue of 500,
// accept and handing over, with looks over without. The metric dispatch_ratio leaves out the accept itself, as Kudu's
// 11.1 over 2.47 µs do; sockdiag1 looks as Kudu does, once for each connection.
func BenchmarkAcceptRatio(b *testing.B) {
	const fills, queue, pairs = 8, 500, 80
	for _, c := range []struct {
		name     string
		log2     int
		sockDiag bool
	}{{"every1", 0, false}, {"every8", 3, false}, {"sockdiag1", -1, true}, {"off", -1, false}} {
		b.Run("sample="+c.name+"_over_off", func(b *testing.B) {
			d := openDoor(b)
			defer d.mux.stop()
			defer d.close()
			diag := openSockDiag(b, d.to)
			s, a := d.sockets[0], d.sockets[0].acceptors[0]
			defer debug.SetGCPercent(debug.SetGCPercent(-1)) // between slices instead
			n := uint64(0)
			slice := func(log2 int, sockDiag bool) []float64 {
				d.setEvery(log2)
				d.times.take()
				runtime.GC()
				var spent time.Duration
				for range fills {
					clients := make([]int, queue)
					for i := range clients {
						fd, err := connect(d.to)
						if err != nil {
							b.Fatal(err)
						}
						clients[i] = fd
					}
					start := time.Now()
					for range clients {
						conn, err := a.accept()
						if err != nil {
							b.Fatal(err)
						}
						n++
						if sockDiag {
							before := time.Now()
							if _, err := diag.queue(); err != nil {
								b.Fatal(err)
							}
							d.times.sum += float64(time.Since(before).Nanoseconds()) / 1e3
						}
						d.dispatch(s, a, conn, n, d.mux.take)
					}
					spent += time.Since(start)
					for _, fd := range clients {
						unix.Close(fd)
					}
					d.mux.settle(time.Second)
				}
				_, _, _, sum := d.times.take()
				return []float64{float64(spent.Nanoseconds()) / (fills * queue), sum * 1e3 / (fills * queue)}
			}
			for b.Loop() {
				ratios, added, offs := inTurns(pairs, func() []float64 { return slice(-1, false) }, func() []float64 { return slice(c.log2, c.sockDiag) })
				b.ReportMetric(ratios[0], "ratio")
				b.ReportMetric(ratios[1], "dispatch_ratio")
				b.ReportMetric(offs[0], "ns/accept_off")
				b.ReportMetric(offs[1], "ns/dispatch_off")
				b.ReportMetric(added[0], "ns/accept_added")
				b.ReportMetric(added[1], "ns/dispatch_added")
			}
		})
	}
}

// BenchmarkQueueSample is one look at the accept queue.
func BenchmarkQueueSample(b *testing.B) {
	d := openDoor(b)
	defer d.close()
	a := d.sockets[0].acceptors[0]
	diag := openSockDiag(b, d.to)
	for name, look := range map[string]func() (acceptQueue, error){"tcp_info": a.sample, "any_goroutine": d.sockets[0].queue, "sockdiag": diag.queue} {
		b.Run("how="+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if q, err := look(); err != nil || q.limit != kudusBacklog {
					b.Fatal(q, err)
				}
			}
		})
	}
}

// hammerVariable says, in the environment of a process of clients, what it is to do: port, clients, how long.
const hammerVariable = "NYALA_TEST_HAMMER"

// TestHammer is the clients' process of hammer; in a test's run it does nothing.
func TestHammer(t *testing.T) {
	what := os.Getenv(hammerVariable)
	if what == "" {
		t.Skip("only as the clients' process of a benchmark")
	}
	var port, clients int
	var d time.Duration
	_, err := fmt.Sscan(what, &port, &clients, (*int64)(&d))
	require.NoError(t, err)
	to := fmt.Sprintf("127.0.0.1:%d", port)
	end := time.Now().Add(d)
	var mu sync.Mutex
	var wg sync.WaitGroup
	n, slowest := 0, time.Duration(0)
	for range clients {
		wg.Go(func() {
			mine, most := 0, time.Duration(0)
			for time.Now().Before(end) {
				start := time.Now()
				conn, err := net.Dial("tcp", to)
				if err != nil {
					continue
				}
				most = max(most, time.Since(start))
				_ = conn.(*net.TCPConn).SetLinger(0)
				conn.Close()
				mine++
			}
			mu.Lock()
			n, slowest = n+mine, max(slowest, most)
			mu.Unlock()
		})
	}
	wg.Wait()
	fmt.Println("hammered", n, int64(slowest))
}

// hammer has clients connect to a port of this process and reset their connections for so long, from a process of their
// own: in this one they would hold the processors that the acceptors need. It returns how many there were and how long the
// slowest took to connect.
func hammer(b *testing.B, port, clients int, d time.Duration) (n int, slowest time.Duration) {
	b.Helper()
	cmd := exec.CommandContext(b.Context(), os.Args[0], "-test.run=^TestHammer$", "-test.v")
	cmd.Env = append(os.Environ(), "GOMAXPROCS=2", fmt.Sprintf("%s=%d %d %d", hammerVariable, port, clients, int64(d)))
	out, err := cmd.CombinedOutput()
	if err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if _, err := fmt.Sscanf(line, "hammered %d %d", &n, (*int64)(&slowest)); err == nil {
			return n, slowest
		}
	}
	b.Fatalf("no result: %s", out)
	return 0, 0
}

// BenchmarkDispatch is the table that Kudu's change came with: connections handed over in a second and how long that took
// for each, with 2 clients that connect as fast as they can.
func BenchmarkDispatch(b *testing.B) {
	for _, log2 := range []int{-1, 0, 3, 5} {
		b.Run(fmt.Sprintf("every_log2=%d", log2), func(b *testing.B) {
			d := openDoor(b)
			d.setEvery(log2)
			var wg sync.WaitGroup
			wg.Go(func() { d.run(d.mux.take) })
			defer d.mux.stop()
			defer wg.Wait()
			defer d.stop()
			for b.Loop() {
				d.times.take()
				hammer(b, d.to.Port, 2, time.Second)
				n, least, most, sum := d.times.take()
				b.ReportMetric(float64(n), "dispatched/s")
				b.ReportMetric(least, "us_min")
				b.ReportMetric(most, "us_max")
				b.ReportMetric(sum/float64(n), "us_avg")
			}
		})
	}
}

// BenchmarkConnections is connections per second to a whole server, and how long the slowest took to connect. A second or
// more is a handshake that was dropped since the queue was full, and sent again. The clients' process makes up to 80,000
// a second and takes what it gets of the processors: 512 are 7 ms, and ms_waited_for_cpu says how long this process's
// threads were ready and had none.
func BenchmarkConnections(b *testing.B) {
	for _, backlog := range []int{kudusBacklog, DefaultBacklog} {
		for _, acceptors := range []int{1, 4} {
			for _, clients := range []int{1, 8, 64} {
				b.Run(fmt.Sprintf("backlog=%d/acceptors=%d/clients=%d", backlog, acceptors, clients), func(b *testing.B) {
					var srv *Server
					address := benchServer(b, func(c *ServerConfig) { c.Acceptors, c.Backlog = acceptors, backlog }, &srv)
					port := portOf(b, address)
					for b.Loop() {
						waited := waitedForCPU(b)
						n, slowest := hammer(b, port, clients, 2*time.Second)
						b.ReportMetric(float64(n)/2, "connections/s")
						b.ReportMetric(float64((waitedForCPU(b) - waited).Milliseconds()), "ms_waited_for_cpu")
						b.ReportMetric(float64(slowest.Microseconds())/1e3, "ms_max")
						b.ReportMetric(float64(srv.door.acceptors.sockets[0].dropped()), "drops")
					}
				})
			}
		}
	}
}

// waitedForCPU is how long the threads of this process were ready to run and didn't.
func waitedForCPU(b *testing.B) (d time.Duration) {
	b.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/schedstat")
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range tasks {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // a thread that has ended
		}
		var ran, waited time.Duration
		if _, err := fmt.Sscan(string(text), (*int64)(&ran), (*int64)(&waited)); err == nil {
			d += waited
		}
	}
	return d
}

// BenchmarkMuxRatio is what the mux costs a small call: a call's time with a bare gRPC server behind our acceptors and mux
// over the same behind a listener of the net package.
func BenchmarkMuxRatio(b *testing.B) {
	write := func(context.Context, *nyalav1.WriteRequest) (*nyalav1.WriteResponse, error) {
		return &nyalav1.WriteResponse{}, nil
	}
	bare := func() *grpc.Server {
		srv := grpc.NewServer()
		nyalav1.RegisterTabletServiceServer(srv, &service{write: write})
		return srv
	}
	client := func(address string) nyalav1.TabletServiceClient {
		conn, err := grpc.NewClient("passthrough:///"+address, plaintext())
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { conn.Close() })
		return nyalav1.NewTabletServiceClient(conn)
	}
	ln, err := Listen("127.0.0.1:0", DefaultBacklog)
	if err != nil {
		b.Fatal(err)
	}
	plain, behind := bare(), bare()
	d := openDoor(b)
	var wg sync.WaitGroup
	wg.Go(func() { _ = plain.Serve(ln) })
	wg.Go(func() { _ = behind.Serve(d.mux) })
	wg.Go(func() { d.run(d.mux.take) })
	defer wg.Wait()
	defer plain.Stop()
	defer behind.Stop()
	defer d.mux.stop()
	defer d.stop()
	req := &nyalav1.WriteRequest{RowOperations: &nyalav1.RowOperations{Rows: make([]byte, 256)}}
	slice := func(c nyalav1.TabletServiceClient) func() []float64 {
		return func() []float64 {
			n, start := 0, time.Now()
			for time.Since(start) < 30*time.Millisecond {
				if _, err := c.Write(b.Context(), req); err != nil {
					b.Fatal(err)
				}
				n++
			}
			return []float64{float64(time.Since(start).Nanoseconds()) / float64(n)}
		}
	}
	over, under := slice(client(d.sockets[0].addr.String())), slice(client(ln.Addr().String()))
	for b.Loop() {
		over()
		under()
		ratios, _, offs := inTurns(60, under, over)
		b.ReportMetric(ratios[0], "ratio")
		b.ReportMetric(offs[0], "ns/call_plain")
	}
}

func benchServer(b *testing.B, edit func(*ServerConfig), out **Server) (address string) {
	b.Helper()
	cfg := DefaultServerConfig()
	cfg.BindAddresses, cfg.Logger = []string{"127.0.0.1:0"}, slog.New(slog.DiscardHandler)
	edit(&cfg)
	srv, err := NewServer(cfg)
	if err != nil {
		b.Fatal(err)
	}
	if err := srv.Listen(); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Run(ctx) })
	b.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	*out = srv
	return srv.Addresses()[0]
}

func portOf(b *testing.B, address string) (port int) {
	b.Helper()
	if _, err := fmt.Sscanf(address, "127.0.0.1:%d", &port); err != nil {
		b.Fatal(err)
	}
	return port
}
