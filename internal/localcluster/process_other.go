//go:build !linux

package localcluster

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// processStart returns the start time of a process in a form that compares, and whether it still runs (a zombie doesn't).
// Here ps says it, to the second.
func processStart(pid int) (start string, running bool, err error) {
	out, err := exec.Command("ps", "-o", "stat=,lstart=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return "", false, fmt.Errorf("process %d: %w", pid, err)
	}
	state, start, ok := strings.Cut(strings.TrimSpace(string(out)), " ")
	if !ok {
		return "", false, fmt.Errorf("process %d: ps says %q", pid, out)
	}
	return strings.TrimSpace(start), !strings.HasPrefix(state, "Z"), nil
}
