package localcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// lockWait is how long a command waits for another one on the same folder before it gives up.
const lockWait = 4 * time.Second

// folderLock is a held lock on a cluster's folder.
type folderLock struct{ file *os.File }

// lockFolder takes the folder's lock, waiting up to wait for another command to finish, and names that one if it doesn't.
// The lock goes away with the process that holds it, however that ends, and isn't inherited by servers.
func lockFolder(ctx context.Context, dir string, wait time.Duration) (*folderLock, error) {
	path := filepath.Join(dir, lockFileName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the folder: %w", err)
	}
	deadline := time.Now().Add(wait)
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if time.Now().After(deadline) {
			holder := lockHolder(f)
			f.Close()
			return nil, fmt.Errorf("%s is in use: %s is starting or stopping servers there; try again when it is done", dir, holder)
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			f.Close()
			return nil, err
		}
	}
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0) // for the message alone: the lock is what counts
	}
	return &folderLock{file: f}, nil
}

// lockHolder names the process that wrote its pid in the lock file.
func lockHolder(f *os.File) string {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 32))
	pid := strings.TrimSpace(string(b))
	if _, perr := strconv.Atoi(pid); err != nil || perr != nil {
		return "another process"
	}
	return "process " + pid
}

// release gives the lock up; closing the file does.
func (l *folderLock) release() { l.file.Close() }

// pause waits for d or the end of ctx, whose error it returns then.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
