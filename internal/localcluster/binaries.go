package localcluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// binaryName is the file that a server of the role is run from.
func binaryName(role Role) string { return "nyala-" + string(role) }

// findBinary looks for a server's program: in binDir if that is given, else beside this executable, in the folder bin
// beside it, and in PATH.
func findBinary(role Role, binDir string) (string, error) {
	name := binaryName(role)
	if binDir != "" {
		path := filepath.Join(binDir, name)
		if !executable(path) {
			return "", fmt.Errorf("no program %s: build it with make build", path)
		}
		return filepath.Abs(path)
	}
	beside := "this executable's folder"
	if self, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(self); err == nil {
			self = real
		}
		beside = filepath.Dir(self)
		for _, path := range []string{filepath.Join(beside, name), filepath.Join(beside, "bin", name)} {
			if executable(path) {
				return path, nil
			}
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("found no %s in %s or in PATH: build it with make build, or say where it is with --bin_dir", name, beside)
	}
	return filepath.Abs(path)
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}
