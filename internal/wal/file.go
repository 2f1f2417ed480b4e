package wal

import (
	"fmt"
	"io"
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
)

// createFile makes an empty WAL at path, durable and whole: bbolt initializes it under another name, and only the finished
// file gets this one. So a file of this name always has two good meta pages, and a bad one is damage. What a crash leaves
// under the other name was never used and is made anew.
func createFile(path string) error {
	temp := path + newSuffix
	if err := os.Remove(temp); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("remove what an earlier start left behind: %w", err)
	}
	db, err := bbolt.Open(temp, 0o600, &bbolt.Options{Timeout: time.Second, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType})
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
		return b.Put(tallyKey, (&tally{commit: uint64(tx.ID()), nextSeq: 1}).encode())
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
