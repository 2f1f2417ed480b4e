package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/fs"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/wal"
)

// serverFolder makes the folder of a server with two tablets in its log, and returns its lock, held.
func serverFolder(t *testing.T, dir string) *fs.Layout {
	t.Helper()
	layout, err := fs.Open(fs.Config{WALDir: dir, Role: fs.TabletServer})
	require.NoError(t, err)
	t.Cleanup(func() { layout.Close() })
	store, err := wal.OpenBolt(wal.Config{Path: layout.WALPath()})
	require.NoError(t, err)
	columns, err := schema.ParseColumnSpecs("id int64, name string null")
	require.NoError(t, err)
	columns[0].Key = true
	s, err := schema.NewTable(columns)
	require.NoError(t, err)
	record, err := proto.Marshal(&nyalav1.ReplicaRecord{Schema: s.ToProto()})
	require.NoError(t, err)
	rows := schema.NewOpsEncoder(s)
	set := schema.NewBitmap(2)
	set.Set(0)
	set.Set(1)
	require.NoError(t, rows.Append(schema.Insert, []schema.Value{schema.IntValue(7), schema.StringValue("a\nb")}, set))
	fixed, indirect := rows.Bytes()
	write, err := proto.Marshal(&nyalav1.WriteOp{
		SchemaVersion: s.Version(), RowOperations: &nyalav1.RowOperations{Rows: fixed, IndirectData: indirect},
		RequestId: &nyalav1.StoredRequestId{ClientId: []byte{0xab}, SeqNo: 7, FirstIncompleteSeqNo: 6},
	})
	require.NoError(t, err)
	at := hybridtime.FromMicros(1357034400000000, 5)
	b := &wal.Batch{}
	for n, tablet := range []string{fakeID("1a", 1), fakeID("1a", 2)} {
		number := ident.LocalNumber(n + 1)
		b.CreateGroup(number, ident.TabletID(tablet), record, ident.OpID{})
		b.Append(number, []*raftpb.Entry{
			{Term: proto.Uint64(1), Index: proto.Uint64(1), Type: raftpb.EntryNormal.Enum()},
			{Term: proto.Uint64(1), Index: proto.Uint64(2), Type: raftpb.EntryNormal.Enum(), Data: wal.EncodePayload(wal.KindNoop, at, nil)},
			{Term: proto.Uint64(2), Index: proto.Uint64(3), Type: raftpb.EntryNormal.Enum(), Data: wal.EncodePayload(wal.KindWrite, at+1, write)},
		})
	}
	require.NoError(t, store.Commit(b))
	require.NoError(t, store.Close())
	return layout
}

// TestDumpFolder shows a stopped server's log read from its file, given either of its folders; the same log through the
// server while that runs, found by asking the master; and what is said when nobody knows the server.
func TestDumpFolder(t *testing.T) {
	c := newFakeCluster(t, 1)
	dir := t.TempDir()
	layout := serverFolder(t, filepath.Join(dir, "wal"))
	c.servers[0].log = sampleLog()

	out, errs, code := runCLI(t.Context(), c.master.addr, nil, "wal", "dump", "--dir", dir)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "is in use by server "+string(layout.ServerID()))
	require.Contains(t, errs, "name it with --server")
	require.Empty(t, out)

	c.servers[0].id = string(layout.ServerID())
	out, errs, code = runCLI(t.Context(), c.master.addr, nil, "wal", "dump", "--dir", dir)
	require.Zero(t, code, errs)
	require.Contains(t, errs, "read through the running server at "+c.servers[0].addr)
	require.Contains(t, out, "12.1000000")

	require.NoError(t, layout.Close())
	for _, d := range []string{dir, filepath.Join(dir, "wal")} {
		out, errs, code = runCLI(t.Context(), "127.0.0.1:1", nil, "wal", "dump", "--dir", d, "--show_values", "--tablet", fakeID("1a", 2))
		require.Zero(t, code, errs)
		require.Equal(t, "3 entries, 0 with a bad CRC\n", errs)
		lines := strings.Split(out, "\n")
		require.Len(t, lines, 5)
		require.Regexp(t, `^1a0+2 +1\.1  none +- +\d+  ok$`, lines[1])
		require.Regexp(t, `^1a0+2 +1\.2  noop +2013-01-01T10:00:00.000000Z\+5 +\d+  ok$`, lines[2])
		require.Regexp(t, `^1a0+2 +2\.3  write +2013-01-01T10:00:00.000000Z\+6 +\d+  ok    schema_version=0 client=ab seq_no=7 `, lines[3])
		require.Regexp(t, `INSERT.*id=7.*name=.*a\\nb`, lines[3])
	}
	_, errs, code = runCLI(t.Context(), "127.0.0.1:1", nil, "wal", "dump", "--dir", t.TempDir())
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "holds no write-ahead log")
	_, _, code = runCLI(t.Context(), "127.0.0.1:1", nil, "wal", "dump", "--dir", filepath.Join(dir, "nothing"))
	require.Equal(t, exitFailed, code)
}

// TestDumpDamaged shows that a damaged entry is printed as such and the others all the same.
func TestDumpDamaged(t *testing.T) {
	dir := t.TempDir()
	layout := serverFolder(t, dir)
	require.NoError(t, layout.Close())
	path := fs.WALPath(dir)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	at := strings.LastIndex(string(b), "a\nb")
	require.Positive(t, at)
	b[at] = 'x'
	require.NoError(t, os.WriteFile(path, b, 0o644))
	out, errs, code := runCLI(t.Context(), "127.0.0.1:1", nil, "wal", "dump", "--dir", dir, "--format", "ndjson")
	require.Zero(t, code, errs)
	require.Contains(t, errs, "1 with a bad CRC")
	require.Equal(t, 1, strings.Count(out, `"crc_ok":false`))
	require.Positive(t, strings.Count(out, `"crc_ok":true`))
}
