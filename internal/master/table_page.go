package master

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/daemon"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/replica"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// tablePath is the page of one table, under Kudu's name.
const tablePath = "/table"

// maxTabletsShown bounds the tablets on a table's page.
const maxTabletsShown = 1000

// tablePage describes the table that the request names by its id: its columns, its partitions, and where its tablets are.
func (m *Master) tablePage(r *http.Request) (daemon.Page, error) {
	id := r.URL.Query().Get("id")
	meta, tablets, total, err := m.tableAndTablets(ident.TableID(id))
	if err != nil {
		return daemon.Page{}, err
	}
	s, err := schema.FromProto(meta.GetSchema())
	if err != nil {
		return daemon.Page{}, fmt.Errorf("table %q: %w", meta.GetName(), err)
	}
	ps := schema.PartitionSchemaFromProto(meta.GetPartitionSchema())
	about := daemon.Table{Rows: [][]daemon.Cell{
		daemon.TextRow("name", meta.GetName()),
		daemon.TextRow("id", id),
		daemon.TextRow("created", time.UnixMicro(meta.GetCreatedUsec()).UTC().Format(time.RFC3339)),
		daemon.TextRow("replicas", fmt.Sprint(meta.GetNumReplicas())),
		daemon.TextRow("tablets", fmt.Sprint(total)),
		daemon.TextRow("schema version", fmt.Sprint(s.Version())),
	}}
	for _, h := range ps.Hash {
		about.Rows = append(about.Rows, daemon.TextRow("hash", fmt.Sprintf("%s: %d buckets", columnNames(s, h.Columns), h.Buckets)))
	}
	if len(ps.Range) > 0 {
		about.Rows = append(about.Rows, daemon.TextRow("range", columnNames(s, ps.Range)))
	}
	return daemon.Page{Title: "table " + meta.GetName(), Sections: []daemon.PageSection{
		{Title: "Table", Table: about},
		{Title: "Columns", Table: columnsTable(s)},
		{Title: "Tablets", Table: m.tabletsTable(s, ps, tablets, total)},
	}}, nil
}

// tableAndTablets returns what the catalog has of a table, of its tablets the first ones, and how many there are.
func (m *Master) tableAndTablets(id ident.TableID) (meta *nyalav1.CatalogTable, tablets []*nyalav1.TabletLocations, total int, err error) {
	m.catalog.mu.RLock()
	defer m.catalog.mu.RUnlock()
	if err := m.leadingLocked(); err != nil {
		return nil, nil, 0, err
	}
	t := m.catalog.tables[id]
	if t == nil || t.deleted() {
		return nil, nil, 0, status.New(status.TableNotFound, "there is no table with the id %q", id)
	}
	for _, ti := range t.tablets[:min(len(t.tablets), maxTabletsShown)] {
		tablets = append(tablets, m.locationLocked(ti))
	}
	return t.meta, tablets, len(t.tablets), nil
}

func columnNames(s *schema.Schema, ids []schema.ColumnID) string {
	var names []string
	for _, id := range ids {
		names = append(names, s.Column(s.IndexOfID(id)).Name)
	}
	return strings.Join(names, ", ")
}

func columnsTable(s *schema.Schema) daemon.Table {
	t := daemon.Table{Header: []string{"column", "type", "id", "key", "NULL", "default", "comment"}}
	for _, c := range s.Columns() {
		key, null, value := "", "", ""
		if c.Key {
			key = "key"
		}
		if c.Nullable {
			null = "null"
		}
		if v, err := c.ValueFromBytes(c.WriteDefault); c.WriteDefault != nil && err == nil {
			value = c.FormatText(v)
		}
		t.Rows = append(t.Rows, daemon.TextRow(c.Name, c.TypeName(), fmt.Sprint(c.ID), key, null, value, c.Comment))
	}
	return t
}

// tabletsTable has a row for each replica, which leads to the page that its server has of it.
func (m *Master) tabletsTable(s *schema.Schema, ps *schema.PartitionSchema, tablets []*nyalav1.TabletLocations, total int) daemon.Table {
	t := daemon.Table{Header: []string{"tablet", "hash buckets", "range", "replica", "server", "RPC", "role"}}
	web := map[string]string{}
	for _, ts := range m.servers.list(time.Now()) {
		web[ts.GetServerId()] = first(ts.GetWebAddresses())
	}
	for _, tablet := range tablets {
		p := schema.PartitionFromProto(tablet.GetPartition())
		hash, keys := strings.Trim(fmt.Sprint(p.Buckets), "[]"), ""
		if len(ps.Range) > 0 {
			keys = ps.FormatRange(s, p.RangeStart(), p.RangeEnd())
		}
		replicas := slices.SortedFunc(slices.Values(tablet.GetReplicas()), func(a, b *nyalav1.ReplicaLocation) int {
			return int(a.GetRole()) - int(b.GetRole()) // the leader first
		})
		for _, r := range replicas {
			row := daemon.TextRow(tablet.GetTabletId(), hash, keys, fmt.Sprint(r.GetReplicaId()), r.GetServerId(), r.GetAddress(), replica.RoleName(r.GetRole()))
			if address := web[r.GetServerId()]; address != "" {
				row[0].Link = "http://" + address + daemon.TabletPage(tablet.GetTabletId())
			}
			t.Rows = append(t.Rows, row)
		}
	}
	if total > len(tablets) {
		t.Rows = append(t.Rows, daemon.TextRow("…", "more than are shown here", "", "", "", "", ""))
	}
	return t
}
