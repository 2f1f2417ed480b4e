// Package binaries finds or builds the programs that tests on real processes run.
package binaries

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Run runs a package's tests and returns the exit code. Meanwhile folder names the one that holds nyala, nyala-master and
// nyala-tserver: $NYALA_BIN or, where that isn't set, one with freshly built ones.
func Run(m *testing.M, folder *string) int {
	if *folder = os.Getenv("NYALA_BIN"); *folder != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "nyala-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	*folder = dir
	for name, pkg := range map[string]string{"nyala": "nyala", "nyala-master": "master", "nyala-tserver": "tserver"} {
		cmd := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(dir, name), "github.com/nyaladb/nyala/cmd/"+pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build %s: %v\n%s", name, err, out)
			return 1
		}
	}
	return m.Run()
}
