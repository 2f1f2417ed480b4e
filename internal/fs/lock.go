package fs

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// lockPatience is how long Open waits for a lock: a process that was killed may take a moment to be gone, and one that
// has just started a moment to write its pid. A second process fails well within a second.
const (
	lockPatience = 500 * time.Millisecond
	lockPause    = 10 * time.Millisecond
)

// LockedError says that another process uses a folder.
type LockedError struct {
	Dir string
	PID int // 0: unknown
}

func (e *LockedError) Error() string {
	who := "another process (its pid is not known)"
	if e.PID != 0 {
		who = fmt.Sprintf("the process with pid %d", e.PID)
	}
	return fmt.Sprintf("folder %s is in use by %s: stop that process, or start this one on another folder", e.Dir, who)
}

// dirLock is a held lock on a folder.
type dirLock struct{ f *os.File }

// lockDir takes dir's lock and writes our pid into the lock file. The lock is the flock, never the file's presence: the
// kernel drops it when the process ends, however it ends, so a lock file that is left behind means nothing.
func lockDir(dir string) (*dirLock, error) {
	f, err := os.OpenFile(LockPath(dir), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(lockPatience)
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", LockPath(dir), err)
		}
		if time.Now().After(deadline) {
			f.Close()
			return nil, &LockedError{Dir: dir, PID: readPID(dir)}
		}
		<-time.After(lockPause)
	}
	writePID(f)
	return &dirLock{f: f}, nil
}

// writePID puts our pid over the last holder's, at a fixed width, so that it needs no new space. It serves messages alone:
// a full disk must not keep a server from starting, so where it can't be written it is merely not known.
func writePID(f *os.File) {
	if _, err := f.WriteAt(fmt.Appendf(nil, "%-10d\n", os.Getpid()), 0); err != nil {
		_ = f.Truncate(0)
	}
}

// release gives the lock up. The file stays: removing it could let two processes lock two files of one name.
func (l *dirLock) release() error { return l.f.Close() }

func readPID(dir string) int {
	b, err := os.ReadFile(LockPath(dir))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid <= 0 {
		return 0
	}
	return pid
}

// Holder says whether a process uses dir at this moment, and which (0: unknown).
func Holder(dir string) (pid int, held bool, err error) {
	f, err := os.Open(LockPath(dir))
	if errors.Is(err, os.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	defer f.Close()
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return readPID(dir), true, nil
	}
	return 0, false, err
}
