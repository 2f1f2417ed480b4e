//go:build unix

package daemon

import "golang.org/x/sys/unix"

// diskSpace returns the size of the file system that holds path, and what an unprivileged process may still write to it.
func diskSpace(path string) (size, free uint64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, 0, err
	}
	return st.Blocks * uint64(st.Bsize), st.Bavail * uint64(st.Bsize), nil
}
