package localcluster

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
)

// TestMain runs the tests, or, under the name of one of the servers, a stand-in for it.
func TestMain(m *testing.M) {
	if strings.HasPrefix(filepath.Base(os.Args[0]), "nyala-") {
		if err := fakeServer(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// fakeServer answers /readyz and GetStatus as a daemon does. It takes --fail=TEXT (ends at once), --unready (never ready)
// and --stubborn (ignores SIGTERM), and writes its arguments in its folder.
func fakeServer(args []string) error {
	flags := map[string]string{}
	for _, a := range args {
		name, value, _ := strings.Cut(strings.TrimPrefix(a, "--"), "=")
		flags[name] = value
	}
	if text := flags["fail"]; text != "" {
		return fmt.Errorf("%s", text)
	}
	dir := flags["fs_wal_dir"]
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "args"), []byte(strings.Join(args, "\n")), 0o644); err != nil {
		return err
	}
	id, err := os.ReadFile(filepath.Join(dir, "id"))
	if err != nil {
		id = []byte(ident.New())
		if err := os.WriteFile(filepath.Join(dir, "id"), id, 0o644); err != nil {
			return err
		}
	}
	rpc, err := net.Listen("tcp", flags["rpc_bind_addresses"])
	if err != nil {
		return err
	}
	web, err := net.Listen("tcp", flags["webserver_interface"]+":"+flags["webserver_port"])
	if err != nil {
		return err
	}
	gs := grpc.NewServer()
	nyalav1.RegisterServerServiceServer(gs, &fakeStatus{id: string(id)})
	go func() { _ = gs.Serve(rpc) }()
	_, unready := flags["unready"]
	pages := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if unready {
			http.Error(w, "opening tablets: 0 of 7", http.StatusServiceUnavailable)
		}
	})
	go func() { _ = http.Serve(web, pages) }()
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	if _, ok := flags["stubborn"]; ok {
		select {} // the test kills it
	}
	select {
	case <-term:
	case <-time.After(time.Minute): // nobody leaves one behind for long
	}
	return nil
}

type fakeStatus struct {
	nyalav1.UnimplementedServerServiceServer
	id string
}

func (f *fakeStatus) GetStatus(context.Context, *nyalav1.GetStatusRequest) (*nyalav1.GetStatusResponse, error) {
	return &nyalav1.GetStatusResponse{ServerId: f.id}, nil
}

// testConfig returns a configuration whose servers are this test binary.
func testConfig(t *testing.T) Config {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	for _, role := range []Role{RoleMaster, RoleTserver} {
		// A copy by hard link or symlink keeps its own name in os.Args[0].
		if err := os.Symlink(self, filepath.Join(bin, binaryName(role))); err != nil {
			t.Fatal(err)
		}
	}
	return Config{
		Dir: filepath.Join(t.TempDir(), "cluster"), TabletServers: 2, BinDir: bin, RandomPorts: true,
		ReadyTimeout: 20 * time.Second, Notify: func(s string) { t.Log(s) },
	}
}
