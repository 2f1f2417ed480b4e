package master

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

const (
	// leadRetry is the pause before the catalog is tried again that could not be read.
	leadRetry = time.Second
	// catalogWriteTimeout bounds a write to the catalog, whatever its caller is ready to wait: changes go one at a time.
	catalogWriteTimeout = 10 * time.Second
)

// Run makes the catalog's tablet where this is the first start, then leads whenever the tablet's group elects this
// master, until ctx ends.
func (m *Master) Run(ctx context.Context) error {
	if err := m.store.createReplica(ctx, m.self); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("create the catalog: %w", err)
	}
	for ctx.Err() == nil {
		if term, leads := m.store.leads(); leads {
			if err := m.lead(ctx, term); err != nil && ctx.Err() == nil {
				m.cfg.Logger.Error("this master leads the catalog's tablet but can't serve the catalog; trying again", "term", uint64(term), "err", err)
				pause(ctx, leadRetry)
			}
			continue
		}
		select {
		case <-ctx.Done():
		case <-m.changes.Wake():
			m.changes.Take()
		}
	}
	return nil
}

// lead reads the catalog and serves it until the term ends.
func (m *Master) lead(ctx context.Context, term ident.Term) error {
	m.servers.begin(term)
	defer m.stopLeading()
	if err := m.load(ctx, term); err != nil {
		return fmt.Errorf("read the catalog: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	eg, ctx := errgroup.WithContext(ctx)
	eg.Go(func() error { return m.purgeDeleted(ctx) })
	eg.Go(func() error { return m.markMade(ctx) })
	eg.Go(func() error { return m.showSchemas(ctx) })
	eg.Go(func() error { return m.keepConfigs(ctx) })
	eg.Go(func() error { return m.settleDoubts(ctx) })
	eg.Go(func() error { return m.keepMembers(ctx, term) })
	m.startReconciling(ctx, eg)
	eg.Go(func() error {
		defer cancel()
		defer m.stopReconciling() // while eg still waits for this goroutine: no conversation begins after it
		m.awaitEnd(ctx, term)
		return nil
	})
	return eg.Wait()
}

// awaitEnd returns when this master no longer leads in term.
func (m *Master) awaitEnd(ctx context.Context, term ident.Term) {
	for {
		if now, leads := m.store.leads(); !leads || now != term {
			m.cfg.Logger.Info("no longer leading the catalog", "term", uint64(term))
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-m.changes.Wake():
			m.changes.Take()
		}
	}
}

func (m *Master) stopLeading() {
	m.catalog.mu.Lock()
	m.catalog.clearLocked()
	m.catalog.mu.Unlock()
	m.servers.begin(0)
}

// load fills the memory from the catalog's tablet at the beginning of a leadership, and names the cluster where it has no
// name yet.
func (m *Master) load(ctx context.Context, term ident.Term) error {
	if err := m.catalog.lockDDL(ctx); err != nil {
		return err
	}
	defer m.catalog.unlockDDL()
	fresh, clusterID, err := m.readCatalog(ctx)
	if err != nil {
		return err
	}
	if err := m.nameCluster(ctx, clusterID); err != nil {
		return err
	}
	m.catalog.mu.Lock()
	m.catalog.clearLocked()
	m.catalog.takeOverLocked(fresh, term)
	m.catalog.mu.Unlock()
	m.cfg.Logger.Info("leading the catalog", "term", uint64(term), "tables", len(fresh.byName), "tablets", len(fresh.tablets))
	return nil
}

// readCatalog reads all that the catalog's tablet holds once every write that this master has sent is decided.
func (m *Master) readCatalog(ctx context.Context) (*catalog, ident.ClusterID, error) {
	ctx, cancel := context.WithTimeout(ctx, catalogWriteTimeout)
	defer cancel()
	if err := m.store.barrier(ctx); err != nil {
		return nil, "", err
	}
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
	for _, t := range fresh.tables {
		t.sortTablets()
	}
	return fresh, clusterID, err
}

// nameCluster makes this master a member of the cluster that the catalog names, or names it where this is the first start of
// the first master. An empty catalog on a master that is a member already is not the cluster's.
func (m *Master) nameCluster(ctx context.Context, id ident.ClusterID) error {
	if id == "" {
		if own := m.node.ClusterID(); own != "" {
			return status.New(status.Corruption, "this master belongs to cluster %s, but its catalog names no cluster: it isn't that cluster's catalog; nothing was changed", own)
		}
		id = ident.ClusterID(ident.New())
		row := catalogRow{kind: entryCluster, metadata: &nyalav1.CatalogCluster{ClusterId: string(id)}}
		if err := m.store.write(ctx, []catalogRow{row}); err != nil {
			return fmt.Errorf("name the cluster: %w", err)
		}
		m.cfg.Logger.Info("named the cluster", "cluster_id", string(id))
	}
	return m.node.SetClusterID(id)
}

// freshForChange makes sure that this master leads and that its memory is what the catalog's tablet holds (I2). The caller
// holds the DDL token.
func (m *Master) freshForChange(ctx context.Context) error {
	m.catalog.mu.RLock()
	err, doubtful, term := m.leadingLocked(), m.catalog.doubtful, m.catalog.term
	m.catalog.mu.RUnlock()
	if err != nil || !doubtful {
		return err
	}
	fresh, _, err := m.readCatalog(ctx)
	if err != nil {
		return fmt.Errorf("read the catalog again after a write whose outcome isn't known: %w", err)
	}
	m.catalog.mu.Lock()
	defer m.catalog.mu.Unlock()
	if m.catalog.term != term {
		return m.notLeading()
	}
	m.catalog.takeOverLocked(fresh, term)
	m.cfg.Logger.Info("read the catalog again after a write whose outcome was not known", "tables", len(fresh.byName))
	for _, ts := range m.servers.all() {
		m.compareLocked(ts)
	}
	for _, t := range m.catalog.tables {
		m.pushSchemaLocked(t)
	}
	return nil
}

// change writes rows to the catalog. Where that fails the write may still come to pass: the memory is in doubt until it is
// read anew. The caller holds the DDL token. The write goes on when the caller has gone: it would only leave a doubt.
func (m *Master) change(ctx context.Context, rows []catalogRow) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), catalogWriteTimeout)
	defer cancel()
	err := m.store.write(ctx, rows)
	if err != nil {
		m.catalog.mu.Lock()
		m.catalog.doubtful = true
		m.catalog.mu.Unlock()
		poke(m.doubt)
	}
	return err
}

// settleDoubts reads the catalog anew after a write whose outcome isn't known, where no other change does so first.
func (m *Master) settleDoubts(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.doubt:
		}
		if err := m.settleDoubt(ctx); err != nil && ctx.Err() == nil {
			m.cfg.Logger.Warn("the catalog can't be read again for the moment", "err", err)
			pause(ctx, leadRetry)
			poke(m.doubt)
		}
	}
}

func (m *Master) settleDoubt(ctx context.Context) error {
	if err := m.catalog.lockDDL(ctx); err != nil {
		return err
	}
	defer m.catalog.unlockDDL()
	return m.freshForChange(ctx)
}

// Ready says whether this master has read the catalog and leads it.
func (m *Master) Ready() (bool, string) {
	m.catalog.mu.RLock()
	leads := m.catalog.term != 0
	m.catalog.mu.RUnlock()
	if leads {
		return true, ""
	}
	if st, _ := m.node.Replicas.Status(ident.CatalogTablet); st.GetState() == nyalav1.TabletState_TABLET_STATE_FAILED {
		return false, "this master's replica of the catalog has failed: " + st.GetError()
	}
	return false, "this master doesn't lead the catalog, or is still reading it"
}

// leadingLocked fails with NOT_THE_LEADER where this master doesn't serve the catalog. The caller holds catalog.mu.
func (m *Master) leadingLocked() error {
	if m.catalog.term == 0 {
		return m.notLeading()
	}
	return nil
}

func (m *Master) notLeading() error {
	return status.New(status.NotTheLeader, "master %s doesn't lead the catalog", m.self.GetServerId())
}
