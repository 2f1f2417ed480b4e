package wal

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// allocate gives the file blocks for its first size bytes and makes it at least that long. Data in it stays.
func allocate(f *os.File, size int64) error {
	for {
		err := unix.Fallocate(int(f.Fd()), 0, 0, size)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
			return extend(f, size)
		}
		return err
	}
}

// syncData makes what was written to the file durable, and what is needed to read it back.
func syncData(f *os.File) error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// bootID names the running of the kernel: another one after each power cut and each restart of the machine. Empty: unknown.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// lockHolder names the process that holds a lock on the file, as far as the system tells.
func lockHolder(f *os.File) string {
	const unknown = "another process"
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return unknown
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return unknown
	}
	// 1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF
	id := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for s := bufio.NewScanner(bytes.NewReader(locks)); s.Scan(); {
		f := strings.Fields(s.Text())
		if len(f) < 6 || f[1] != "FLOCK" || f[5] != id {
			continue
		}
		name, err := os.ReadFile("/proc/" + f[4] + "/comm")
		if err != nil {
			return "process " + f[4]
		}
		return fmt.Sprintf("process %s (%s)", f[4], strings.TrimSpace(string(name)))
	}
	return unknown
}
