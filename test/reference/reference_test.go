package reference

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"text/template"
	"time"

	"github.com/nyaladb/nyala/internal/clock/ntp/ntptest"
	"github.com/nyaladb/nyala/internal/daemon"
)

var update = flag.Bool("update", false, "write the documents")

// TestReferenceIsCurrent makes docs/flags.md and docs/metrics.md anew and compares, or writes them with -update.
func TestReferenceIsCurrent(t *testing.T) {
	bin := binaries(t)
	ntpServer := ntptest.New(t).Address() // so that the metrics of that time source are there
	master := ask(t, bin, "master", ntpServer)
	tserver := ask(t, bin, "tserver", ntpServer, "--tserver_master_addrs=127.0.0.1:1")
	for name, data := range map[string]any{
		"flags":   mergeFlags(master.Flags, tserver.Flags),
		"metrics": mergeMetrics(master.Metrics, tserver.Metrics),
	} {
		made := render(t, name+".md.tmpl", data)
		path := filepath.Join("..", "..", "docs", name+".md")
		if *update {
			if err := os.WriteFile(path, made, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		there, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		if !bytes.Equal(made, there) {
			t.Errorf("docs/%s.md isn't what the code gives: run make generate. The first line that differs:\n%s", name, firstDifference(there, made))
		}
	}
}

// said is what a daemon says of itself.
type said struct {
	Flags   []daemon.FlagInfo   `json:"flags"`
	Metrics []daemon.MetricInfo `json:"metrics"`
}

// ask starts a daemon and asks it. It need not become ready: a tablet server without a master never is.
func ask(t *testing.T, bin, role, ntpServer string, more ...string) said {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "nyala-"+role), append([]string{
		"--fs_wal_dir=" + t.TempDir(), "--rpc_bind_addresses=127.0.0.1:0", "--webserver_interface=127.0.0.1", "--webserver_port=0",
		"--time_source=builtin", "--builtin_ntp_servers=" + ntpServer,
	}, more...)...)
	cmd.Env = nil
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var lines strings.Builder
	defer func() {
		cancel()
		_, _ = io.Copy(&lines, log)
		if err := cmd.Wait(); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("nyala-%s: %v\n%s", role, err, &lines)
		}
	}()
	web := ""
	address := regexp.MustCompile(` web=(\S+)`)
	for sc := bufio.NewScanner(log); web == "" && sc.Scan(); {
		fmt.Fprintln(&lines, sc.Text())
		if m := address.FindStringSubmatch(sc.Text()); m != nil {
			web = m[1]
		}
	}
	if web == "" {
		t.Fatalf("nyala-%s didn't say where its web server is:\n%s", role, &lines)
	}
	var s said
	for _, path := range []string{"/varz", "/metrics/help"} {
		if err := getJSON(ctx, "http://"+web+path+"?format=json", &s); err != nil {
			t.Fatalf("nyala-%s: %v", role, err)
		}
	}
	return s
}

func getJSON(ctx context.Context, url string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(into)
}

// binaries returns where the daemons are: those of NYALA_BIN, or built now.
func binaries(t *testing.T) string {
	t.Helper()
	if bin := os.Getenv("NYALA_BIN"); bin != "" {
		return bin
	}
	dir := t.TempDir()
	for name, pkg := range map[string]string{"nyala-master": "master", "nyala-tserver": "tserver"} {
		cmd := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, name), "github.com/nyaladb/nyala/cmd/"+pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", name, err, out)
		}
	}
	return dir
}

func render(t *testing.T, name string, data any) []byte {
	t.Helper()
	tmpl, err := template.New(name).Funcs(template.FuncMap{"cell": cell}).ParseFiles(name)
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	if err := tmpl.Execute(&buf, data); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// cell makes text fit for a cell of a table.
func cell(text string) string {
	return strings.NewReplacer("|", "\\|", "\n", " ", "<", "&lt;").Replace(text)
}

// firstDifference shows the first line in which two texts differ.
func firstDifference(there, made []byte) string {
	a, b := strings.Split(string(there), "\n"), strings.Split(string(made), "\n")
	for i := range max(len(a), len(b)) {
		var was, is string
		if i < len(a) {
			was = a[i]
		}
		if i < len(b) {
			is = b[i]
		}
		if was != is || i >= min(len(a), len(b)) {
			return fmt.Sprintf("line %d\n- %s\n+ %s", i+1, was, is)
		}
	}
	return ""
}
