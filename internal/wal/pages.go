package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
)

// This file reads a bbolt file without bbolt, page by page with plain reads, and checks all that bbolt trusts.
//
// Why not let bbolt do it: it takes pages on trust. It falls back to the older commit in silence when the newest meta page
// is bad; it walks the tree in goroutines of its own, in which a fault or a failed assertion can't be caught and ends the
// process; it follows a damaged page number wherever it points. So a file is read here first, whole; bbolt opens it only
// when every page that its tree reaches is of the right kind, in its place, in bounds, reached once and in order. The same
// pass yields the records from which the logs' index is built. Damage inside records is found by their CRCs and the tally.

// bbolt's format, version 2, in the byte order of the machine that wrote it.
const (
	pageHeaderSize    = 16
	pageElementSize   = 16
	bucketHeaderSize  = 16
	boltMagic         = 0xED0CDAED
	boltVersion       = 2
	boltNoFreelist    = ^uint64(0)
	pageBranch        = 0x01
	pageLeaf          = 0x02
	pageMeta          = 0x04
	leafElementBucket = 0x01
	metaSize          = 64
	metaTxidAt        = 48
)

var nativeEndian = binary.NativeEndian

// boltMeta is a meta page: the root of one commit.
type boltMeta struct {
	pageSize uint32
	root     uint64
	freelist uint64
	pages    uint64 // the high-water mark: pages at and after it belong to nothing
	txid     uint64
}

// decodeMetaPage takes the first bytes of a meta page apart and checks it.
func decodeMetaPage(b []byte, id uint64) (boltMeta, error) {
	if len(b) < pageHeaderSize+metaSize {
		return boltMeta{}, errShort
	}
	if got := nativeEndian.Uint64(b); got != id {
		return boltMeta{}, fmt.Errorf("page %d calls itself %d", id, got)
	}
	if flags := nativeEndian.Uint16(b[8:]); flags != pageMeta {
		return boltMeta{}, fmt.Errorf("page %d has flags %#x", id, flags)
	}
	m := b[pageHeaderSize : pageHeaderSize+metaSize]
	if magic := nativeEndian.Uint32(m); magic != boltMagic {
		return boltMeta{}, fmt.Errorf("magic number %#x", magic)
	}
	if v := nativeEndian.Uint32(m[4:]); v != boltVersion {
		return boltMeta{}, fmt.Errorf("bbolt version %d", v)
	}
	h := fnv.New64a()
	_, _ = h.Write(m[:metaSize-8])
	if sum := nativeEndian.Uint64(m[metaSize-8:]); sum != h.Sum64() {
		return boltMeta{}, errors.New("checksum doesn't match")
	}
	meta := boltMeta{
		pageSize: nativeEndian.Uint32(m[8:]),
		root:     nativeEndian.Uint64(m[16:]),
		freelist: nativeEndian.Uint64(m[32:]),
		pages:    nativeEndian.Uint64(m[40:]),
		txid:     nativeEndian.Uint64(m[metaTxidAt:]),
	}
	if s := meta.pageSize; s < 1024 || s > 1<<16 || s&(s-1) != 0 {
		return meta, fmt.Errorf("page size %d", s)
	}
	if meta.root < 2 || meta.root >= meta.pages || meta.txid%2 != id {
		return meta, fmt.Errorf("root %d, %d pages, commit %d", meta.root, meta.pages, meta.txid)
	}
	return meta, nil
}

// readMetaPages returns the two meta pages. One that is bad is damage, never a commit cut short: a commit changes 80 bytes of
// the page, within one sector, which a disk writes whole or not at all; and files are created under another name and renamed
// when both pages are durable. The two must belong to commits that follow on each other.
func readMetaPages(f io.ReaderAt) (newest, older boltMeta, err error) {
	m0, err := readMetaPage(f, 0, 0)
	if err != nil {
		return boltMeta{}, boltMeta{}, err
	}
	m1, err := readMetaPage(f, 1, int64(m0.pageSize))
	if err != nil {
		return boltMeta{}, boltMeta{}, err
	}
	if m0.pageSize != m1.pageSize {
		return boltMeta{}, boltMeta{}, fmt.Errorf("meta pages have page sizes %d and %d", m0.pageSize, m1.pageSize)
	}
	newest, older = m0, m1
	if m1.txid > m0.txid {
		newest, older = m1, m0
	}
	if newest.txid != older.txid+1 {
		return boltMeta{}, boltMeta{}, fmt.Errorf("meta pages are of commits %d and %d, which don't follow on each other", m0.txid, m1.txid)
	}
	return newest, older, nil
}

func readMetaPage(f io.ReaderAt, id uint64, at int64) (boltMeta, error) {
	b := make([]byte, pageHeaderSize+metaSize)
	if _, err := f.ReadAt(b, at); err != nil && !errors.Is(err, io.EOF) {
		return boltMeta{}, err
	}
	m, err := decodeMetaPage(b, id)
	if err != nil {
		return boltMeta{}, fmt.Errorf("meta page %d: %w", id, err)
	}
	return m, nil
}

// sealMeta computes the checksum of a meta page's body.
func sealMeta(m []byte) {
	h := fnv.New64a()
	_, _ = h.Write(m[:metaSize-8])
	nativeEndian.PutUint64(m[metaSize-8:], h.Sum64())
}

// pageFile is a bbolt file being read.
type pageFile struct {
	f       io.ReaderAt
	meta    boltMeta
	seen    []uint64 // bitmap of pages reached
	buckets map[bucketID]boltBucket
}

// boltBucket is where a bucket's tree begins: a page, or, for small ones, a page inside the parent's record.
type boltBucket struct {
	root   uint64
	inline []byte
}

// pageError says which page is wrong.
type pageError struct {
	page uint64
	what string
}

func (e *pageError) Error() string { return fmt.Sprintf("page %d: %s", e.page, e.what) }

func badPage(id uint64, format string, args ...any) error {
	return &pageError{page: id, what: fmt.Sprintf(format, args...)}
}

// openPages reads the root of the newest commit, and finds the buckets.
func openPages(f io.ReaderAt) (*pageFile, error) {
	newest, _, err := readMetaPages(f)
	if err != nil {
		return nil, err
	}
	return openCommit(f, newest)
}

// openCommit is openPages for a commit whose meta page is known.
func openCommit(f io.ReaderAt, meta boltMeta) (*pageFile, error) {
	const most = 1 << 40 // bytes; the bitmap takes one bit a page
	if meta.pages > most/uint64(meta.pageSize) {
		return nil, fmt.Errorf("the meta page speaks of %d pages", meta.pages)
	}
	p := &pageFile{
		f: f, meta: meta, seen: make([]uint64, meta.pages/64+1), buckets: map[bucketID]boltBucket{},
	}
	err := p.walk(meta.root, nil, nil, 0, func(flags uint32, key, value []byte) error {
		if flags&leafElementBucket == 0 || len(key) != 1 || len(value) < bucketHeaderSize {
			return badPage(meta.root, "unknown record %q among the buckets", key)
		}
		b := boltBucket{root: nativeEndian.Uint64(value)}
		if b.root == 0 {
			b.inline = bytes.Clone(value[bucketHeaderSize:])
		}
		p.buckets[bucketID(key[0])] = b
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, id := range allBuckets {
		if _, ok := p.buckets[id]; !ok {
			return nil, fmt.Errorf("bucket %q is missing", rune(id))
		}
	}
	if len(p.buckets) != len(allBuckets) {
		return nil, fmt.Errorf("%d buckets instead of %d", len(p.buckets), len(allBuckets))
	}
	return p, nil
}

// commit implements source.
func (p *pageFile) commit() uint64 { return p.meta.txid }

// records implements source. Each bucket can be read once.
func (p *pageFile) records(bucket bucketID, fn func(key, value []byte) error) error {
	b := p.buckets[bucket]
	each := func(flags uint32, key, value []byte) error {
		if flags != 0 {
			return badPage(b.root, "a bucket among records")
		}
		return fn(key, value)
	}
	if b.root == 0 {
		return leafRecords(0, b.inline, nil, nil, each)
	}
	return p.walk(b.root, nil, nil, 0, each)
}

// maxDepth bounds a walk; a tree of pages of 1 KiB isn't that deep with all of a disk in it.
const maxDepth = 64

// walk visits the records under page id, whose keys must lie in [lo, hi); nil is no bound.
func (p *pageFile) walk(id uint64, lo, hi []byte, depth int, fn func(flags uint32, key, value []byte) error) error {
	b, err := p.page(id)
	if err != nil {
		return err
	}
	if depth > maxDepth {
		return badPage(id, "the tree is %d pages deep", depth)
	}
	if nativeEndian.Uint16(b[8:]) == pageLeaf {
		return leafRecords(id, b, lo, hi, fn)
	}
	kids, err := branchElements(id, b, lo, hi)
	if err != nil {
		return err
	}
	for i, k := range kids {
		end := hi
		if i+1 < len(kids) {
			end = kids[i+1].key
		}
		if err := p.walk(k.page, k.key, end, depth+1, fn); err != nil {
			return err
		}
	}
	return nil
}

// page reads a page with its overflow and marks it as reached.
func (p *pageFile) page(id uint64) ([]byte, error) {
	b, err := p.load(id)
	if err != nil {
		return nil, err
	}
	for x := id; x < id+uint64(len(b))/uint64(p.meta.pageSize); x++ {
		if p.seen[x/64]&(1<<(x%64)) != 0 {
			return nil, badPage(x, "is used twice")
		}
		p.seen[x/64] |= 1 << (x % 64)
	}
	return b, nil
}

// load reads a page with its overflow. What the file lacks at its end reads as zeros: a page there that the tree needs is
// found out by that, one that it doesn't need does no harm.
func (p *pageFile) load(id uint64) ([]byte, error) {
	if id < 2 || id >= p.meta.pages {
		return nil, badPage(id, "outside of the %d pages of the file", p.meta.pages)
	}
	size := uint64(p.meta.pageSize)
	b := make([]byte, size)
	if err := p.read(b, id*size); err != nil {
		return nil, badPage(id, "%v", err)
	}
	if got := nativeEndian.Uint64(b); got != id {
		return nil, badPage(id, "calls itself %d", got)
	}
	if flags := nativeEndian.Uint16(b[8:]); flags != pageBranch && flags != pageLeaf {
		return nil, badPage(id, "has flags %#x", flags)
	}
	over := uint64(nativeEndian.Uint32(b[12:]))
	if over >= p.meta.pages-id {
		return nil, badPage(id, "overflows by %d pages, past the end", over)
	}
	if over > 0 && !p.holds(id+over) {
		return nil, badPage(id, "overflows past the end of the file")
	}
	if over > 0 {
		b = append(b, make([]byte, over*size)...)
		if err := p.read(b[size:], (id+1)*size); err != nil {
			return nil, badPage(id, "%v", err)
		}
	}
	return b, nil
}

// holds says whether the file has any byte of a page: a damaged count of overflow pages must not ask for absurd memory.
func (p *pageFile) holds(id uint64) bool {
	var b [1]byte
	n, _ := p.f.ReadAt(b[:], int64(id*uint64(p.meta.pageSize)))
	return n == 1
}

func (p *pageFile) read(b []byte, at uint64) error {
	n, err := p.f.ReadAt(b, int64(at))
	if n < len(b) && errors.Is(err, io.EOF) {
		clear(b[n:])
		return nil
	}
	if n == len(b) {
		return nil
	}
	return err
}

// element returns the i-th element's header and the bytes that begin there.
func element(id uint64, b []byte, i int) ([]byte, error) {
	at := pageHeaderSize + i*pageElementSize
	if at+pageElementSize > len(b) {
		return nil, badPage(id, "has more elements than fit")
	}
	return b[at:], nil
}

// leafRecords calls fn for each record of a leaf.
func leafRecords(id uint64, b, lo, hi []byte, fn func(flags uint32, key, value []byte) error) error {
	if len(b) < pageHeaderSize {
		return badPage(id, "is too short")
	}
	prev := []byte(nil)
	for i := range int(nativeEndian.Uint16(b[10:])) {
		e, err := element(id, b, i)
		if err != nil {
			return err
		}
		pos := uint64(nativeEndian.Uint32(e[4:]))
		ksize, vsize := uint64(nativeEndian.Uint32(e[8:])), uint64(nativeEndian.Uint32(e[12:]))
		if pos < pageElementSize || pos+ksize+vsize > uint64(len(e)) {
			return badPage(id, "record %d lies outside of it", i)
		}
		key := e[pos : pos+ksize]
		if err := keyInOrder(id, i, key, prev, lo, hi); err != nil {
			return err
		}
		prev = key
		if err := fn(nativeEndian.Uint32(e), key, e[pos+ksize:pos+ksize+vsize]); err != nil {
			return err
		}
	}
	return nil
}

type branchElement struct {
	key  []byte
	page uint64
}

func branchElements(id uint64, b, lo, hi []byte) ([]branchElement, error) {
	n := int(nativeEndian.Uint16(b[10:]))
	if n == 0 {
		return nil, badPage(id, "is a branch without children")
	}
	kids := make([]branchElement, 0, n)
	prev := []byte(nil)
	for i := range n {
		e, err := element(id, b, i)
		if err != nil {
			return nil, err
		}
		pos, ksize := uint64(nativeEndian.Uint32(e)), uint64(nativeEndian.Uint32(e[4:]))
		if pos < pageElementSize || pos+ksize > uint64(len(e)) {
			return nil, badPage(id, "child %d's key lies outside of it", i)
		}
		k := branchElement{key: e[pos : pos+ksize], page: nativeEndian.Uint64(e[8:])}
		if err := keyInOrder(id, i, k.key, prev, lo, hi); err != nil {
			return nil, err
		}
		prev = k.key
		kids = append(kids, k)
	}
	return kids, nil
}

func keyInOrder(id uint64, i int, key, prev, lo, hi []byte) error {
	switch {
	case len(key) == 0:
		return badPage(id, "key %d is empty", i)
	case prev != nil && bytes.Compare(prev, key) >= 0:
		return badPage(id, "key %d isn't above the one before it", i)
	case lo != nil && bytes.Compare(key, lo) < 0, hi != nil && bytes.Compare(key, hi) >= 0:
		return badPage(id, "key %d lies outside of its parent's bounds", i)
	}
	return nil
}
