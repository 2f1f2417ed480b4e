package wal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"
)

const (
	// FileName is the WAL's file in a server's WAL folder.
	FileName = "nyala.wal"
	// newSuffix is added to the name of a file that is being created.
	newSuffix = ".new"
	// pageSize is that of every file, whatever the machine's: the size of an entry's pieces goes with it.
	pageSize = 4096
)

// createFile makes an empty WAL at path, durable and whole: bbolt initializes it under another name, and only the finished
// file gets this one. So a file of this name always has two good meta pages, and a bad one is damage. What a crash leaves
// under the other name was never used and is made anew.
func createFile(path string) error {
	temp := path + newSuffix
	if err := os.Remove(temp); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("remove what an earlier start left behind: %w", err)
	}
	db, err := bbolt.Open(temp, 0o600, &bbolt.Options{
		Timeout: time.Second, PageSize: pageSize, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType,
	})
	if err != nil {
		return fmt.Errorf("create WAL %s: %w", temp, err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, id := range allBuckets {
			if _, err := tx.CreateBucket([]byte{byte(id)}); err != nil {
				return err
			}
		}
		b := tx.Bucket([]byte{byte(bucketTally)})
		if err := b.Put(formatKey, encodeFormat()); err != nil {
			return err
		}
		t := tally{commit: uint64(tx.ID()), nextSeq: 1}
		if boot := bootID(); boot != "" {
			value := encodeMeta(MetaBoot, []byte(boot))
			t.add(storedCRC(value))
			if err := tx.Bucket([]byte{byte(bucketMeta)}).Put([]byte(MetaBoot), value); err != nil {
				return err
			}
		}
		return b.Put(tallyKey, t.encode())
	})
	if cerr := db.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = syncPath(temp)
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err == nil {
		err = syncPath(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("create WAL %s: %w", path, err)
	}
	return nil
}

// openAndLock opens the file at path, creating it where there is none, and takes its lock, for which it waits up to limit.
func openAndLock(path string, limit time.Duration) (*os.File, error) {
	const pause = 20 * time.Millisecond
	for end := time.Now().Add(limit); ; {
		f, err := openOnce(path)
		if err == nil || time.Now().After(end) {
			return f, err
		}
		if !errors.Is(err, ErrLocked) && !errors.Is(err, errReplaced) {
			return nil, err
		}
		<-time.After(pause) // flock can't be waited for with a limit
	}
}

// errReplaced: the file was set aside or rewritten between being opened and being locked.
var errReplaced = errors.New("the WAL was replaced by another process")

func openOnce(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		if err := createLocked(path); err != nil {
			return nil, err
		}
		f, err = os.OpenFile(path, os.O_RDWR, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("open WAL: %w", err)
	}
	err = lockAt(f, path, true)
	if err == nil {
		// What a creation or a rewriting that was cut short left behind; whoever may write it holds the lock that is ours now.
		if err = os.Remove(path + newSuffix); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// lockAt takes the lock of an open file and makes sure that it is still the one at path.
func lockAt(f *os.File, path string, exclusive bool) error {
	if err := tryLock(f, path, exclusive); err != nil {
		return err
	}
	ours, err := f.Stat()
	if err != nil {
		return err
	}
	now, err := os.Stat(path)
	if err != nil || !os.SameFile(ours, now) {
		return fmt.Errorf("%s: %w", path, errReplaced)
	}
	return nil
}

// createLocked creates the file while holding its folder's lock, so that two processes don't do so at once.
func createLocked(path string) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("create WAL %s: %w", path, err)
	}
	defer dir.Close()
	if err := tryLock(dir, path, true); err != nil {
		return err
	}
	if _, err := os.Lstat(path); err == nil {
		return nil
	}
	return createFile(path)
}

// SetAside renames a damaged or failed file, so that an empty one can take its place, and returns its new name. The replicas
// in it are lost on this server and must be rebuilt from their peers. The store on it, if any, must be closed.
func SetAside(path string) (string, error) {
	for i := 1; ; i++ {
		aside := fmt.Sprintf("%s.damaged-%d", path, i)
		if _, err := os.Lstat(aside); err == nil {
			continue
		} else if !os.IsNotExist(err) {
			return "", err
		}
		if err := os.Rename(path, aside); err != nil {
			return "", fmt.Errorf("set WAL aside: %w", err)
		}
		return aside, syncPath(filepath.Dir(path))
	}
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	err = f.Sync()
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// extend makes the file at least size bytes long.
func extend(f *os.File, size int64) error {
	st, err := f.Stat()
	if err != nil || st.Size() >= size {
		return err
	}
	return f.Truncate(size)
}

// warm reads the first size bytes in order, so that the random reads that follow find them in the page cache. Errors don't
// matter here: the page that can't be read may be one that nobody needs.
func warm(f *os.File, size int64) {
	_, _ = io.Copy(io.Discard, io.NewSectionReader(f, 0, size))
}
