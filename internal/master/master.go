package master

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/replica"
	"github.com/nyaladb/nyala/internal/status"
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

	purge     chan *table      // deleted tables that no server holds anything of
	changes   *replica.Changes // of the catalog's replica, the only one here
	reconcile struct {
		mu sync.Mutex
		// run starts the conversation with a tablet server; nil while this master doesn't lead.
		run func(*tserver)
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
		purge:   make(chan *table, 64),
		changes: node.Replicas.Subscribe(),
	}
	return m, nil
}

// Run makes the catalog's tablet where this is the first start, then leads whenever the tablet's group elects this
// master, until ctx ends.
func (m *Master) Run(ctx context.Context) error {
	if err := m.store.createReplica(ctx, m.self); err != nil {
		return fmt.Errorf("create the catalog: %w", err)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.changes.Wake():
			m.changes.Take()
		}
		for ctx.Err() == nil {
			term, leads := m.store.leads()
			if !leads {
				break
			}
			if err := m.lead(ctx, term); err != nil && ctx.Err() == nil {
				m.cfg.Logger.Warn("catalog leadership ended", "term", uint64(term), "err", err)
			}
		}
	}
}

// lead reads the catalog and serves it until the term ends.
func (m *Master) lead(ctx context.Context, term ident.Term) error {
	if err := m.load(ctx, term); err != nil {
		return fmt.Errorf("read the catalog: %w", err)
	}
	defer m.stopLeading()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	eg, ctx := errgroup.WithContext(ctx)
	m.startReconciling(ctx, eg)
	eg.Go(func() error {
		defer cancel()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-m.changes.Wake():
				m.changes.Take()
			}
			if now, leads := m.store.leads(); !leads || now != term {
				return nil
			}
		}
	})
	return eg.Wait()
}

// load fills the memory from the catalog's tablet, and names the cluster where it has no name yet.
func (m *Master) load(ctx context.Context, term ident.Term) error {
	m.catalog.ddl.Lock()
	defer m.catalog.ddl.Unlock()
	return m.loadHoldingDDL(ctx, term)
}

func (m *Master) loadHoldingDDL(ctx context.Context, term ident.Term) error {
	fresh := newCatalog()
	var clusterID ident.ClusterID
	err := m.store.read(ctx, func(r *catalogRow) error {
		switch meta := r.metadata.(type) {
		case *nyalav1.CatalogTable:
			fresh.putTableLocked(ident.TableID(r.id), meta)
		case *nyalav1.CatalogTablet:
			if fresh.tables[ident.TableID(meta.GetTableId())] == nil {
				return status.New(status.Corruption, "tablet %s is of table %s, which the catalog doesn't have", r.id, meta.GetTableId())
			}
			fresh.putTabletLocked(ident.TabletID(r.id), meta)
		case *nyalav1.CatalogCluster:
			clusterID = ident.ClusterID(meta.GetClusterId())
		}
		return nil
	})
	if err != nil {
		return err
	}
	if clusterID == "" {
		clusterID = ident.ClusterID(ident.New())
		err := m.store.write(ctx, []catalogRow{{kind: entryCluster, metadata: &nyalav1.CatalogCluster{ClusterId: string(clusterID)}}})
		if err != nil {
			return fmt.Errorf("name the cluster: %w", err)
		}
		m.cfg.Logger.Info("named the cluster", "cluster_id", string(clusterID))
	}
	if err := m.node.SetClusterID(clusterID); err != nil {
		return err
	}
	for _, t := range fresh.tables {
		t.sortTablets()
	}
	m.catalog.mu.Lock()
	defer m.catalog.mu.Unlock()
	for id, old := range m.catalog.tablets {
		if ti := fresh.tablets[id]; ti != nil {
			ti.leader, ti.leaderTerm = old.leader, old.leaderTerm
		}
	}
	m.catalog.tables, m.catalog.byName, m.catalog.tablets = fresh.tables, fresh.byName, fresh.tablets
	m.catalog.term, m.catalog.doubtful = term, false
	m.cfg.Logger.Info("leading the catalog", "term", uint64(term), "tables", len(fresh.byName), "tablets", len(fresh.tablets))
	return nil
}

func (m *Master) stopLeading() {
	m.reconcile.mu.Lock()
	m.reconcile.run = nil
	m.reconcile.mu.Unlock()
	m.catalog.mu.Lock()
	m.catalog.clearLocked()
	m.catalog.mu.Unlock()
	m.servers.clear()
}

// Ready says whether this master has read the catalog and leads it.
func (m *Master) Ready() (bool, string) {
	m.catalog.mu.RLock()
	defer m.catalog.mu.RUnlock()
	if m.catalog.term == 0 {
		return false, "this master doesn't lead the catalog, or is still reading it"
	}
	return true, ""
}

// leading fails with NOT_THE_LEADER where this master doesn't serve the catalog. The caller holds catalog.mu.
func (m *Master) leadingLocked() error {
	if m.catalog.term == 0 {
		return status.New(status.NotTheLeader, "master %s doesn't lead the catalog", m.self.GetServerId())
	}
	return nil
}
