package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nyaladb/nyala/bench/rig"
	"github.com/nyaladb/nyala/internal/rpc"
)

var (
	rounds  = flag.Int("rounds", 5, "turns of each server and number of clients")
	seconds = flag.Float64("seconds", 2, "length of a turn")
	kudu    = flag.String("kudu", "", "a folder with Kudu's binaries; empty: ours alone")
)

func main() {
	if len(os.Args) == 5 && os.Args[1] == clientsArgument {
		hammer(os.Args[2], os.Args[3], os.Args[4])
		return
	}
	rig.Main(run)
}

type result struct {
	Benchmark string `json:"benchmark"`
	Rows      []*row `json:"rows"`
	// Stalls are turns of ours, with the default settings, in which a connection took longer than 100 ms, of so many; Drops
	// those in which it took so long that its handshake had been dropped.
	Stalls int `json:"stalls"`
	Drops  int `json:"drops"`
	Turns  int `json:"turns"`
}

// row is one server with so many clients.
type row struct {
	Server    string      `json:"server"`
	Acceptors int         `json:"acceptors"`
	Backlog   int         `json:"backlog"`
	Clients   int         `json:"clients"`
	PerSecond rig.Summary `json:"connections_per_second"`
	P99       rig.Summary `json:"p99_ms"`
	Slowest   rig.Summary `json:"slowest_ms"`
	Stalls    int         `json:"stalls"`
	Drops     int         `json:"drops"`

	perSecond, p99, slowest []float64
}

// target is a server that is measured.
type target struct {
	name string
	settings
	address string
}

// settings are what a server is told: how many acceptors, and how many connections may wait for them (-1: as many as the system
// lets).
type settings struct{ acceptors, backlog int }

func (s settings) flags() []string {
	return []string{fmt.Sprintf("--rpc_num_acceptors_per_address=%d", s.acceptors), fmt.Sprintf("--rpc_acceptor_listen_backlog=%d", s.backlog)}
}

// tried are our defaults, Kudu's, and more acceptors.
var tried = []settings{{rpc.DefaultAcceptors, rpc.DefaultBacklog}, {1, 512}, {4, 512}}

func run(ctx context.Context) (_ any, err error) {
	var targets []target
	for _, o := range tried {
		c, err := rig.Up(ctx, 1, o.flags()...)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, c.Close()) }()
		servers, err := c.Tservers()
		if err != nil {
			return nil, err
		}
		targets = append(targets, target{"nyala", o, servers[0].RPC})
	}
	for _, o := range tried {
		if *kudu == "" {
			break
		}
		address, stop, err := startKudu(ctx, o)
		if err != nil {
			return nil, err
		}
		defer stop()
		targets = append(targets, target{"kudu", o, address})
	}
	r := &result{Benchmark: "acceptor"}
	rows := map[string]*row{}
	for round := range *rounds {
		for _, clients := range []int{1, 8, 64} {
			for _, t := range targets {
				n, p99, slowest, err := turn(ctx, t.address, clients)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", t.name, err)
				}
				rig.Say("round %d: %s, %d acceptors, backlog %d, %d clients: %.0f/s, p99 %.1f ms, slowest %.1f ms", round+1, t.name, t.acceptors, t.backlog, clients,
					float64(n) / *seconds, p99, slowest)
				key := fmt.Sprint(t, clients)
				x := rows[key]
				if x == nil {
					x = &row{Server: t.name, Acceptors: t.acceptors, Backlog: t.backlog, Clients: clients}
					rows[key] = x
					r.Rows = append(r.Rows, x)
				}
				x.perSecond, x.p99, x.slowest = append(x.perSecond, float64(n) / *seconds), append(x.p99, p99), append(x.slowest, slowest)
				stalled, dropped := count(slowest > 100), count(slowest >= resendMs)
				x.Stalls += stalled
				x.Drops += dropped
				if t.name == "nyala" && t.settings == tried[0] {
					r.Turns++
					r.Stalls += stalled
					r.Drops += dropped
				}
			}
		}
	}
	for _, x := range r.Rows {
		x.PerSecond, x.P99, x.Slowest = rig.Summarize(x.perSecond), rig.Summarize(x.p99), rig.Summarize(x.slowest)
	}
	return r, nil
}

// resendMs is after how many milliseconds a client's system sends a handshake again that was dropped.
const resendMs = 1000

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

const clientsArgument = "clients"

// turn has clients connect for a while, from a process of their own.
func turn(ctx context.Context, address string, clients int) (n int, p99, slowest float64, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, 0, 0, err
	}
	cmd := exec.CommandContext(ctx, self, clientsArgument, address, fmt.Sprint(clients), fmt.Sprint(*seconds))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err == nil {
		_, err = fmt.Sscan(string(out), &n, &p99, &slowest)
	}
	return n, p99, slowest, err
}

// hammer is the clients' process. It prints how many connections there were, and of the milliseconds that they took to connect
// the 99th percentile and the most.
func hammer(address, clients, duration string) {
	var count int
	var length float64
	if _, err := fmt.Sscan(clients+" "+duration, &count, &length); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	end := time.Now().Add(time.Duration(length * float64(time.Second)))
	var mu sync.Mutex
	var all []float64
	var wg sync.WaitGroup
	for range count {
		wg.Go(func() {
			var mine []float64
			for time.Now().Before(end) {
				begun := time.Now()
				conn, err := net.DialTimeout("tcp", address, 5*time.Second)
				if err != nil {
					continue
				}
				mine = append(mine, rig.Ms(time.Since(begun)))
				// A reset, so that no port waits for late packets.
				_ = conn.(*net.TCPConn).SetLinger(0)
				conn.Close()
			}
			mu.Lock()
			all = append(all, mine...)
			mu.Unlock()
		})
	}
	wg.Wait()
	if len(all) == 0 {
		fmt.Fprintln(os.Stderr, "nobody could connect to", address)
		os.Exit(1)
	}
	slices.Sort(all)
	fmt.Println(len(all), all[len(all)*99/100], all[len(all)-1])
}

// freeAddress is a loopback address whose port was free a moment ago.
func freeAddress() string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "127.0.0.1:0"
	}
	defer ln.Close()
	return ln.Addr().String()
}

// startKudu starts one of Kudu's tablet servers, which needs no master to take connections in.
func startKudu(ctx context.Context, o settings) (address string, stop func(), err error) {
	dir, err := os.MkdirTemp("", "nyala-bench-kudu-")
	if err != nil {
		return "", nil, err
	}
	address = freeAddress()
	web := freeAddress()
	args := append(o.flags(), "--unlock_unsafe_flags", "--unlock_experimental_flags",
		"--time_source=system_unsync", "--logtostderr", "--minloglevel=2", "--fs_wal_dir="+filepath.Join(dir, "wal"), "--fs_data_dirs="+filepath.Join(dir, "data"),
		"--log_dir="+dir, "--rpc_bind_addresses="+address, "--webserver_interface=127.0.0.1", "--webserver_port="+web[strings.LastIndexByte(web, ':')+1:],
		"--tserver_master_addrs=127.0.0.1:1")
	cmd := exec.CommandContext(ctx, filepath.Join(*kudu, "bin", "kudu-tserver"), args...)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(*kudu, "lib"), "SASL_PATH="+filepath.Join(*kudu, "lib", "sasl2"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // as ours: systems that share processors out by session treat both alike
	var words strings.Builder
	cmd.Stdout, cmd.Stderr = &words, &words
	if err := cmd.Start(); err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = os.RemoveAll(dir)
	}
	for end := time.Now().Add(time.Minute); ; {
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			conn.Close()
			return address, stop, nil
		}
		if time.Now().After(end) {
			stop()
			return "", nil, fmt.Errorf("kudu-tserver doesn't listen on %s: %w; it said: %s", address, err, words.String())
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			stop()
			return "", nil, ctx.Err()
		}
	}
}
