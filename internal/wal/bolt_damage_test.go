package wal

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nyaladb/nyala/internal/ident"
)

// image is a WAL file as bytes, and what it should hold.
type image struct {
	bytes []byte
	model *model
}

// images runs a fixed history on a bolt store and takes the file after each commit. The commits cover all kinds of records,
// entries of several pieces, dead records, leaves and branches.
func images(t testing.TB, commits int) []image {
	t.Helper()
	path := filepath.Join(t.TempDir(), FileName)
	cfg := smallConfig(path)
	cfg.bootID = "the first"
	s := mustOpen(t, cfg)
	defer s.Close()
	m := newModel()
	for n := ident.LocalNumber(1); n <= 5; n++ {
		m.groups[n] = &modelGroup{tablet: ident.TabletID(fmt.Sprintf("%032x", uint64(n))), record: fmt.Sprintf("record %d", n)}
	}
	var all []image
	r := rand.New(rand.NewPCG(1, 2))
	for i := range commits {
		var b Batch
		for n := ident.LocalNumber(1); n <= 5; n++ {
			g := m.groups[n]
			switch {
			case i == 0:
				b.CreateGroup(n, g.tablet, []byte(g.record), ident.OpID{})
			case n == 5 && i > 8:
				continue
			case n == 5 && i == 8:
				b.DeleteGroup(5)
				delete(m.groups, 5)
				continue
			}
			from := g.lastIndex() + 1
			if i%4 == 3 && from > g.hard.commit+3 {
				from -= 3
			}
			size := []int{10, 200, 900, 2 * pieceBytes}[r.IntN(4)]
			entries := run(n, uint64(i+1), from, from+uint64(r.IntN(6)), size)
			b.Append(n, entries)
			g.append(entries)
			g.hard = hardState{term: uint64(i + 1), vote: uint64(n), commit: g.lastIndex() - min(4, g.lastIndex())}
			g.hard.commit = max(g.hard.commit, uint64(g.start.Index))
			b.SetHardState(n, g.hard.proto())
			if i%5 == 4 && g.hard.commit > 20 {
				at := ident.Index(g.hard.commit - 20)
				if at > g.start.Index {
					to := ident.OpID{Term: ident.Term(g.entries[at-g.start.Index-1].GetTerm()), Index: at}
					b.Compact(n, to)
					g.compact(to)
				}
			}
		}
		m.meta["clock_mark"] = fmt.Sprint("mark ", i)
		b.SetMeta("clock_mark", []byte(m.meta["clock_mark"]))
		require.NoError(t, s.Commit(&b))
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		all = append(all, image{bytes: content, model: m.clone()})
	}
	require.NoError(t, m.differs(s))
	return all
}

const testPage = pageSize

// used is the length of an image up to its last page in use.
func (im image) used() int {
	f := bytesFile(im.bytes)
	m, _, err := readMetaPages(f)
	if err != nil {
		return len(im.bytes)
	}
	return int(m.pages) * int(m.pageSize)
}

// bytesFile reads from memory as from a file.
type bytesFile []byte

func (b bytesFile) ReadAt(p []byte, at int64) (int, error) {
	if at >= int64(len(b)) {
		return 0, io.EOF
	}
	n := copy(p, b[at:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// openImage writes an image to a file of its own and opens it, on the machine that wrote it, which has been running since.
func openImage(t testing.TB, dir string, content []byte) (*Bolt, error) {
	t.Helper()
	path := filepath.Join(dir, FileName)
	require.NoError(t, os.WriteFile(path, content, 0o600))
	cfg := smallConfig(path)
	cfg.Logger, cfg.bootID = slog.New(slog.DiscardHandler), "the first"
	return OpenBolt(cfg)
}

func shmDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(tempRoot(), "wal")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// TestDamagedFile damages a file in one place, in many ways, and opens it. Either the file is refused as damaged, or the
// replicas that aren't reported as damaged hold exactly what they should. Never less, never another state, and never a
// crash of the process: bbolt alone fails this test in each of the three ways.
func TestDamagedFile(t *testing.T) {
	all := images(t, 24)
	last := all[len(all)-1]
	used := last.used()
	pages := used / testPage
	r := rand.New(rand.NewPCG(3, 4))
	dir := shmDir(t)
	rounds := 300
	if testing.Short() || raceEnabled {
		rounds = 60
	}
	outcomes := map[string]int{}
	for round := range rounds {
		content := append([]byte(nil), last.bytes...)
		page := r.IntN(pages)
		var what string
		switch r.IntN(8) {
		case 0, 1, 2:
			// Most of a page is data: aim at its header and elements half of the time.
			bit := page*testPage*8 + r.IntN(testPage*8)
			if r.IntN(2) == 0 {
				bit = page*testPage*8 + r.IntN(128*8)
			}
			content[bit/8] ^= 1 << (bit % 8)
			what = fmt.Sprintf("bit %d of page %d flipped", bit%(testPage*8), page)
		case 3:
			clear(content[page*testPage : (page+1)*testPage])
			what = fmt.Sprintf("page %d zeroed", page)
		case 4:
			sector := page*testPage + r.IntN(8)*512
			clear(content[sector : sector+512])
			what = fmt.Sprintf("sector at %d zeroed", sector)
		case 5:
			other := r.IntN(pages)
			copy(content[page*testPage:(page+1)*testPage], last.bytes[other*testPage:(other+1)*testPage])
			what = fmt.Sprintf("page %d overwritten with page %d", page, other)
		case 6:
			// A page whose newest write never arrived. Of the meta pages that would be an older commit, whole.
			old := all[r.IntN(len(all)-1)].bytes
			if page < 2 || (page+1)*testPage > len(old) {
				continue
			}
			copy(content[page*testPage:(page+1)*testPage], old[page*testPage:(page+1)*testPage])
			what = fmt.Sprintf("page %d is an old one", page)
		case 7:
			cut := r.IntN(used)
			content = content[:cut]
			what = fmt.Sprintf("cut at %d", cut)
		}
		outcomes[checkDamaged(t, fmt.Sprintf("round %d: %s", round, what), dir, content, last.model.clone())]++
	}
	t.Log(outcomes)
	for _, want := range []string{"file refused", "replica damaged", "unharmed"} {
		if outcomes[want] == 0 {
			t.Errorf("no round ended with: %s", want)
		}
	}
}

func checkDamaged(t *testing.T, what, dir string, content []byte, m *model) string {
	t.Helper()
	s, err := openImage(t, dir, content)
	if err != nil {
		if !errors.Is(err, ErrDamaged) {
			t.Fatalf("%s: %v", what, err)
		}
		return "file refused"
	}
	defer s.Close()
	damaged := m.withoutDamaged(s)
	if err := m.differsLeniently(s); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	// What is left is a store like any other.
	for n, g := range m.groups {
		commit(t, s, func(x *Batch) { x.Append(n, run(n, 99, g.lastIndex()+1, g.lastIndex()+2, 100)) })
	}
	if damaged > 0 {
		return "replica damaged"
	}
	return "unharmed"
}

// TestPowerCut builds what a power cut may leave of each commit: of the pages that it wrote any number arrived, in any order,
// but the meta page only after all others. Without the meta page the state is the one before, with it the one after.
func TestPowerCut(t *testing.T) {
	all := images(t, 12)
	r := rand.New(rand.NewPCG(5, 6))
	dir := shmDir(t)
	for i := 1; i < len(all); i++ {
		before, after := all[i-1], all[i]
		grown := append(append([]byte(nil), before.bytes...), make([]byte, max(0, len(after.bytes)-len(before.bytes)))...)
		var data []int
		for p := 2; p < len(after.bytes)/testPage; p++ {
			if string(grown[p*testPage:(p+1)*testPage]) != string(after.bytes[p*testPage:(p+1)*testPage]) {
				data = append(data, p)
			}
		}
		for range 6 {
			content := append([]byte(nil), grown...)
			if r.IntN(2) == 0 {
				content = content[:len(before.bytes)] // not even the new length arrived
			}
			for _, p := range data {
				if r.IntN(2) == 0 && (p+1)*testPage <= len(content) {
					copy(content[p*testPage:], after.bytes[p*testPage:(p+1)*testPage])
				}
			}
			requireState(t, dir, content, before.model)
		}
		requireState(t, dir, after.bytes, after.model)
	}
}

func requireState(t *testing.T, dir string, content []byte, m *model) {
	t.Helper()
	s, err := openImage(t, dir, content)
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, m.differs(s))
}

// TestHalfWrittenFile shows what becomes of a file that isn't whole: zeros after its end and a cut of unused pages do no
// harm; no file at all is made anew, over what an interrupted creation left; an empty or foreign file is damage, for no
// crash leaves one.
func TestHalfWrittenFile(t *testing.T) {
	all := images(t, 12)
	last := all[len(all)-1]
	dir := shmDir(t)
	requireState(t, dir, append(append([]byte(nil), last.bytes...), make([]byte, 16<<10)...), last.model)
	requireState(t, dir, last.bytes[:last.used()], last.model)

	for name, content := range map[string][]byte{
		"empty":        {},
		"zeros":        make([]byte, 64<<10),
		"short":        last.bytes[:100],
		"one page":     last.bytes[:4096],
		"another kind": []byte("#!/bin/sh\necho this is no WAL\n"),
		"a bad meta":   append(make([]byte, 4096), last.bytes[4096:]...),
		"b bad meta":   append(append(append([]byte(nil), last.bytes[:4096]...), make([]byte, 4096)...), last.bytes[8192:]...),
	} {
		_, err := openImage(t, dir, content)
		require.ErrorIs(t, err, ErrDamaged, name)
	}

	path := filepath.Join(dir, "new", FileName)
	require.NoError(t, os.Mkdir(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path+newSuffix, make([]byte, 8192), 0o600))
	s := mustOpen(t, smallConfig(path))
	commit(t, s, func(x *Batch) { x.SetMeta("a", []byte("b")) })
	require.NoError(t, s.Close())
	_, err := os.Stat(path + newSuffix)
	require.ErrorIs(t, err, os.ErrNotExist)

	require.NoError(t, os.WriteFile(path+newSuffix, nil, 0o600))
	s = mustOpen(t, smallConfig(path))
	require.Equal(t, "b", string(s.Meta("a")))
	require.NoError(t, s.Close())
	require.NoFileExists(t, path+newSuffix)

	aside, err := SetAside(path)
	require.NoError(t, err)
	require.FileExists(t, aside)
	s = mustOpen(t, smallConfig(path))
	require.Nil(t, s.Meta("a"))
	require.NoError(t, s.Close())
	second, err := SetAside(path)
	require.NoError(t, err)
	require.NotEqual(t, aside, second)
}

// TestLostMetaUpdate shows that meta pages of commits that don't follow on each other are damage.
func TestLostMetaUpdate(t *testing.T) {
	all := images(t, 6)
	last, old := all[5], all[1]
	content := append([]byte(nil), last.bytes...)
	m, _, err := readMetaPages(bytesFile(content))
	require.NoError(t, err)
	at := int(1-m.txid%2) * testPage // the older of the two
	copy(content[at:at+testPage], old.bytes[at:at+testPage])
	_, err = openImage(t, shmDir(t), content)
	require.ErrorIs(t, err, ErrDamaged)
	require.ErrorContains(t, err, "don't follow on each other")
}
