package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nyaladb/nyala/internal/localcluster"
)

// Peer is a cluster of another system's processes, in a temporary folder, to measure beside ours.
type Peer struct {
	dir     string
	env     []string
	servers []*exec.Cmd
	// Address is where its clients connect: Kudu's master, etcd's leader.
	Address string
}

// KuduUp starts one of Kudu's masters and three of its tablet servers, the latter with the given flags. home is the folder of an
// unpacked release (bin, lib).
func KuduUp(ctx context.Context, home string, flags ...string) (_ *Peer, err error) {
	lib := filepath.Join(home, "lib")
	p, err := newPeer("kudu", "LD_LIBRARY_PATH="+lib, "SASL_PATH="+filepath.Join(lib, "sasl2"), "KUDU_HOME="+home)
	if err != nil {
		return nil, err
	}
	addresses, err := freeAddresses(8)
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	p.Address = addresses[0]
	for i := range 4 {
		name, program, own := fmt.Sprintf("ts%d", i), "kudu-tserver", append(flags[:len(flags):len(flags)], "--tserver_master_addrs="+p.Address)
		if i == 0 {
			name, program, own = "master", "kudu-master", nil
		}
		dir := filepath.Join(p.dir, name)
		host, port, _ := strings.Cut(addresses[4+i], ":")
		args := append([]string{
			"--unlock_unsafe_flags", "--unlock_experimental_flags", "--time_source=system_unsync", "--logtostderr", "--minloglevel=1",
			"--fs_wal_dir=" + filepath.Join(dir, "wal"), "--fs_data_dirs=" + filepath.Join(dir, "data"), "--log_dir=" + dir,
			"--rpc_bind_addresses=" + addresses[i], "--webserver_interface=" + host, "--webserver_port=" + port,
		}, own...)
		if err := errors.Join(os.MkdirAll(dir, 0o755), p.start(name, filepath.Join(home, "bin", program), args...)); err != nil {
			return nil, errors.Join(err, p.Close())
		}
	}
	err = p.until(ctx, "all of Kudu's tablet servers are registered", func() bool {
		out, err := p.Output(ctx, filepath.Join(home, "bin", "kudu"), "tserver", "list", p.Address, "--format=json", "--columns=uuid")
		return err == nil && strings.Count(out, "uuid") == 3
	})
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// EtcdUp starts three etcd nodes; Address is the leader's.
func EtcdUp(ctx context.Context, program string) (_ *Peer, err error) {
	p, err := newPeer("etcd")
	if err != nil {
		return nil, err
	}
	addresses, err := freeAddresses(6)
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	var members []string
	for i, a := range addresses[3:] {
		members = append(members, fmt.Sprintf("n%d=http://%s", i, a))
	}
	for i := range 3 {
		name, clients, peers := fmt.Sprintf("n%d", i), "http://"+addresses[i], "http://"+addresses[3+i]
		if err := p.start(name, program, "--name="+name, "--data-dir="+filepath.Join(p.dir, name), "--listen-client-urls="+clients,
			"--advertise-client-urls="+clients, "--listen-peer-urls="+peers, "--initial-advertise-peer-urls="+peers,
			"--initial-cluster="+strings.Join(members, ","), "--initial-cluster-state=new"); err != nil {
			return nil, errors.Join(err, p.Close())
		}
	}
	err = p.until(ctx, "an etcd node leads", func() bool {
		for _, a := range addresses[:3] {
			if leads, err := etcdLeads(ctx, a); err == nil && leads {
				p.Address = a
			}
		}
		return p.Address != ""
	})
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// etcdLeads asks a node for its status, through etcd's JSON gateway.
func etcdLeads(ctx context.Context, address string) (bool, error) {
	var st struct {
		Header struct {
			MemberID string `json:"member_id"`
		} `json:"header"`
		Leader string `json:"leader"`
	}
	err := postJSON(ctx, "http://"+address+"/v3/maintenance/status", &st)
	return err == nil && st.Leader != "" && st.Leader == st.Header.MemberID, err
}

func newPeer(name string, env ...string) (*Peer, error) {
	dir, err := os.MkdirTemp("", "nyala-bench-"+name+"-")
	return &Peer{dir: dir, env: append(os.Environ(), env...)}, err
}

// start starts a server whose output goes to a file. It has a session of its own as ours do: systems that share processors out
// by session treat both alike.
func (p *Peer) start(name, program string, args ...string) error {
	out, err := os.Create(filepath.Join(p.dir, name+".out"))
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr, cmd.Env = out, out, p.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	p.servers = append(p.servers, cmd)
	return nil
}

// Output runs a program of the peer's to its end and returns what it printed.
func (p *Peer) Output(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = p.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", filepath.Base(program), strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// Usage is what all of its servers have used.
func (p *Peer) Usage() (Usage, error) {
	var servers []localcluster.Server
	for _, cmd := range p.servers {
		servers = append(servers, localcluster.Server{Name: filepath.Base(cmd.Path), Pid: cmd.Process.Pid})
	}
	return UsageOf(servers)
}

// Close ends the servers and deletes their folder.
func (p *Peer) Close() error {
	for _, cmd := range p.servers {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	return os.RemoveAll(p.dir)
}

// until asks again and again, for a minute at most.
func (p *Peer) until(ctx context.Context, what string, cond func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for !cond() {
		if err := Pause(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("waited in vain until %s", what)
		}
	}
	return nil
}

// freeAddresses returns n addresses of the loopback that were free a moment ago.
func freeAddresses(n int) ([]string, error) {
	var all []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		all = append(all, l.Addr().String())
	}
	return all, nil
}

func postJSON(ctx context.Context, url string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("{}"))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(resp.Body).Decode(into)
}
