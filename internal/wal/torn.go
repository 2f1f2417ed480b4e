package wal

import (
	"errors"
	"io"
)

// A commit is written with one sync: its pages and its meta page go to the file, then all of them are synced together, and only
// then Commit returns. bbolt by itself syncs the pages first and the meta page after them, which costs every write of every
// tablet a second wait for the disk. Of a commit that is under way when the power goes, any part may be on the disk: its meta
// page without all of its pages, too. That is found out and undone when the file is opened:
//
//   - Nothing of it was acknowledged, for the sync never returned.
//   - The commit before it is whole. It was synced before this one began, and bbolt writes a commit to pages that the one
//     before doesn't use; the meta page that it overwrites is that of the one before both.
//   - A commit that isn't whole shows: each page is checked, each record has a CRC, and the tally counts all records and adds
//     up their CRCs. A page that is still what an older commit made of it is good in itself, and gives another count or sum.
//
// What the tail of a log that is only appended to can't tell is whether its last record was cut short or has rotted. Here most
// of that can be told, so that an acknowledged commit isn't left out in silence:
//
//   - While the machine runs on, a file shows all that was written to it, synced or not. So a commit that isn't whole was torn
//     only if the machine has gone down since: MetaBoot says under which running of the kernel a file was last written. Under the
//     same one, or one that isn't known, it is damage. Where the system doesn't tell, commits are synced as bbolt does it.
//   - A store that is closed in order ends with an empty commit. Left out, it is not missed.
//
// What remains is a page that rots after the machine went down in the midst of work, and among the few that its last commit wrote.

// MetaBoot is the small value that names the running of the kernel under which the file was last written.
const MetaBoot MetaKey = "boot_id"

// readNewest reads the last commit of a file into c, or the one before into a core like it, where the last one is torn: then torn
// is its meta page. Nothing is written.
func readNewest(c *core, f io.ReaderAt) (r *rebuilder, pages *pageFile, torn *boltMeta, err error) {
	newest, older, err := readMetaPages(f)
	if err != nil {
		return nil, nil, nil, &DamageError{Path: c.path, What: "its pages can't be trusted", Err: err}
	}
	r, pages, err = readCommit(c, f, newest)
	if errors.Is(err, ErrVersion) || err == nil && r.faults() == 0 || c.wroteUnder(c.boot) {
		return r, pages, nil, err
	}
	before := newCore(c.path, c.log, c.metrics, c.cache.limit)
	before.backend, before.boot = c.backend, c.boot
	r2, pages2, err2 := readCommit(before, f, older)
	switch {
	case err2 != nil || c.boot == "" || before.wroteUnder("") || before.wroteUnder(c.boot):
		return r, pages, nil, err
	case err == nil && r.faults() <= r2.faults():
		return r, pages, nil, nil // what is wrong isn't the last commit's doing
	}
	return r2, pages2, &newest, nil
}

// wroteUnder says whether the commit that was read, as far as it was, was written under the given running of the kernel; "": it
// doesn't say.
func (c *core) wroteUnder(boot string) bool { return string(c.meta[MetaBoot].value) == boot }

// readCommit reads one commit of a file.
func readCommit(c *core, f io.ReaderAt, meta boltMeta) (*rebuilder, *pageFile, error) {
	pages, err := openCommit(f, meta)
	if err != nil {
		return nil, nil, &DamageError{Path: c.path, What: "its pages can't be trusted", Err: err}
	}
	r, err := replayAll(c, pages)
	if err != nil {
		return nil, nil, err
	}
	return r, pages, nil
}

// withdraw makes a torn commit's meta page one of a commit before the one that is kept, so that bbolt opens that. There is no
// such commit any more: the page is the kept one's, but for the number, which that one's tally denies.
func (b *boltFile) withdraw(torn, kept boltMeta) error {
	page := make([]byte, pageHeaderSize+metaSize)
	at := func(m boltMeta) int64 { return int64(m.txid%2) * int64(m.pageSize) }
	if _, err := b.f.ReadAt(page, at(kept)); err != nil {
		return err
	}
	m := page[pageHeaderSize:]
	nativeEndian.PutUint64(page, torn.txid%2)
	nativeEndian.PutUint64(m[metaTxidAt:], kept.txid-1)
	sealMeta(m)
	if _, err := b.f.WriteAt(page, at(torn)); err != nil {
		return err
	}
	return b.f.Sync()
}
