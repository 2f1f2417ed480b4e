package fs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// agree returns the instance that the copies stand for, or makes one where there is none. Copies that a crash left
// half-way through a change are completed: a missing cluster id, a store mark not yet everywhere (I3, I4).
func (l *Layout) agree(role Role, copies map[string]Instance) (Instance, error) {
	var in Instance
	var from string
	for _, dir := range l.dirs {
		have, ok := copies[dir]
		if !ok {
			continue
		}
		if have.Role != role {
			return in, fmt.Errorf("folder %s belongs to a %s (server %s), this is a %s: give it a folder of its own",
				dir, have.Role, have.ServerID, role)
		}
		if from == "" {
			in, from = have, dir
			continue
		}
		if have.ServerID != in.ServerID || !have.Created.Equal(in.Created) {
			return in, fmt.Errorf("folders of two servers are mixed: %s belongs to server %s, %s to server %s: check fs_wal_dir and fs_data_dirs",
				from, in.ServerID, dir, have.ServerID)
		}
		switch {
		case in.ClusterID == "":
			in.ClusterID = have.ClusterID
		case have.ClusterID != "" && have.ClusterID != in.ClusterID:
			return in, fmt.Errorf("folders of server %s name two clusters: %s says %s, %s says %s: one was copied from elsewhere",
				in.ServerID, from, in.ClusterID, dir, have.ClusterID)
		}
		in.StoresCreated = in.StoresCreated || have.StoresCreated
	}
	if from != "" {
		return in, nil
	}
	for _, path := range []string{l.WALPath(), l.StoreDir()} {
		if _, err := os.Lstat(path); err == nil {
			return in, fmt.Errorf("%s is there but %s is missing: it says whose data this is; put it back, or move the folder away to begin anew",
				path, InstancePath(l.walDir))
		}
	}
	return newInstance(role), nil
}

// checkStores refuses a server whose WAL or store was there once and is gone (I4).
func (l *Layout) checkStores(in Instance) error {
	if !in.StoresCreated {
		return nil
	}
	for _, s := range []struct{ what, path string }{{"write-ahead log", l.WALPath()}, {"row store", l.StoreDir()}} {
		_, err := os.Stat(s.path)
		if err == nil {
			continue
		}
		if !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s %s: %w", s.what, s.path, err)
		}
		return fmt.Errorf("the %s of server %s is missing: %s: check fs_wal_dir and fs_data_dirs and put it back; without it this server could vote or lead against what it has promised. To begin anew under a new id move all of the server's folders away",
			s.what, in.ServerID, s.path)
	}
	return nil
}

// folderError says what to do about a folder that can't be used.
func folderError(flag, dir string, err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%s: %s is not writable for user id %d: %w: give it to that user or choose another", flag, dir, os.Geteuid(), err)
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("%s: no space left for %s: make room or choose another: %w", flag, dir, err)
	case errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%s: %s is not a folder: %w", flag, dir, err)
	}
	return fmt.Errorf("%s: %s: %w", flag, dir, err)
}
