package wal

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// DefaultCacheBytes is the default of Config.CacheBytes.
	DefaultCacheBytes = 64 << 20
	// DefaultLockTimeout is the default of Config.LockTimeout.
	DefaultLockTimeout = time.Second
)

// Config says where a store is and how it behaves.
type Config struct {
	Path string // of the file, FileName in the server's WAL folder; it is created where there is none
	// CacheBytes bounds the memory that recent entries take, over all groups. 0: DefaultCacheBytes.
	CacheBytes int64
	// ReservedBytes is what the file leaves free on its disk: it doesn't grow below that (--fs_wal_dir_reserved_bytes).
	// Negative: 1 % of what is free at open.
	ReservedBytes int64
	// LockTimeout is how long OpenBolt waits for a process that is ending to let go of the file. 0: DefaultLockTimeout.
	LockTimeout time.Duration
	// InjectLatency says how much longer each commit's sync is to take, as on a slow disk, for tests; nil: no longer.
	InjectLatency func() time.Duration
	Logger        *slog.Logger          // nil: none
	Registerer    prometheus.Registerer // nil: no metrics

	bootID    string // in place of the system's; "": that
	growBytes int64  // least growth of the file, and what is kept for deletions; 0: the constants of space.go
}

// DefaultConfig returns the configuration of a store at path.
func DefaultConfig(path string) Config {
	return Config{Path: path, CacheBytes: DefaultCacheBytes, ReservedBytes: -1, LockTimeout: DefaultLockTimeout}
}

// Validate returns all faults of the configuration as one error.
func (c *Config) Validate() error {
	var faults []error
	if c.Path == "" {
		faults = append(faults, errors.New("wal: no path"))
	}
	if c.CacheBytes < 0 {
		faults = append(faults, fmt.Errorf("wal: a cache of %d bytes", c.CacheBytes))
	}
	if c.LockTimeout < 0 {
		faults = append(faults, fmt.Errorf("wal: a lock timeout of %v", c.LockTimeout))
	}
	return errors.Join(faults...)
}
