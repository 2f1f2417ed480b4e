package master

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/nyaladb/nyala/internal/ident"
)

// A deleted table leaves the catalog once every server that had a replica of it has said that it has none, in answer to
// being told to delete it; likewise the tablets of a dropped range. That a report doesn't name a replica is no proof: it may be older than a creation still under way.

// removedLocked notes that a server holds no replica of a deleted table's tablet any more. The caller holds catalog.mu.
func (m *Master) removedLocked(ti *tabletInfo, server ident.ServerID) {
	if _, known := ti.removedFrom[server]; known || ti.replicaOn(server) == nil {
		return
	}
	if ti.removedFrom == nil {
		ti.removedFrom = map[ident.ServerID]struct{}{}
	}
	ti.removedFrom[server] = struct{}{}
	if !ti.removed() {
		return
	}
	t := ti.table
	if !t.deleted() || !slices.ContainsFunc(t.all(), func(ti *tabletInfo) bool { return !ti.removed() }) {
		m.catalog.purgeable[t] = struct{}{}
		poke(m.purge)
	}
}

// purgeDeleted takes deleted tables out of the catalog once no server holds anything of them.
func (m *Master) purgeDeleted(ctx context.Context) error {
	return m.settle(ctx, m.purge, func() map[*table]struct{} { return m.catalog.purgeable }, "take it out, since it is deleted", m.purgeTable)
}

// settle does one thing to each table of a set, read under catalog.mu, whenever wake says that there may be some. What fails is
// tried again after a pause.
func (m *Master) settle(ctx context.Context, wake chan struct{}, set func() map[*table]struct{}, what string,
	do func(context.Context, *table) error,
) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		}
		m.catalog.mu.RLock()
		tables := slices.Collect(maps.Keys(set()))
		m.catalog.mu.RUnlock()
		for _, t := range tables {
			if err := do(ctx, t); err != nil && ctx.Err() == nil {
				m.cfg.Logger.Warn("a table stands in the catalog as it was for the moment", "table_id", string(t.id), "due", what, "err", err)
				poke(wake)
				pause(ctx, taskRetry)
				break
			}
		}
	}
}

func (m *Master) purgeTable(ctx context.Context, t *table) error {
	if err := m.catalog.lockDDL(ctx); err != nil {
		return err
	}
	defer m.catalog.unlockDDL()
	if err := m.freshForChange(ctx); err != nil {
		return err
	}
	m.catalog.mu.RLock()
	_, known := m.catalog.purgeable[t]
	whole := t.deleted() && !slices.ContainsFunc(t.all(), func(ti *tabletInfo) bool { return !ti.removed() })
	gone := t.all()
	if !whole {
		gone = slices.DeleteFunc(slices.Clone(t.dropped), func(ti *tabletInfo) bool { return !ti.removed() })
	}
	m.catalog.mu.RUnlock()
	if !known {
		return nil // the catalog was read anew: its servers are asked again
	}
	var rows []catalogRow
	if whole {
		rows = append(rows, catalogRow{kind: entryTable, id: string(t.id), remove: true})
	}
	for _, ti := range gone {
		rows = append(rows, catalogRow{kind: entryTablet, id: string(ti.id), remove: true})
	}
	if err := m.change(ctx, rows); err != nil {
		return err
	}
	m.catalog.mu.Lock()
	defer m.catalog.mu.Unlock()
	if whole {
		m.catalog.removeTableLocked(t)
		return nil
	}
	for _, ti := range gone {
		delete(m.catalog.tablets, ti.id)
	}
	t.dropped = slices.DeleteFunc(slices.Clone(t.dropped), func(ti *tabletInfo) bool { return slices.Contains(gone, ti) })
	// Those that others have left since come in turn.
	if !slices.ContainsFunc(t.dropped, (*tabletInfo).removed) {
		delete(m.catalog.purgeable, t)
	} else {
		poke(m.purge)
	}
	return nil
}

// poke puts a token into a channel that holds one.
func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// pause waits for d, or for ctx.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
