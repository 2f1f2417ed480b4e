package master

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

// catalog is what the catalog's tablet holds, in memory, with what tablet servers report beside it.
type catalog struct {
	// ddl holds a token over a whole change, from its check to its write.
	ddl chan struct{}

	// mu guards what follows.
	mu        sync.RWMutex
	term      ident.Term // in which this master leads and has read the catalog; 0: it doesn't
	doubtful  bool       // a write ended without an answer: read anew before the next change
	tables    map[ident.TableID]*table
	byName    map[string]*table // those that aren't deleted
	byRequest map[string]*table // those whose creation had a request id, deleted ones too
	tablets   map[ident.TabletID]*tabletInfo
	// purgeable are deleted tables, and tables with dropped tablets, that no server holds anything of.
	purgeable map[*table]struct{}
	// made are tables whose replicas have all been seen and that aren't marked so yet.
	made map[*table]struct{}
	// applied are altered tables of whose latest schema clients aren't told yet, although all tablets have it.
	applied map[*table]struct{}
	// moved are tables of whose tablets' members the catalog doesn't know the latest.
	moved map[*table]struct{}
}

// lockDDL waits for the turn to change the catalog.
func (c *catalog) lockDDL(ctx context.Context) error {
	select {
	case c.ddl <- struct{}{}:
		return nil
	case <-ctx.Done():
		return status.Wrap(status.TimedOut, ctx.Err(), "another change of the catalog is under way")
	}
}

func (c *catalog) unlockDDL() { <-c.ddl }

// table is a table as the catalog has it. Its fields but tablets are replaced as a whole, never changed.
type table struct {
	id      ident.TableID
	meta    *nyalav1.CatalogTable
	tablets []*tabletInfo // in the order of their partitions
	dropped []*tabletInfo // of dropped ranges, until no server holds a replica
}

func (t *table) deleted() bool {
	return t.meta.GetState() == nyalav1.CatalogTableState_CATALOG_TABLE_STATE_DELETED
}

// withLeader counts the tablets that some server leads.
func (t *table) withLeader() int {
	n := 0
	for _, ti := range t.tablets {
		if ti.leader != 0 {
			n++
		}
	}
	return n
}

// tabletInfo is a tablet as the catalog has it, and its leader as tablet servers report it.
type tabletInfo struct {
	id         ident.TabletID
	table      *table
	meta       *nyalav1.CatalogTablet
	leader     ident.ReplicaID // 0: unknown
	leaderTerm ident.Term
	// removedFrom are the servers that hold no replica any more, once the table is deleted.
	removedFrom map[ident.ServerID]struct{}
	// heldBy are the servers that have reported their replica, until all of the table's have been.
	heldBy map[ident.ServerID]struct{}
	// schemaVersion is the latest that a replica is known to have applied, if any is known.
	schemaVersion uint32
	schemaKnown   bool
	// newConfig is a later config than the catalog's, of the term newConfigTerm, that is to be written there; nil: none.
	newConfig     *nyalav1.RaftConfig
	newConfigTerm uint64
	// stale are replicas that were removed from the group and that their servers still hold.
	stale map[ident.ServerID]ident.ReplicaID
}

// deleted says whether the tablet is to go, with its table or with its range.
func (ti *tabletInfo) deleted() bool { return ti.meta.GetDeleted() || ti.table.deleted() }

// removed says whether no server holds a replica of a deleted tablet any more.
func (ti *tabletInfo) removed() bool {
	return len(ti.removedFrom) == len(ti.meta.GetConfig().GetPeers())
}

func newCatalog() *catalog {
	c := &catalog{ddl: make(chan struct{}, 1)}
	c.clearLocked()
	return c
}

func (c *catalog) clearLocked() {
	c.term = 0
	c.tables = map[ident.TableID]*table{}
	c.doubtful = false
	c.byName = map[string]*table{}
	c.byRequest = map[string]*table{}
	c.tablets = map[ident.TabletID]*tabletInfo{}
	c.purgeable = map[*table]struct{}{}
	c.made = map[*table]struct{}{}
	c.applied = map[*table]struct{}{}
	c.moved = map[*table]struct{}{}
}

// putTableLocked adds a table or replaces its metadata.
func (c *catalog) putTableLocked(id ident.TableID, meta *nyalav1.CatalogTable) *table {
	t := c.tables[id]
	if t == nil {
		t = &table{id: id}
		c.tables[id] = t
	} else if c.byName[t.meta.GetName()] == t {
		delete(c.byName, t.meta.GetName())
	}
	t.meta = meta
	if id := meta.GetRequestId(); len(id) > 0 {
		c.byRequest[string(id)] = t
	}
	if !t.deleted() {
		c.byName[meta.GetName()] = t
	}
	return t
}

// putTabletLocked adds a tablet to its table, which must be there. sortTabletsLocked has to follow.
func (c *catalog) putTabletLocked(id ident.TabletID, meta *nyalav1.CatalogTablet) *tabletInfo {
	t := c.tables[ident.TableID(meta.GetTableId())]
	ti := &tabletInfo{id: id, table: t, meta: meta}
	c.tablets[id] = ti
	if meta.GetDeleted() {
		t.dropped = append(t.dropped, ti)
	} else {
		t.tablets = append(t.tablets, ti)
	}
	return ti
}

// drop moves a tablet to the dropped ones, with its new metadata.
func (t *table) drop(ti *tabletInfo, meta *nyalav1.CatalogTablet) {
	ti.meta = meta
	t.tablets = slices.DeleteFunc(slices.Clone(t.tablets), func(o *tabletInfo) bool { return o == ti })
	t.dropped = append(t.dropped, ti)
}

// all are the table's tablets, dropped ones too.
func (t *table) all() []*tabletInfo { return slices.Concat(t.tablets, t.dropped) }

func (t *table) sortTablets() {
	slices.SortFunc(t.tablets, func(a, b *tabletInfo) int {
		return slices.Compare(a.meta.GetPartition().GetPartitionKeyStart(), b.meta.GetPartition().GetPartitionKeyStart())
	})
}

func (c *catalog) removeTableLocked(t *table) {
	delete(c.tables, t.id)
	if c.byName[t.meta.GetName()] == t {
		delete(c.byName, t.meta.GetName())
	}
	if id := string(t.meta.GetRequestId()); c.byRequest[id] == t {
		delete(c.byRequest, id)
	}
	for _, ti := range t.all() {
		delete(c.tablets, ti.id)
	}
	delete(c.purgeable, t)
	delete(c.made, t)
	delete(c.applied, t)
	delete(c.moved, t)
}

// takeOverLocked replaces what the tablet holds by what was read anew; what servers have reported stays.
func (c *catalog) takeOverLocked(fresh *catalog, term ident.Term) {
	for id, old := range c.tablets {
		if ti := fresh.tablets[id]; ti != nil {
			ti.leader, ti.leaderTerm = old.leader, old.leaderTerm
			ti.schemaVersion, ti.schemaKnown = old.schemaVersion, old.schemaKnown
			ti.stale = old.stale
			if old.newConfig.GetOpidIndex() > ti.meta.GetConfig().GetOpidIndex() {
				ti.newConfig, ti.newConfigTerm = old.newConfig, old.newConfigTerm
				fresh.moved[ti.table] = struct{}{}
			}
		}
	}
	c.tables, c.byName, c.byRequest, c.tablets, c.purgeable = fresh.tables, fresh.byName, fresh.byRequest, fresh.tablets, fresh.purgeable
	c.made, c.applied, c.moved = fresh.made, fresh.applied, fresh.moved
	c.term, c.doubtful = term, false
}

// findLocked returns the table that an identifier names.
func (c *catalog) findLocked(id *nyalav1.TableIdentifier) (*table, error) {
	if id.GetId() != "" {
		if t, ok := c.tables[ident.TableID(id.GetId())]; ok && !t.deleted() {
			return t, nil
		}
		return nil, status.New(status.TableNotFound, "no table has the id %q", id.GetId())
	}
	if t, ok := c.byName[id.GetName()]; ok {
		return t, nil
	}
	return nil, status.New(status.TableNotFound, "table %q does not exist", id.GetName())
}

// listLocked returns the tables whose names contain filter, by name.
func (c *catalog) listLocked(filter string) []*table {
	var out []*table
	for name, t := range c.byName {
		if strings.Contains(name, filter) {
			out = append(out, t)
		}
	}
	slices.SortFunc(out, func(a, b *table) int { return cmp.Compare(a.meta.GetName(), b.meta.GetName()) })
	return out
}

// reportLeader takes over what a replica says of its tablet's leader. A report from an older term changes nothing, nor does
// a replica that hasn't heard of the leader that another one reported for the term.
func (ti *tabletInfo) reportLeader(term ident.Term, leader ident.ReplicaID) {
	if term > ti.leaderTerm || term == ti.leaderTerm && leader != 0 {
		ti.leader, ti.leaderTerm = leader, term
	}
}

// replicaOn returns the tablet's replica on a server.
func (ti *tabletInfo) replicaOn(server ident.ServerID) *nyalav1.Peer {
	for _, p := range ti.meta.GetConfig().GetPeers() {
		if p.GetServerId() == string(server) {
			return p
		}
	}
	return nil
}
