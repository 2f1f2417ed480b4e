package fs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// writeAtomic replaces the file at path by one with these bytes: after a crash at any moment path holds the old bytes or
// the new ones, whole (I1). The temporary file's content is durable before the rename makes it visible, and the rename is
// durable once the folder is.
func writeAtomic(path string, b []byte) (err error) {
	temp := path + tempSuffix
	f, err := os.OpenFile(temp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return fmt.Errorf("create %s: %w", temp, err)
	}
	defer func() {
		if err != nil {
			os.Remove(temp)
		}
	}()
	if _, err = f.Write(b); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", temp, err)
	}
	if err = os.Rename(temp, path); err != nil {
		return fmt.Errorf("rename %s: %w", temp, err)
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes what was created, renamed or removed in dir durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync folder %s: %w", dir, err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync folder %s: %w", dir, err)
	}
	return nil
}

// makeDir creates dir and what is missing above it, durably.
func makeDir(dir string) error {
	if st, err := os.Stat(dir); err == nil {
		if !st.IsDir() {
			return fmt.Errorf("%s is not a folder", dir)
		}
		return nil
	}
	parent := filepath.Dir(dir)
	if parent != dir {
		if err := makeDir(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return syncDir(parent)
}
