package wal

import (
	"fmt"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
)

// TestModel runs random batches, trims and crashes on each store and compares it with the naive model all along.
func TestModel(t *testing.T) {
	for _, r := range rigs {
		t.Run(r.name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				s := r.open(t)
				defer s.done()
				runModel(rt, s)
			})
		})
	}
}

func runModel(rt *rapid.T, s *rig) {
	m := newModel()
	check := func() {
		if err := m.differs(s); err != nil {
			rt.Fatal(err)
		}
	}
	rt.Repeat(map[string]func(*rapid.T){
		"commit": func(rt *rapid.T) {
			var b Batch
			for range rapid.IntRange(1, 8).Draw(rt, "changes") {
				drawChange(rt, s, m, &b)
			}
			if err := s.Commit(&b); err != nil {
				rt.Fatal(err)
			}
		},
		"trim": func(rt *rapid.T) {
			if _, err := s.Trim(rapid.IntRange(1, 20).Draw(rt, "max")); err != nil {
				rt.Fatal(err)
			}
		},
		"crash": func(*rapid.T) {
			s.crash()
			check()
			if got, want := s.LastTimestamp(), m.lastTimestamp(); got != want {
				rt.Fatalf("last timestamp %d, want %d", got, want)
			}
		},
		"": func(*rapid.T) { check() },
	})
	for more := true; more; {
		var err error
		if more, err = s.Trim(50); err != nil {
			rt.Fatal(err)
		}
	}
	if size := s.Size(); size.TrashRecords != 0 || size.TrashBytes != 0 {
		rt.Fatalf("trash is left after trimming: %+v", size)
	}
	s.crash()
	check()
	if size := s.Size(); size.TrashRecords != 0 {
		rt.Fatalf("trash is found after a restart: %+v", size)
	}
}

func (m *model) lastTimestamp() hybridtime.Timestamp {
	ts := hybridtime.Timestamp(0)
	for _, g := range m.groups {
		for _, e := range g.entries {
			ts = max(ts, stampOf(e))
		}
	}
	return ts
}

// drawChange adds one change that keeps the rules to the batch and to the model.
func drawChange(rt *rapid.T, s Store, m *model, b *Batch) {
	numbers := m.numbers()
	what := rapid.IntRange(0, 19).Draw(rt, "what")
	switch {
	case what == 0 || len(numbers) == 0:
		n := s.AllocateNumber()
		if n <= m.last {
			rt.Fatalf("number %d was given out again (last %d)", n, m.last)
		}
		m.last = n
		g := &modelGroup{tablet: ident.TabletID(fmt.Sprintf("%032x", uint64(n))), record: fmt.Sprintf("record %d", n)}
		if rapid.Bool().Draw(rt, "copied") {
			g.start = ident.OpID{Term: 1, Index: ident.Index(rapid.IntRange(1, 50).Draw(rt, "start"))}
			g.hard.commit = uint64(g.start.Index)
		}
		m.groups[n] = g
		b.CreateGroup(n, g.tablet, []byte(g.record), g.start)
		b.SetHardState(n, g.hard.proto())
		return
	case what == 1:
		k := MetaKey(rapid.SampledFrom([]string{"clock", "promise", "cluster"}).Draw(rt, "key"))
		m.meta[k] = rapid.StringN(0, 20, -1).Draw(rt, "value")
		b.SetMeta(k, []byte(m.meta[k]))
		return
	}
	n := rapid.SampledFrom(numbers).Draw(rt, "group")
	g := m.groups[n]
	switch {
	case what == 2:
		b.DeleteGroup(n)
		b.Append(n, run(n, 9, 1, 2, 10)) // what comes too late is dropped
		delete(m.groups, n)
	case what <= 4:
		g.hard = hardState{
			term: g.hard.term + 1, vote: uint64(rapid.IntRange(0, 3).Draw(rt, "vote")),
			commit: uint64(rapid.IntRange(int(max(g.hard.commit, uint64(g.start.Index))), int(g.lastIndex())).Draw(rt, "commit")),
		}
		b.SetHardState(n, g.hard.proto())
	case what <= 6:
		from := uint64(rapid.IntRange(int(max(g.hard.commit, uint64(g.start.Index)))+1, int(g.lastIndex())+2).Draw(rt, "from"))
		b.CutSuffix(n, ident.Index(from))
		g.cutFrom(from)
	case what <= 8:
		to := ident.OpID{Term: 1, Index: ident.Index(rapid.IntRange(int(g.start.Index), int(g.lastIndex())+3).Draw(rt, "to"))}
		if k := int(to.Index) - int(g.start.Index) - 1; k >= 0 && k < len(g.entries) &&
			(uint64(to.Index) <= g.hard.commit || !rapid.Bool().Draw(rt, "other")) {
			to.Term = ident.Term(g.entries[k].GetTerm())
		}
		b.Compact(n, to)
		g.compact(to)
		if uint64(to.Index) > g.hard.commit {
			g.hard.commit = uint64(to.Index)
			b.SetHardState(n, g.hard.proto())
		}
	default:
		from := uint64(rapid.IntRange(int(max(g.hard.commit, uint64(g.start.Index)))+1, int(g.lastIndex())+1).Draw(rt, "at"))
		if rapid.Bool().Draw(rt, "end") {
			from = g.lastIndex() + 1
		}
		entries := drawEntries(rt, n, from)
		b.Append(n, entries)
		g.append(entries)
	}
}

func drawEntries(rt *rapid.T, n ident.LocalNumber, from uint64) []*raftpb.Entry {
	var all []*raftpb.Entry
	term := uint64(rapid.IntRange(1, 5).Draw(rt, "term"))
	for i := range uint64(rapid.IntRange(1, 6).Draw(rt, "entries")) {
		size := rapid.SampledFrom([]int{0, 1, 100, 1000, pieceBytes - envelopeSize, pieceBytes, 20_000}).Draw(rt, "size")
		e := entry(n, term, from+i, size)
		switch rapid.IntRange(0, 9).Draw(rt, "kind") {
		case 0:
			e.Data = nil
		case 1:
			cc := &raftpb.ConfChangeV2{Context: EncodePayload(KindConfig, hybridtime.Timestamp((from+i)<<12), make([]byte, size))}
			e.Type = raftpb.EntryConfChangeV2.Enum()
			e.Data, _ = proto.Marshal(cc)
		}
		all = append(all, e)
	}
	return all
}
