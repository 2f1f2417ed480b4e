package memory

import (
	"os"

	"golang.org/x/sys/unix"
)

// available is what memory the machine has.
func available() (int64, error) {
	n, err := unix.SysctlUint64("hw.memsize")
	return int64(n), os.NewSyscallError("sysctl hw.memsize", err)
}
