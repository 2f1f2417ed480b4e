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
	"time"

	"github.com/nyaladb/nyala/bench/rig"
	"github.com/nyaladb/nyala/internal/localcluster"
)

var (
	peersDir = flag.String("peers_dir", os.Getenv("PEERS_DIR"), "the folder of the peers' binaries")
	only     = flag.String("only", "etcd,ovsdb,kudu", "which to measure")
	rounds   = flag.Int("rounds", 5, "turns through the follower and the leader")
	writes   = flag.Int("writes", 100, "sequential writes in a turn, and processes in a row")
	tablets  = flag.Int("tablets", 2000, "Kudu's idle tablets")
	window   = flag.Duration("window", time.Minute, "how long idle Kudu is watched")
	settle   = flag.Duration("settle", 20*time.Second, "how long it is left alone before")
)

func main() { rig.Main(run) }

// throughBoth is what writes cost through a follower and through the leader.
type throughBoth struct {
	Leader         rig.Summary `json:"leader_ms"`
	Follower       rig.Summary `json:"follower_ms"`
	LeaderProcs    rig.Summary `json:"processes_leader_s"`
	FollowerProcs  rig.Summary `json:"processes_follower_s"`
	WritesPerRound int         `json:"writes"`
}

func run(ctx context.Context) (any, error) {
	measure := map[string]func(context.Context, *processes) (any, error){"etcd": etcd, "ovsdb": ovsdb, "kudu": kudu}
	result := map[string]any{"benchmark": "peers"}
	names := strings.Split(*only, ",")
	var missing []error
	for _, name := range names {
		if measure[name] == nil {
			return nil, fmt.Errorf("-only: %q is none of etcd, ovsdb, kudu", name)
		}
		for _, f := range needs()[name] {
			if _, err := os.Stat(f); err != nil {
				missing = append(missing, fmt.Errorf("%s needs %s, which isn't there: -peers_dir or PEERS_DIR names the folder of the peers' binaries", name, f))
			}
		}
	}
	if len(missing) > 0 {
		return nil, errors.Join(missing...)
	}
	for _, name := range names {
		rig.Say("%s", name)
		dir, err := os.MkdirTemp("", "peer-"+name+"-")
		if err != nil {
			return nil, err
		}
		p := &processes{dir: dir}
		result[name], err = measure[name](ctx, p)
		p.end()
		if err != nil {
			return nil, fmt.Errorf("%s: %w (its output is in %s)", name, err, dir)
		}
		if err := os.RemoveAll(dir); err != nil {
			return nil, err
		}
	}
	return result, nil
}

// needs lists the files that each peer is measured with.
func needs() map[string][]string {
	return map[string][]string{
		"etcd":  {in("bin/etcd"), in("bin/etcdbench"), in("ovs/usr/bin/etcdctl")},
		"ovsdb": {in("ovs/usr/sbin/ovsdb-server"), in("ovs/usr/bin/ovsdb-tool"), in("ovs/usr/bin/ovs-appctl"), in("ovs/usr/bin/ovn-nbctl"), in(nbSchema)},
		"kudu":  {filepath.Join(kuduHome(), "bin/kudu-tserver"), filepath.Join(kuduHome(), "bin/kudu-master"), filepath.Join(kuduHome(), "bin/kudu")},
	}
}

func in(path string) string { return filepath.Join(*peersDir, path) }

// processes are the servers of a peer.
type processes struct {
	dir string
	env []string // beside the program's own
	all []*exec.Cmd
}

// start starts a server whose output goes to a file.
func (p *processes) start(name, program string, args ...string) error {
	out, err := os.Create(filepath.Join(p.dir, name+".out"))
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr, cmd.Env = out, out, append(os.Environ(), p.env...)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	p.all = append(p.all, cmd)
	return nil
}

func (p *processes) end() {
	for _, cmd := range p.all {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// output runs a command to its end and returns what it printed.
func (p *processes) output(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), p.env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", filepath.Base(program), strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// usage is what the servers have used.
func (p *processes) usage() (rig.Usage, error) {
	var servers []localcluster.Server
	for _, cmd := range p.all {
		servers = append(servers, localcluster.Server{Name: filepath.Base(cmd.Path), Pid: cmd.Process.Pid})
	}
	return rig.UsageOf(servers)
}

// inTurns times n runs of a command through each of two servers, in turns.
func (p *processes) inTurns(ctx context.Context, r *throughBoth, follower, leader int, command func(server, n int) error) error {
	var times [2][]float64
	for round := range min(*rounds, 3) {
		for i, server := range []int{follower, leader} {
			start := time.Now()
			for n := range *writes {
				if err := command(server, round**writes+n); err != nil {
					return err
				}
			}
			times[i] = append(times[i], time.Since(start).Seconds())
		}
	}
	r.FollowerProcs, r.LeaderProcs = rig.Summarize(times[0]), rig.Summarize(times[1])
	return ctx.Err()
}

// ports returns n addresses of the loopback that were free a moment ago.
func ports(n int) ([]string, error) {
	var all []string
	var held []net.Listener
	defer func() {
		for _, l := range held {
			_ = l.Close()
		}
	}()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		held = append(held, l)
		all = append(all, l.Addr().String())
	}
	return all, nil
}

// until asks again and again, for a minute at most.
func until(ctx context.Context, what string, cond func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute) // a busy server of 1,500 replicas takes one
	defer cancel()
	for !cond() {
		if err := rig.Pause(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("waited in vain until %s", what)
		}
	}
	return nil
}

// oneLeader is the place of the only leader among servers, and of a follower; false: there isn't just one.
func oneLeader(leads []bool) (leader, follower int, ok bool) {
	leader = slices.Index(leads, true)
	follower = slices.Index(leads, false)
	return leader, follower, leader >= 0 && follower >= 0 && !slices.Contains(leads[leader+1:], true)
}
