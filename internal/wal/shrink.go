package wal

import (
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"
)

// shrinkLeast is the length from which on a file may be rewritten.
const shrinkLeast = 64 << 20

// shrink rewrites the file if it is long and mostly empty: bbolt uses free pages again but never gives them back, so one
// bad day (a follower away, a store that couldn't flush) would keep its gigabytes for ever. It is done at open, while
// nothing waits for a commit. The new file is complete and durable under another name before it takes the old one's; until
// then, and if anything goes wrong, the old one goes on.
//
// Its error means that the new file has taken the old one's place, but perhaps not durably: then nothing may be committed.
func (b *boltFile) shrink(pages *pageFile, t tally) error {
	size := int64(pages.meta.pageSize)
	all := int64(pages.meta.pages) * size
	used := pages.reached() * size
	if all < b.shrinkLeast || used > all/4 {
		return nil
	}
	if free, err := freeSpace(filepath.Dir(b.path)); err != nil || int64(free) < 2*used+b.growLeast+b.reserved {
		return nil
	}
	begin := time.Now()
	if err := b.rewrite(t); err != nil {
		b.log.Warn("WAL file is mostly empty and could not be rewritten; it is used as it is", "path", b.path, "error", err)
		return nil
	}
	if err := syncPath(filepath.Dir(b.path)); err != nil {
		return fmt.Errorf("sync the folder of WAL %s after rewriting it: %w", b.path, err)
	}
	b.log.Info("rewrote the WAL file, which was mostly empty", "path", b.path, "bytes", all, "to", b.size.Load(),
		"took", time.Since(begin))
	return nil
}

// reached is the number of pages that a walk has seen.
func (p *pageFile) reached() int64 {
	n := 0
	for _, w := range p.seen {
		n += bits.OnesCount64(w)
	}
	return int64(n)
}

// rewrite copies all records to a new file and puts it in the place of the open one.
func (b *boltFile) rewrite(t tally) error {
	pages, err := openPages(b.f)
	if err != nil {
		return err
	}
	temp := b.path + newSuffix
	f, err := os.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	db, err := openDB(temp, f, true)
	if err != nil {
		f.Close()
		return err
	}
	db.AllocSize = int(b.growLeast)
	err = copyRecords(db, pages, t)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(temp, b.path)
	}
	if err != nil {
		db.Close()
		os.Remove(temp)
		return err
	}
	db.NoSync = b.once
	// From here on the new file is the WAL. The lock on it was taken when bbolt opened it.
	old := b.db
	b.db, b.f, b.allocated = db, f, 0
	if st, err := f.Stat(); err == nil {
		b.size.Store(st.Size())
	}
	if err := old.Close(); err != nil {
		b.log.Warn("old WAL file could not be closed", "path", b.path, "error", err)
	}
	return nil
}

// copyRecords fills an empty database, which the caller syncs: it isn't the WAL before that.
func copyRecords(db *bbolt.DB, pages *pageFile, t tally) error {
	err := db.Update(func(tx *bbolt.Tx) error {
		for _, id := range allBuckets {
			if _, err := tx.CreateBucket([]byte{byte(id)}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, id := range allBuckets {
		if id != bucketTally {
			if err := copyBucket(db, pages, id); err != nil {
				return fmt.Errorf("bucket %q: %w", rune(id), err)
			}
		}
	}
	return db.Update(func(tx *bbolt.Tx) error {
		t.commit = uint64(tx.ID())
		bucket := tx.Bucket([]byte{byte(bucketTally)})
		if err := bucket.Put(formatKey, encodeFormat()); err != nil {
			return err
		}
		return bucket.Put(tallyKey, t.encode())
	})
}

// copyBucket copies one bucket's records, some megabytes per transaction.
func copyBucket(db *bbolt.DB, pages *pageFile, id bucketID) error {
	const most = 8 << 20
	var muts []mutation
	size := 0
	flush := func() error {
		err := db.Update(func(tx *bbolt.Tx) error { return put(tx, muts) })
		muts, size = muts[:0], 0
		return err
	}
	err := pages.records(id, func(key, value []byte) error {
		muts = append(muts, mutation{bucket: id, key: append([]byte(nil), key...), value: append([]byte(nil), value...)})
		if size += len(key) + len(value); size < most {
			return nil
		}
		return flush()
	})
	if err != nil {
		return err
	}
	return flush()
}
