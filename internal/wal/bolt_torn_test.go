package wal

import (
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
)

const testSector = 512

// differing returns the numbers of the pieces of a size in which two images of one length differ.
func differing(a, b []byte, size int) []int {
	var all []int
	for i := 0; (i+1)*size <= len(b); i++ {
		if string(a[i*size:(i+1)*size]) != string(b[i*size:(i+1)*size]) {
			all = append(all, i)
		}
	}
	return all
}

// torn builds what the disk may hold of a commit that was under way when the power went: its meta page, and of the sectors or
// pages that it wrote any but not all.
func torn(r *rand.Rand, before, after []byte) []byte {
	content := append(append([]byte(nil), before...), make([]byte, max(0, len(after)-len(before)))...)
	size := []int{testSector, testPage}[r.IntN(2)]
	all := differing(content, after, size)
	for _, i := range all {
		meta := i*size < 2*testPage
		if meta || r.IntN(2) == 0 {
			copy(content[i*size:(i+1)*size], after[i*size:(i+1)*size])
		}
	}
	if len(after) > len(before) && r.IntN(2) == 0 {
		content = content[:len(before)] // not even the new length arrived
	}
	return content
}

// TestTornByOnePiece leaves out a single page of each commit, and a single sector: the least that can be missing.
func TestTornByOnePiece(t *testing.T) {
	all := images(t, 12)
	r := rand.New(rand.NewPCG(13, 14))
	dir := shmDir(t)
	sectors, step := 6, 1
	if raceEnabled {
		sectors, step = 2, 5
	}
	undone, whole := 0, 0
	for i := 1; i < len(all); i += step {
		before := append(append([]byte(nil), all[i-1].bytes...), make([]byte, max(0, len(all[i].bytes)-len(all[i-1].bytes)))...)
		check := func(size, piece int) {
			content := append([]byte(nil), all[i].bytes...)
			copy(content[piece*size:(piece+1)*size], before[piece*size:(piece+1)*size])
			s, err := openAfterPowerCut(t, dir, content)
			require.NoError(t, err, "commit %d without the %d bytes at %d", i, size, piece*size)
			defer s.Close()
			if all[i-1].model.differs(s) == nil {
				undone++
			} else {
				require.NoError(t, all[i].model.differs(s), "commit %d without the %d bytes at %d", i, size, piece*size)
				whole++
			}
		}
		for _, p := range differing(before, all[i].bytes, testPage) {
			if p > 1 {
				check(testPage, p)
			}
		}
		missing := differing(before, all[i].bytes, testSector)
		r.Shuffle(len(missing), func(a, b int) { missing[a], missing[b] = missing[b], missing[a] })
		for _, p := range missing[:min(sectors, len(missing))] {
			if p*testSector >= 2*testPage {
				check(testSector, p)
			}
		}
	}
	t.Logf("%d commits undone, %d there as a whole", undone, whole)
	require.NotZero(t, undone)
}

// openAfterPowerCut opens an image on a machine that has been started anew since it was written.
func openAfterPowerCut(t testing.TB, dir string, content []byte) (*Bolt, error) {
	t.Helper()
	path := filepath.Join(dir, FileName)
	require.NoError(t, os.WriteFile(path, content, 0o600))
	cfg := smallConfig(path)
	cfg.Logger, cfg.bootID = slog.New(slog.DiscardHandler), "the next"
	return OpenBolt(cfg)
}

// TestTornCommit cuts the power in each commit after its meta page has arrived and before all of it has: the store opens with
// what was there before, or with all of the commit where what is missing means nothing. It goes on from there, and another
// process finds what it left.
func TestTornCommit(t *testing.T) {
	all := images(t, 12)
	r := rand.New(rand.NewPCG(7, 8))
	dir := shmDir(t)
	undone, whole := 0, 0
	rounds, step := 6, 1
	if raceEnabled {
		rounds, step = 3, 3
	}
	for i := 1; i < len(all); i += step {
		for range rounds {
			content := torn(r, all[i-1].bytes, all[i].bytes)
			s, err := openAfterPowerCut(t, dir, content)
			require.NoError(t, err, "commit %d", i)
			m := all[i-1].model.clone()
			if m.differs(s) == nil {
				undone++
			} else {
				m = all[i].model.clone()
				require.NoError(t, m.differs(s), "commit %d: neither what was before nor what was after", i)
				whole++
			}
			requireSound(t, s)
			for n, g := range m.groups {
				entries := run(n, 99, g.lastIndex()+1, g.lastIndex()+2, 100)
				commit(t, s, func(x *Batch) { x.Append(n, entries) })
				g.append(entries)
			}
			after, err := os.ReadFile(s.path) // a kill leaves no more
			require.NoError(t, err)
			require.NoError(t, s.Close())
			s, err = openAfterPowerCut(t, dir, after)
			require.NoError(t, err)
			require.NoError(t, m.differs(s))
			require.NoError(t, s.Close())
		}
	}
	t.Logf("%d commits undone, %d there as a whole", undone, whole)
	require.Greater(t, undone, whole, "commits of which something is missing are left out")
}

// TestTornCommitOfThisBoot opens the same files while the machine runs on: then nothing is left out, for what isn't there has
// been damaged.
func TestTornCommitOfThisBoot(t *testing.T) {
	all := images(t, 12)
	r := rand.New(rand.NewPCG(9, 10))
	dir := shmDir(t)
	outcomes := map[string]int{}
	for i := 1; i < len(all); i++ {
		for range 2 {
			outcomes[checkDamaged(t, "the same boot", dir, torn(r, all[i-1].bytes, all[i].bytes), all[i].model.clone())]++
		}
	}
	t.Log(outcomes)
	require.NotZero(t, outcomes["file refused"])
}

// TestTornCommitOfDamagedFile tears commits of a file in which a replica has been damaged before: that replica stays damaged,
// the others hold what they held.
func TestTornCommitOfDamagedFile(t *testing.T) {
	last := images(t, 12)[11]
	r := rand.New(rand.NewPCG(11, 12))
	dir := shmDir(t)
	for range 200 {
		content := append([]byte(nil), last.bytes...)
		content[2*testPage+r.IntN(last.used()-2*testPage)] ^= 0x40
		s, err := openImage(t, dir, content)
		if err != nil {
			continue
		}
		m := last.model.clone()
		if m.withoutDamaged(s) != 1 {
			require.NoError(t, s.Close())
			continue
		}
		var images [][]byte
		var models []*model
		for range 6 {
			var b Batch
			for n, g := range m.groups {
				entries := run(n, 99, g.lastIndex()+1, g.lastIndex()+3, 300)
				b.Append(n, entries)
				g.append(entries)
			}
			require.NoError(t, s.Commit(&b))
			now, err := os.ReadFile(s.path)
			require.NoError(t, err)
			images, models = append(images, now), append(models, m.clone())
		}
		require.NoError(t, s.Close())
		undone := 0
		for i := 1; i < len(images); i++ {
			for range 3 {
				s, err := openAfterPowerCut(t, dir, torn(r, images[i-1], images[i]))
				require.NoError(t, err)
				require.Equal(t, 1, models[i].clone().withoutDamaged(s), "one replica is damaged")
				if models[i-1].differsLeniently(s) == nil {
					undone++
				} else {
					require.NoError(t, models[i].differsLeniently(s))
				}
				require.NoError(t, s.Close())
			}
		}
		require.NotZero(t, undone)
		return
	}
	t.Fatal("no byte damaged one replica")
}

// TestFileOfBefore opens a file of a version that wrote no MetaBoot: it is read like any other, nothing is left out of it, and the
// next commit says when it was.
func TestFileOfBefore(t *testing.T) {
	last := images(t, 12)[11]
	dir := shmDir(t)
	path := filepath.Join(dir, FileName)
	require.NoError(t, os.WriteFile(path, last.bytes, 0o600))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	db, err := openDB(path, f, false)
	require.NoError(t, err)
	for range 2 { // so that both meta pages are of such commits
		require.NoError(t, db.Update(func(tx *bbolt.Tx) error {
			b := tx.Bucket([]byte{byte(bucketTally)})
			sum, err := decodeTally(b.Get(tallyKey))
			require.NoError(t, err)
			m := tx.Bucket([]byte{byte(bucketMeta)})
			if value := m.Get([]byte(MetaBoot)); value != nil {
				sum.remove(storedCRC(value))
				require.NoError(t, m.Delete([]byte(MetaBoot)))
			}
			sum.commit = uint64(tx.ID())
			return b.Put(tallyKey, sum.encode())
		}))
	}
	require.NoError(t, db.Close())
	content, err := os.ReadFile(path)
	require.NoError(t, err)

	meta, _, err := readMetaPages(bytesFile(content))
	require.NoError(t, err)
	root := append([]byte(nil), content...)
	clear(root[meta.root*testPage : (meta.root+1)*testPage])
	_, err = openAfterPowerCut(t, dir, root)
	require.ErrorIs(t, err, ErrDamaged)

	s, err := openAfterPowerCut(t, dir, content)
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, last.model.differs(s))
	require.Nil(t, s.Meta(MetaBoot))
	commit(t, s, func(x *Batch) { x.SetMeta("a", nil) })
	require.Equal(t, "the next", string(s.Meta(MetaBoot)))
}

// TestClosedInOrder destroys all pages that only the last commit of a store that was closed in order wrote, and starts the machine
// anew: nothing is missed.
func TestClosedInOrder(t *testing.T) {
	last := images(t, 12)[11]
	dir := shmDir(t)
	s, err := openImage(t, dir, last.bytes)
	require.NoError(t, err)
	m := last.model.clone()
	m.meta["a"] = "b"
	commit(t, s, func(x *Batch) { x.SetMeta("a", []byte("b")) })
	committed, err := os.ReadFile(s.path)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	closed, err := os.ReadFile(s.path)
	require.NoError(t, err)
	lost := 0
	for _, i := range differing(committed, closed, testPage) {
		if i > 1 {
			clear(closed[i*testPage : (i+1)*testPage])
			lost++
		}
	}
	require.NotZero(t, lost)
	s, err = openAfterPowerCut(t, dir, closed)
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, m.differs(s))
}

// TestReaderOfTornFile shows that who only reads sees what the server would, and changes nothing.
func TestReaderOfTornFile(t *testing.T) {
	all := images(t, 8)
	content := append([]byte(nil), all[7].bytes...)
	for _, i := range differing(append(append([]byte(nil), all[6].bytes...), make([]byte, len(content))...)[:len(content)], content, testPage) {
		if i > 1 {
			clear(content[i*testPage : (i+1)*testPage])
		}
	}
	path := filepath.Join(shmDir(t), FileName)
	require.NoError(t, os.WriteFile(path, content, 0o600))
	r, err := OpenReader(path)
	require.NoError(t, err)
	require.Equal(t, "mark 6", string(r.Meta("clock_mark")))
	require.NoError(t, r.Close())
	now, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, content, now)
}
