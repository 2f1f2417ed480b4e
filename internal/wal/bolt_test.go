package wal

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/nyaladb/nyala/internal/ident"
)

// TestReopen opens a file with 100,000 entries of a thousand replicas and says how long that took.
func TestReopen(t *testing.T) {
	groups, per := 1000, 100
	if raceEnabled {
		groups = 100
	}
	path := filepath.Join(shmDir(t), FileName)
	s := mustOpen(t, Config{Path: path})
	for from := 1; from <= per; from += 20 {
		commit(t, s, func(b *Batch) {
			for n := 1; n <= groups; n++ {
				if from == 1 {
					b.CreateGroup(ident.LocalNumber(n), tabletA, []byte("record"), ident.OpID{})
				}
				b.Append(ident.LocalNumber(n), run(ident.LocalNumber(n), 1, uint64(from), uint64(from+19), 250))
			}
		})
	}
	require.NoError(t, s.Close())
	begin := time.Now()
	s = mustOpen(t, Config{Path: path})
	took := time.Since(begin)
	defer s.Close()
	t.Logf("%d entries in %v", groups*per, took)
	require.Less(t, took, 30*time.Second)
	require.Equal(t, int64(groups*per), s.Size().LiveEntries)
	require.Equal(t, ident.Index(per), s.Log(1).LastOpID().Index)
}

// TestCache shows that the cache keeps its limit over all groups, that a log reads the same from memory and from disk, and
// that what is superseded or deleted goes out of memory too.
func TestCache(t *testing.T) {
	path := filepath.Join(shmDir(t), FileName)
	s := mustOpen(t, Config{Path: path, CacheBytes: 10_000})
	defer s.Close()
	commit(t, s, func(b *Batch) {
		for n := ident.LocalNumber(1); n <= 3; n++ {
			b.CreateGroup(n, tabletA, nil, ident.OpID{})
		}
	})
	for i := uint64(1); i <= 50; i++ {
		commit(t, s, func(b *Batch) {
			for n := ident.LocalNumber(1); n <= 3; n++ {
				b.Append(n, run(n, 1, i, i, 500))
			}
		})
		require.LessOrEqual(t, s.Size().CacheBytes, int64(10_000))
	}
	require.Greater(t, s.Size().CacheBytes, int64(8_000))
	inMemory := 0
	for n := ident.LocalNumber(1); n <= 3; n++ {
		for _, sl := range s.Log(n).slots {
			if sl.entry != nil {
				inMemory++
			}
		}
	}
	require.InDelta(t, 15, inMemory, 3)
	commit(t, s, func(b *Batch) { b.Append(1, run(1, 2, 10, 10, 5)); b.DeleteGroup(2) })
	for _, sp := range s.trash.spans {
		for _, sl := range sp.slots {
			require.Nil(t, sl.entry)
		}
	}
	commit(t, s, func(b *Batch) { b.DeleteGroup(1); b.DeleteGroup(3) })
	require.Zero(t, s.Size().CacheBytes)
}

// TestMetrics shows that every series is there from the start, under its name, and is gone after Close.
func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	cfg := Config{Path: filepath.Join(shmDir(t), FileName), Registerer: reg}
	s := mustOpen(t, cfg)
	names := func() string {
		var all []string
		families, err := reg.Gather()
		require.NoError(t, err)
		for _, f := range families {
			require.NotEmpty(t, f.GetHelp())
			all = append(all, f.GetName())
		}
		return strings.Join(all, " ")
	}
	want := "log_append_latency log_bytes_logged log_cache_size log_entry_batches_per_group log_gc_duration " +
		"log_group_commit_latency wal_commit_failures_total wal_file_bytes wal_live_bytes wal_live_entries wal_trash_bytes"
	require.Equal(t, want, names())
	commit(t, s, func(b *Batch) { b.CreateGroup(1, tabletA, nil, ident.OpID{}); b.Append(1, run(1, 1, 1, 5, 100)) })
	require.Equal(t, want, names())
	require.NoError(t, s.Close())
	require.Empty(t, names())
	// A second store on the same registry is refused instead of mixed with the first.
	s = mustOpen(t, cfg)
	defer s.Close()
	_, err := OpenBolt(Config{Path: filepath.Join(shmDir(t), FileName), Registerer: reg})
	require.ErrorContains(t, err, "duplicate")
}

// TestConfig shows that all faults come at once, and that a path that can't be is said.
func TestConfig(t *testing.T) {
	bad := Config{CacheBytes: -1, LockTimeout: -1}
	err := bad.Validate()
	require.ErrorContains(t, err, "no path")
	require.ErrorContains(t, err, "cache")
	require.ErrorContains(t, err, "lock timeout")
	good := DefaultConfig("x")
	require.NoError(t, good.Validate())
	_, err = OpenBolt(bad)
	require.Error(t, err)
	_, err = OpenBolt(Config{Path: filepath.Join(t.TempDir(), "none", FileName)})
	require.ErrorContains(t, err, filepath.Join("none", FileName))
	s := mustOpen(t, DefaultConfig(filepath.Join(shmDir(t), FileName)))
	require.Positive(t, s.file.reserved)
	require.NoError(t, s.Close())
	require.Contains(t, fmt.Sprint(Failures), "sync that lost nothing")
}

// TestShrink shows that a file that is mostly empty is rewritten at open, with all that is in it, dead records and damaged
// replicas too, and that it is a WAL like any other then; and that a crash before the rename leaves the old one.
func TestShrink(t *testing.T) {
	path := filepath.Join(shmDir(t), FileName)
	cfg := smallConfig(path)
	s := mustOpen(t, cfg)
	m := newModel()
	for n := ident.LocalNumber(1); n <= 3; n++ {
		g := &modelGroup{tablet: tabletA, record: fmt.Sprint(n)}
		m.groups[n] = g
		g.append(run(n, 1, 1, 300, 2000))
		commit(t, s, func(b *Batch) {
			b.CreateGroup(n, tabletA, []byte(g.record), ident.OpID{})
			b.Append(n, g.entries)
			b.SetMeta("clock_mark", []byte("mark"))
		})
	}
	m.meta["clock_mark"] = "mark"
	commit(t, s, func(b *Batch) {
		for n, g := range m.groups {
			to := ident.OpID{Term: 1, Index: 280}
			b.Compact(n, to)
			g.compact(to)
		}
	})
	_, err := s.Trim(800)
	require.NoError(t, err)
	trash := s.Size().TrashRecords
	require.Positive(t, trash)
	before := s.Size().FileBytes
	require.NoError(t, s.Close())
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	// Of replica 3 an entry rots.
	i := bytes.Index(content, m.groups[3].entries[5].GetData())
	require.Positive(t, i)
	content[i+20]++
	require.NoError(t, os.WriteFile(path, content, 0o600))
	delete(m.groups, 3)
	require.NoError(t, os.WriteFile(path+newSuffix, content[:9999], 0o600)) // of a rewriting cut short

	s = mustOpen(t, cfg)
	require.Less(t, s.Size().FileBytes, before/3)
	_, err = os.Stat(path + newSuffix)
	require.ErrorIs(t, err, os.ErrNotExist)
	for range 2 {
		require.NoError(t, m.differsLeniently(s))
		require.ErrorIs(t, s.Log(3).group().Damaged, ErrDamaged)
		for n, g := range m.groups {
			more := run(n, 2, g.lastIndex()+1, g.lastIndex()+5, 100)
			g.append(more)
			commit(t, s, func(b *Batch) { b.Append(n, more) })
		}
		requireSound(t, s)
		require.NoError(t, s.Close())
		s = mustOpen(t, cfg)
	}
	commit(t, s, func(b *Batch) { b.DeleteGroup(3) })
	trimAll(t, s)
	require.NoError(t, s.Close())
	s = mustOpen(t, cfg)
	defer s.Close()
	require.NoError(t, m.differs(s))
}

// requireSound lets bbolt check its own tree and free list.
func requireSound(t *testing.T, s *Bolt) {
	t.Helper()
	tx, err := s.file.db.Begin(false)
	require.NoError(t, err)
	defer tx.Rollback() //nolint:errcheck // read only
	for err := range tx.Check() {
		t.Error(err)
	}
}
