package wal

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
)

const tabletA, tabletB = ident.TabletID("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"), ident.TabletID("bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb")

// conformance runs a test on every store.
func conformance(t *testing.T, test func(t *testing.T, s *rig)) {
	for _, r := range rigs {
		t.Run(r.name, func(t *testing.T) {
			s := r.open(t)
			defer s.done()
			test(t, s)
		})
	}
}

// TestGroups shows that a group is there after a restart with what it was created with, that a deleted one is gone at once and
// for good, and that no number is ever given out twice.
func TestGroups(t *testing.T) {
	conformance(t, func(t *testing.T, s *rig) {
		a, b := s.AllocateNumber(), s.AllocateNumber()
		start := ident.OpID{Term: 3, Index: 17}
		commit(t, s, func(x *Batch) {
			x.CreateGroup(a, tabletA, []byte("record a"), ident.OpID{})
			x.CreateGroup(b, tabletB, []byte("record b"), start)
			x.Append(a, run(a, 1, 1, 30, 100))
		})
		s.crash()
		require.Equal(t, []Group{
			{Number: a, TabletID: tabletA, Record: []byte("record a")},
			{Number: b, TabletID: tabletB, Record: []byte("record b")},
		}, s.Groups())
		require.Equal(t, start, s.Log(b).LastOpID())
		term, err := s.Log(b).TermOf(17)
		require.NoError(t, err)
		require.Equal(t, ident.Term(3), term)

		old := s.Log(a)
		commit(t, s, func(x *Batch) { x.DeleteGroup(a); x.DeleteGroup(a) })
		require.Nil(t, s.Log(a))
		require.Equal(t, int64(30), s.Size().TrashRecords)
		last, _ := old.LastIndex()
		require.Equal(t, uint64(30), last)
		_, err = old.Entries(5, 6, 1000)
		require.Equal(t, raft.ErrCompacted, err)

		s.crash()
		require.Len(t, s.Groups(), 1)
		require.Equal(t, int64(30), s.Size().TrashRecords)
		commit(t, s, func(x *Batch) { x.DeleteGroup(b) })
		trimAll(t, s)
		s.crash()
		require.Empty(t, s.Groups())
		require.Greater(t, s.AllocateNumber(), b)
	})
}

func trimAll(t *testing.T, s Store) {
	t.Helper()
	for more := true; more; {
		var err error
		more, err = s.Trim(10)
		require.NoError(t, err)
	}
	require.Zero(t, s.Size().TrashRecords)
}

// TestStorage walks the edges of raft.Storage: what is compacted, what isn't there yet, limits of size.
func TestStorage(t *testing.T) {
	conformance(t, func(t *testing.T, s *rig) {
		commit(t, s, func(x *Batch) {
			x.CreateGroup(1, tabletA, nil, ident.OpID{})
			x.Append(1, run(1, 1, 1, 10, 491))
			x.Append(1, run(1, 2, 8, 12, 491))
			x.SetHardState(1, &raftpb.HardState{Term: new(uint64(2)), Vote: new(uint64(3)), Commit: new(uint64(7))})
		})
		commit(t, s, func(x *Batch) { x.Compact(1, ident.OpID{Term: 1, Index: 4}) })
		check := func() {
			l := s.Log(1)
			hs, cs, err := l.InitialState()
			require.NoError(t, err)
			require.NotNil(t, cs)
			require.Equal(t, []uint64{2, 3, 7}, []uint64{hs.GetTerm(), hs.GetVote(), hs.GetCommit()})
			for i, want := range map[uint64]error{3: raft.ErrCompacted, 13: raft.ErrUnavailable} {
				_, err = l.Term(i)
				require.Equal(t, want, err, "term of %d", i)
			}
			for i, want := range map[uint64]uint64{4: 1, 7: 1, 8: 2, 12: 2} {
				term, err := l.Term(i)
				require.NoError(t, err)
				require.Equal(t, want, term, "term of %d", i)
			}
			_, err = l.Entries(4, 6, math.MaxUint64)
			require.Equal(t, raft.ErrCompacted, err)
			_, err = l.Entries(5, 14, math.MaxUint64)
			require.Equal(t, raft.ErrUnavailable, err)
			all, err := l.Entries(5, 13, math.MaxUint64)
			require.NoError(t, err)
			require.Len(t, all, 8)
			require.Equal(t, 8, cap(all), "an append by raft must not reach into our memory")
			one, err := l.Entries(5, 13, 0)
			require.NoError(t, err)
			require.Len(t, one, 1)
			some, err := l.Entries(5, 13, 1700)
			require.NoError(t, err)
			require.Len(t, some, 3)
			_, err = l.Snapshot()
			require.Equal(t, raft.ErrSnapshotTemporarilyUnavailable, err)
			ts, err := l.Timestamp(12)
			require.NoError(t, err)
			require.Equal(t, hybridtime.Timestamp(12<<12|2), ts)
			require.Equal(t, ident.OpID{Term: 2, Index: 12}, l.LastOpID())
		}
		check()
		s.crash()
		check()
		require.Equal(t, hybridtime.Timestamp(12<<12|2), s.LastTimestamp())
		conf := &raftpb.ConfState{Voters: []uint64{1}}
		s.Log(1).SetConfState(conf)
		_, got, _ := s.Log(1).InitialState()
		require.Equal(t, conf, got)
	})
}

// TestCut shows that a cut is durable in its one commit, whatever was superseded before it and whatever was deleted since.
func TestCut(t *testing.T) {
	conformance(t, func(t *testing.T, s *rig) {
		commit(t, s, func(x *Batch) {
			x.CreateGroup(1, tabletA, nil, ident.OpID{})
			x.Append(1, run(1, 1, 1, 100, 50))
		})
		commit(t, s, func(x *Batch) { x.Append(1, run(1, 2, 50, 120, 50)) })
		commit(t, s, func(x *Batch) { x.CutSuffix(1, 40); x.CutSuffix(1, 60) })
		for range 30 {
			s.crash()
			require.Equal(t, ident.OpID{Term: 1, Index: 39}, s.Log(1).LastOpID())
			_, err := s.Trim(7)
			require.NoError(t, err)
		}
		require.Zero(t, s.Size().TrashRecords)
		commit(t, s, func(x *Batch) { x.Append(1, run(1, 3, 40, 41, 50)) })
		s.crash()
		require.Equal(t, ident.OpID{Term: 3, Index: 41}, s.Log(1).LastOpID())
	})
}

// TestMeta shows that values are replaced, survive, and share a commit with the entries they belong to.
func TestMeta(t *testing.T) {
	conformance(t, func(t *testing.T, s *rig) {
		require.Nil(t, s.Meta("clock_mark"))
		commit(t, s, func(x *Batch) { x.SetMeta("clock_mark", []byte("one")); x.SetMeta("empty", nil) })
		commit(t, s, func(x *Batch) { x.SetMeta("clock_mark", []byte("two")); x.SetMeta("clock_mark", []byte("three")) })
		s.crash()
		require.Equal(t, "three", string(s.Meta("clock_mark")))
		require.Empty(t, s.Meta("empty"))
	})
}

// TestBacklog shows that commits delete about as much as they add, so that the trash goes away under load, and that the
// record count after a restart is what the tally says.
func TestBacklog(t *testing.T) {
	conformance(t, func(t *testing.T, s *rig) {
		commit(t, s, func(x *Batch) {
			x.CreateGroup(1, tabletA, nil, ident.OpID{})
			x.CreateGroup(2, tabletB, nil, ident.OpID{})
			x.Append(1, run(1, 1, 1, 500, 20))
		})
		commit(t, s, func(x *Batch) { x.Compact(1, ident.OpID{Term: 1, Index: 500}) })
		require.Equal(t, int64(500), s.Size().TrashRecords)
		for i := uint64(0); i < 40; i++ {
			before := s.Size().TrashRecords
			commit(t, s, func(x *Batch) { x.Append(2, run(2, 1, i*10+1, i*10+10, 20)) })
			if gone := before - s.Size().TrashRecords; before > 40 {
				require.GreaterOrEqual(t, gone, int64(10))
				require.LessOrEqual(t, gone, int64(30))
			}
		}
		require.Zero(t, s.Size().TrashRecords)
		s.crash()
		require.Equal(t, int64(400), s.Size().LiveEntries)
	})
}

// TestRulesBroken shows that a caller's bug stops the program instead of reaching the disk.
func TestRulesBroken(t *testing.T) {
	conformance(t, func(t *testing.T, s *rig) {
		commit(t, s, func(x *Batch) {
			x.CreateGroup(1, tabletA, nil, ident.OpID{})
			x.Append(1, run(1, 1, 1, 5, 10))
			x.SetHardState(1, hardState{1, 1, 3}.proto())
		})
		for name, fill := range map[string]func(x *Batch){
			"gap":                func(x *Batch) { x.Append(1, run(1, 1, 7, 8, 10)) },
			"jump":               func(x *Batch) { x.Append(1, append(run(1, 1, 6, 6, 10), run(1, 1, 8, 8, 10)...)) },
			"never created":      func(x *Batch) { x.Append(2, run(2, 1, 1, 1, 10)) },
			"number twice":       func(x *Batch) { x.CreateGroup(1, tabletB, nil, ident.OpID{}) },
			"committed cut":      func(x *Batch) { x.CutSuffix(1, 3) },
			"committed replaced": func(x *Batch) { x.Compact(1, ident.OpID{Term: 2, Index: 3}) },
		} {
			var b Batch
			fill(&b)
			require.Panics(t, func() { _ = s.Commit(&b) }, name)
		}
		commit(t, s, func(x *Batch) { x.Append(1, run(1, 1, 6, 6, 10)) })
		s.crash()
		require.Equal(t, ident.Index(6), s.Log(1).LastOpID().Index)
	})
}

// TestClosed shows that a closed store refuses everything and closes twice.
func TestClosed(t *testing.T) {
	conformance(t, func(t *testing.T, s *rig) {
		commit(t, s, func(x *Batch) { x.CreateGroup(1, tabletA, nil, ident.OpID{}); x.Append(1, run(1, 1, 1, 50, 100)) })
		require.NoError(t, s.Err())
		require.NoError(t, s.Close())
		require.NoError(t, s.Close())
		var b Batch
		b.SetMeta("a", nil)
		require.ErrorIs(t, s.Commit(&b), ErrClosed)
		_, err := s.Trim(1)
		require.ErrorIs(t, err, ErrClosed)
		_, err = s.Log(1).Entries(1, 2, 100)
		require.ErrorIs(t, err, ErrClosed)
	})
}

// TestReaders reads logs from several goroutines while a writer appends, supersedes, compacts and trims: every entry that
// comes back is whole and the right one.
func TestReaders(t *testing.T) {
	conformance(t, func(t *testing.T, s *rig) {
		commit(t, s, func(x *Batch) { x.CreateGroup(1, tabletA, nil, ident.OpID{}) })
		l, store := s.Log(1), s.Store
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				for ctx.Err() == nil {
					first, _ := l.FirstIndex()
					last, _ := l.LastIndex()
					entries, err := l.Entries(first, last+1, 4000)
					if err != nil {
						if !errors.Is(err, raft.ErrCompacted) && !errors.Is(err, raft.ErrUnavailable) {
							t.Errorf("entries [%d, %d]: %v", first, last, err)
						}
						continue
					}
					for i, e := range entries {
						want := entry(1, e.GetTerm(), first+uint64(i), len(e.GetData())-envelopeSize)
						if e.GetIndex() != first+uint64(i) || string(e.GetData()) != string(want.GetData()) {
							t.Errorf("entry %d is %v", first+uint64(i), e)
						}
					}
				}
			})
			wg.Go(func() {
				for ctx.Err() == nil {
					_ = store.Dump(ctx, "", func(d DumpEntry) error {
						if !d.CRCOK || d.Err != nil {
							t.Errorf("dump: %+v", d)
						}
						return nil
					})
				}
			})
		}
		next := uint64(1)
		for i := range uint64(300) {
			commit(t, s, func(x *Batch) {
				if back := next - 3; i%5 == 4 {
					next = back
				}
				x.Append(1, run(1, i+1, next, next+9, int(i*37%700)))
				next += 10
				if i%4 == 3 && next > 60 {
					term, _ := l.TermOf(ident.Index(next - 60))
					x.Compact(1, ident.OpID{Term: term, Index: ident.Index(next - 60)})
				}
			})
			if _, err := s.Trim(20); err != nil {
				t.Error(err)
			}
		}
		stop()
		wg.Wait()
	})
}

// TestDump shows each entry once with what it holds, of one tablet or of all, and that entries compacted away while a slow
// reader looks are left out.
func TestDump(t *testing.T) {
	conformance(t, func(t *testing.T, s *rig) {
		commit(t, s, func(x *Batch) {
			x.CreateGroup(1, tabletA, nil, ident.OpID{})
			x.CreateGroup(2, tabletB, nil, ident.OpID{})
			x.Append(1, []*raftpb.Entry{{Term: new(uint64(1)), Index: new(uint64(1)), Type: raftpb.EntryNormal.Enum()}})
			x.Append(1, run(1, 1, 2, 600, 10))
			x.Append(2, run(2, 4, 1, 1, 30_000))
		})
		var got []DumpEntry
		keep := func(d DumpEntry) error { got = append(got, d); return nil }
		require.NoError(t, s.Dump(t.Context(), tabletB, keep))
		require.Len(t, got, 1)
		want := entry(2, 4, 1, 30_000)
		require.Equal(t, DumpEntry{
			TabletID: tabletB, Number: 2, OpID: ident.OpID{Term: 4, Index: 1}, Kind: KindWrite,
			Timestamp: 1<<12 | 4, Bytes: 30_009, Payload: want.GetData()[envelopeSize:], CRCOK: true,
		}, got[0])
		got = nil
		require.NoError(t, s.Dump(t.Context(), "", keep))
		require.Len(t, got, 601)
		require.Equal(t, KindNone, got[0].Kind)

		seen := 0
		require.NoError(t, s.Dump(t.Context(), tabletA, func(d DumpEntry) error {
			if seen++; seen == 1 {
				commit(t, s, func(x *Batch) { x.Compact(1, ident.OpID{Term: 1, Index: 500}) })
				trimAll(t, s)
			}
			return nil
		}))
		require.Equal(t, dumpEntries+100, seen)
		stop := errors.New("enough")
		require.ErrorIs(t, s.Dump(t.Context(), "", func(DumpEntry) error { return stop }), stop)
	})
}

// TestErrors shows that each error says where and what to do.
func TestErrors(t *testing.T) {
	for _, c := range []struct {
		err  error
		is   error
		says string
	}{
		{&FailedError{"/w", errors.New("input/output error")}, ErrFailed, "/w has failed for good: input/output error"},
		{&DamageError{Path: "/w", Group: 3, What: "a"}, ErrDamaged, "/w is damaged for replica 3: a"},
		{&DamageError{Path: "/w", What: "a", Err: errCRC}, errCRC, "/w is damaged: a: CRC"},
		{&LockedError{"/w", "process 3 (x)"}, ErrLocked, "/w is held by process 3 (x)"},
	} {
		require.ErrorIs(t, c.err, c.is)
		require.Contains(t, c.err.Error(), c.says)
		require.False(t, strings.HasSuffix(c.err.Error(), "."))
	}
}
