package fs

import (
	"path/filepath"
	"strings"
)

// Names of what lies in a daemon's folders. They are on-disk formats: they never change.
const (
	instanceName = "instance"
	lockName     = "lock"
	walName      = "wal.db"
	storeName    = "store"

	// tempSuffix marks a file that is being written and will be renamed to its name without the suffix.
	tempSuffix = ".tmp"
)

// InstancePath returns where dir's copy of the instance file lies.
func InstancePath(dir string) string { return filepath.Join(dir, instanceName) }

// LockPath returns where dir's lock file lies.
func LockPath(dir string) string { return filepath.Join(dir, lockName) }

// WALPath returns where the write-ahead log lies in a WAL folder.
func WALPath(walDir string) string { return filepath.Join(walDir, walName) }

// StorePath returns where the row store lies in the first data folder.
func StorePath(dataDir string) string { return filepath.Join(dataDir, storeName) }

// isTemp says whether name is a temporary file of ours: one of our names with the suffix, not just any file that has it.
func isTemp(name string) bool {
	base, ok := strings.CutSuffix(name, tempSuffix)
	return ok && (base == instanceName || base == walName)
}
