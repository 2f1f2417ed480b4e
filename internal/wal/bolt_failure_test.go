//go:build linux

package wal

import (
	"math"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/nyaladb/nyala/internal/ident"
)

// replaceFD puts another file under the store's file descriptor, so that bbolt's own system calls fail as that file's do,
// and returns how to undo it.
func replaceFD(t *testing.T, s *Bolt, path string) (undo func()) {
	t.Helper()
	fd := int(s.file.f.Fd())
	saved, err := unix.Dup(fd)
	require.NoError(t, err)
	other, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Dup3(other, fd, unix.O_CLOEXEC))
	require.NoError(t, unix.Close(other))
	return func() {
		require.NoError(t, unix.Dup3(saved, fd, unix.O_CLOEXEC))
		require.NoError(t, unix.Close(saved))
	}
}

func openFilled(t *testing.T) (*Bolt, string, *model) {
	t.Helper()
	path := filepath.Join(shmDir(t), FileName)
	s := mustOpen(t, smallConfig(path))
	t.Cleanup(func() { _ = s.Close() })
	m := newModel()
	g := &modelGroup{tablet: tabletA, record: "record"}
	m.groups[1] = g
	entries := run(1, 1, 1, 200, 300)
	g.append(entries)
	commit(t, s, func(x *Batch) { x.CreateGroup(1, tabletA, []byte("record"), ident.OpID{}); x.Append(1, entries) })
	// Deletions leave free pages, so that the next commits need no growth.
	commit(t, s, func(x *Batch) { x.SetMeta("a", []byte("b")); x.Compact(1, ident.OpID{Term: 1, Index: 100}) })
	g.compact(ident.OpID{Term: 1, Index: 100})
	trimAll(t, s)
	m.meta["a"] = "b"
	return s, path, m
}

// TestNoSpaceInCommit lets bbolt's own writes answer "no space left", as a copy-on-write file system may: nothing changes,
// nothing has failed, reads go on, and once there is room the same batch is committed.
func TestNoSpaceInCommit(t *testing.T) {
	s, path, m := openFilled(t)
	g := m.groups[1]
	for i := range uint64(20) {
		var b Batch
		entries := run(1, 1, 201+i*3, 203+i*3, 50)
		b.Append(1, entries)
		undo := replaceFD(t, s, "/dev/full")
		err := s.Commit(&b)
		require.ErrorIs(t, err, ErrNoSpace)
		require.NoError(t, s.Err())
		_, err = s.Trim(10)
		require.NoError(t, err, "there is nothing to trim")
		undo()
		require.NoError(t, m.differs(s))
		require.NoError(t, s.Commit(&b))
		g.append(entries)
		require.NoError(t, m.differs(s))
	}
	requireSound(t, s)
	require.NoError(t, s.Close())
	s = mustOpen(t, smallConfig(path))
	defer s.Close()
	require.NoError(t, m.differs(s))
}

// TestFailedSync lets the sync fail: the file has failed for good, though the disk would work again at once; what was
// durable is there after a restart, and the batch isn't.
func TestFailedSync(t *testing.T) {
	s, path, m := openFilled(t)
	var b Batch
	b.Append(1, run(1, 1, 201, 205, 10))
	undo := replaceFD(t, s, "/dev/null") // takes every write and can't sync
	err := s.Commit(&b)
	undo()
	require.ErrorIs(t, err, ErrFailed)
	require.ErrorIs(t, err, unix.EINVAL)
	require.ErrorIs(t, s.Commit(&b), ErrFailed)
	_, err = s.Trim(1)
	require.ErrorIs(t, err, ErrFailed)
	_, err = s.Log(1).Entries(101, 103, 1000)
	require.ErrorIs(t, err, ErrFailed)
	require.ErrorIs(t, s.Err(), ErrFailed)
	require.NoError(t, s.Close())

	s = mustOpen(t, smallConfig(path))
	defer s.Close()
	require.NoError(t, m.differs(s))
}

// TestFailedWrite lets a write fail for another reason than space.
func TestFailedWrite(t *testing.T) {
	s, _, _ := openFilled(t)
	ro, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer ro.Close()
	var b Batch
	b.SetMeta("a", nil)
	fd := int(s.file.f.Fd())
	saved, err := unix.Dup(fd)
	require.NoError(t, err)
	readOnly, err := unix.Open(ro.Name(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Dup3(readOnly, fd, unix.O_CLOEXEC))
	err = s.Commit(&b)
	require.NoError(t, unix.Dup3(saved, fd, unix.O_CLOEXEC))
	require.NoError(t, unix.Close(saved))
	require.NoError(t, unix.Close(readOnly))
	require.ErrorIs(t, err, ErrFailed)
	require.ErrorIs(t, err, unix.EBADF)
}

// TestReserve shows that the file doesn't grow into the reserve, that deletions go on meanwhile, and that what they free can
// be written to again.
func TestReserve(t *testing.T) {
	path := filepath.Join(shmDir(t), FileName)
	s := mustOpen(t, smallConfig(path))
	defer s.Close()
	last := uint64(0)
	commit(t, s, func(x *Batch) { x.CreateGroup(1, tabletA, nil, ident.OpID{}) })
	s.file.reserved = math.MaxInt64 / 2
	var err error
	for err == nil {
		var b Batch
		b.Append(1, run(1, 1, last+1, last+20, 1000))
		if err = s.Commit(&b); err == nil {
			last += 20
		}
		require.Less(t, last, uint64(100_000))
	}
	require.ErrorIs(t, err, ErrNoSpace)
	require.ErrorContains(t, err, "stay reserved")
	require.NoError(t, s.Err())
	size := s.Size().FileBytes

	var b Batch
	b.Compact(1, ident.OpID{Term: 1, Index: ident.Index(last)})
	require.NoError(t, s.Commit(&b), "a small commit finds free pages")
	trimAll(t, s)
	for range 200 {
		commit(t, s, func(x *Batch) { x.Append(1, run(1, 1, last+1, last+2, 100)) })
		last += 2
		commit(t, s, func(x *Batch) { x.Compact(1, ident.OpID{Term: 1, Index: ident.Index(last)}) })
		if _, err := s.Trim(50); err != nil {
			t.Fatal(err)
		}
	}
	require.Equal(t, size, s.Size().FileBytes)
	requireSound(t, s)
}

// TestFaultInMap takes pages away from under the map, as a disk does that can't read them: the fault is caught, the file has
// failed, the process lives.
func TestFaultInMap(t *testing.T) {
	t.Run("read", func(t *testing.T) {
		s, path, _ := openFilled(t)
		require.NoError(t, os.Truncate(path, 2*testPage))
		_, err := s.Log(1).Entries(101, 200, math.MaxUint64)
		require.ErrorIs(t, err, ErrFailed)
		require.ErrorContains(t, err, "bbolt panicked")
		require.ErrorIs(t, s.Err(), ErrFailed)
		require.NoError(t, s.Close())
	})
	t.Run("commit", func(t *testing.T) {
		s, path, _ := openFilled(t)
		require.NoError(t, os.Truncate(path, 2*testPage))
		var b Batch
		b.Append(1, run(1, 1, 201, 201, 10))
		require.ErrorIs(t, s.Commit(&b), ErrFailed)
		require.ErrorIs(t, s.Commit(&b), ErrFailed)
		_, err := s.Log(1).Entries(101, 102, 10)
		require.ErrorIs(t, err, ErrFailed)
		require.NoError(t, s.Close())
	})
}

// TestEntryRotsUnderWay damages an entry on disk while the store is open: its replica fails, the others go on.
func TestEntryRotsUnderWay(t *testing.T) {
	s, path, m := openFilled(t)
	commit(t, s, func(x *Batch) { x.CreateGroup(2, tabletB, nil, ident.OpID{}); x.Append(2, run(2, 1, 1, 3, 9)) })
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	needle := m.groups[1].entries[49].GetData()[envelopeSize:]
	for i := 0; i+len(needle) < len(content); i++ {
		if string(content[i:i+len(needle)]) == string(needle) {
			_, err = f.WriteAt([]byte("rot"), int64(i)+3)
			require.NoError(t, err)
		}
	}
	require.NoError(t, f.Close())
	_, err = s.Log(1).Entries(149, 152, math.MaxUint64)
	require.ErrorIs(t, err, ErrDamaged)
	require.ErrorIs(t, s.Groups()[0].Damaged, ErrDamaged)
	require.NoError(t, s.Err())
	bad := 0
	require.NoError(t, s.Dump(t.Context(), "", func(d DumpEntry) error {
		if !d.CRCOK {
			bad++
			require.Equal(t, ident.OpID{Term: 1, Index: 150}, d.OpID)
			require.ErrorIs(t, d.Err, errCRC)
		}
		return nil
	}))
	require.Equal(t, 1, bad)
	commit(t, s, func(x *Batch) { x.Append(1, run(1, 1, 201, 201, 9)) }) // was under way
	require.NoError(t, s.Close())
	s = mustOpen(t, smallConfig(path))
	require.ErrorIs(t, s.Groups()[0].Damaged, ErrDamaged)
	seen := 0
	require.NoError(t, s.Dump(t.Context(), tabletA, func(d DumpEntry) error {
		seen++
		require.Equal(t, d.OpID.Index != 150, d.CRCOK)
		return nil
	}))
	require.Equal(t, 101, seen)
	commit(t, s, func(x *Batch) { x.Append(2, run(2, 1, 4, 4, 9)); x.DeleteGroup(1) })
	trimAll(t, s)
	require.NoError(t, s.Close())
	s = mustOpen(t, smallConfig(path))
	defer s.Close()
	require.Len(t, s.Groups(), 1)
	require.NoError(t, s.Groups()[0].Damaged)
}

// TestLocked shows that a second opener is refused soon and told who holds the file, and that a dump never waits.
func TestLocked(t *testing.T) {
	s, path, _ := openFilled(t)
	cfg := smallConfig(path)
	cfg.LockTimeout = 30 * time.Millisecond
	_, err := OpenBolt(cfg)
	var locked *LockedError
	require.ErrorAs(t, err, &locked)
	require.Contains(t, locked.Holder, "process")
	if runtime.GOOS == "linux" {
		require.Contains(t, locked.Holder, "wal.test")
	}
	err = Dump(t.Context(), path, "", func(DumpEntry) error { return nil })
	require.ErrorIs(t, err, ErrLocked)
	require.NoError(t, s.Close())

	seen := 0
	require.NoError(t, Dump(t.Context(), path, "", func(d DumpEntry) error {
		seen++
		require.True(t, d.CRCOK)
		if seen == 1 {
			_, err := OpenBolt(cfg)
			require.ErrorIs(t, err, ErrLocked)
		}
		return nil
	}))
	require.Equal(t, 100, seen)
	require.ErrorIs(t, Dump(t.Context(), path+"x", "", nil), os.ErrNotExist)
}
