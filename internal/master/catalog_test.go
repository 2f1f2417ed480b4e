package master

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

// TestCatalogSurvivesKill kills the master and finds everything as it was: tables, ids, placement, the cluster's name.
func TestCatalogSurvivesKill(t *testing.T) {
	r := newRig(t, 3)
	first := r.create(tableRequest("first", 4, 3))
	r.create(tableRequest("second", 1, 1))
	gone := r.create(tableRequest("gone", 2, 1))
	c := r.master.dial()
	_, err := c.DeleteTable(t.Context(), &nyalav1.DeleteTableRequest{Table: &nyalav1.TableIdentifier{Id: gone.GetTableId()}})
	require.NoError(t, err)
	before := r.locations("first")
	info, err := c.GetClusterInfo(t.Context(), &nyalav1.GetClusterInfoRequest{})
	require.NoError(t, err)
	require.Len(t, info.GetMasters(), 1)
	require.Equal(t, nyalav1.Role_ROLE_LEADER, info.GetMasters()[0].GetRole())
	r.master.kill()
	r.master.start()

	r.alive(3)
	list, err := c.ListTables(t.Context(), &nyalav1.ListTablesRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetTables(), 2)
	require.Equal(t, "first", list.GetTables()[0].GetName())
	require.Equal(t, first.GetTableId(), list.GetTables()[0].GetId())
	list, err = c.ListTables(t.Context(), &nyalav1.ListTablesRequest{NameFilter: "eco"})
	require.NoError(t, err)
	require.Len(t, list.GetTables(), 1)
	r.awaitLeaders("first")
	after := r.locations("first")
	require.Len(t, after, 4)
	for i := range after {
		require.Equal(t, before[i].GetTabletId(), after[i].GetTabletId())
		require.True(t, proto.Equal(before[i].GetPartition(), after[i].GetPartition()))
		require.Len(t, after[i].GetReplicas(), 3)
		for j := range after[i].GetReplicas() {
			require.Equal(t, before[i].GetReplicas()[j].GetServerId(), after[i].GetReplicas()[j].GetServerId())
		}
	}
	again, err := c.GetClusterInfo(t.Context(), &nyalav1.GetClusterInfoRequest{})
	require.NoError(t, err)
	require.Equal(t, info.GetClusterId(), again.GetClusterId())
	for _, s := range r.ts {
		require.Equal(t, ident.ClusterID(info.GetClusterId()), s.n.ClusterID())
	}
	r.until("the deleted table is gone for good", func() bool {
		r.master.m.catalog.mu.RLock()
		defer r.master.m.catalog.mu.RUnlock()
		return len(r.master.m.catalog.tables) == 2
	})
}

// TestCreateAgain: a creation sent again gets its first answer, as long as the master knows of it, also when the table has
// been renamed or deleted in between; another creation of the same name is told that there is one.
func TestCreateAgain(t *testing.T) {
	r := newRig(t, 1)
	c := r.master.dial()
	req := tableRequest("t", 2, 1)
	first := r.create(req)
	r.master.kill()
	r.master.start()
	again, err := c.CreateTable(t.Context(), req)
	require.NoError(t, err)
	require.True(t, proto.Equal(first, again), "%v, then %v", first, again)
	_, err = c.CreateTable(t.Context(), tableRequest("t", 2, 1))
	err = status.FromGRPC(err)
	require.Equal(t, status.TableAlreadyPresent, status.CodeOf(err))
	require.EqualError(t, err, `table "t" already exists`)
	other := proto.CloneOf(req)
	other.Name = "u"
	_, err = c.CreateTable(t.Context(), other)
	require.Equal(t, status.InvalidArgument, status.CodeOf(status.FromGRPC(err)))
	require.ErrorContains(t, err, `was used for table "t"`)
	require.Len(t, r.held(), 2)

	for _, names := range [][2]string{{"t", "u"}, {"u", "v"}, {"v", "t"}} {
		_, err = r.alter(names[0], renameTable(names[1]))
		require.NoError(t, err)
		r.awaitAltered(names[1])
		again, err = c.CreateTable(t.Context(), req)
		require.NoError(t, err, "the table that it made is %q by now", names[1])
		require.True(t, proto.Equal(first, again), "not a second table")
		_, err = c.CreateTable(t.Context(), other)
		require.ErrorContains(t, err, `was used for table "t"`)
	}

	r.ts[0].kill() // so that the deleted table stays in the catalog
	_, err = c.DeleteTable(t.Context(), &nyalav1.DeleteTableRequest{Table: byName("t")})
	require.NoError(t, err)
	again, err = c.CreateTable(t.Context(), req)
	require.NoError(t, err)
	require.True(t, proto.Equal(first, again), "not a second table")
	_, err = c.GetTable(t.Context(), &nyalav1.GetTableRequest{Table: byName("t")})
	err = status.FromGRPC(err)
	require.Equal(t, status.TableNotFound, status.CodeOf(err))
	require.EqualError(t, err, `table "t" does not exist`)
	_, err = c.DeleteTable(t.Context(), &nyalav1.DeleteTableRequest{Table: &nyalav1.TableIdentifier{Id: first.GetTableId()}})
	require.Equal(t, status.TableNotFound, status.CodeOf(status.FromGRPC(err)))
}

// TestDeleteAndRecreate gives a name to a new table while the old one's replicas are still being removed.
func TestDeleteAndRecreate(t *testing.T) {
	r := newRig(t, 3)
	c := r.master.dial()
	for range 3 {
		old := r.create(tableRequest("t", 3, 3))
		_, err := c.DeleteTable(t.Context(), &nyalav1.DeleteTableRequest{Table: byName("t")})
		require.NoError(t, err)
		next := r.create(tableRequest("t", 2, 3))
		require.NotEqual(t, old.GetTableId(), next.GetTableId())
		r.until("only the new table's replicas are left", func() bool { return len(r.held()) == 2 })
		r.until("the old table is out of the catalog", func() bool {
			r.master.m.catalog.mu.RLock()
			defer r.master.m.catalog.mu.RUnlock()
			return len(r.master.m.catalog.tables) == 1 && len(r.master.m.catalog.tablets) == 2
		})
		_, err = c.DeleteTable(t.Context(), &nyalav1.DeleteTableRequest{Table: byName("t")})
		require.NoError(t, err)
	}
	r.until("everything is gone", func() bool { return len(r.held()) == 0 })
}

// TestRefusedTables: what is wrong with a new table is said, and no half of it is left.
func TestRefusedTables(t *testing.T) {
	r := newRig(t, 1)
	c := r.master.dial()
	for name, k := range map[string]struct {
		edit func(*nyalav1.CreateTableRequest)
		code status.Code
		text string
	}{
		"servers":    {func(q *nyalav1.CreateTableRequest) { q.NumReplicas = 3 }, status.TooFewTabletServers, "only 1 tablet server is alive; add --replicas 1"},
		"default":    {func(q *nyalav1.CreateTableRequest) { q.NumReplicas = 0 }, status.TooFewTabletServers, "only 1 tablet server is alive; add --replicas 1"},
		"even":       {func(q *nyalav1.CreateTableRequest) { q.NumReplicas = 2 }, status.InvalidArgument, "replication factor is 2: want an odd number from 1 to 7"},
		"many":       {func(q *nyalav1.CreateTableRequest) { q.NumReplicas = 1<<32 - 1 }, status.InvalidArgument, "want an odd number from 1 to 7"},
		"no name":    {func(q *nyalav1.CreateTableRequest) { q.Name = "" }, status.InvalidArgument, "the table has no name"},
		"long name":  {func(q *nyalav1.CreateTableRequest) { q.Name = strings.Repeat("n", 257) }, status.InvalidArgument, "table name has 257 bytes, the most is 256"},
		"NUL":        {func(q *nyalav1.CreateTableRequest) { q.Name = "a\x00b" }, status.InvalidArgument, "NUL"},
		"request id": {func(q *nyalav1.CreateTableRequest) { q.RequestId = []byte{1} }, status.InvalidArgument, "request id has 1 bytes, want 16 or none"},
		"no columns": {func(q *nyalav1.CreateTableRequest) { q.Schema = nil }, status.InvalidSchema, ""},
		"columns": {func(q *nyalav1.CreateTableRequest) {
			for range 300 {
				q.Schema.Columns = append(q.Schema.Columns, &nyalav1.ColumnSchema{Name: ident.New(), Type: nyalav1.DataType_DATA_TYPE_INT8})
			}
		}, status.InvalidSchema, "302 columns, the most is 300"},
		"description": {func(q *nyalav1.CreateTableRequest) {
			for range 298 {
				q.Schema.Columns = append(q.Schema.Columns, &nyalav1.ColumnSchema{
					Name: strings.Repeat(ident.New(), 8), Type: nyalav1.DataType_DATA_TYPE_INT8, Comment: strings.Repeat("c", 256), Nullable: true,
				})
			}
		}, status.InvalidArgument, "its description takes"},
		"buckets":     {func(q *nyalav1.CreateTableRequest) { q.Hash[0].NumBuckets = 5001 }, status.InvalidArgument, "would have 5001 tablets, the most is 5000 (--max_create_tablets_per_table)"},
		"one bucket":  {func(q *nyalav1.CreateTableRequest) { q.Hash[0].NumBuckets = 1 }, status.InvalidSchema, "want at least 2"},
		"hash column": {func(q *nyalav1.CreateTableRequest) { q.Hash[0].Columns = []string{"x"} }, status.InvalidArgument, `column "x", which the table doesn't have`},
	} {
		t.Run(name, func(t *testing.T) {
			req := tableRequest("t", 2, 1)
			k.edit(req)
			_, err := c.CreateTable(t.Context(), req)
			err = status.FromGRPC(err)
			require.Equal(t, k.code, status.CodeOf(err), "%v", err)
			require.ErrorContains(t, err, k.text)
		})
	}
	require.EqualError(t, tooFewServers(0, 3), "no tablet server is alive; start one, or wait until one has registered")
	require.EqualError(t, tooFewServers(4, 5), "only 4 tablet servers are alive, 5 replicas need 5; add --replicas 3")
	list, err := c.ListTables(t.Context(), &nyalav1.ListTablesRequest{})
	require.NoError(t, err)
	require.Empty(t, list.GetTables())
	require.Empty(t, r.held())
	r.create(tableRequest("t", 2, 1))
}

// TestDoubtfulWrite: a change that came to pass although its answer was lost is found, without another change's help, and
// carried out.
func TestDoubtfulWrite(t *testing.T) {
	r := newRig(t, 1)
	m := r.master.m
	req := tableRequest("t", 2, 1)
	s, ps, _, err := tableSchema(req)
	require.NoError(t, err)
	id := ident.New()
	rows := []catalogRow{{kind: entryTable, id: id, metadata: &nyalav1.CatalogTable{
		Name: "t", Schema: s.ToProto(), PartitionSchema: ps.ToProto(), NumReplicas: 1,
		State: nyalav1.CatalogTableState_CATALOG_TABLE_STATE_PRESENT, RequestId: req.GetRequestId(),
	}}}
	configs := place(m.candidates(time.Now()), 2, 1)
	for i, p := range ps.Partitions() {
		rows = append(rows, catalogRow{kind: entryTablet, id: ident.New(), metadata: &nyalav1.CatalogTablet{TableId: id, Partition: p.ToProto(), Config: configs[i]}})
	}
	doubt := func(rows []catalogRow) {
		require.NoError(t, m.catalog.lockDDL(t.Context()))
		defer m.catalog.unlockDDL()
		require.NoError(t, m.store.write(t.Context(), rows))
		m.catalog.mu.Lock()
		defer m.catalog.mu.Unlock()
		m.catalog.doubtful = true
		poke(m.doubt)
	}
	doubt(rows)
	c := r.master.dial()
	r.until("the table is found", func() bool {
		_, err := c.GetTable(t.Context(), &nyalav1.GetTableRequest{Table: byName("t")})
		return err == nil
	})
	r.awaitLeaders("t")
	again, err := c.CreateTable(t.Context(), req)
	require.NoError(t, err)
	require.Equal(t, id, again.GetTableId())

	deleted := proto.CloneOf(rows[0].metadata.(*nyalav1.CatalogTable))
	deleted.State = nyalav1.CatalogTableState_CATALOG_TABLE_STATE_DELETED
	doubt([]catalogRow{{kind: entryTable, id: id, metadata: deleted}})
	r.until("its replicas are removed and it leaves the catalog", func() bool {
		m.catalog.mu.RLock()
		defer m.catalog.mu.RUnlock()
		return len(r.held()) == 0 && len(m.catalog.tables) == 0
	})
}

// TestEmptyCatalogOfMember: a master that belongs to a cluster doesn't make another one of an empty catalog.
func TestEmptyCatalogOfMember(t *testing.T) {
	r := newRig(t, 0)
	m := r.master.m
	require.NoError(t, m.catalog.lockDDL(t.Context()))
	require.NoError(t, m.store.write(t.Context(), []catalogRow{{kind: entryCluster, remove: true}}))
	m.catalog.unlockDDL()
	_, id, err := m.readCatalog(t.Context())
	require.NoError(t, err)
	require.Empty(t, id)
	err = m.nameCluster(t.Context(), "")
	require.Equal(t, status.Corruption, status.CodeOf(err), "%v", err)
	_, id, err = m.readCatalog(t.Context())
	require.NoError(t, err)
	require.Empty(t, id, "nothing was written")
	require.NoError(t, m.store.write(t.Context(), []catalogRow{{kind: entryCluster, metadata: &nyalav1.CatalogCluster{ClusterId: string(r.master.n.ClusterID())}}}))
}
