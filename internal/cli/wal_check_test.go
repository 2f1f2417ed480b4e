package cli

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/consensus"
	"github.com/nyaladb/nyala/internal/fs"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/wal"
)

// The times in planted logs: entries are of 2013, wrong ones of 2110.
const (
	goodMicros = 1357034400000000
	farMicros  = 4417977600000000
)

func good(n int) hybridtime.Timestamp { return hybridtime.FromMicros(goodMicros+int64(n), 0) }
func far(n int) hybridtime.Timestamp  { return hybridtime.FromMicros(farMicros, uint16(n)) }

// plantEntries makes the entries 2.1 on with the given timestamps; 0 is raft's own entry, which has none.
func plantEntries(stamps ...hybridtime.Timestamp) []*raftpb.Entry {
	var all []*raftpb.Entry
	for i, ts := range stamps {
		e := &raftpb.Entry{Term: proto.Uint64(2), Index: proto.Uint64(uint64(i) + 1), Type: raftpb.EntryNormal.Enum()}
		if ts != 0 {
			e.Data = wal.EncodePayload(wal.KindWrite, ts, fmt.Appendf(nil, "row %d", i+1))
		}
		all = append(all, e)
	}
	return all
}

// plant makes a tablet's replica with a log; the number is the tablet's.
func plant(b *wal.Batch, n int, committed uint64, entries []*raftpb.Entry) {
	number := ident.LocalNumber(n)
	b.CreateGroup(number, ident.TabletID(fakeID("1a", n)), []byte("record"), ident.OpID{})
	b.Append(number, entries)
	b.SetHardState(number, &raftpb.HardState{Term: proto.Uint64(3), Vote: proto.Uint64(1), Commit: &committed})
}

// plantFolder makes the folder of a stopped server: tablet 1 is well, 2 has entries far ahead that aren't known committed, 3 has
// such that are, in 4 a timestamp goes back, and in 5 an entry has rotted.
func plantFolder(t *testing.T, dir string) {
	t.Helper()
	layout, err := fs.Open(fs.Config{WALDir: dir, Role: fs.TabletServer})
	require.NoError(t, err)
	defer layout.Close()
	commitWAL(t, layout.WALPath(), func(b *wal.Batch) {
		b.SetMeta(clockMarkKey, markBytes(1, good(1_500_000)))
		plant(b, 1, 3, plantEntries(0, good(1), good(2), good(3)))
		plant(b, 2, 3, plantEntries(0, good(1), good(2), far(0), 0, good(3), far(1)))
		plant(b, 3, 4, plantEntries(0, good(1), good(2), far(0), far(1)))
		plant(b, 4, 2, plantEntries(0, good(1), good(9), good(5), good(6)))
		plant(b, 5, 3, append(plantEntries(0, good(1)), &raftpb.Entry{
			Term: proto.Uint64(2), Index: proto.Uint64(3), Type: raftpb.EntryNormal.Enum(), Data: wal.EncodePayload(wal.KindWrite, good(2), []byte("rots here")),
		}))
	})
	rot(t, layout.WALPath(), "rots here")
}

func commitWAL(t *testing.T, path string, fill func(b *wal.Batch)) {
	t.Helper()
	s, err := wal.OpenBolt(wal.Config{Path: path})
	require.NoError(t, err)
	b := &wal.Batch{}
	fill(b)
	require.NoError(t, s.Commit(b))
	require.NoError(t, s.Close())
}

// rot changes a byte of the text in a file.
func rot(t *testing.T, path, text string) {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	at := bytes.LastIndex(b, []byte(text))
	require.Positive(t, at)
	b[at]++
	require.NoError(t, os.WriteFile(path, b, 0o600))
}

// markBytes is a clock mark as docs/clock.md draws it.
func markBytes(kind byte, ts hybridtime.Timestamp) []byte {
	b := make([]byte, 54)
	b[0], b[1] = 1, kind
	binary.LittleEndian.PutUint64(b[2:], uint64(ts))
	binary.LittleEndian.PutUint32(b[50:], crc32.Checksum(b[:50], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// TestMarkKeys holds the names of the clock's marks to those under which servers write them.
func TestMarkKeys(t *testing.T) {
	require.Equal(t, consensus.MetaClockMark, clockMarkKey)
	require.Equal(t, consensus.MetaPromiseMark, promiseMarkKey)
}

// TestCheckMarks shows that marks too far ahead, and one that can't be read, are found, and that a sound log alone is exit code 0.
func TestCheckMarks(t *testing.T) {
	dir := t.TempDir()
	layout, err := fs.Open(fs.Config{WALDir: dir, Role: fs.TabletServer})
	require.NoError(t, err)
	path := layout.WALPath()
	require.NoError(t, layout.Close())
	commitWAL(t, path, func(b *wal.Batch) {
		b.SetMeta(clockMarkKey, markBytes(1, good(1)))
		plant(b, 1, 3, plantEntries(0, good(1), good(2)))
	})
	check := func(args ...string) (string, string, int) {
		return runCLI(t.Context(), "127.0.0.1:1", nil, append([]string{"wal", "check", "--dir", dir}, args...)...)
	}
	out, errs, code := check()
	require.Zero(t, code, errs)
	require.Empty(t, out)
	require.Equal(t, "1 tablet, 3 entries: nothing found\n", errs)
	out, _, code = check("--format", "json", "--true_time", "2013-01-01T10:00:00Z")
	require.Zero(t, code)
	require.JSONEq(t, `{"source": "`+path+`", "running": false, "true_time": "2013-01-01T10:00:00.000000Z", "max_ahead": "10s",
		"marks": [{"name": "clock mark", "timestamp": "2013-01-01T10:00:00.000001Z"}], "tablets": [{"tablet": "`+fakeID("1a", 1)+`",
		"replica_number": 1, "entries": 3, "first": "2.1", "last": "2.3", "committed_through": 3, "problems": []}]}`, out)
	// The bound is the reader's.
	_, _, code = check("--true_time", "2013-01-01T09:59:00Z")
	require.Equal(t, 1, code)
	_, _, code = check("--true_time", "2013-01-01T09:59:00Z", "--max_ahead", "1m")
	require.Equal(t, 1, code)
	_, _, code = check("--true_time", "2013-01-01T09:59:00Z", "--max_ahead", "1h")
	require.Zero(t, code)

	commitWAL(t, path, func(b *wal.Batch) {
		b.SetMeta(clockMarkKey, markBytes(1, far(0)))
		b.SetMeta(promiseMarkKey, markBytes(7, far(0)))
	})
	out, errs, code = check("--true_time", "2013-01-01T10:00:00Z")
	require.Equal(t, 1, code)
	require.Contains(t, errs, "2 problems found")
	require.Regexp(t, `(?m)^- +clock mark +- +- +2110-01-01T00:00:00.000000Z, 97.0 years ahead of the true time$`, out)
	require.Regexp(t, `(?m)^- +promise mark +- +- +mark is of unknown kind 7$`, out)
	require.Contains(t, out, "\n  clock mark: the server gave out or promised such timestamps itself")
	// A file that is damaged as a whole is found as well.
	require.NoError(t, os.WriteFile(path, make([]byte, 32768), 0o600))
	for _, format := range []string{"table", "json"} {
		out, _, code = check("--format", format)
		require.Equal(t, 1, code)
		require.Contains(t, out, "its pages can't be trusted: meta page 0")
	}
}

// TestCheckServer looks through a running server's log: what is known committed comes from the server, gaps that a compaction
// has made meanwhile are none, a server that dies is an error and no finding, and neither is one that holds no tablets.
func TestCheckServer(t *testing.T) {
	c := newFakeCluster(t, 1)
	s := c.servers[0]
	tb := &fakeTable{id: fakeID("7a", 1), name: "t"}
	entry := func(tablet string, index uint64, ts hybridtime.Timestamp) *nyalav1.WALEntry {
		return &nyalav1.WALEntry{TabletId: tablet, OpId: &nyalav1.OpId{Term: 2, Index: index}, Kind: "write", Timestamp: uint64(ts), Bytes: 20, CrcOk: true}
	}
	one, two, three := fakeID("1a", 1), fakeID("1a", 2), fakeID("1a", 3)
	for _, id := range []string{one, two} {
		c.tablets[id] = &fakeTablet{id: id, table: tb, hosts: []*fakeServer{s}, index: 8}
	}
	s.log = []*nyalav1.WALEntry{
		entry(two, 4, good(1)), entry(two, 5, good(2)), entry(two, 9, good(3)), entry(two, 11, good(4)),
		entry(one, 8, far(0)), entry(one, 9, far(1)),
		entry(three, 1, far(0)),
	}
	check := func(args ...string) (walDoc, string, int) {
		out, errs, code := runCLI(t.Context(), c.master.addr, nil, append([]string{"wal", "check", "--format", "json"}, args...)...)
		var doc walDoc
		if out != "" {
			require.NoError(t, json.Unmarshal([]byte(out), &doc))
		}
		return doc, errs, code
	}
	doc, errs, code := check("--server", s.addr)
	require.Equal(t, 1, code)
	require.Equal(t, "3 tablets, 7 entries: 3 problems found\n", errs)
	require.True(t, doc.Running)
	require.Len(t, doc.Tablets, 3)
	p := doc.Tablets[0].Problems[0]
	require.Equal(t, []any{walAhead, "2.8", int64(2), true}, []any{p.Problem, p.From, p.Entries, *p.Committed})
	require.Contains(t, p.ToDo, "committed: the tablet's replicas lead again once the time is 2109-12-31T23:59:50Z")
	p = doc.Tablets[1].Problems[0]
	require.Equal(t, []any{walGap, "2.6", "entries 6 to 8 are missing, and 1 gap more"}, []any{p.Problem, p.From, p.Detail})
	p = doc.Tablets[2].Problems[0]
	require.Equal(t, []any{walAhead, "2.1", (*bool)(nil)}, []any{p.Problem, p.From, p.Committed})
	require.Contains(t, p.ToDo, "stop the server, then: nyala wal trim --dir FOLDER --tablet "+three+" --after 20")

	c.tablets[two].first = 11
	doc, _, code = check("--server", s.addr)
	require.Equal(t, 1, code)
	require.Empty(t, doc.Tablets[1].Problems)
	doc, errs, code = check("--server", c.master.addr)
	require.Zero(t, code, errs)
	require.Empty(t, doc.Tablets)

	// A folder in use is read through its server.
	dir := t.TempDir()
	layout, err := fs.Open(fs.Config{WALDir: dir, Role: fs.TabletServer})
	require.NoError(t, err)
	defer layout.Close()
	s.id = string(layout.ServerID())
	_, errs, code = check("--dir", dir)
	require.Equal(t, 1, code)
	require.Contains(t, errs, "read through the running server at "+s.addr)
	// One that doesn't answer was not looked at.
	c.kill(s)
	doc, errs, code = check("--server", s.addr)
	require.Equal(t, 1, code)
	require.Contains(t, errs, "no server listens at")
	require.Zero(t, doc)
}

// walDoc is what wal check prints as JSON.
type walDoc struct {
	Source  string
	Running bool
	Tablets []walTabletJSON
}

// TestAheadBy spells distances out.
func TestAheadBy(t *testing.T) {
	at := good(0).Time()
	for _, c := range []struct {
		ts   hybridtime.Timestamp
		want string
	}{
		{good(11_000_000), "11s"},
		{good(36 * 3600 * 1_000_000), "36h0m0s"},
		{good(72 * 3600 * 1_000_000), "3.0 days"},
		{far(0), "97.0 years"},
		{hybridtime.Max, "99.7 years"},
	} {
		require.Equal(t, c.want, aheadBy(c.ts, at))
	}
}

// TestTrim takes entries out as an operator would and shows what is left in the log, what stands in the backup, and that the
// file goes on like any other.
func TestTrim(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "server")
	require.NoError(t, os.Mkdir(dir, 0o755))
	plantFolder(t, dir)
	path := fs.WALPath(dir)
	two := fakeID("1a", 2)
	trim := func(args ...string) (string, string, int) {
		return runCLI(t.Context(), "127.0.0.1:1", bytes.NewReader([]byte("y\n")), append([]string{"wal", "trim", "--dir", dir}, args...)...)
	}
	before, err := os.ReadFile(path)
	require.NoError(t, err)
	unchanged := func() {
		t.Helper()
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		require.True(t, bytes.Equal(before, b), "the file was changed")
	}
	out, errs, code := trim("--tablet", two, "--after", good(2).String())
	require.Equal(t, exitUsage, code)
	require.Contains(t, errs, "it must be confirmed: add --yes")
	require.Empty(t, out)
	out, errs, code = trim("--tablet", fakeID("1a", 3), "--after", good(2).String(), "--yes")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "1 of the entries from 2.4 on is known to be committed")
	require.Empty(t, out)
	_, errs, code = trim("--tablet", two, "--after", good(2).String(), "--yes", "--backup", path)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "nothing was taken out: backup "+path+": file already exists")
	_, errs, code = trim("--tablet", fakeID("1a", 5), "--after", good(0).String(), "--yes")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "damaged")
	_, errs, code = trim("--tablet", fakeID("1a", 6), "--after", good(0).String(), "--yes")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "holds no replica of tablet "+fakeID("1a", 6))
	unchanged()

	// Interrupted after the backup was written.
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	kept := filepath.Join(t.TempDir(), "kept")
	_, errs, code = runCLI(ended, "127.0.0.1:1", nil, "wal", "trim", "--dir", dir, "--tablet", two, "--after", good(2).String(), "--yes", "--backup", kept)
	require.Equal(t, exitInterrupted, code, errs)
	require.FileExists(t, kept)
	unchanged()

	// Asked, and not answered with yes.
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer null.Close()
	_, errs, code = runCLI(t.Context(), "127.0.0.1:1", null, "wal", "trim", "--dir", dir, "--tablet", two, "--after", good(2).String())
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "Take them out? [y/N] nothing was changed")
	unchanged()

	// In use, with the folder's lock and without it.
	layout, err := fs.Open(fs.Config{WALDir: dir, Role: fs.TabletServer})
	require.NoError(t, err)
	_, errs, code = trim("--tablet", two, "--after", good(2).String(), "--yes")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, fmt.Sprintf("is in use by process %d: stop that server first", os.Getpid()))
	require.NoError(t, layout.Close())
	s, err := wal.OpenBolt(wal.Config{Path: path})
	require.NoError(t, err)
	_, errs, code = trim("--tablet", two, "--after", good(2).String(), "--yes")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, fmt.Sprintf("is held by process %d ", os.Getpid()))
	require.NoError(t, s.Close())

	out, errs, code = trim("--tablet", two, "--after", good(2).String(), "--yes")
	require.Zero(t, code, errs)
	backup := path + ".trimmed-" + two + "-2.4"
	require.Contains(t, out, backup)
	store, err := wal.OpenBolt(wal.Config{Path: path})
	require.NoError(t, err)
	l := store.Log(2)
	require.Equal(t, ident.OpID{Term: 2, Index: 3}, l.LastOpID())
	require.Equal(t, uint64(3), l.HardState().GetCommit())
	more := &wal.Batch{}
	next := plantEntries(0, 0, 0, good(20), good(21))[3:]
	more.Append(2, next)
	require.NoError(t, store.Commit(more))
	require.Equal(t, ident.OpID{Term: 2, Index: 5}, l.LastOpID())
	require.NoError(t, store.Close())
	var got []*raftpb.Entry
	b, err := wal.OpenReader(backup)
	require.NoError(t, err)
	defer b.Close()
	got, err = b.Log(2).Entries(4, 8, 1<<20)
	require.NoError(t, err)
	for i, want := range plantEntries(0, good(1), good(2), far(0), 0, good(3), far(1))[3:] {
		require.True(t, proto.Equal(want, got[i]), "%v, want %v", got[i], want)
	}
	// Once more the same, under another name; then there is nothing left to do.
	out, errs, code = trim("--tablet", two, "--after", good(19).String(), "--yes")
	require.Zero(t, code, errs)
	require.Contains(t, out, backup+"-2")
	out, errs, code = trim("--tablet", two, "--after", good(19).String())
	require.Zero(t, code, errs)
	require.Contains(t, errs, "nothing to do")
	require.Empty(t, out)
}

// TestTrimMark shows that trim warns of a clock mark that keeps the server from leading.
func TestTrimMark(t *testing.T) {
	dir := t.TempDir()
	plantFolder(t, dir)
	commitWAL(t, fs.WALPath(dir), func(b *wal.Batch) { b.SetMeta(clockMarkKey, markBytes(1, far(0))) })
	_, errs, code := runCLI(t.Context(), "127.0.0.1:1", nil, "wal", "trim", "--dir", dir, "--tablet", fakeID("1a", 2), "--after", good(2).String(), "--yes")
	require.Zero(t, code, errs)
	require.Contains(t, errs, "careful: this server's clock mark is 2110-01-01T00:00:00.000000Z")
}
