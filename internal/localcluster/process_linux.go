package localcluster

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
)

// bootID names this boot of the machine: start times are counted from it.
var bootID = sync.OnceValue(func() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown-boot"
	}
	return strings.TrimSpace(string(b))
})

// processStart returns the start time of a process in a form that compares, and whether it still runs (a zombie doesn't).
func processStart(pid int) (start string, running bool, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", false, err
	}
	// The second field is the program's name in parentheses and may hold anything, blanks and parentheses too.
	i := bytes.LastIndexByte(data, ')')
	if i < 0 {
		return "", false, fmt.Errorf("/proc/%d/stat has no name", pid)
	}
	fields := strings.Fields(string(data[i+1:])) // from field 3, the state, on
	if len(fields) < 20 {
		return "", false, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields)+2)
	}
	state, ticks := fields[0], fields[19] // fields 3 and 22
	return bootID() + "/" + ticks, state != "Z" && state != "X" && state != "x", nil
}
