package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/localcluster"
)

// TestFolderMistakes is the first half of trial T53: servers on folders that aren't theirs end at once and say whose they are; files of
// others in a folder are left alone.
func TestFolderMistakes(t *testing.T) {
	c := newCluster(t, 2)
	s := state{t, c, connect(t, c), 1}
	tbl := numbersTable(t, s.cl, "t", 4, 1)
	s.insert(tbl, 1, "one")
	one, two := tabletServers(t, c)[0], tabletServers(t, c)[1]
	refused := func(what, binary, wal, data string, words ...string) {
		t.Helper()
		s.refusedStart(what, []string{filepath.Join(binDir, binary)}, wal, data, words...)
	}
	wal, data := func(s localcluster.Server) string { return filepath.Join(s.Dir, "wal") }, func(s localcluster.Server) string { return filepath.Join(s.Dir, "data") }
	refused("a second process", "nyala-tserver", wal(one), data(one), wal(one), "in use", fmt.Sprint(one.Pid))

	for _, server := range []localcluster.Server{one, two} {
		if err := c.Stop(t.Context(), server.Name); err != nil {
			t.Fatal(err)
		}
	}
	refused("a master", "nyala-master", wal(one), data(one), wal(one), "tserver", "master")
	refused("another server's data", "nyala-tserver", wal(one), data(two), wal(one), data(two), one.UUID, two.UUID)
	refused("the other way round", "nyala-tserver", wal(two), data(one), wal(two), data(one), one.UUID, two.UUID)
	if os.Getuid() == 0 {
		// To root all is writable that isn't mounted otherwise.
		mount := []string{"unshare", "--mount", "sh", "-c", `mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"`, wal(one)}
		if out, err := exec.CommandContext(t.Context(), mount[0], append(mount[1:], "true")...).CombinedOutput(); err != nil {
			t.Logf("no read-only folder was tried, for want of the right to mount one: %v, %s", err, out)
		} else {
			s.refusedStart("a read-only folder", append(mount, filepath.Join(binDir, "nyala-tserver")), wal(one), data(one), wal(one), "read-only")
		}
	} else {
		if err := os.Chmod(wal(one), 0o555); err != nil {
			t.Fatal(err)
		}
		refused("a read-only folder", "nyala-tserver", wal(one), data(one), wal(one), "permission denied")
		if err := os.Chmod(wal(one), 0o755); err != nil {
			t.Fatal(err)
		}
	}

	var strays []string
	for _, dir := range []string{wal(one), data(one), filepath.Join(data(one), "store"), wal(two), data(two), filepath.Join(data(two), "store")} {
		for _, name := range []string{".DS_Store", "x.tmp", "lost+found"} {
			path := filepath.Join(dir, name)
			if err := os.Mkdir(path, 0o700); name == "lost+found" && err != nil {
				t.Fatal(err)
			}
			if name != "lost+found" {
				os.Remove(path)
				if err := os.WriteFile(path, []byte("stray"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			strays = append(strays, path)
		}
	}
	for _, server := range []localcluster.Server{one, two} {
		if err := c.Start(t.Context(), server.Name); err != nil {
			t.Fatal(err)
		}
	}
	s.wantRows("t", s.rows(s.open("t")), "1 one")
	s.nyala("", "table", "scan", "t", "--format", "csv").want(t, "the row", 0, "id,name\n1,one\n")
	for _, path := range strays {
		if text, err := os.ReadFile(path); string(text) != "stray" && !errors.Is(err, syscall.EISDIR) {
			t.Errorf("a stray file: %q, %v", text, err)
		}
	}
}

// refusedStart shows that a server doesn't start on the folders, ends in under 5 s, and says these words.
func (s state) refusedStart(what string, command []string, wal, data string, words ...string) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 20*time.Second)
	defer cancel()
	masters := "--tserver_master_addrs="
	if strings.HasSuffix(command[len(command)-1], "master") {
		masters = "--master_addresses="
	}
	args := append(command[1:], masters+strings.Join(s.c.MasterAddresses(), ","), "--rpc_bind_addresses=127.0.0.1:0", "--webserver_interface=127.0.0.1",
		"--webserver_port=0", "--fs_wal_dir="+wal, "--fs_data_dirs="+data, "--log_dir="+s.TempDir())
	began := time.Now()
	out, err := exec.CommandContext(ctx, command[0], args...).CombinedOutput()
	took := time.Since(began)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() <= 0 || took > 5*time.Second {
		s.Errorf("%s: %v after %v: %s", what, err, took, out)
	}
	for _, w := range words {
		if !strings.Contains(string(out), w) {
			s.Errorf("%s: it doesn't say %q: %s", what, w, out)
		}
	}
}

// TestRestarts is the other half of trial T53: a server with 500 tablets is killed with -9 and started again twenty times, and asked all
// the while how it is; it ends soon when it is told to amid its start; its folder doesn't grow.
func TestRestarts(t *testing.T) {
	const tables, buckets, restarts = 5, 100, 20
	c := newCluster(t, 1)
	s := state{t, c, connect(t, c), 1}
	for i := range tables {
		s.insert(numbersTable(t, s.cl, fmt.Sprint("t", i), buckets, 1), i, "row")
	}
	server := tabletServers(t, c)[0]
	files, size := folderSize(t, server.Dir)
	w := watchStart(t, server)
	said := map[string]int{} // by the command line
	for range restarts {
		if err := c.Kill(server.Name); err != nil {
			t.Fatal(err)
		}
		started := make(chan error, 1)
		go func() { started <- c.Start(t.Context(), server.Name) }()
		for said["starting"] == 0 && len(started) == 0 {
			said[localStatus(t, c.Dir())[server.Name].State]++
		}
		if err := <-started; err != nil {
			t.Fatal(err)
		}
	}
	w.end(tables * buckets)
	if said["starting"] == 0 {
		t.Errorf("local status said %v, never that the server was starting", said)
	}

	// Told to end amid its start, which the test finds by asking.
	command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", tabletServers(t, c)[0].Pid))
	if err != nil {
		t.Skipf("the command of a process is looked up in /proc: %v", err)
	}
	args := strings.Split(strings.TrimSuffix(string(command), "\x00"), "\x00")
	if err := c.Kill(server.Name); err != nil {
		t.Fatal(err)
	}
	amid := false
	for try := 0; try < 10 && !amid; try++ {
		p := exec.CommandContext(t.Context(), args[0], args[1:]...)
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		for {
			resp, err := http.Get("http://" + server.Web + "/readyz")
			if err == nil {
				amid = resp.StatusCode == http.StatusServiceUnavailable
				resp.Body.Close()
				break
			}
		}
		began := time.Now()
		if err := p.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		err := p.Wait()
		if took := time.Since(began); took > 10*time.Second || err != nil {
			t.Errorf("told to end amid its start it took %v: %v", took, err)
		}
	}
	if !amid {
		t.Error("no start was seen amid")
	}
	if err := c.Start(t.Context(), server.Name); err != nil {
		t.Fatal(err)
	}
	if f, n := folderSize(t, server.Dir); f > 2*files || n > 2*size {
		t.Errorf("%d files with %d bytes before, %d with %d after", files, size, f, n)
	}
	for i := range tables {
		tbl := s.open(fmt.Sprint("t", i))
		s.wantRows(tbl.Name(), s.rows(tbl), fmt.Sprint(i, " row"))
		s.wantCount(tbl, tbl.Name(), 1, "name = 'row'")
	}
}

// folderSize counts the files in a folder, and their bytes.
func folderSize(t *testing.T, dir string) (files int, bytes int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			files, bytes = files+1, bytes+info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files, bytes
}

// watch asks a server again and again how it is.
type watch struct {
	t        *testing.T
	stop     context.CancelFunc
	done     chan struct{}
	starting int // times that it said it was starting
	ready    int
	replicas int // the fewest that it listed when it was ready
}

func watchStart(t *testing.T, server localcluster.Server) *watch {
	t.Helper()
	conn, err := grpc.NewClient(server.RPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w := &watch{t: t, stop: cancel, done: make(chan struct{}), replicas: 1 << 30}
	go func() {
		defer close(w.done)
		defer conn.Close()
		for every := time.NewTicker(5 * time.Millisecond); ctx.Err() == nil; <-every.C {
			w.once(ctx, conn, server)
		}
	}()
	return w
}

// once asks for the status, the replicas and the metrics. No answer is no fault: the server may be down.
func (w *watch) once(ctx context.Context, conn *grpc.ClientConn, server localcluster.Server) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if s, err := nyalav1.NewServerServiceClient(conn).GetStatus(ctx, &nyalav1.GetStatusRequest{}); err == nil {
		switch {
		case s.GetReady():
			w.ready++
			list, err := nyalav1.NewTabletAdminServiceClient(conn).ListTablets(ctx, &nyalav1.ListTabletsRequest{})
			again, err2 := nyalav1.NewServerServiceClient(conn).GetStatus(ctx, &nyalav1.GetStatusRequest{})
			if err == nil && err2 == nil && again.GetIncarnation() == s.GetIncarnation() { // the same process gave the list
				w.replicas = min(w.replicas, len(list.GetReplicas()))
			}
		case s.GetState() == "":
			w.t.Error("it isn't ready and doesn't say why")
		default:
			w.starting++
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+server.Web+"/metrics", nil)
	if err != nil {
		w.t.Error(err)
		return
	}
	if resp, err := http.DefaultClient.Do(req); err == nil {
		if resp.Body.Close(); resp.StatusCode != http.StatusOK {
			w.t.Errorf("/metrics: %s", resp.Status)
		}
	}
}

// end stops asking, and shows that the server said that it was starting, and never that it was ready with fewer replicas.
func (w *watch) end(replicas int) {
	w.t.Helper()
	w.stop()
	<-w.done
	if w.starting == 0 || w.ready == 0 || w.replicas != replicas {
		w.t.Errorf("it was starting %d times and ready %d times, with %d replicas at least, want %d", w.starting, w.ready, w.replicas, replicas)
	}
}
