package e2e

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestReadmeQuickStart runs the quick start of the README as it stands there, but for make itself and the default ports,
// which a test can't count on: the cluster gets free ones.
func TestReadmeQuickStart(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(readme), -1)
	var script string
	for _, b := range blocks {
		if strings.Contains(b[1], "nyala local up") {
			script = b[1]
		}
	}
	if script == "" {
		t.Fatal("the README has no quick start that says nyala local up")
	}
	dir := t.TempDir()
	script = strings.ReplaceAll(script, "/tmp/nyala", dir+"/nyala")
	script = strings.ReplaceAll(script, "make build\n", "")
	script = strings.ReplaceAll(script, "export PATH=$PWD/bin:$PATH", "export PATH="+binDir+":$PATH")
	// Where another cluster holds the default ports this one got others, and says so.
	up, rest, found := strings.Cut(script, "nyala table create")
	if !found {
		t.Fatalf("the quick start creates no table:\n%s", script)
	}
	if r := command(t, "", nil, "bash", "-euo", "pipefail", "-c", up); r.code != 0 {
		t.Fatalf("%s\n%+v", up, r)
	}
	rest = "export NYALA_MASTERS=" + localStatus(t, dir+"/nyala")["master-1"].RPC + " PATH=" + binDir + ":$PATH\nnyala table create" + rest
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", rest)
	cmd.Dir = "../.."
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s\nprinted:\n%s", err, script, out)
	}
	for _, want := range []string{"27004", "OK"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the quick start didn't print %q:\n%s", want, out)
		}
	}
}

// TestDemo runs the demonstration and shows that it found every answer right.
func TestDemo(t *testing.T) {
	r := nyala(t, "", "demo")
	if r.code != 0 || !strings.Contains(r.out, "2,493 flights") || !strings.Contains(r.out, "27,004 rows") {
		t.Errorf("exit code %d\n%s\n%s", r.code, r.out, r.err)
	}
}
