package master

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

type (
	alterRequest = nyalav1.AlterTableRequest
	alterStep    = nyalav1.AlterTableRequest_Step
)

// steps of ALTER.

func renameTable(name string) *alterStep {
	return &alterStep{Step: &nyalav1.AlterTableRequest_Step_RenameTable{RenameTable: name}}
}

func addColumn(c *nyalav1.ColumnSchema) *alterStep {
	return &alterStep{Step: &nyalav1.AlterTableRequest_Step_AddColumn{AddColumn: &nyalav1.AlterTableRequest_AddColumn{Column: c}}}
}

func dropColumn(name string) *alterStep {
	return &alterStep{Step: &nyalav1.AlterTableRequest_Step_DropColumn{DropColumn: &nyalav1.AlterTableRequest_DropColumn{Name: name}}}
}

func alterColumn(c *nyalav1.AlterTableRequest_AlterColumn) *alterStep {
	return &alterStep{Step: &nyalav1.AlterTableRequest_Step_AlterColumn{AlterColumn: c}}
}

func addRange(r *nyalav1.RangePartition) *alterStep {
	return &alterStep{Step: &nyalav1.AlterTableRequest_Step_AddRange{AddRange: r}}
}

func dropRange(r *nyalav1.RangePartition) *alterStep {
	return &alterStep{Step: &nyalav1.AlterTableRequest_Step_DropRange{DropRange: r}}
}

func renamed(from, to string) *nyalav1.AlterTableRequest_AlterColumn {
	return &nyalav1.AlterTableRequest_AlterColumn{Name: from, NewName: &to}
}

// between is the range [lower, upper) of an int64 column.
func between(lower, upper int64) *nyalav1.RangePartition {
	value := func(v int64) []*nyalav1.RangeValue {
		return []*nyalav1.RangeValue{{Value: binary.LittleEndian.AppendUint64(nil, uint64(v))}}
	}
	return &nyalav1.RangePartition{Lower: value(lower), Upper: value(upper)}
}

// rangeTable is a table with one range for each pair of bounds.
func rangeTable(name string, buckets, replicas int, bounds ...int64) *nyalav1.CreateTableRequest {
	req := tableRequest(name, buckets, replicas)
	for i := 0; i+1 < len(bounds); i += 2 {
		req.Ranges = append(req.Ranges, between(bounds[i], bounds[i+1]))
	}
	return req
}

func (r *rig) alter(name string, steps ...*alterStep) (*nyalav1.AlterTableResponse, error) {
	r.t.Helper()
	id, err := ident.Bytes(ident.New())
	require.NoError(r.t, err)
	resp, err := r.master.dial().AlterTable(r.t.Context(), &alterRequest{Table: byName(name), Steps: steps, RequestId: id[:]})
	return resp, status.FromGRPC(err)
}

func (r *rig) awaitAltered(name string) {
	r.t.Helper()
	c := r.master.dial()
	r.until("every tablet of "+name+" is altered", func() bool {
		done, err := c.IsAlterTableDone(r.t.Context(), &nyalav1.IsAlterTableDoneRequest{Table: byName(name)})
		require.NoError(r.t, status.FromGRPC(err))
		return done.GetDone()
	})
}

func (r *rig) describe(name string) *nyalav1.GetTableResponse {
	r.t.Helper()
	resp, err := r.master.dial().GetTable(r.t.Context(), &nyalav1.GetTableRequest{Table: byName(name)})
	require.NoError(r.t, status.FromGRPC(err))
	return resp
}

func columnText(s *nyalav1.Schema) string {
	var names []string
	for _, c := range s.GetColumns() {
		names = append(names, c.GetName())
	}
	return strings.Join(names, " ")
}

// versions are the schema versions of all replicas that the tablet servers hold.
func (r *rig) versions() map[uint32]int {
	out := map[uint32]int{}
	for _, s := range r.ts {
		for _, st := range s.n.Replicas.Statuses() {
			out[st.GetSchemaVersion()]++
		}
	}
	return out
}

// TestAlterColumns changes a table's columns and name; every tablet comes to have the new schema, and what was changed is there
// after the master was killed. The same request again is answered and not carried out again.
func TestAlterColumns(t *testing.T) {
	r := newRig(t, 3)
	r.create(tableRequest("t", 3, 3))
	def := []byte{5, 0, 0, 0}
	resp, err := r.alter("t", renameTable("u"), addColumn(&nyalav1.ColumnSchema{Name: "n", Type: nyalav1.DataType_DATA_TYPE_INT32, WriteDefault: def}),
		alterColumn(renamed("id", "key")), dropColumn("v"))
	require.NoError(t, err)
	require.EqualValues(t, 1, resp.GetSchemaVersion())
	r.awaitAltered("u")
	d := r.describe("u")
	require.Equal(t, "key n", columnText(d.GetSchema()))
	require.EqualValues(t, 2, d.GetSchema().GetColumns()[1].GetId())
	require.Equal(t, def, d.GetSchema().GetColumns()[1].GetReadDefault())
	require.EqualValues(t, 3, d.GetSchema().GetNextColumnId())
	_, err = r.master.dial().GetTable(t.Context(), &nyalav1.GetTableRequest{Table: byName("t")})
	require.Equal(t, status.TableNotFound, status.CodeOf(status.FromGRPC(err)))
	r.until("every replica has it", func() bool { return r.versions()[1] == 9 })
	r.create(tableRequest("t", 1, 1)) // the old name is free

	id, _ := ident.Bytes(ident.New())
	again := &alterRequest{Table: byName("u"), RequestId: id[:], Steps: []*alterStep{addColumn(&nyalav1.ColumnSchema{Name: "v", Type: nyalav1.DataType_DATA_TYPE_STRING, Nullable: true})}}
	c := r.master.dial()
	_, err = c.AlterTable(t.Context(), again)
	require.NoError(t, err)
	r.master.kill()
	r.master.start()
	_, err = c.AlterTable(t.Context(), again)
	require.NoError(t, err)
	r.awaitAltered("u")
	d = r.describe("u")
	require.Equal(t, "key n v", columnText(d.GetSchema()))
	require.EqualValues(t, 2, d.GetSchema().GetVersion())
	require.EqualValues(t, 3, d.GetSchema().GetColumns()[2].GetId(), "a column id is never used again")
}

// TestRenameReachesTablets renames a table while one of its servers is down: the replicas know the new name on the others, on that
// one when it is back, under another leading master, and after a restart.
func TestRenameReachesTablets(t *testing.T) {
	r := newRig(t, 3)
	r.create(tableRequest("t", 2, 3))
	r.ts[2].kill()
	_, err := r.alter("t", renameTable("u"))
	require.NoError(t, err)
	named := func(s *server, name string) func() bool {
		return func() bool {
			statuses := s.n.Replicas.Statuses()
			return len(statuses) == 2 && !slices.ContainsFunc(statuses, func(st *nyalav1.ReplicaStatus) bool { return st.GetTableName() != name })
		}
	}
	r.awaitAltered("u")
	for _, s := range r.ts[:2] {
		r.until("the replicas know the new name", named(s, "u"))
	}
	r.master.kill()
	r.master.start()
	r.ts[2].start()
	r.until("the replicas of the server that was down know it", named(r.ts[2], "u"))
	_, err = r.alter("u", renameTable("w"), addColumn(&nyalav1.ColumnSchema{Name: "n", Type: nyalav1.DataType_DATA_TYPE_INT8, Nullable: true}))
	require.NoError(t, err)
	r.awaitAltered("w")
	r.until("the leader's server knows the next one", named(r.ts[0], "w"))
	r.ts[0].kill()
	r.ts[0].start()
	r.until("a server that was started again knows it", named(r.ts[0], "w"))
	require.EqualValues(t, 2, r.describe("w").GetSchema().GetVersion())
}

// TestAlterResumes kills the master while tablets don't have the new schema yet: the next one gives it to them. Until then
// clients are told of the old one; a version that came in between is left out.
func TestAlterResumes(t *testing.T) {
	r := newRig(t, 1)
	r.create(tableRequest("t", 2, 1))
	c := r.master.dial()
	r.until("the table is marked as made", func() bool {
		r.master.m.catalog.mu.RLock()
		defer r.master.m.catalog.mu.RUnlock()
		return r.master.m.catalog.byName["t"].meta.GetAllReplicasMade()
	})
	r.ts[0].kill()
	for _, name := range []string{"a", "b"} {
		_, err := r.alter("t", addColumn(&nyalav1.ColumnSchema{Name: name, Type: nyalav1.DataType_DATA_TYPE_INT8, Nullable: true}))
		require.NoError(t, err)
	}
	behind := func() uint32 {
		done, err := c.IsAlterTableDone(t.Context(), &nyalav1.IsAlterTableDoneRequest{Table: byName("t")})
		require.NoError(t, status.FromGRPC(err))
		require.False(t, done.GetDone())
		return done.GetNumTabletsBehind()
	}
	require.EqualValues(t, 2, behind())
	require.EqualValues(t, 0, r.describe("t").GetSchema().GetVersion())
	r.master.kill()
	r.master.start()
	require.EqualValues(t, 2, behind())
	require.Equal(t, "id v", columnText(r.describe("t").GetSchema()))
	r.ts[0].start()
	r.awaitAltered("t")
	require.Equal(t, map[uint32]int{2: 2}, r.versions())
	require.Equal(t, "id v a b", columnText(r.describe("t").GetSchema()))
}

// TestAlterBeforeAllReplicasAreMade alters a table one of whose servers hasn't made its replica yet. That is made with the schema
// that the others were made with: its log begins with entries in it.
func TestAlterBeforeAllReplicasAreMade(t *testing.T) {
	r := newRig(t, 3)
	r.ts[2].kill()
	_, err := r.master.dial().CreateTable(t.Context(), tableRequest("t", 1, 3))
	require.NoError(t, err)
	r.awaitLeaders("t")
	for _, name := range []string{"a", "b"} {
		_, err := r.alter("t", addColumn(&nyalav1.ColumnSchema{Name: name, Type: nyalav1.DataType_DATA_TYPE_INT8, Nullable: true}))
		require.NoError(t, err)
		r.awaitAltered("t")
	}
	r.master.kill()
	r.master.start()
	r.ts[2].start()
	r.until("the third replica is made and has the schema", func() bool { return r.versions()[2] == 3 })
	for _, s := range r.ts {
		rep, err := s.n.Replicas.Replica(ident.TabletID(r.locations("t")[0].GetTabletId()))
		require.NoError(t, err)
		require.Zero(t, rep.Record().GetSchema().GetVersion())
	}
	r.until("the first schema is forgotten", func() bool {
		r.master.m.catalog.mu.RLock()
		defer r.master.m.catalog.mu.RUnlock()
		meta := r.master.m.catalog.byName["t"].meta
		return meta.GetAllReplicasMade() && len(meta.GetEarlierSchemas()) == 0
	})
}

// TestAlterRanges adds and drops ranges, one of them with hash dimensions of its own: their tablets come and go, the catalog forgets
// what is gone, and all of it stands after the master was killed.
func TestAlterRanges(t *testing.T) {
	r := newRig(t, 3)
	r.create(rangeTable("t", 2, 3, 0, 100))
	require.Len(t, r.locations("t"), 2)
	own := between(100, 200)
	own.Hash = []*nyalav1.CreateTableRequest_HashByName{{Columns: []string{"id"}, NumBuckets: 3, Seed: 7}}
	_, err := r.alter("t", addRange(own), addRange(between(300, 400)))
	require.NoError(t, err)
	r.awaitAltered("t")
	require.Len(t, r.locations("t"), 7)
	require.Len(t, r.held(), 7)
	d := r.describe("t")
	require.EqualValues(t, 1, d.GetPartitionVersion())
	require.Len(t, d.GetPartitionSchema().GetCustomRanges(), 1)
	require.Zero(t, d.GetSchema().GetVersion(), "ranges alone leave the schema's version")

	first := r.locations("t")[0].GetTabletId()
	_, err = r.alter("t", dropRange(between(0, 100)), addColumn(&nyalav1.ColumnSchema{Name: "n", Type: nyalav1.DataType_DATA_TYPE_INT8, Nullable: true}),
		dropRange(between(100, 200)), addRange(between(100, 200)))
	require.NoError(t, err)
	r.awaitAltered("t")
	r.master.kill()
	r.master.start()
	r.awaitAltered("t")
	require.Len(t, r.locations("t"), 4)
	for _, l := range r.locations("t") {
		require.NotEqual(t, first, l.GetTabletId())
	}
	require.Empty(t, r.describe("t").GetPartitionSchema().GetCustomRanges())
	r.until("the dropped tablets are gone everywhere", func() bool {
		r.master.m.catalog.mu.RLock()
		defer r.master.m.catalog.mu.RUnlock()
		return len(r.master.m.catalog.tablets) == 4 && len(r.held()) == 4 && len(r.master.m.catalog.byName["t"].dropped) == 0
	})
	r.until("all that was added is marked as made", func() bool {
		r.master.m.catalog.mu.RLock()
		defer r.master.m.catalog.mu.RUnlock()
		for _, ti := range r.master.m.catalog.tablets {
			if !ti.made() {
				return false
			}
		}
		return true
	})
	require.Equal(t, map[uint32]int{1: 12}, r.versions())

	// The last range may go too, and the table can be filled again.
	_, err = r.alter("t", dropRange(between(100, 200)), dropRange(between(300, 400)))
	require.NoError(t, err)
	r.awaitAltered("t")
	require.Empty(t, r.locations("t"))
	r.alive(3)
	_, err = r.alter("t", dropColumn("n"), addRange(between(-5, 5)))
	require.NoError(t, err)
	r.awaitAltered("t")
	require.Len(t, r.locations("t"), 2)
	require.Equal(t, "id v", columnText(r.describe("t").GetSchema()))
	_, err = r.master.dial().DeleteTable(t.Context(), &nyalav1.DeleteTableRequest{Table: byName("t")})
	require.NoError(t, err)
	r.until("everything is gone", func() bool {
		r.master.m.catalog.mu.RLock()
		defer r.master.m.catalog.mu.RUnlock()
		return len(r.held()) == 0 && len(r.master.m.catalog.tables) == 0
	})
}

// TestTableWithoutRanges creates a table without ranges, which stays so over a restart of the master and gets ranges later.
func TestTableWithoutRanges(t *testing.T) {
	r := newRig(t, 1)
	bare := rangeTable("t", 2, 1)
	bare.NoRanges = true
	resp, err := r.master.dial().CreateTable(t.Context(), bare)
	require.NoError(t, err)
	require.Zero(t, resp.GetNumTablets())
	r.master.kill()
	r.master.start()
	require.Empty(t, r.locations("t"))
	done, err := r.master.dial().IsCreateTableDone(t.Context(), &nyalav1.IsCreateTableDoneRequest{Table: byName("t")})
	require.NoError(t, err)
	require.True(t, done.GetDone())
	r.until("the tablet server is heard again", func() bool { return len(r.master.m.servers.alive(time.Now())) == 1 })
	_, err = r.alter("t", addRange(between(0, 10)))
	require.NoError(t, err)
	r.awaitAltered("t")
	require.Len(t, r.locations("t"), 2)
	r.until("the table is marked as made", func() bool {
		r.master.m.catalog.mu.RLock()
		defer r.master.m.catalog.mu.RUnlock()
		return !slices.ContainsFunc(r.master.m.catalog.byName["t"].tablets, func(ti *tabletInfo) bool { return !ti.made() })
	})

	for text, change := range map[string]func(*nyalav1.CreateTableRequest){
		"needs range columns": func(q *nyalav1.CreateTableRequest) { q.RangeColumns = &nyalav1.RangeColumns{} },
		"and 1 are given":     func(q *nyalav1.CreateTableRequest) { q.Ranges = append(q.Ranges, between(0, 1)) },
		"and 1 splits":        func(q *nyalav1.CreateTableRequest) { q.Splits = append(q.Splits, &nyalav1.RangeSplit{}) },
	} {
		q := rangeTable("u", 2, 1)
		q.NoRanges = true
		change(q)
		_, err := r.master.dial().CreateTable(t.Context(), q)
		require.ErrorContains(t, err, text)
	}
}

// TestDropRangeOnDeadServer: a range is dropped once most servers have removed their replicas; the one that is down does so when it
// comes back, under another master too.
func TestDropRangeOnDeadServer(t *testing.T) {
	r := newRig(t, 3)
	r.create(rangeTable("t", 1, 3, 0, 100, 100, 200))
	r.ts[1].kill()
	_, err := r.alter("t", dropRange(between(0, 100)))
	require.NoError(t, err)
	r.awaitAltered("t")
	require.Len(t, r.locations("t"), 1)
	r.master.kill()
	r.master.start()
	r.ts[1].start()
	r.until("the dropped tablet is gone everywhere", func() bool {
		r.master.m.catalog.mu.RLock()
		defer r.master.m.catalog.mu.RUnlock()
		return len(r.held()) == 1 && len(r.master.m.catalog.tablets) == 1
	})
}

// TestRefusedAlters: what is wrong with a change is said, and nothing of it is left.
func TestRefusedAlters(t *testing.T) {
	r := newRig(t, 1)
	r.create(rangeTable("t", 2, 1, 0, 100))
	r.create(tableRequest("other", 1, 1))
	noRange := tableRequest("hash", 2, 1)
	noRange.RangeColumns = &nyalav1.RangeColumns{}
	r.create(noRange)
	before := r.describe("t").String()
	int8s := nyalav1.DataType_DATA_TYPE_INT8
	exclusive := between(-1<<63, 1<<63-1)
	exclusive.Lower, exclusive.LowerExclusive = exclusive.Upper, true
	dims := between(200, 300)
	dims.Hash = []*nyalav1.CreateTableRequest_HashByName{{Columns: []string{"id"}, NumBuckets: 2}, {Columns: []string{"v"}, NumBuckets: 2}}
	value := between(200, 300)
	value.Hash = []*nyalav1.CreateTableRequest_HashByName{{Columns: []string{"v"}, NumBuckets: 2}}
	for name, k := range map[string]struct {
		table string
		steps []*alterStep
		code  status.Code
		text  string
	}{
		"nothing":        {"t", nil, status.InvalidArgument, `alter table "t": the request changes nothing`},
		"no such table":  {"x", []*alterStep{renameTable("y")}, status.TableNotFound, `table "x" does not exist`},
		"name":           {"t", []*alterStep{renameTable("other")}, status.TableAlreadyPresent, `alter table "t": nothing was changed: table "other" already exists`},
		"own name":       {"t", []*alterStep{renameTable("t")}, status.TableAlreadyPresent, `"t" already exists`},
		"long name":      {"t", []*alterStep{renameTable(strings.Repeat("n", 257))}, status.InvalidArgument, "257 bytes, the most is 256"},
		"second step":    {"t", []*alterStep{renameTable("u"), dropColumn("x")}, status.NotFound, `alter table "t", step 2 of 2: nothing was changed: the table has no column "x"`},
		"key":            {"t", []*alterStep{dropColumn("id")}, status.InvalidArgument, "a key column can't be dropped"},
		"column":         {"t", []*alterStep{addColumn(&nyalav1.ColumnSchema{Name: "v", Type: int8s, Nullable: true})}, status.AlreadyPresent, `has a column "v" already`},
		"no default":     {"t", []*alterStep{addColumn(&nyalav1.ColumnSchema{Name: "n", Type: int8s})}, status.InvalidArgument, "isn't nullable needs a default"},
		"default":        {"t", []*alterStep{alterColumn(&nyalav1.AlterTableRequest_AlterColumn{Name: "v", RemoveDefault: true})}, status.NotFound, "has no default to remove"},
		"both":           {"t", []*alterStep{alterColumn(&nyalav1.AlterTableRequest_AlterColumn{Name: "v", RemoveDefault: true, WriteDefault: []byte("x")})}, status.InvalidArgument, "set and removed in one step"},
		"no step":        {"t", []*alterStep{{}}, status.NotSupported, "doesn't know"},
		"same range":     {"t", []*alterStep{addRange(between(0, 100))}, status.AlreadyPresent, "the table has the range [0, 100) already"},
		"overlap":        {"t", []*alterStep{addRange(between(99, 101))}, status.InvalidArgument, "the new range [99, 101) conflicts with the existing one [0, 100)"},
		"new overlap":    {"t", []*alterStep{addRange(between(100, 102)), addRange(between(101, 103))}, status.InvalidArgument, "the new range [101, 103) conflicts with the existing one [100, 102)"},
		"empty":          {"t", []*alterStep{addRange(between(5, 5))}, status.InvalidArgument, "the range [5, 5) is empty"},
		"above the last": {"t", []*alterStep{addRange(exclusive)}, status.InvalidArgument, "no row lies above it"},
		"dimensions":     {"t", []*alterStep{addRange(dims)}, status.InvalidArgument, "has 2 hash dimensions, the table 1"},
		"hash column":    {"t", []*alterStep{addRange(value)}, status.InvalidSchema, "hash partitioning takes key columns alone"},
		"no such range":  {"t", []*alterStep{dropRange(between(0, 99))}, status.InvalidArgument, "no range partition to drop: the table has no range [0, 99)"},
		"no ranges":      {"hash", []*alterStep{addRange(between(0, 99))}, status.InvalidArgument, "the table has no range columns"},
		"too many": {"t", []*alterStep{addRange(&nyalav1.RangePartition{
			Lower: between(100, 0).Lower, Hash: []*nyalav1.CreateTableRequest_HashByName{{Columns: []string{"id"}, NumBuckets: 5001}},
		})}, status.InvalidArgument, "would have 5001 tablets, the most at a time is 5000"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := r.alter(k.table, k.steps...)
			require.Equal(t, k.code, status.CodeOf(err), "%v", err)
			require.ErrorContains(t, err, k.text)
		})
	}
	require.Equal(t, before, r.describe("t").String())
	require.Len(t, r.held(), 5)
	r.ts[0].kill()
	r.until("it is known to be dead", func() bool {
		servers := r.master.m.servers
		servers.mu.Lock()
		for _, ts := range servers.byID {
			ts.heard = time.Now().Add(-time.Hour)
		}
		servers.mu.Unlock()
		return len(servers.alive(time.Now())) == 0
	})
	_, err := r.alter("t", addRange(between(100, 200)))
	require.Equal(t, status.TooFewTabletServers, status.CodeOf(err), "%v", err)
}
