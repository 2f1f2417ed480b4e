package fs

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
)

// Config says which folders a daemon uses. Fields carry the names of the flags that set them.
type Config struct {
	// WALDir is --fs_wal_dir.
	WALDir string
	// DataDirs is --fs_data_dirs; empty: the WAL folder. The store lies in the first.
	DataDirs []string
	Role     Role
	Logger   *slog.Logger // nil: nothing is logged
}

// Validate returns all that is wrong with the settings, as one error.
func (c *Config) Validate() error {
	var errs []error
	if c.WALDir == "" {
		errs = append(errs, errors.New("fs_wal_dir: no folder given: say where the write-ahead log shall lie"))
	}
	if c.Role != Master && c.Role != TabletServer {
		errs = append(errs, fmt.Errorf("role: %q is neither %q nor %q", c.Role, Master, TabletServer))
	}
	seen := map[string]bool{}
	for _, d := range c.DataDirs {
		switch clean := filepath.Clean(d); {
		case d == "":
			errs = append(errs, errors.New("fs_data_dirs: a folder's name is empty"))
		case seen[clean]:
			errs = append(errs, fmt.Errorf("fs_data_dirs: %s is given twice", d))
		default:
			seen[clean] = true
		}
	}
	return errors.Join(errs...)
}
