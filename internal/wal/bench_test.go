package wal

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/nyaladb/nyala/internal/ident"
)

// BenchmarkCommit appends batches of entries, spread over groups in turn, with a window of live log: what falls out of
// it is compacted, as after a flush of the store. The file lies in NYALA_BENCH_DIR, else in the temporary folder.
func BenchmarkCommit(b *testing.B) {
	for _, c := range []struct {
		groups, batch, size int
		window              int64
	}{
		{1, 1, 256, 16 << 20},
		{1, 512, 256, 200 << 20},
		{64, 512, 256, 200 << 20},
		{1000, 512, 256, 200 << 20},
		{64, 4, 256 << 10, 200 << 20},
		{64, 1, 20 << 20, 200 << 20},
	} {
		b.Run(fmt.Sprintf("groups=%d/batch=%d/size=%d", c.groups, c.batch, c.size), func(b *testing.B) {
			benchCommit(b, c.groups, c.batch, c.size, c.window)
		})
	}
}

func benchCommit(b *testing.B, groups, batch, size int, window int64) {
	dir, err := os.MkdirTemp(os.Getenv("NYALA_BENCH_DIR"), "walbench")
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(dir)
	s := mustOpen(b, Config{Path: filepath.Join(dir, FileName)})
	defer s.Close()
	var create Batch
	for n := 1; n <= groups; n++ {
		create.CreateGroup(ident.LocalNumber(n), "00000000000000000000000000000000", nil, ident.OpID{})
	}
	if err := s.Commit(&create); err != nil {
		b.Fatal(err)
	}
	data := EncodePayload(KindWrite, 1, make([]byte, size))
	next := make([]uint64, groups+1)
	for i := range next {
		next[i] = 1
	}
	var took []time.Duration
	var batchOf Batch
	group, live, flushed := 0, int64(0), int64(0)
	step := func() {
		batchOf.Reset()
		per := max(1, batch/groups)
		for done := 0; done < batch; done += per {
			group = group%groups + 1
			entries := make([]*raftpb.Entry, per)
			for i := range entries {
				entries[i] = &raftpb.Entry{Term: new(uint64(1)), Index: new(next[group]), Type: raftpb.EntryNormal.Enum(), Data: data}
				next[group]++
			}
			batchOf.Append(ident.LocalNumber(group), entries)
		}
		live += int64(batch * size)
		if live-flushed > window/4 {
			// A flush made all but the last three quarters of the window durable.
			for n := 1; n <= groups; n++ {
				l := s.Log(ident.LocalNumber(n))
				keep := uint64(window / 4 * 3 / int64(groups*size))
				if last := next[n] - 1; last > keep && ident.Index(last-keep) > l.Start().Index {
					batchOf.Compact(ident.LocalNumber(n), ident.OpID{Term: 1, Index: ident.Index(last - keep)})
				}
			}
			flushed = live
		}
		begin := time.Now()
		if err := s.Commit(&batchOf); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(begin))
	}
	for live < window*3/2 && os.Getenv("NYALA_BENCH_WARM") != "0" {
		step()
	}
	took = took[:0]
	before := pageAlloc(s)
	b.ReportAllocs()
	b.SetBytes(int64(batch * size))
	for b.Loop() {
		step()
	}
	slices.Sort(took)
	b.ReportMetric(float64(len(took)*batch)/b.Elapsed().Seconds(), "entries/s")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
	b.ReportMetric(float64(took[len(took)-1].Microseconds()), "max-µs")
	written := pageAlloc(s) - before
	b.ReportMetric(float64(written)/float64(len(took)*batch*size), "written/logged")
	b.ReportMetric(float64(s.Size().FileBytes)/(1<<20), "file-MiB")
}

// pageAlloc is how many bytes of pages bbolt has written.
func pageAlloc(s *Bolt) int64 {
	st := s.file.db.Stats()
	return st.TxStats.GetPageAlloc()
}
