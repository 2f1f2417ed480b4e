package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/localcluster"
)

// metric adds up the series of this name whose labels hold all of these words; none: NaN.
func metric(t *testing.T, s localcluster.Server, name string, words ...string) float64 {
	t.Helper()
	_, body := get(t, "http://"+s.Web+"/metrics")
	sum := math.NaN()
	for line := range strings.Lines(body) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || series != name && !strings.HasPrefix(series, name+"{") {
			continue
		}
		if slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(series, w) }) {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if math.IsNaN(sum) {
			sum = 0
		}
		sum += v
	}
	return sum
}

// frontDoorServer is a tablet server whose accept queue holds 16.
func frontDoorServer(t *testing.T) localcluster.Server {
	t.Helper()
	c := newCluster(t, 1, "--rpc_acceptor_listen_backlog=16")
	return tabletServers(t, c)[0]
}

// listenDrops is how many connections this network namespace has turned away at listening sockets.
func listenDrops(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/net/netstat")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "TcpExt:" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		n, err := strconv.Atoi(fields[slices.Index(names, "ListenDrops")])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	t.Fatal("/proc/net/netstat has no TcpExt lines")
	return 0
}

// stop stops a server's process and returns when none of its threads runs any more: the signal is taken by one of them, which
// may have to wait for a processor first, and until then the others go on.
func stop(t *testing.T, s localcluster.Server) {
	t.Helper()
	if err := syscall.Kill(s.Pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	until(t, 30*time.Second, s.Name+" stands still", func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", s.Pid))
		if err != nil || len(threads) == 0 {
			t.Fatal("no threads of process", s.Pid, err)
		}
		return !slices.ContainsFunc(threads, func(name string) bool {
			text, err := os.ReadFile(name)
			return err == nil && !bytes.Contains(text, []byte(") T "))
		})
	})
}

// TestAcceptQueue stops a server with a queue of 16, opens the 17 connections that it holds and tries 63 more, and lets it go on: a
// sample shows the queue as it was, the gauge goes back to 0, and drops are counted. Then the samples are turned off and to every
// eighth connection.
func TestAcceptQueue(t *testing.T) {
	s := frontDoorServer(t)
	const histogram = "rpc_listened_socket_rx_queue_size"
	if got := metric(t, s, "rpc_pending_connections_limit"); got != 16 {
		t.Fatalf("the queue holds %v", got)
	}
	// What is asked for later may hold a sample more: servers connect to each other.
	count := metric(t, s, histogram+"_count")
	if below := metric(t, s, histogram+"_bucket", `le="8"`); below < count {
		t.Fatalf("of %v samples %v are 8 or less before anything happened", count, below)
	}
	stop(t, s)
	running := sync.OnceFunc(func() { _ = syscall.Kill(s.Pid, syscall.SIGCONT) })
	defer running()
	var conns sync.WaitGroup
	open := make(chan struct{}, 80)
	ctx, cancel := context.WithCancel(t.Context())
	defer conns.Wait()
	defer cancel()
	dial := func(ctx context.Context, n int) {
		for range n {
			conns.Go(func() {
				conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.RPC)
				if err != nil {
					return // it was dropped, and has given up
				}
				open <- struct{}{}
				<-ctx.Done()
				conn.Close()
			})
		}
	}
	dial(ctx, 17)
	for range 17 {
		<-open
	}
	dropped := listenDrops(t)
	turnedAway, giveUp := context.WithCancel(ctx)
	defer giveUp()
	dial(turnedAway, 80-17)
	until(t, 10*time.Second, "the others have been turned away", func() bool { return listenDrops(t) >= dropped+80-17 })
	giveUp() // or they would try again while samples are counted
	running()
	until(t, 10*time.Second, "the queue is worked off", func() bool {
		return metric(t, s, "rpc_pending_connections") == 0 && metric(t, s, "rpc_connections_open", `protocol="unknown"`) == 0
	})
	// The acceptor had taken one of 17 when it looked.
	count, le8 := metric(t, s, histogram+"_count"), metric(t, s, histogram+"_bucket", `le="8"`)
	le16, le32 := metric(t, s, histogram+"_bucket", `le="16"`), metric(t, s, histogram+"_bucket", `le="32"`)
	if le16 < le8+7 || le32 < le8+8 || le32 < count {
		t.Errorf("samples up to 8: %v, up to 16: %v, up to 32: %v, all: %v; want 8 of 9 to 16 and none above 32", le8, le16, le32, count)
	}
	if drops := metric(t, s, "rpc_accept_queue_drops_total"); drops < 80-17 {
		t.Errorf("%v drops", drops)
	}

	const flag = "rpc_listen_socket_stats_every_log2"
	set := func(value string) {
		t.Helper()
		resp, err := http.Post("http://"+s.Web+"/varz?"+flag+"="+value, "", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
			t.Fatalf("%s=%s: %s %s", flag, value, resp.Status, body)
		}
	}
	for value, want := range map[string]float64{"-1": 0, "3": 10, "0": 80} {
		set(value)
		samples, accepted := metric(t, s, histogram+"_count"), metric(t, s, "rpc_connections_accepted")
		for n := 16; n <= 80; n += 16 { // as many at a time as the queue holds: more would wait a second
			for range 16 {
				conn, err := net.Dial("tcp", s.RPC)
				if err != nil {
					t.Fatal(err)
				}
				conn.Close()
			}
			until(t, 10*time.Second, "all are accepted", func() bool { return metric(t, s, "rpc_connections_accepted") >= accepted+float64(n) })
		}
		if got := metric(t, s, histogram+"_count") - samples; got < want || got > want+2 {
			t.Errorf("%s=%s: %v samples of 80 connections", flag, value, got)
		}
	}
	if failed := metric(t, s, "rpc_accept_errors_total"); failed != 0 {
		t.Errorf("%v accepts failed", failed)
	}
}

// TestSlowClients has 3,000 connections send a byte of the preface a second, and 50 good clients beside them: the slow ones
// are cut off after 3 s each, the good ones connect within a second, and what the server holds goes back to what it was.
func TestSlowClients(t *testing.T) {
	c := newCluster(t, 1)
	s := tabletServers(t, c)[0]
	const slow, good = 3000, 50
	goroutines, files := metric(t, s, "go_goroutines"), metric(t, s, "process_open_fds")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var lives []time.Duration
	var failed error
	dialing := make(chan struct{}, 64)
	opened := make(chan struct{}, slow)
	for range slow {
		wg.Go(func() {
			dialing <- struct{}{}
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.RPC)
			<-dialing
			opened <- struct{}{}
			if err != nil {
				mu.Lock()
				failed = err
				mu.Unlock()
				return
			}
			defer conn.Close()
			began := time.Now()
			wg.Go(func() {
				tick := time.NewTicker(time.Second)
				defer tick.Stop()
				for _, b := range []byte("PRI * HTTP/2.0\r\n\r\n") {
					if _, err := conn.Write([]byte{b}); err != nil {
						return
					}
					<-tick.C
				}
			})
			_ = conn.SetReadDeadline(began.Add(20 * time.Second))
			_, err = conn.Read(make([]byte, 1))
			life := time.Since(began)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				life = time.Hour
			}
			mu.Lock()
			lives = append(lives, life)
			mu.Unlock()
		})
	}
	for range slow {
		<-opened
	}
	var times []time.Duration
	for range good {
		began := time.Now()
		conn := dialServer(t, s.RPC)
		if _, err := nyalav1.NewServerServiceClient(conn).GetStatus(ctx, &nyalav1.GetStatusRequest{}); err != nil {
			t.Fatal(err)
		}
		times = append(times, time.Since(began))
		conn.Close()
	}
	if worst := slices.Max(times); worst > time.Second {
		t.Errorf("a good client took %v to connect", worst)
	}
	wg.Wait()
	if errors.Is(failed, syscall.EMFILE) {
		t.Skip("too few files may be open here")
	}
	if failed != nil || len(lives) != slow {
		t.Fatalf("%d slow clients connected: %v", len(lives), failed)
	}
	slices.Sort(lives)
	if shortest, longest := lives[0], lives[slow-1]; shortest < 2*time.Second || longest > 6*time.Second {
		t.Errorf("slow clients were cut off after %v to %v", shortest, longest)
	}
	if got := metric(t, s, "rpc_connections_refused_total", `reason="slow_preamble"`); got < slow {
		t.Errorf("%v counted as slow", got)
	}
	until(t, 10*time.Second, "all is given back", func() bool {
		return metric(t, s, "go_goroutines") <= goroutines+50 && metric(t, s, "process_open_fds") <= files+50
	})
}

// rawBytes is a codec that sends bytes as they are.
type rawBytes struct{}

func (rawBytes) Marshal(v any) ([]byte, error) { return v.([]byte), nil }
func (rawBytes) Unmarshal([]byte, any) error   { return nil }
func (rawBytes) Name() string                  { return "proto" }

// TestWrongLanguage speaks everything but gRPC to a server's RPC port, TLS to its web port, and gRPC messages that lie or
// are too large or nested too deeply: each is closed or refused within a second, with a line in the log for each kind, the
// server stays as large as it was, and others are served.
func TestWrongLanguage(t *testing.T) {
	c := newCluster(t, 1)
	s := tabletServers(t, c)[0]
	before := metric(t, s, "process_resident_memory_bytes")
	noise := make([]byte, 4096)
	_, _ = rand.Read(noise)
	hello := append([]byte{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3}, make([]byte, 508)...)
	lies := [][]byte{
		hello, []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), []byte("hrpc\x09\x00\x00"), []byte("hrpc\x09\x00\x00\xff\xff\xff\xff"),
		{0xff, 0xff, 0xff, 0xff},
		{0x7f, 0xff, 0xff, 0xff},
		{0, 0, 0, 0},
		{0x03, 0x20, 0, 1},
		noise,
	}
	for range 1000 - len(lies) {
		lies = append(lies, noise)
	}
	speak := func(address string, lie []byte) (string, time.Duration) {
		t.Helper()
		conn, err := net.DialTimeout("tcp", address, 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		began := time.Now()
		_, _ = conn.Write(lie) // the server may have closed it by then
		_ = conn.SetReadDeadline(began.Add(5 * time.Second))
		answer, err := io.ReadAll(conn)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s keeps a connection open that began with %.20q", address, lie)
		}
		return string(answer), time.Since(began)
	}
	for _, lie := range lies {
		answer, took := speak(s.RPC, lie)
		if took > time.Second {
			t.Errorf("a connection that began with %.20q was closed after %v", lie, took)
		}
		if bytes.HasPrefix(lie, []byte("GET")) && !strings.Contains(answer, "http://"+s.Web+"/") {
			t.Errorf("HTTP is answered with %q", answer)
		}
	}
	for _, lie := range lies[:50] {
		if bytes.HasPrefix(lie, []byte("GET")) {
			continue
		}
		if _, took := speak(s.Web, lie); took > time.Second {
			t.Errorf("a connection to the web port that began with %.20q was closed after %v", lie, took)
		}
	}
	log, err := os.ReadFile(s.Log)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"TLS on a plaintext port", "HTTP client on the RPC port", "Kudu client on the RPC port", "unknown protocol on the RPC port"} {
		if n := bytes.Count(log, []byte(line)); n < 1 || n > 3 {
			t.Errorf("the log says %d times %q", n, line)
		}
	}

	conn := dialServer(t, s.RPC)
	for what, m := range map[string]struct {
		body []byte
		code codes.Code
	}{
		"a message of one byte too many": {make([]byte, 52_428_801), codes.ResourceExhausted},
		"groups 10,001 deep":             {bytes.Repeat([]byte{0x0b}, 10_001), codes.Internal},
		"a length that lies":             {[]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f}, codes.Internal},
	} {
		began := time.Now()
		err := conn.Invoke(t.Context(), "/nyala.v1.TabletService/Write", m.body, nil, grpc.ForceCodec(rawBytes{}), grpc.MaxCallSendMsgSize(64<<20))
		if got := grpcstatus.Code(err); got != m.code || time.Since(began) > time.Second {
			t.Errorf("%s: after %v: %v", what, time.Since(began), err)
		}
	}
	if _, err := nyalav1.NewServerServiceClient(conn).GetStatus(t.Context(), &nyalav1.GetStatusRequest{}); err != nil {
		t.Error(err)
	}
	if grown := metric(t, s, "process_resident_memory_bytes") - before; grown > 64<<20 {
		t.Errorf("it grew by %v MiB", grown/(1<<20))
	}
	if got := metric(t, s, "rpc_connections_refused_total", `reason="garbage"`); got < 990 {
		t.Errorf("%v counted as garbage", got)
	}
}
