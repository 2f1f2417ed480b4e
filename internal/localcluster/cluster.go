package localcluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Cluster is a local cluster: a folder and the servers that belong to it.
type Cluster struct {
	cfg Config // Dir is absolute

	// mu guards children.
	mu       sync.Mutex
	children map[string]*child // by server name: started by this process
}

// State is what a server is doing.
type State string

// The states, as `local status` writes them.
const (
	StateRunning  State = "running"
	StateStarting State = "starting"
	StateStopped  State = "stopped"
)

// Server describes one server of a cluster. Its JSON form is that of `local status --format json`.
type Server struct {
	Name  string `json:"name"`
	Role  Role   `json:"role"`
	UUID  string `json:"uuid"` // empty until it has been ready for the first time
	Pid   int    `json:"pid"`  // 0: stopped
	RPC   string `json:"rpc"`
	Web   string `json:"web"`
	Dir   string `json:"dir"`
	Log   string `json:"log"`
	State State  `json:"state"`
}

// UnknownServerError says that a cluster has no server of the name.
type UnknownServerError struct {
	Name  string
	Names []string
}

func (e *UnknownServerError) Error() string {
	return fmt.Sprintf("no server is named %q here; there are %s", e.Name, strings.Join(e.Names, ", "))
}

// Open takes up the cluster in the folder cfg.Dir as it is; ErrNoCluster if it holds none.
func Open(cfg Config) (*Cluster, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("folder %s: %w", cfg.Dir, err)
	}
	cfg.Dir = dir
	if _, err := loadState(dir); err != nil {
		return nil, err
	}
	return newCluster(cfg), nil
}

func newCluster(cfg Config) *Cluster {
	return &Cluster{cfg: cfg.withDefaults(), children: map[string]*child{}}
}

// Dir returns the cluster's folder.
func (c *Cluster) Dir() string { return c.cfg.Dir }

// MasterAddresses returns the masters' RPC addresses, or nil if the state file can't be read.
func (c *Cluster) MasterAddresses() []string {
	st, err := loadState(c.cfg.Dir)
	if err != nil {
		return nil
	}
	return st.masterAddresses()
}

// Servers lists the servers, masters first. It looks at processes alone, so a server that is still starting counts as
// running; Status asks the servers too.
func (c *Cluster) Servers() ([]Server, error) {
	st, err := loadState(c.cfg.Dir)
	if err != nil {
		return nil, err
	}
	out := make([]Server, len(st.Servers))
	for i, s := range st.Servers {
		out[i] = c.describe(s)
	}
	return out, nil
}

func (c *Cluster) describe(s *serverState) Server {
	d := Server{
		Name: s.Name, Role: s.Role, UUID: s.UUID, RPC: s.RPC, Web: s.Web,
		Dir: c.serverDir(s), Log: c.logFile(s), State: StateStopped,
	}
	if alive(s.Pid, s.Start) {
		d.Pid, d.State = s.Pid, StateRunning
	}
	return d
}

// Status lists the servers, masters first, and asks each one that runs whether it is ready.
func (c *Cluster) Status(ctx context.Context) ([]Server, error) {
	servers, err := c.Servers()
	if err != nil {
		return nil, err
	}
	var wg sync.WaitGroup
	for i := range servers {
		if s := &servers[i]; s.State == StateRunning {
			wg.Go(func() {
				if ok, _ := ready(ctx, s.Web); !ok {
					s.State = StateStarting
				} else if uuid, err := askUUID(ctx, s.RPC); err == nil { // not known yet is a fair answer
					s.UUID = uuid // not what it was when it was ready first, where its folders are another server's by now
				}
			})
		}
	}
	wg.Wait()
	return servers, ctx.Err()
}

// Start starts the named server, with the flags it had, and waits until it is ready. One that runs is left alone.
func (c *Cluster) Start(ctx context.Context, name string) error {
	var s *serverState
	err := c.update(ctx, func(st *state) error {
		if s = st.find(name); s == nil {
			return &UnknownServerError{Name: name, Names: st.names()}
		}
		if alive(s.Pid, s.Start) {
			return nil
		}
		return c.launch(st, s)
	})
	if err != nil {
		return err
	}
	if err := c.awaitReady(ctx, s); err != nil {
		return err
	}
	return c.recordUUIDs(ctx)
}

// Stop ends the named server with SIGTERM and waits for it. One that is stopped already is no error.
func (c *Cluster) Stop(ctx context.Context, name string) error {
	return c.end(ctx, name, syscall.SIGTERM)
}

// Kill ends the named server with SIGKILL and waits until it is gone. One that is stopped already is no error.
func (c *Cluster) Kill(name string) error {
	return c.end(context.Background(), name, syscall.SIGKILL)
}

func (c *Cluster) end(ctx context.Context, name string, sig syscall.Signal) error {
	return c.update(ctx, func(st *state) error {
		s := st.find(name)
		if s == nil {
			return &UnknownServerError{Name: name, Names: st.names()}
		}
		if err := c.endProcess(ctx, s, sig); err != nil {
			return err
		}
		s.Pid, s.Start = 0, ""
		return st.save(c.cfg.Dir)
	})
}

// endProcess signals the server's process and waits until it is gone.
func (c *Cluster) endProcess(ctx context.Context, s *serverState, sig syscall.Signal) error {
	if err := sendSignal(s.Pid, s.Start, sig); err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.StopTimeout)
	defer cancel()
	for alive(s.Pid, s.Start) {
		if err := pause(ctx, 10*time.Millisecond); errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("%s (pid %d) still runs %v after %v: nyala local kill %s ends it at once", s.Name, s.Pid,
				c.cfg.StopTimeout, sig, s.Name)
		} else if err != nil {
			return err
		}
	}
	c.mu.Lock()
	child := c.children[s.Name]
	delete(c.children, s.Name)
	c.mu.Unlock()
	if child != nil && child.pid == s.Pid {
		<-child.done // it is dead: this only collects it
	}
	return nil
}

// Down stops all servers, those that don't end in time with SIGKILL, and, if remove is set, deletes the cluster's folder
// (I4).
func (c *Cluster) Down(ctx context.Context, remove bool) error {
	return c.update(ctx, func(st *state) error {
		if err := c.endAll(ctx, st.Servers); err != nil {
			return err
		}
		if !remove {
			return st.save(c.cfg.Dir)
		}
		return c.remove(st)
	})
}

// endAll stops the servers side by side and forgets their processes.
func (c *Cluster) endAll(ctx context.Context, servers []*serverState) error {
	errs := make([]error, len(servers))
	var wg sync.WaitGroup
	for i, s := range servers {
		wg.Go(func() {
			err := c.endProcess(ctx, s, syscall.SIGTERM)
			if err != nil && ctx.Err() == nil {
				c.cfg.Notify(fmt.Sprintf("%s doesn't end after SIGTERM: killed", s.Name))
				err = c.endProcess(ctx, s, syscall.SIGKILL)
			}
			if err == nil {
				s.Pid, s.Start = 0, ""
			}
			errs[i] = err
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// remove deletes what belongs to the cluster, the state file last, so that a removal that was cut short can be repeated.
func (c *Cluster) remove(st *state) error {
	for _, s := range st.Servers {
		if err := os.RemoveAll(c.serverDir(s)); err != nil {
			return fmt.Errorf("delete %s: %w", s.Name, err)
		}
	}
	for _, name := range []string{stateFileName, lockFileName} {
		if err := os.Remove(filepath.Join(c.cfg.Dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("delete the cluster's folder: %w", err)
		}
	}
	left, err := os.ReadDir(c.cfg.Dir)
	if err != nil {
		return fmt.Errorf("delete the cluster's folder: %w", err)
	}
	if len(left) > 0 {
		c.cfg.Notify(fmt.Sprintf("kept %s: it holds other things (%s)", c.cfg.Dir, left[0].Name()))
		return nil
	}
	if err := os.Remove(c.cfg.Dir); err != nil {
		return fmt.Errorf("delete the cluster's folder: %w", err)
	}
	return nil
}

// update runs fn on the state under the folder's lock; fn saves what it changes.
func (c *Cluster) update(ctx context.Context, fn func(st *state) error) error {
	if _, err := loadState(c.cfg.Dir); err != nil {
		return err // no lock file in a folder that isn't a cluster's
	}
	lock, err := lockFolder(ctx, c.cfg.Dir, lockWait)
	if err != nil {
		return err
	}
	defer lock.release()
	st, err := loadState(c.cfg.Dir)
	if err != nil {
		return err
	}
	return fn(st)
}

// recordUUIDs notes the ids of servers that became ready for the first time.
func (c *Cluster) recordUUIDs(ctx context.Context) error {
	st, err := loadState(c.cfg.Dir)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(st.Servers, func(s *serverState) bool { return s.UUID == "" && s.Pid != 0 }) {
		return nil
	}
	return c.update(ctx, func(st *state) error {
		c.askUUIDs(ctx, st)
		return st.save(c.cfg.Dir)
	})
}

// askUUIDs fills in the ids that aren't known. A server that can't say now is asked another time.
func (c *Cluster) askUUIDs(ctx context.Context, st *state) {
	for _, s := range st.Servers {
		if s.UUID == "" && alive(s.Pid, s.Start) {
			if uuid, err := askUUID(ctx, s.RPC); err == nil {
				s.UUID = uuid
			}
		}
	}
}

func (c *Cluster) serverDir(s *serverState) string { return filepath.Join(c.cfg.Dir, s.Name) }

func (c *Cluster) logFile(s *serverState) string {
	return filepath.Join(c.serverDir(s), logDirName, binaryName(s.Role)+".log")
}
