package wal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// A full disk must change nothing and fail nothing. bbolt by itself doesn't give that: it lets the file grow as a hole and
// learns in the middle of a commit that there are no blocks for it, or, where the file system allocates late, in the sync,
// where no error can be told from a dying disk. So the blocks are there before a commit begins:
//
//   - Before each transaction the file has blocks, by fallocate, for what it can write beyond the high-water mark if none of
//     its pages found room among the free ones. Then bbolt's own growing has nothing to do, and its writes land on blocks
//     that are the file's already; ext4 and XFS need no more for these than what they hold back for themselves.
//   - If the disk is full, or would be filled beyond the reserve, the transaction is not begun: ErrNoSpace, and neither
//     bbolt nor the file has seen anything of it. Unless the file has free pages inside, several times what it can need:
//     after deletions the WAL is writable again though the disk is as full as before.
//   - Deletions free space but need a few pages first. The last trimReserve bytes of the file are theirs: commits leave
//     them alone, so that Trim works on a full disk.
//   - Where a file system needs room to overwrite a block (btrfs, ZFS, thin volumes), or where free pages are too scattered
//     after all, a write inside the commit may still answer ENOSPC. bbolt then undoes the transaction, all of it in memory:
//     what was written went to pages that are free in the commit that stands. The two meta pages are looked at (the last
//     write of a commit is one of them); if both are good, nothing changed. A sync that answers ENOSPC is a failed sync
//     like any other: the kernel may have dropped the pages, and the file fails for good.

const (
	// trimReserve is kept for deletions.
	trimReserve = 1 << 20
	// The file grows by a quarter of its size, within these bounds: a growth is a sync more.
	growLeast = 4 << 20
	growMost  = 64 << 20
)

// reserve makes sure that a transaction finds blocks for all it can write. used is the high-water mark in bytes.
func (b *boltFile) reserve(used int64, muts []mutation, trim bool) error {
	page := int64(b.db.Info().PageSize)
	worst := worstPages(muts, page) * page
	need := used + worst + page
	if !trim {
		need += b.trimReserve
	}
	if need <= b.allocated {
		return nil
	}
	step := min(max(used/4, b.growLeast), growMost)
	err := b.grow(need + step)
	if errors.Is(err, ErrNoSpace) {
		err = b.grow(need)
	}
	if errors.Is(err, ErrNoSpace) && int64(b.db.Stats().FreePageN)*page >= 4*worst {
		return nil
	}
	return err
}

// grow gives the file blocks up to size. The sync makes its new length durable before any commit relies on it.
func (b *boltFile) grow(size int64) error {
	st, err := b.f.Stat()
	if err != nil {
		return err
	}
	size = max(size, st.Size())
	if more := size - st.Size(); more > 0 {
		free, err := freeSpace(filepath.Dir(b.path))
		if err != nil {
			return err
		}
		if free < uint64(more)+uint64(b.reserved) {
			return fmt.Errorf("WAL %s: %d bytes are free, %d are needed and %d stay reserved: %w",
				b.path, free, more, b.reserved, ErrNoSpace)
		}
	}
	if err := allocate(b.f, size); err != nil {
		if isNoSpace(err) {
			return fmt.Errorf("WAL %s: grow to %d bytes: %w", b.path, size, ErrNoSpace)
		}
		return fmt.Errorf("grow to %d bytes: %w", size, err)
	}
	if err := b.f.Sync(); err != nil {
		return fmt.Errorf("sync after growing to %d bytes: %w", size, err)
	}
	b.allocated = size
	b.size.Store(size)
	return nil
}

// worstPages estimates, on the safe side, the pages that a transaction writes. New entries fill leaves of their own: a leaf
// that is split is nearly half full at least, and with the next one more than whole. Deletions come in order and mostly empty
// whole leaves, but in the worst case each rewrites one; so does a term and vote. A leaf of pieces takes some ten pages, and
// the last one is rewritten by the commit after it. Branches hold some two hundred children. What a commit should need
// beyond that, bbolt gets by growing the file itself.
func worstPages(muts []mutation, page int64) int64 {
	const element = 16
	bytes, touched := int64(0), int64(0)
	for i := range muts {
		m := &muts[i]
		bytes += int64(len(m.key)+len(m.value)) + element
		if m.value == nil || m.bucket != bucketEntries {
			touched++
		}
	}
	leaves := bytes*5/2/page + touched
	const largestLeaf = 5*pieceBytes/4096 + 1
	return leaves + leaves/32 + 3*largestLeaf + 16
}

// metaPagesGood reads the meta pages through a descriptor of its own: the one at hand has just failed.
func (b *boltFile) metaPagesGood() error {
	f, err := os.Open(b.path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, _, err = readMetaPages(f)
	return err
}

// afterError says what an error of bbolt's Commit means.
func (b *boltFile) afterError(err error) error {
	var pe *fs.PathError
	if !errors.As(err, &pe) || pe.Op != "write" || !isNoSpace(err) {
		return err
	}
	if merr := b.metaPagesGood(); merr != nil {
		return fmt.Errorf("%w; the meta pages after it: %w", err, merr)
	}
	b.allocated = 0 // look at the whole file again: bbolt may have grown it without blocks
	return fmt.Errorf("WAL %s: %w: %w", b.path, ErrNoSpace, err)
}
