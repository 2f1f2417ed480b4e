package localcluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Role tells masters from tablet servers.
type Role string

// The two roles, as the state file and `local status` write them.
const (
	RoleMaster  Role = "master"
	RoleTserver Role = "tserver"
)

// The names in a cluster's folder.
const (
	stateFileName = "cluster.json"
	lockFileName  = "lock"
	walDirName    = "wal"
	dataDirName   = "data"
	logDirName    = "logs"
	stderrLogName = "stderr.log"
)

const stateVersion = 1

// state is the content of the state file.
type state struct {
	Version int            `json:"version"`
	Servers []*serverState `json:"servers"` // masters first, then tablet servers, by number
}

// serverState is what is remembered of one server. Pid 0: it was stopped, or never started.
type serverState struct {
	Name  string   `json:"name"`
	Role  Role     `json:"role"`
	UUID  string   `json:"uuid,omitempty"` // known once it has been ready
	RPC   string   `json:"rpc"`
	Web   string   `json:"web"`
	Flags []string `json:"flags,omitempty"`
	Pid   int      `json:"pid,omitempty"`
	// Start is the process's start time in the system's own form; with the pid it names one process for good.
	Start string `json:"start,omitempty"`
}

// ErrNoCluster says that a folder holds no cluster.
var ErrNoCluster = errors.New("no local cluster")

// loadState reads the state file of the folder dir; ErrNoCluster when there is none.
func loadState(dir string) (*state, error) {
	path := filepath.Join(dir, stateFileName)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w in %s: start one with nyala local up --dir %s", ErrNoCluster, dir, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("read the cluster's state: %w", err)
	}
	st, err := decodeState(data)
	if err != nil {
		return nil, fmt.Errorf("state file %s: %w", path, err)
	}
	return st, nil
}

// decodeState parses and checks a state file: whoever edits it by hand is told what is wrong.
func decodeState(data []byte) (*state, error) {
	var st state
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&st); err != nil {
		return nil, err
	}
	if st.Version != stateVersion {
		return nil, fmt.Errorf("version %d is not one this nyala reads (%d)", st.Version, stateVersion)
	}
	seen := map[string]bool{}
	for i, s := range st.Servers {
		if s == nil {
			return nil, fmt.Errorf("server %d is null", i+1)
		}
		switch {
		case s.Role != RoleMaster && s.Role != RoleTserver:
			return nil, fmt.Errorf("server %q: role %q is neither master nor tserver", s.Name, s.Role)
		case s.Name == "" || s.Name == "." || s.Name == ".." || s.Name != filepath.Base(s.Name):
			return nil, fmt.Errorf("server %d: name %q can't be a folder's name", i+1, s.Name)
		case seen[s.Name]:
			return nil, fmt.Errorf("two servers are named %q", s.Name)
		case s.RPC == "" || s.Web == "":
			return nil, fmt.Errorf("server %q: no address", s.Name)
		case s.Pid < 0:
			return nil, fmt.Errorf("server %q: pid %d", s.Name, s.Pid)
		}
		seen[s.Name] = true
	}
	return &st, nil
}

// save replaces the state file. The caller holds the lock.
func (st *state) save(dir string) error {
	data, err := json.MarshalIndent(st, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the cluster's state: %w", err)
	}
	path := filepath.Join(dir, stateFileName)
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the cluster's state: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("write the cluster's state: %w", err)
	}
	return nil
}

func (st *state) find(name string) *serverState {
	i := slices.IndexFunc(st.Servers, func(s *serverState) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return st.Servers[i]
}

func (st *state) count(role Role) int {
	n := 0
	for _, s := range st.Servers {
		if s.Role == role {
			n++
		}
	}
	return n
}

// grow adds servers until there are want of the role; they have no addresses yet.
func (st *state) grow(role Role, want int) {
	for n := st.count(role); n < want; n++ {
		st.Servers = append(st.Servers, &serverState{Name: fmt.Sprintf("%s-%d", role, n+1), Role: role})
	}
}

// names lists all servers' names, for messages.
func (st *state) names() []string {
	var out []string
	for _, s := range st.Servers {
		out = append(out, s.Name)
	}
	return out
}

func (st *state) masterAddresses() []string {
	var out []string
	for _, s := range st.Servers {
		if s.Role == RoleMaster {
			out = append(out, s.RPC)
		}
	}
	return out
}
