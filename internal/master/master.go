package master

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/replica"
)

// Config is what a master is told by its flags.
type Config struct {
	// DefaultReplicas is the replication factor of a table whose creator names none.
	DefaultReplicas int
	// MaxReplicas bounds the replication factor.
	MaxReplicas int
	// Unresponsive is how long a tablet server may stay silent before it no longer counts as alive.
	Unresponsive time.Duration
	// TabletsPerTable bounds how many tablets one table is created with.
	TabletsPerTable int
	// LocationTTL is how long clients may keep what they are told of a tablet's place.
	LocationTTL time.Duration
	Logger      *slog.Logger
	Registerer  prometheus.Registerer // nil: no metrics
}

// DefaultConfig returns Kudu's defaults, but for Unresponsive: docs/flags.md says why.
func DefaultConfig() Config {
	return Config{
		DefaultReplicas: 3,
		MaxReplicas:     7,
		Unresponsive:    10 * time.Second,
		TabletsPerTable: 5000,
		LocationTTL:     5 * time.Minute,
	}
}

// Validate returns all faults of c in one error.
func (c *Config) Validate() error {
	var errs []error
	if c.DefaultReplicas < 1 || c.DefaultReplicas%2 == 0 || c.DefaultReplicas > c.MaxReplicas {
		errs = append(errs, fmt.Errorf("default_num_replicas is %d: want an odd number up to %d", c.DefaultReplicas, c.MaxReplicas))
	}
	if c.Unresponsive <= 0 {
		errs = append(errs, fmt.Errorf("tserver_unresponsive_timeout_ms is %v: want more than 0", c.Unresponsive))
	}
	if c.TabletsPerTable < 1 {
		errs = append(errs, fmt.Errorf("max_create_tablets_per_table is %d: want at least 1", c.TabletsPerTable))
	}
	return errors.Join(errs...)
}

// Master is one of a cluster's masters.
type Master struct {
	cfg     Config
	node    *replica.Node
	self    *nyalav1.MasterInfo
	catalog *catalog
	servers *servers
	store   sysCatalog
	calls   tabletServerCalls

	changes *replica.Changes // of the catalog's replica, the only one here
	purge   chan struct{}    // holds a token while there may be tables to purge
	made    chan struct{}    // holds a token while there may be tables to mark as made
	applied chan struct{}    // holds a token while there may be tables whose latest schema can be shown
	moved   chan struct{}    // holds a token while there may be tables whose tablets' members have changed
	doubt   chan struct{}    // holds a token while the memory may be in doubt
	members members

	reconcile struct {
		mu sync.Mutex
		// start begins the conversation with a tablet server, once; nil while this master doesn't lead.
		start func(*tserver)
	}
}

// New returns a master on node. It starts nothing.
func New(cfg Config, node *replica.Node, self *nyalav1.MasterInfo) (*Master, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	m := &Master{
		cfg:     cfg,
		node:    node,
		self:    self,
		catalog: newCatalog(),
		servers: newServers(cfg.Unresponsive),
		store:   sysCatalog{node: node},
		calls:   tabletServerCalls{dial: node.Dial},
		changes: node.Replicas.Subscribe(),
		purge:   make(chan struct{}, 1),
		made:    make(chan struct{}, 1),
		applied: make(chan struct{}, 1),
		moved:   make(chan struct{}, 1),
		doubt:   make(chan struct{}, 1),
		members: members{wake: make(chan struct{}, 1)},
	}
	if err := m.register(cfg.Registerer); err != nil {
		return nil, fmt.Errorf("master: register a metric: %w", err)
	}
	return m, nil
}
