package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nyaladb/nyala/client"
)

// island is a cluster whose tablet servers are each a machine of its own to the network: a network namespace with a cable to a
// bridge, where the master and the test are. A cable can be cut: what goes over it is lost, and nobody is told.
type island struct {
	*testing.T
	dir, name string // the bridge's
	subnet    string // "10.a.b."
	master    string
	hosts     []*host
	processes []*exec.Cmd
}

// host is one of the machines.
type host struct {
	space, cable string // the namespace, and the bridge's end of the cable
	ip           string
	server       *exec.Cmd
	lives        int // servers with folders of their own that were started on it
}

const islandRPC, islandWeb = "17050", "18050"

// newIsland builds the network, where that may be done, and starts a master and n tablet servers.
func newIsland(t *testing.T, n int) *island {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	for _, tool := range []string{"ip", "bridge"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs iproute2: %v", err)
		}
	}
	pid := os.Getpid()
	i := &island{T: t, dir: t.TempDir(), name: fmt.Sprintf("nyb%d", pid), subnet: fmt.Sprintf("10.%d.%d.", 128+pid>>8&0x7f, pid&0xff)}
	if out, err := exec.Command("ip", "link", "add", i.name, "type", "bridge").CombinedOutput(); err != nil {
		t.Skipf("no bridge can be made here: %s", out)
	}
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", i.name).Run() })
	i.ip("addr", "add", i.subnet+"1/24", "dev", i.name)
	i.ip("link", "set", i.name, "up")
	i.master = i.subnet + "1:17051"
	t.Cleanup(func() {
		for _, p := range i.processes {
			_ = p.Process.Kill()
			_ = p.Wait()
		}
	})
	i.start("", "nyala-master", "master", i.subnet+"1", "17051", "18051")
	for k := range n {
		h := &host{space: fmt.Sprintf("ny%d-%d", pid, k), cable: fmt.Sprintf("ny%d-%d", pid, k), ip: fmt.Sprint(i.subnet, 10+k)}
		i.ip("netns", "add", h.space)
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", h.space).Run() })
		i.ip("link", "add", h.cable, "type", "veth", "peer", "name", "eth0", "netns", h.space)
		i.ip("link", "set", h.cable, "master", i.name)
		i.ip("link", "set", h.cable, "up")
		i.ip("-n", h.space, "addr", "add", h.ip+"/24", "dev", "eth0")
		i.ip("-n", h.space, "link", "set", "eth0", "up")
		i.ip("-n", h.space, "link", "set", "lo", "up")
		i.hosts = append(i.hosts, h)
		i.startServer(h)
	}
	return i
}

func (i *island) ip(args ...string) {
	i.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		i.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// startServer starts a tablet server that was never there before on a machine.
func (i *island) startServer(h *host) {
	i.Helper()
	h.lives++
	h.server = i.start(h.space, "nyala-tserver", fmt.Sprintf("%s-%d", h.space, h.lives), h.ip, islandRPC, islandWeb,
		"--tserver_master_addrs="+i.master)
}

// start starts a daemon in a namespace ("": the test's) and waits until it is ready.
func (i *island) start(space, program, name, ip, rpc, web string, flags ...string) *exec.Cmd {
	i.Helper()
	args := append([]string{
		filepath.Join(binDir, program), "--rpc_bind_addresses=" + net.JoinHostPort(ip, rpc), "--webserver_interface=" + ip, "--webserver_port=" + web,
		"--fs_wal_dir=" + filepath.Join(i.dir, name), "--unlock_unsafe_flags", "--time_source=system_unsync",
	}, flags...)
	if space != "" {
		args = append([]string{"ip", "netns", "exec", space}, args...)
	}
	log, err := os.Create(filepath.Join(i.dir, name+".log"))
	if err != nil {
		i.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		i.Fatal(err)
	}
	i.processes = append(i.processes, cmd)
	if program == "nyala-master" {
		web = "18051"
	}
	until(i.T, 30*time.Second, name+" is ready", func() bool {
		ctx, cancel := context.WithTimeout(i.Context(), time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(ip, web)+"/readyz", http.NoBody)
		if err != nil {
			i.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK || program == "nyala-master" && resp.StatusCode != 0
	})
	return cmd
}

// cut has all that goes to or from a machine vanish, or no longer.
func (i *island) cut(h *host, cut bool) {
	i.Helper()
	state := "3" // forwarding
	if cut {
		state = "0" // disabled
	}
	if out, err := exec.Command("bridge", "link", "set", "dev", h.cable, "state", state).CombinedOutput(); err != nil {
		i.Fatalf("bridge link set dev %s: %v: %s", h.cable, err, out)
	}
}

// established counts the connections that a machine's system holds for established with any of the others, at its port of RPCs
// or theirs.
func (i *island) established(at *host, with ...*host) (n int) {
	i.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", at.server.Process.Pid))
	if err != nil {
		i.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 4 || fields[3] != "01" {
			continue
		}
		for _, h := range with {
			ip := net.ParseIP(h.ip).To4()
			if strings.HasPrefix(fields[2], fmt.Sprintf("%02X%02X%02X%02X:", ip[3], ip[2], ip[1], ip[0])) {
				n++
			}
		}
	}
	return n
}

func (i *island) connect() *client.Client {
	i.Helper()
	cl, err := client.Connect(i.Context(), client.Options{Masters: []string{i.master}, Timeout: time.Minute})
	if err != nil {
		i.Fatal(err)
	}
	i.Cleanup(func() { cl.Close() })
	return cl
}
