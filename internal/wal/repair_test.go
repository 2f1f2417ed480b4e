package wal

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
)

// farFuture is what a clock that is forty years ahead gives out.
const farFuture = hybridtime.Timestamp(1 << 62)

// stamped makes an entry with a timestamp; 0 makes raft's own, which has none.
func stamped(term, index uint64, ts hybridtime.Timestamp, size int) *raftpb.Entry {
	e := &raftpb.Entry{Term: new(term), Index: new(index), Type: raftpb.EntryNormal.Enum()}
	if ts != 0 {
		e.Data = EncodePayload(KindWrite, ts, make([]byte, size))
	}
	return e
}

// plantedWAL makes a file with two replicas: 1 with entries 1.4 to 1.9 behind a start at 1.3, of which those from 7 on were
// stamped in the far future or follow such, and 2 with ordinary ones.
func plantedWAL(t *testing.T, committed uint64) (path string, entries []*raftpb.Entry, other *modelGroup) {
	path = filepath.Join(shmDir(t), FileName)
	s := mustOpen(t, smallConfig(path))
	for i, ts := range []hybridtime.Timestamp{40, 50, 60, farFuture, 0, 70, farFuture + 1} {
		entries = append(entries, stamped(1, uint64(i)+4, ts, 10))
	}
	entries[5] = stamped(1, 9, 70, 3*pieceBytes)
	other = &modelGroup{tablet: tabletB, record: "other", entries: run(2, 1, 1, 20, 300), hard: hardState{1, 2, 15}}
	commit(t, s, func(b *Batch) {
		b.CreateGroup(1, tabletA, []byte("record"), ident.OpID{Term: 1, Index: 3})
		b.SetHardState(1, &raftpb.HardState{Term: new(uint64(5)), Vote: new(uint64(2)), Commit: new(committed)})
		b.Append(1, entries)
		b.CreateGroup(2, tabletB, []byte("other"), ident.OpID{})
		b.SetHardState(2, other.hard.proto())
		b.Append(2, other.entries)
	})
	require.NoError(t, s.Close())
	return path, entries, other
}

func mustRepair(t *testing.T, path string) *Repair {
	t.Helper()
	r, err := OpenRepair(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

// TestRepairCut takes a far-future entry and all that follow it out of a log: what is left is the log before it, with term, vote
// and the other replica untouched, and it goes on like any other; the backup holds what was taken out.
func TestRepairCut(t *testing.T) {
	path, entries, other := plantedWAL(t, 5)
	r := mustRepair(t, path)
	c, err := r.FindCut(tabletA, 60)
	require.NoError(t, err)
	opID := func(i ident.Index) ident.OpID { return ident.OpID{Term: 1, Index: i} }
	require.Equal(t, &Cut{
		Number: 1, TabletID: tabletA, From: opID(7), To: opID(10), Entries: 4, Bytes: bytesOf(c.log.slots[3:]), Lowest: 70,
		Highest: farFuture + 1, Start: opID(3), Previous: opID(6), log: c.log,
	}, c)
	for _, none := range []hybridtime.Timestamp{farFuture + 1, hybridtime.Max} {
		got, err := r.FindCut(tabletA, none)
		require.NoError(t, err)
		require.Nil(t, got)
	}
	backup := filepath.Join(t.TempDir(), "backup")
	require.Panics(t, func() { _ = r.Apply(c, false) }, "without a backup")
	require.NoError(t, r.Backup(c, backup))
	require.NoError(t, r.Apply(c, false))
	require.NoError(t, r.Close())

	left := &modelGroup{tablet: tabletA, record: "record", start: opID(3), hard: hardState{5, 2, 5}, entries: entries[:3:3]}
	m := newModel()
	m.groups = map[ident.LocalNumber]*modelGroup{1: left, 2: other}
	for range 2 {
		s := mustOpen(t, smallConfig(path))
		require.NoError(t, m.differs(s))
		more := run(1, 6, left.lastIndex()+1, left.lastIndex()+5, 2000)
		left.append(more)
		commit(t, s, func(b *Batch) { b.Append(1, more) })
		trimAll(t, s)
		requireSound(t, s)
		require.NoError(t, s.Close())
	}
	requireBackup(t, backup, opID(6), 0, entries[3:])
	b, err := OpenReader(backup)
	require.NoError(t, err)
	defer b.Close()
	require.Regexp(t, `nyala\.wal, entries 1\.7 to 1\.10 of tablet a{32}, cut at \d{4}-`, string(b.Meta(MetaBackup)))
}

// requireBackup shows that a backup holds exactly these entries of replica 1.
func requireBackup(t *testing.T, path string, start ident.OpID, commit uint64, entries []*raftpb.Entry) {
	t.Helper()
	b, err := OpenReader(path)
	require.NoError(t, err)
	defer b.Close()
	require.Len(t, b.Groups(), 1)
	require.Equal(t, Group{Number: 1, TabletID: tabletA, Record: []byte("record")}, b.Groups()[0])
	l := b.Log(1)
	require.Equal(t, start, l.Start())
	require.Equal(t, commit, l.HardState().GetCommit())
	got, err := l.Entries(uint64(start.Index)+1, uint64(start.Index)+1+uint64(len(entries)), 1<<30)
	require.NoError(t, err)
	for i := range entries {
		require.True(t, proto.Equal(entries[i], got[i]), "%v, want %v", got[i], entries[i])
	}
	require.Equal(t, entries[len(entries)-1].GetIndex(), uint64(l.LastOpID().Index))
	n := 0
	require.NoError(t, b.Dump(t.Context(), "", func(d DumpEntry) error {
		n++
		require.True(t, d.CRCOK)
		return nil
	}))
	require.Equal(t, len(entries), n)
}

// TestRepairCommitted shows that entries known to be committed stay, unless forced: then the commit index goes back with them.
func TestRepairCommitted(t *testing.T) {
	path, entries, _ := plantedWAL(t, 8)
	r := mustRepair(t, path)
	c, err := r.FindCut(tabletA, 65)
	require.NoError(t, err)
	require.Equal(t, 2, c.Committed)
	backup := filepath.Join(t.TempDir(), "backup")
	require.NoError(t, r.Backup(c, backup))
	before, err := os.ReadFile(path)
	require.NoError(t, err)
	var refused *CommittedError
	require.ErrorAs(t, r.Apply(c, false), &refused)
	require.Equal(t, &CommittedError{TabletID: tabletA, From: ident.OpID{Term: 1, Index: 7}, Committed: 2}, refused)
	require.ErrorContains(t, refused, "2 of the entries from 1.7 on are known to be committed")
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, before, after)
	requireBackup(t, backup, ident.OpID{Term: 1, Index: 6}, 8, entries[3:])

	require.NoError(t, r.Apply(c, true))
	require.NoError(t, r.Close())
	s := mustOpen(t, smallConfig(path))
	defer s.Close()
	require.NoError(t, (&modelGroup{start: ident.OpID{Term: 1, Index: 3}, hard: hardState{5, 2, 6}, entries: entries[:3:3]}).differs(s.Log(1)))
	// A cut may reach down to the log's start.
	require.NoError(t, s.Close())
	r = mustRepair(t, path)
	c, err = r.FindCut(tabletA, 1)
	require.NoError(t, err)
	require.Equal(t, c.Start, c.Previous)
	require.NoError(t, r.Backup(c, backup+"2"))
	require.NoError(t, r.Apply(c, true))
	require.NoError(t, r.Close())
	s = mustOpen(t, smallConfig(path))
	defer s.Close()
	require.NoError(t, (&modelGroup{start: ident.OpID{Term: 1, Index: 3}, hard: hardState{5, 2, 3}}).differs(s.Log(1)))
}

// TestRepairCrash shows that up to Apply the file is as it was, to the byte, and that a backup cut short is no obstacle.
func TestRepairCrash(t *testing.T) {
	path, entries, _ := plantedWAL(t, 5)
	before, err := os.ReadFile(path)
	require.NoError(t, err)
	backup := filepath.Join(t.TempDir(), "backup")
	require.NoError(t, os.WriteFile(backup+".partial", before[:9999], 0o600))
	require.NoError(t, os.WriteFile(backup+".partial"+newSuffix, before[:99], 0o600))
	for range 2 {
		r := mustRepair(t, path)
		c, err := r.FindCut(tabletA, 60)
		require.NoError(t, err)
		require.NoError(t, r.Backup(c, backup))
		left, err := os.ReadFile(path) // what a crash at this moment leaves
		require.NoError(t, err)
		require.Equal(t, before, left)
		require.NoError(t, r.Close())
		left, err = os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, before, left)
		requireBackup(t, backup, ident.OpID{Term: 1, Index: 6}, 0, entries[3:])
		names, err := os.ReadDir(filepath.Dir(backup))
		require.NoError(t, err)
		require.Len(t, names, 1)
		require.NoError(t, os.Remove(backup))
	}
}

// TestRepairRefused shows what can't be repaired: a file in use, one that isn't there (and isn't made), a tablet that it doesn't
// hold, a damaged log; and that no backup is written over or into nothing.
func TestRepairRefused(t *testing.T) {
	path, _, _ := plantedWAL(t, 5)
	missing := filepath.Join(shmDir(t), FileName)
	_, err := OpenRepair(missing)
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = OpenReader(missing)
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = os.Lstat(missing)
	require.ErrorIs(t, err, fs.ErrNotExist)

	s := mustOpen(t, smallConfig(path))
	_, err = OpenRepair(path)
	require.ErrorIs(t, err, ErrLocked)
	require.ErrorContains(t, err, "process ")
	require.NoError(t, s.Close())
	rd, err := OpenReader(path)
	require.NoError(t, err)
	_, err = OpenRepair(path)
	require.ErrorIs(t, err, ErrLocked)
	require.NoError(t, rd.Close())

	r := mustRepair(t, path)
	_, err = OpenReader(path)
	require.ErrorIs(t, err, ErrLocked)
	_, err = r.FindCut("cccccccccccccccccccccccccccccccc", 1)
	require.ErrorContains(t, err, "holds no replica of tablet cccc")
	c, err := r.FindCut(tabletA, 1)
	require.NoError(t, err)
	require.ErrorIs(t, r.Backup(c, path), fs.ErrExist)
	require.Error(t, r.Backup(c, filepath.Join(path, "x")))
	require.ErrorIs(t, r.Backup(c, filepath.Join(filepath.Dir(path), "none", "x")), fs.ErrNotExist)
	require.NoError(t, r.Close())

	content, err := os.ReadFile(path)
	require.NoError(t, err)
	i := bytes.LastIndex(content, EncodePayload(KindWrite, 50, make([]byte, 4)))
	require.Positive(t, i)
	content[i+12]++
	require.NoError(t, os.WriteFile(path, content, 0o600))
	r = mustRepair(t, path)
	_, err = r.FindCut(tabletA, 60)
	require.ErrorIs(t, err, ErrDamaged)
	require.ErrorContains(t, err, "rebuilt from the others")
	c, err = r.FindCut(tabletB, 0) // the other replica's log is whole
	require.NoError(t, err)
	require.Equal(t, 20, c.Entries)
	require.NoError(t, r.Close())
}

// TestRepairModel cuts random logs at random timestamps and compares with the rule said plainly.
func TestRepairModel(t *testing.T) {
	for seed := range uint64(40) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		path := filepath.Join(shmDir(t), FileName)
		s := mustOpen(t, smallConfig(path))
		g := &modelGroup{tablet: tabletA, record: "record", start: ident.OpID{Term: 1, Index: ident.Index(rnd.IntN(3))}}
		for i := range rnd.IntN(12) {
			g.entries = append(g.entries, stamped(1, uint64(g.start.Index)+uint64(i)+1, hybridtime.Timestamp(rnd.IntN(8)), rnd.IntN(100)))
		}
		g.hard = hardState{1, 1, uint64(g.start.Index) + uint64(rnd.IntN(len(g.entries)+1))}
		commit(t, s, func(b *Batch) {
			b.CreateGroup(1, tabletA, []byte("record"), g.start)
			b.Append(1, g.entries)
			b.SetHardState(1, g.hard.proto())
		})
		require.NoError(t, s.Close())
		after := hybridtime.Timestamp(rnd.IntN(8))
		k := 0
		for k < len(g.entries) && stampOf(g.entries[k]) <= after {
			k++
		}
		r := mustRepair(t, path)
		c, err := r.FindCut(tabletA, after)
		require.NoError(t, err)
		if k == len(g.entries) {
			require.Nil(t, c)
			require.NoError(t, r.Close())
			continue
		}
		require.Equal(t, len(g.entries)-k, c.Entries)
		keep := uint64(g.start.Index) + uint64(k)
		committed := g.hard.commit > keep
		require.NoError(t, r.Backup(c, path+".backup"))
		err = r.Apply(c, false)
		if committed {
			var refused *CommittedError
			require.True(t, errors.As(err, &refused) && refused.Committed == int(g.hard.commit-keep), "%v", err)
			err = r.Apply(c, true)
			g.hard.commit = keep
		}
		require.NoError(t, err)
		require.NoError(t, r.Close())
		g.entries = g.entries[:k]
		s = mustOpen(t, smallConfig(path))
		require.NoError(t, g.differs(s.Log(1)), "seed %d", seed)
		requireSound(t, s)
		require.NoError(t, s.Close())
	}
}
