package e2e

import (
	"encoding/binary"
	"maps"
	"strings"
	"testing"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// batch sends operations in one request and returns the code of each row that failed.
func (s state) batch(ops ...*client.Operation) (map[uint64]status.Code, client.Timestamp) {
	s.Helper()
	ses := s.cl.NewSession(client.SessionOptions{Flush: client.ManualFlush})
	for _, op := range ops {
		if err := ses.Apply(s.Context(), op); err != nil {
			s.Fatal(err)
		}
	}
	faults, err := ses.Flush(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	codes := map[uint64]status.Code{}
	for _, f := range faults {
		codes[f.Index] = f.Code
	}
	return codes, ses.LastTimestamp()
}

// TestSeveralOpsOnOneKey is trial T39: one request with several operations on one key, on three replicas.
func TestSeveralOpsOnOneKey(t *testing.T) {
	var at client.Timestamp
	inStatesOn(t, 3, func(s state) {
		tbl := s.create("t", "k int32, v string", "k")
		with := func(op *client.Operation, values ...any) *client.Operation {
			if err := set(op, values...); err != nil {
				t.Fatal(err)
			}
			return op
		}
		wantError(t, "large cell", set(tbl.NewInsert(), 4, strings.Repeat("x", 65537)), status.CellTooLarge, "65537")
		var codes map[uint64]status.Code
		codes, _ = s.batch(with(tbl.NewInsert(), 1, "a"), with(tbl.NewInsert(), 1, "b"), with(tbl.NewUpsert(), 1, "c"), with(tbl.NewDelete(), 1),
			with(tbl.NewInsert(), 1, "d"), with(tbl.NewUpdate(), 2, "x"), with(tbl.NewDelete(), 3), with(tbl.NewInsertIgnore(), 1, "e"),
			with(tbl.NewUpdateIgnore(), 2, "y"), with(tbl.NewInsert(), 5, "z"))
		want := map[uint64]status.Code{1: status.AlreadyPresent, 5: status.NotFound, 6: status.NotFound}
		if !maps.Equal(codes, want) {
			t.Errorf("row errors %v, want %v", codes, want)
		}
		at = s.rawBatch(s.create("raw", "k int32, v string", "k"))
		load := s.nyala("k,v\n1,a\n1,b\n3,c\n", "table", "load", s.create("loaded", "k int32, v string", "k").Name(), "-")
		if load.code != 4 || !strings.Contains(load.err, "1 rejected (1 already present)") {
			t.Errorf("load: exit code %d, %s", load.code, load.err)
		}
	}, func(s state) {
		s.wantTable(s.open("t"), "1 d", "5 z")
		s.wantTable(s.open("loaded"), "1 a", "3 c")
		tbl := s.open("raw")
		s.wantTable(tbl, "1 d", "5 z")
		servers, err := s.cl.ListTabletServers(s.Context())
		if err != nil {
			s.Fatal(err)
		}
		for _, server := range servers {
			o := client.ScanOptions{ReadMode: client.ReadAtSnapshot, SnapshotTimestamp: at, ServerID: server.ID}
			s.wantRows("before, on "+server.ID, s.scan(tbl, o))
			s.wantRows("before, on "+server.ID, s.said(tbl, "--replica", server.ID, "--snapshot_timestamp", o.SnapshotTimestamp.String(), "--read_mode", "READ_AT_SNAPSHOT"))
			o.SnapshotTimestamp++
			s.wantRows("after, on "+server.ID, s.scan(tbl, o), "1 d", "5 z")
			s.wantRows("after, on "+server.ID, s.said(tbl, "--replica", server.ID, "--snapshot_timestamp", o.SnapshotTimestamp.String(), "--read_mode", "READ_AT_SNAPSHOT"), "1 d", "5 z")
		}
	})
}

// rawBatch sends the trial's whole batch past the client, which refuses the cell that is too large, to a table of k and v. It returns the
// timestamp of all of it.
func (s state) rawBatch(tbl *client.Table) client.Timestamp {
	s.Helper()
	ops := &nyalav1.RowOperations{}
	add := func(kind schema.OpType, k int32, v ...string) {
		set := byte(1)
		if len(v) > 0 {
			set = 3
		}
		ops.Rows = binary.LittleEndian.AppendUint32(append(ops.Rows, byte(kind), set), uint32(k))
		for _, text := range v {
			ops.Rows = binary.LittleEndian.AppendUint64(ops.Rows, uint64(len(ops.IndirectData)))
			ops.Rows = binary.LittleEndian.AppendUint64(ops.Rows, uint64(len(text)))
			ops.IndirectData = append(ops.IndirectData, text...)
		}
	}
	add(schema.Insert, 1, "a")
	add(schema.Insert, 1, "b")
	add(schema.Upsert, 1, "c")
	add(schema.Delete, 1)
	add(schema.Insert, 1, "d")
	add(schema.Update, 2, "x")
	add(schema.Delete, 3)
	add(schema.InsertIgnore, 1, "e")
	add(schema.UpdateIgnore, 2, "y")
	add(schema.Insert, 4, strings.Repeat("x", 65537))
	add(schema.Insert, 5, "z")
	tablets, err := s.cl.Tablets(s.Context(), tbl)
	if err != nil || len(tablets) != 1 {
		s.Fatal(len(tablets), err)
	}
	raw := newRawScan(s.T, tabletServers(s.T, s.c)[0], tbl, tablets[0].ID) // any replica takes writes that have a number
	resp, err := raw.Write(s.Context(), &nyalav1.WriteRequest{
		TabletId: tablets[0].ID, RowOperations: ops,
		RequestId: &nyalav1.RequestId{ClientId: []byte("the trial's own!"), SeqNo: 1, FirstIncompleteSeqNo: 1},
	})
	if err != nil {
		s.Fatal(status.FromGRPC(err))
	}
	codes := map[uint32]status.Code{}
	for _, e := range resp.GetRowErrors() {
		codes[e.GetRowIndex()] = status.Code(e.GetCode())
	}
	want := map[uint32]status.Code{1: status.AlreadyPresent, 5: status.NotFound, 6: status.NotFound, 9: status.CellTooLarge}
	if !maps.Equal(codes, want) {
		s.Errorf("row errors %v, want %v", codes, want)
	}
	return client.Timestamp(resp.GetTimestamp())
}

// TestIgnore is trial T43 but for its ranges: operations with IGNORE, deletes with more than the key set, an update with less.
func TestIgnore(t *testing.T) {
	inStates(t, func(s state) {
		tbl := s.create("t", "k int32, v int32 null, w string null", "k")
		with := func(op *client.Operation, values ...any) *client.Operation {
			if err := set(op, values...); err != nil {
				t.Fatal(err)
			}
			return op
		}
		s.nyala("k\n250\n", "table", "load", "t", "-", "--op", "update").wantError(t, "nothing to update", 4, "UPDATE sets no column besides the key")
		wantError(t, "nothing to update", s.cl.NewSession(client.SessionOptions{}).Apply(t.Context(), with(tbl.NewUpdate(), 250)),
			status.InvalidArgument, "UPDATE sets no column besides the key")
		codes, _ := s.batch(with(tbl.NewInsert(), 50, 1, "a"), with(tbl.NewInsert(), 250, 1, "b"), with(tbl.NewInsertIgnore(), 50, 2, "c"),
			with(tbl.NewDeleteIgnore(), 51, 1, "x"), with(tbl.NewUpdateIgnore(), 52, 3), with(tbl.NewUpsertIgnore(), 50, 4),
			with(tbl.NewUpsertIgnore(), 60, 6), with(tbl.NewDelete(), 50, 1, "a"))
		if len(codes) > 0 {
			t.Errorf("row errors %v", codes)
		}
		_, metrics := get(t, "http://"+tabletServers(t, s.c)[0].Web+"/metrics")
		for _, name := range []string{"insert", "delete", "update"} {
			if line := "\n" + name + "_ignore_errors 1\n"; !strings.Contains(metrics, line) {
				t.Errorf("metrics have no line %q", line)
			}
		}
		for _, c := range []struct {
			op, rows string
			code     int
		}{
			{"insert_ignore", "k,v\n60,7\n61,7\n", 0},
			{"update_ignore", "k,v\n60,8\n62,8\n", 0},
			{"delete_ignore", "k\n61\n63\n", 0},
			{"update", "k,v\n64,9\n", 4},
			{"delete", "k,v\n64,9\n", 4},
			{"upsert_ignore", "k,v\n65,9\n", 0},
		} {
			if r := s.nyala(c.rows, "table", "load", "t", "-", "--op", c.op); r.code != c.code {
				t.Errorf("load --op %s: exit code %d, want %d: %s", c.op, r.code, c.code, r.err)
			}
		}
	}, func(s state) {
		s.wantTable(s.open("t"), "250 1 b", "60 8 NULL", "65 9 NULL")
	})
}
