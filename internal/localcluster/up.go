package localcluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Up brings the cluster in cfg.Dir up and returns when every server is ready: a new one in a new or empty folder, else what
// is missing of the one that is there, with the same addresses, and the same flags unless cfg gives others. Servers that
// run already are left alone. If it fails, or ctx ends, the servers that it started are stopped again.
func Up(ctx context.Context, cfg Config) (*Cluster, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("folder %s: %w", cfg.Dir, err)
	}
	cfg.Dir = dir
	for _, role := range []Role{RoleMaster, RoleTserver} {
		if _, err := findBinary(role, cfg.BinDir); err != nil {
			return nil, err // before anything is made
		}
	}
	if err := prepareFolder(dir); err != nil {
		return nil, err
	}
	c := newCluster(cfg)
	lock, err := lockFolder(ctx, dir, lockWait)
	if err != nil {
		return nil, err
	}
	defer lock.release()
	st, err := loadState(dir)
	if errors.Is(err, ErrNoCluster) {
		st, err = &state{Version: stateVersion}, nil
	}
	if err != nil {
		return nil, err
	}
	u := &upRun{Cluster: c, st: st, ports: newPortChooser(st, cfg.RandomPorts), before: map[string][]string{}}
	if err := u.run(ctx, lock); err != nil {
		lock.release()
		return nil, errors.Join(err, u.undo())
	}
	return c, nil
}

// prepareFolder makes the folder; one with something else in it is refused, so that a mistyped --dir harms nothing.
func prepareFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the cluster's folder: %w", err)
	}
	if _, err := os.Stat(filepath.Join(dir, stateFileName)); err == nil {
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("folder %s: %w", dir, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("folder %s: %w", dir, err)
	}
	for _, e := range entries {
		if e.Name() != lockFileName && e.Name() != stateFileName+".tmp" {
			return fmt.Errorf("folder %s isn't empty (%s) and holds no local cluster: choose a new or empty one", dir, e.Name())
		}
	}
	return nil
}

// upRun is one Up under way.
type upRun struct {
	*Cluster
	st      *state
	ports   *portChooser
	started []*serverState
	before  map[string][]string // the flags that servers had, by name, where this call changed them
}

// run starts what is missing and waits until all is ready. The lock may be given up on the way, never taken again.
func (u *upRun) run(ctx context.Context, lock *folderLock) error {
	if err := u.plan(); err != nil {
		return err
	}
	fresh := true
	for _, s := range u.st.Servers {
		fresh = fresh && s.UUID == ""
	}
	if err := u.startAll(ctx, RoleMaster, fresh); err != nil {
		return err
	}
	if err := u.startAll(ctx, RoleTserver, fresh); err != nil {
		return err
	}
	if fresh {
		u.askUUIDs(ctx, u.st)
		return u.st.save(u.cfg.Dir)
	}
	lock.release()
	for _, s := range u.st.Servers {
		if err := u.awaitReady(ctx, s); err != nil {
			return err
		}
	}
	return u.recordUUIDs(ctx)
}

// plan decides on the set of servers, their flags and the addresses of new ones.
func (u *upRun) plan() error {
	st, cfg := u.st, u.cfg
	isNew := len(st.Servers) == 0
	masters, tservers := cfg.Masters, cfg.TabletServers
	if isNew && masters == 0 {
		masters = 1
	}
	if isNew && tservers == 0 {
		tservers = DefaultTabletServers
	}
	if have := st.count(RoleMaster); !isNew && masters != 0 && masters != have {
		return fmt.Errorf("the cluster in %s has %d master(s): that number stays as it is", cfg.Dir, have)
	}
	if have := st.count(RoleTserver); tservers != 0 && tservers < have {
		return fmt.Errorf("the cluster in %s has %d tablet servers: up takes none away (nyala local stop NAME stops one)", cfg.Dir, have)
	}
	st.grow(RoleMaster, masters)
	st.grow(RoleTserver, tservers)
	for _, s := range st.Servers {
		if s.RPC == "" || u.lostPorts(s) {
			var err error
			if s.RPC, s.Web, err = u.ports.choose(s.Role); err != nil {
				return err
			}
			if s.Flags == nil && !isNew {
				s.Flags = st.flagsLike(s.Role)
			}
		}
		if flags := cfg.flags(s.Role); flags != nil {
			if alive(s.Pid, s.Start) {
				cfg.Notify(fmt.Sprintf("%s runs already: the flags given take effect at its next start", s.Name))
			}
			u.before[s.Name] = s.Flags
			s.Flags = flags
		}
	}
	return st.save(cfg.Dir)
}

// lostPorts says whether a server that has never been ready would find its ports taken (I3 allows it others).
func (u *upRun) lostPorts(s *serverState) bool {
	return s.UUID == "" && !alive(s.Pid, s.Start) && (!portFree(s.RPC) || !portFree(s.Web))
}

func (c Config) flags(role Role) []string {
	if role == RoleMaster {
		return c.MasterFlags
	}
	return c.TserverFlags
}

// flagsLike returns the flags of the first server of the role, for one that joins.
func (st *state) flagsLike(role Role) []string {
	for _, s := range st.Servers {
		if s.Role == role {
			return s.Flags
		}
	}
	return nil
}

// startAll starts the servers of the role that don't run. In a new cluster it waits for them too, and moves one that lost
// its port to another program between the look and the start to other ports (I3: it has never been ready).
func (u *upRun) startAll(ctx context.Context, role Role, fresh bool) error {
	for _, s := range u.st.Servers {
		if s.Role != role || alive(s.Pid, s.Start) {
			continue
		}
		if err := u.start(s); err != nil {
			return err
		}
	}
	if !fresh {
		return nil
	}
	for _, s := range u.st.Servers {
		if s.Role != role {
			continue
		}
		err := u.awaitReady(ctx, s)
		for range 3 {
			var exited *ExitedError
			if !errors.As(err, &exited) || (portFree(s.RPC) && portFree(s.Web)) {
				break
			}
			if s.RPC, s.Web, err = u.ports.choose(s.Role); err != nil {
				return err
			}
			if err = u.start(s); err != nil {
				return err
			}
			err = u.awaitReady(ctx, s)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// start launches a server. One that has never been ready goes to other ports where it finds its own taken (I3).
func (u *upRun) start(s *serverState) error {
	err := u.launch(u.st, s)
	for range 3 {
		var taken *portTakenError
		if s.UUID != "" || !errors.As(err, &taken) {
			break
		}
		if s.RPC, s.Web, err = u.ports.choose(s.Role); err != nil {
			return err
		}
		err = u.launch(u.st, s)
	}
	if err != nil {
		return err
	}
	u.started = append(u.started, s)
	return nil
}

// undo stops what a failed Up started, and forgets the flags that it was given: they may be why it failed. The lock is free
// by now, so another command may have gone on from here: what isn't as this Up left it is left alone.
func (u *upRun) undo() error {
	ctx := context.Background()
	err := u.endAll(ctx, u.started)
	return errors.Join(err, u.update(ctx, func(st *state) error {
		for _, s := range st.Servers {
			if flags, ok := u.before[s.Name]; ok && slices.Equal(s.Flags, u.st.find(s.Name).Flags) && !alive(s.Pid, s.Start) {
				s.Flags = flags
			}
		}
		return st.save(u.cfg.Dir)
	}))
}
