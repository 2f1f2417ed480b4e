package wal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sort"
	"testing"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a store under test and a way to crash it.
type rig struct {
	Store
	// crash ends the store as a kill does and opens what is left.
	crash func()
	done  func()
}

// rigs are the stores that the conformance suite runs on.
var rigs = []struct {
	name string
	open func(t testing.TB) *rig
}{
	{"mem", memRig},
	{"bolt", boltRig},
}

func memRig(testing.TB) *rig {
	m := NewMem()
	m.cache.limit = 2000
	r := &rig{Store: m}
	r.crash = func() {
		m = m.Crash()
		m.cache.limit = 2000
		r.Store = m
	}
	r.done = func() { _ = m.Close() }
	return r
}

// boltRig crashes by copying the file under the open store, which is what a kill leaves.
func boltRig(t testing.TB) *rig {
	dir, err := os.MkdirTemp(tempRoot(), "wal")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	path := func() string { return filepath.Join(dir, fmt.Sprintf("%d-%s", n, FileName)) }
	b := mustOpen(t, smallConfig(path()))
	r := &rig{Store: b}
	r.crash = func() {
		old := path()
		n++
		copyFile(t, old, path())
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(old); err != nil {
			t.Fatal(err)
		}
		b = mustOpen(t, smallConfig(path()))
		r.Store = b
	}
	r.done = func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	}
	return r
}

// smallConfig is for files that are copied often: little cache, little room for growth.
func smallConfig(path string) Config {
	return Config{Path: path, CacheBytes: 2000, growBytes: 64 << 10}
}

// tempRoot prefers memory: these tests are not about the disk, and sync takes milliseconds on one.
func tempRoot() string {
	if st, err := os.Stat("/dev/shm"); err == nil && st.IsDir() {
		return "/dev/shm"
	}
	return ""
}

func mustOpen(t testing.TB, cfg Config) *Bolt {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	b, err := OpenBolt(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	src, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	dst, err := os.Create(to)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(dst, src); err != nil {
		t.Fatal(err)
	}
	if err := dst.Close(); err != nil {
		t.Fatal(err)
	}
}

// model is what a store should hold, told naively.
type model struct {
	groups map[ident.LocalNumber]*modelGroup
	meta   map[MetaKey]string
	last   ident.LocalNumber
}

type modelGroup struct {
	tablet  ident.TabletID
	record  string
	start   ident.OpID
	hard    hardState
	entries []*raftpb.Entry
}

func newModel() *model {
	return &model{groups: map[ident.LocalNumber]*modelGroup{}, meta: map[MetaKey]string{}}
}

func (g *modelGroup) lastIndex() uint64 { return uint64(g.start.Index) + uint64(len(g.entries)) }

func (g *modelGroup) cutFrom(i uint64) {
	if i <= g.lastIndex() {
		g.entries = g.entries[: i-uint64(g.start.Index)-1 : i-uint64(g.start.Index)-1]
	}
}

func (g *modelGroup) append(entries []*raftpb.Entry) {
	g.cutFrom(entries[0].GetIndex())
	g.entries = append(g.entries, entries...)
}

func (g *modelGroup) compact(to ident.OpID) {
	if to.Index <= g.start.Index {
		return
	}
	k := int(to.Index - g.start.Index)
	if k <= len(g.entries) && g.entries[k-1].GetTerm() == uint64(to.Term) {
		g.entries = g.entries[k:]
	} else {
		g.entries = nil
	}
	g.start = to
}

func (m *model) clone() *model {
	c := newModel()
	c.last = m.last
	for n, g := range m.groups {
		x := *g
		x.entries = x.entries[:len(x.entries):len(x.entries)]
		c.groups[n] = &x
	}
	for k, v := range m.meta {
		c.meta[k] = v
	}
	return c
}

func (m *model) numbers() []ident.LocalNumber {
	var all []ident.LocalNumber
	for n := range m.groups {
		all = append(all, n)
	}
	sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
	return all
}

// differs says how a store differs from the model; nil where it doesn't.
func (m *model) differs(s Store) error {
	groups := s.Groups()
	numbers := m.numbers()
	if len(groups) != len(numbers) {
		return fmt.Errorf("%d groups, want %d", len(groups), len(numbers))
	}
	for i, n := range numbers {
		g, want := groups[i], m.groups[n]
		if g.Number != n || g.TabletID != want.tablet || string(g.Record) != want.record || g.Damaged != nil {
			return fmt.Errorf("group %+v, want %d %+v", g, n, want)
		}
		if err := want.differs(s.Log(n)); err != nil {
			return fmt.Errorf("group %d: %w", n, err)
		}
	}
	for k, v := range m.meta {
		if got := string(s.Meta(k)); got != v {
			return fmt.Errorf("value %q is %q, want %q", k, got, v)
		}
	}
	return nil
}

func (g *modelGroup) differs(l *Log) error {
	first, _ := l.FirstIndex()
	last, _ := l.LastIndex()
	if first != uint64(g.start.Index)+1 || last != g.lastIndex() {
		return fmt.Errorf("log [%d, %d], want [%d, %d]", first, last, g.start.Index+1, g.lastIndex())
	}
	if t, err := l.Term(first - 1); err != nil || t != uint64(g.start.Term) {
		return fmt.Errorf("term before the log %d, want %d (%w)", t, g.start.Term, err)
	}
	hs, _, err := l.InitialState()
	if err != nil || hs.GetTerm() != g.hard.term || hs.GetVote() != g.hard.vote || hs.GetCommit() != g.hard.commit {
		return fmt.Errorf("hard state %v, want %v (%w)", hs, g.hard, err)
	}
	var got []*raftpb.Entry
	for i := first; i <= last; {
		some, err := l.Entries(i, last+1, 3000)
		if err != nil {
			return fmt.Errorf("entries from %d: %w", i, err)
		}
		got = append(got, some...)
		i += uint64(len(some))
	}
	bytes := int64(0)
	for i, e := range got {
		if !proto.Equal(e, g.entries[i]) {
			return fmt.Errorf("entry %v, want %v", e, g.entries[i])
		}
		if t, err := l.Term(e.GetIndex()); err != nil || t != e.GetTerm() {
			return fmt.Errorf("term of %d: %d (%w)", e.GetIndex(), t, err)
		}
		bytes += int64(len(e.GetData()))
	}
	if l.Bytes() != bytes {
		return fmt.Errorf("%d bytes in the log, want %d", l.Bytes(), bytes)
	}
	if _, err := l.Term(last + 1); !errors.Is(err, raft.ErrUnavailable) {
		return fmt.Errorf("term past the end: %w", err)
	}
	return nil
}

// entry makes a stamped entry whose data tells where it belongs.
func entry(n ident.LocalNumber, term, index uint64, size int) *raftpb.Entry {
	fill := bytes.Repeat(fmt.Appendf(nil, "%d/%d.%d ", n, term, index), size/6+1)[:size]
	data := EncodePayload(KindWrite, hybridtime.Timestamp(index<<12|term), fill)
	return &raftpb.Entry{Term: new(term), Index: new(index), Type: raftpb.EntryNormal.Enum(), Data: data}
}

func run(n ident.LocalNumber, term, from, to uint64, size int) []*raftpb.Entry {
	var all []*raftpb.Entry
	for i := from; i <= to; i++ {
		all = append(all, entry(n, term, i, size))
	}
	return all
}

func commit(t testing.TB, s Store, fill func(b *Batch)) {
	t.Helper()
	var b Batch
	fill(&b)
	if err := s.Commit(&b); err != nil {
		t.Fatal(err)
	}
}
