//go:build unix

package wal

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// tryLock takes bbolt's lock on an open file without waiting: shared for readers. A *LockedError says who has it.
func tryLock(f *os.File, path string, exclusive bool) error {
	how := unix.LOCK_SH
	if exclusive {
		how = unix.LOCK_EX
	}
	err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return &LockedError{Path: path, Holder: lockHolder(f)}
	}
	return err
}

// freeSpace is what an unprivileged process may still write to the file system that holds path.
func freeSpace(path string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, err
	}
	return st.Bavail * uint64(st.Bsize), nil
}

// isNoSpace says whether an error of a write means that the disk or a quota is full.
func isNoSpace(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
