package fs

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

// Layout is a daemon's folders, locked for this process. See the package's comment for its life cycle.
type Layout struct {
	walDir   string
	dataDirs []string
	dirs     []string // all, each once; the WAL folder first
	locks    []*dirLock
	fresh    bool
	log      *slog.Logger

	mu sync.Mutex
	in Instance // guarded by mu
}

// Open takes a daemon's folders: it makes what is missing on a first start, locks each folder against other processes,
// and checks that all belong to one server of this role. It starts nothing; Close gives the folders up.
func Open(cfg Config) (*Layout, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	l := &Layout{log: cfg.Logger}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	if err := l.resolve(cfg); err != nil {
		return nil, err
	}
	if err := l.take(cfg.Role); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// ServerID returns the server's id, made at its first start.
func (l *Layout) ServerID() ident.ServerID { return l.Instance().ServerID }

// ClusterID returns the id of the cluster that the server belongs to; empty: none yet.
func (l *Layout) ClusterID() ident.ClusterID { return l.Instance().ClusterID }

// Instance returns whose folders these are.
func (l *Layout) Instance() Instance {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.in
}

// Fresh says whether this Open made the server: its folders were nobody's.
func (l *Layout) Fresh() bool { return l.fresh }

// WALDir returns the WAL folder, absolute.
func (l *Layout) WALDir() string { return l.walDir }

// DataDirs returns the data folders, absolute; the caller must not change the slice.
func (l *Layout) DataDirs() []string { return l.dataDirs }

// WALPath returns where the write-ahead log is to be opened.
func (l *Layout) WALPath() string { return WALPath(l.walDir) }

// StoreDir returns where the row store is to be opened.
func (l *Layout) StoreDir() string { return StorePath(l.dataDirs[0]) }

// SetClusterID makes the server a member of a cluster, durably, once. The same id again is no error; another is refused
// with ClusterIDMismatch, and nothing is changed or deleted.
func (l *Layout) SetClusterID(id ident.ClusterID) error {
	if _, err := ident.Bytes(string(id)); err != nil {
		return status.Wrap(status.InvalidArgument, err, "cluster id")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch l.in.ClusterID {
	case id:
		return nil
	case "":
		in := l.in
		in.ClusterID = id
		return l.storeLocked(in)
	}
	return status.New(status.ClusterIDMismatch,
		"this %s (folder %s) belongs to cluster %s, not to cluster %s: check the master addresses; nothing was changed",
		l.in.Role, l.walDir, l.in.ClusterID, id)
}

// MarkStoresCreated makes it durable that the WAL and the store exist, after both have been opened and before the server
// acknowledges anything (I4). From then on Open refuses to start without them.
func (l *Layout) MarkStoresCreated() error { return l.setStoresCreated(true) }

// ForgetStores takes MarkStoresCreated back, before a damaged WAL or store is set aside on purpose so that its replicas
// are rebuilt from their peers.
func (l *Layout) ForgetStores() error { return l.setStoresCreated(false) }

func (l *Layout) setStoresCreated(created bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.in.StoresCreated == created {
		return nil
	}
	in := l.in
	in.StoresCreated = created
	return l.storeLocked(in)
}

// Close gives the folders up. It may be called more than once.
func (l *Layout) Close() error {
	var errs []error
	for _, k := range l.locks {
		errs = append(errs, k.release())
	}
	l.locks = nil
	return errors.Join(errs...)
}

// storeLocked writes in to all folders. After an error some may hold it and some not; that is what a crash leaves as well,
// the next Open completes it (I3), and so does calling again.
func (l *Layout) storeLocked(in Instance) error {
	for _, dir := range l.dirs {
		if err := writeInstance(dir, &in); err != nil {
			return status.Wrap(status.IO, err, "instance file of folder %s", dir)
		}
	}
	l.in = in
	return nil
}

// resolve finds the absolute folders, creates the missing and drops repetitions (a link to a folder is that folder).
func (l *Layout) resolve(cfg Config) error {
	real := func(flag, dir string) (string, error) {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return "", fmt.Errorf("%s %s: %w", flag, dir, err)
		}
		if err := makeDir(abs); err != nil {
			return "", folderError(flag, abs, err)
		}
		abs, err = filepath.EvalSymlinks(abs)
		if err != nil {
			return "", folderError(flag, abs, err)
		}
		return abs, nil
	}
	var err error
	if l.walDir, err = real("fs_wal_dir", cfg.WALDir); err != nil {
		return err
	}
	l.dirs = []string{l.walDir}
	for _, d := range cfg.DataDirs {
		dir, err := real("fs_data_dirs", d)
		if err != nil {
			return err
		}
		for _, other := range l.dataDirs {
			if other == dir {
				return fmt.Errorf("fs_data_dirs: %s is given twice, once by another name", d)
			}
		}
		l.dataDirs = append(l.dataDirs, dir)
		if dir != l.walDir {
			l.dirs = append(l.dirs, dir)
		}
	}
	if len(l.dataDirs) == 0 {
		l.dataDirs = []string{l.walDir}
	}
	return nil
}

// take locks the folders and reads or makes their instance files.
func (l *Layout) take(role Role) error {
	for _, dir := range l.dirs {
		k, err := lockDir(dir)
		if err != nil {
			var locked *LockedError
			if errors.As(err, &locked) {
				return err
			}
			return folderError("folder", dir, err)
		}
		l.locks = append(l.locks, k)
		if err := l.removeTemps(dir); err != nil {
			return folderError("folder", dir, err)
		}
	}
	copies := make(map[string]Instance, len(l.dirs))
	for _, dir := range l.dirs {
		in, err := readInstance(dir)
		switch {
		case err == nil:
			copies[dir] = in
		case errors.Is(err, os.ErrNotExist):
		case errors.Is(err, ErrDamaged):
			return fmt.Errorf("%w: put back a good copy (another folder of this server holds the same), or move the folder away to begin anew", err)
		default:
			return err
		}
	}
	in, err := l.agree(role, copies)
	if err != nil {
		return err
	}
	if err := l.checkStores(in); err != nil {
		return err
	}
	for _, dir := range l.dirs {
		if have, ok := copies[dir]; ok && have == in {
			continue
		}
		if len(copies) > 0 {
			l.log.Warn("completed the instance file of a folder", "dir", dir, "server_id", in.ServerID)
		}
		if err := writeInstance(dir, &in); err != nil {
			return folderError("folder", dir, err)
		}
	}
	l.in, l.fresh = in, len(copies) == 0
	return nil
}

// removeTemps removes what a crash amid a write left behind, and nothing else (I5).
func (l *Layout) removeTemps(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !isTemp(e.Name()) || !e.Type().IsRegular() {
			continue
		}
		path := filepath.Join(dir, e.Name())
		if err := os.Remove(path); err != nil {
			return err
		}
		l.log.Warn("removed a temporary file that a crash left behind", "path", path)
	}
	return nil
}

// newInstance makes a server.
func newInstance(role Role) Instance {
	return Instance{
		ServerID: ident.ServerID(ident.New()),
		Role:     role,
		Created:  time.Now().UTC().Truncate(time.Microsecond),
	}
}
