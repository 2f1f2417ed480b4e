package wal

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/nyaladb/nyala/internal/ident"
)

// Reader shows the WAL of a stopped server, or a backup that Trimming.Backup wrote. It holds a shared lock until Close, so
// that no server starts on the file meanwhile, and writes nothing. It is for one goroutine.
type Reader struct {
	core *core
	f    *os.File
}

// OpenReader opens the file at path without waiting: a *LockedError says which process holds it. Damage to the whole file
// is a *DamageError; damage that concerns one group only is no error: see Group.Damaged.
func OpenReader(path string) (*Reader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open WAL: %w", err)
	}
	r, err := newReader(f, path)
	if err != nil {
		f.Close()
		return nil, err
	}
	return r, nil
}

func newReader(f *os.File, path string) (*Reader, error) {
	if err := lockAt(f, path, false); err != nil {
		return nil, err
	}
	met, err := newMetrics(nil, nil)
	if err != nil {
		return nil, err
	}
	c := newCore(path, slog.New(slog.DiscardHandler), met, 0)
	c.boot = bootID()
	replayed, pages, _, err := readNewest(c, f)
	if err != nil {
		return nil, err
	}
	replayed.install()
	replayed.core.backend = &pageBackend{pages: pages}
	return &Reader{core: replayed.core, f: f}, nil
}

// Groups returns the groups there are, by number.
func (r *Reader) Groups() []Group { return r.core.Groups() }

// Log returns a group's log; nil where there is none. Of a damaged group it knows term, vote and commit index alone, zero
// where those can't be read either.
func (r *Reader) Log(n ident.LocalNumber) *Log { return r.core.Log(n) }

// Meta returns a value set by Batch.SetMeta, nil where there is none; not to be changed.
func (r *Reader) Meta(key MetaKey) []byte { return r.core.Meta(key) }

// Dump calls fn with each entry, by group and index, of one tablet or of all where it is empty; of a damaged group with all
// that is left of it, in the order of writing.
func (r *Reader) Dump(ctx context.Context, tablet ident.TabletID, fn func(DumpEntry) error) error {
	return r.core.Dump(ctx, tablet, fn)
}

// Close lets go of the file.
func (r *Reader) Close() error { return r.f.Close() }
