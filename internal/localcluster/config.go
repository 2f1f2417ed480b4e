package localcluster

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Config says what Up is to bring up. Only Dir is needed.
type Config struct {
	// Dir is the cluster's folder. A new one is made; one that isn't empty must hold a cluster.
	Dir string
	// Masters and TabletServers count the servers. 0: as many as the folder has, in a new one 1 and 3. More than the
	// folder has: the rest is added, tablet servers only.
	Masters       int
	TabletServers int
	// MasterFlags and TserverFlags ("--name=value") are handed to the servers that this call starts and remembered for
	// later starts. nil: those remembered.
	MasterFlags  []string
	TserverFlags []string
	// BinDir holds nyala-master and nyala-tserver. Empty: the folder of this executable, a folder bin beside it, or PATH.
	BinDir string
	// RandomPorts takes free ports at random for new servers instead of the default ones: for tests that run side by side.
	RandomPorts bool
	// ReadyTimeout bounds how long one server may take to become ready; 0: 60 s.
	ReadyTimeout time.Duration
	// StopTimeout bounds how long a server may take to end after SIGTERM; 0: 20 s.
	StopTimeout time.Duration
	// Advertise, unless nil, returns the RPC address that the named server, which listens at rpc, advertises in place of its
	// own: tests put a network of theirs before servers.
	Advertise func(server, rpc string) string
	// Notify is told of each step, for people; nil: nobody is.
	Notify func(string)
}

// The defaults of a new cluster, and the limits that a mistyped number runs into.
const (
	DefaultTabletServers = 3
	maxServers           = 64
)

// ownFlags are those that no user may set: the cluster would look for its servers where they aren't.
var ownFlags = []string{
	"rpc_bind_addresses", "rpc_advertised_addresses", "webserver_interface", "webserver_port", "fs_wal_dir", "fs_data_dirs", "log_dir",
	"master_addresses", "tserver_master_addrs",
}

// Validate reports every fault of the configuration at once.
func (c Config) Validate() error {
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New("the cluster's folder isn't given"))
	}
	if c.TabletServers < 0 || c.TabletServers > maxServers {
		errs = append(errs, fmt.Errorf("%d tablet servers: choose 1 to %d", c.TabletServers, maxServers))
	}
	switch c.Masters {
	case 0, 1, 3, 5:
	default:
		errs = append(errs, fmt.Errorf("%d masters: choose 1, 3 or 5", c.Masters))
	}
	for _, f := range slices.Concat(c.MasterFlags, c.TserverFlags) {
		name, _, _ := strings.Cut(strings.TrimLeft(f, "-"), "=")
		if slices.Contains(ownFlags, strings.ReplaceAll(name, "-", "_")) {
			errs = append(errs, fmt.Errorf("the flag %s: the cluster gives each server its addresses and folders itself; nyala local status shows them", f))
		}
	}
	return errors.Join(errs...)
}

// withDefaults fills in the waiting times.
func (c Config) withDefaults() Config {
	if c.ReadyTimeout <= 0 {
		c.ReadyTimeout = 60 * time.Second
	}
	if c.StopTimeout <= 0 {
		c.StopTimeout = 20 * time.Second
	}
	if c.Notify == nil {
		c.Notify = func(string) {}
	}
	return c
}
