package wal

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
)

// DumpEntry is one log entry as people look at it.
type DumpEntry struct {
	TabletID  ident.TabletID // empty where the group's record is damaged
	Number    ident.LocalNumber
	OpID      ident.OpID
	Kind      Kind
	Timestamp hybridtime.Timestamp
	Bytes     int    // of the entry's data
	Payload   []byte // without the envelope; fn may keep it
	CRCOK     bool   // false: the entry can't be read, and only what the index or the damaged record says of it is set
	Err       error  // why it can't be read, or what is wrong with its envelope
	Record    []byte // of the group, as given to CreateGroup; not to be changed
}

// A dump reads this much at a time.
const (
	dumpEntries = 256
	dumpBytes   = 1 << 20
)

// Dump implements Store.
func (c *core) Dump(ctx context.Context, tablet ident.TabletID, fn func(DumpEntry) error) error {
	for _, g := range c.Groups() {
		if tablet != "" && g.TabletID != tablet {
			continue
		}
		l := c.Log(g.Number)
		if l == nil {
			continue
		}
		var err error
		if l.wrecked {
			err = l.dumpWreck(ctx, fn)
		} else {
			err = l.dump(ctx, fn)
		}
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (l *Log) dump(ctx context.Context, fn func(DumpEntry) error) error {
	index, _ := l.FirstIndex()
	var found []DumpEntry
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		first, _ := l.FirstIndex()
		last, _ := l.LastIndex()
		index = max(index, first)
		if index > last {
			return nil
		}
		picked, err := l.pick(index, min(last+1, index+dumpEntries), dumpBytes)
		if errors.Is(err, raft.ErrCompacted) || errors.Is(err, raft.ErrUnavailable) {
			continue
		}
		if err != nil {
			return err
		}
		found = found[:0]
		err = l.core.read(func(get getter) error {
			for i := range picked {
				e, err := loadEntry(get, l.number, index+uint64(i), &picked[i])
				found = append(found, l.describe(index+uint64(i), &picked[i], e, err))
			}
			return nil
		})
		if err != nil {
			return err
		}
		if l.moved(index, picked) {
			continue
		}
		for _, d := range found {
			if err := fn(d); err != nil {
				return err
			}
		}
		index += uint64(len(picked))
	}
}

func (l *Log) describe(index uint64, s *slot, e *raftpb.Entry, err error) DumpEntry {
	d := DumpEntry{
		TabletID: l.tablet, Number: l.number, OpID: ident.OpID{Term: ident.Term(s.term), Index: ident.Index(index)},
		Timestamp: s.stamp, Bytes: int(s.size), Err: err, Record: l.record,
	}
	if err != nil {
		return d
	}
	d.CRCOK = true
	d.setInfo(e)
	return d
}

func (d *DumpEntry) setInfo(e *raftpb.Entry) {
	info, err := DecodeEntry(e)
	if err != nil {
		d.Err = err
		return
	}
	d.Kind, d.Timestamp, d.Payload = info.Kind, info.Timestamp, info.Payload
}

// dumpWreck tells what there is of a damaged group: every record that the group may own, in the order of writing, dead ones
// too.
func (l *Log) dumpWreck(ctx context.Context, fn func(DumpEntry) error) error {
	l.core.writer.Lock()
	var keys [][]byte
	for _, s := range l.wreck {
		keys = append(keys, entryKey(nil, s.seq, l.number))
	}
	for _, bad := range l.bad {
		keys = append(keys, bad.key)
	}
	l.core.writer.Unlock()
	sortKeys(keys)
	for len(keys) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := min(len(keys), dumpEntries/2)
		var found []DumpEntry
		err := l.core.read(func(get getter) error {
			for _, k := range keys[:n] {
				if v := get(bucketEntries, k); v != nil {
					found = l.describeRecord(found, k, v)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		for _, d := range found {
			if err := fn(d); err != nil {
				return err
			}
		}
		keys = keys[n:]
	}
	return nil
}

// describeRecord adds what a record of a damaged group says.
func (l *Log) describeRecord(found []DumpEntry, key, value []byte) []DumpEntry {
	d := DumpEntry{TabletID: l.tablet, Number: l.number, Record: l.record}
	r, err := decodeEntryRecord(key, value)
	if err != nil && len(value) > recordHead {
		r, _ = parseEntryBody(value[recordHead:])
	}
	if err == nil && r.kind != recordEntry {
		return found // pieces and cuts are no entries of their own
	}
	d.OpID = ident.OpID{Term: ident.Term(r.term), Index: ident.Index(r.index)}
	d.Bytes, d.Err, d.CRCOK = int(r.size), err, err == nil
	if d.CRCOK && r.size <= pieceBytes {
		d.setInfo(&raftpb.Entry{Type: r.typ.Enum(), Data: bytes.Clone(r.data)})
	}
	return append(found, d)
}

// Dump reads the WAL of a stopped server and calls fn with each of its entries, by group and index. It takes a shared lock
// without waiting: a *LockedError says which process holds the file. Nothing is written. Damage to the whole file is an
// error; damaged entries are passed on with CRCOK false.
func Dump(ctx context.Context, path string, tablet ident.TabletID, fn func(DumpEntry) error) error {
	r, err := OpenReader(path)
	if err != nil {
		return err
	}
	defer r.Close()
	return r.Dump(ctx, tablet, fn)
}

// pageBackend reads records from a file's pages, for a dump; it can't write.
type pageBackend struct {
	pages *pageFile
	leaf  []byte // the last leaf looked into: entries lie side by side
	lo    []byte // its bounds; nil is none
	hi    []byte
}

func (b *pageBackend) apply([]mutation, *tally, bool) error {
	return errors.New("the file is open for reading")
}
func (b *pageBackend) fileBytes() int64 { return 0 }
func (b *pageBackend) close() error     { return nil }

func (b *pageBackend) read(fn func(get getter) error) error {
	var fault error
	err := fn(func(bucket bucketID, key []byte) []byte {
		v, err := b.get(bucket, key)
		if err != nil {
			fault = &faultError{err}
		}
		return v
	})
	if fault != nil {
		return fault
	}
	return err
}

// get finds one record of the entries bucket.
func (b *pageBackend) get(bucket bucketID, key []byte) ([]byte, error) {
	if b.leaf == nil || bytes.Compare(key, b.lo) < 0 || (b.hi != nil && bytes.Compare(key, b.hi) >= 0) {
		if err := b.descend(b.pages.buckets[bucket], key); err != nil {
			return nil, err
		}
	}
	var found []byte
	err := leafRecords(0, b.leaf, nil, nil, func(_ uint32, k, v []byte) error {
		if bytes.Equal(k, key) {
			found = v
		}
		return nil
	})
	return found, err
}

func (b *pageBackend) descend(at boltBucket, key []byte) error {
	b.leaf, b.lo, b.hi = at.inline, nil, nil
	for id, depth := at.root, 0; id != 0; depth++ {
		page, err := b.pages.load(id)
		if err != nil || depth > maxDepth {
			return badPage(id, "can't be read: %v", err)
		}
		if nativeEndian.Uint16(page[8:]) == pageLeaf {
			b.leaf = page
			return nil
		}
		kids, err := branchElements(id, page, b.lo, b.hi)
		if err != nil {
			return err
		}
		i := len(kids) - 1
		for i > 0 && bytes.Compare(kids[i].key, key) > 0 {
			i--
		}
		if b.lo = kids[i].key; i+1 < len(kids) {
			b.hi = kids[i+1].key
		}
		id = kids[i].page
	}
	return nil
}

func sortKeys(keys [][]byte) { slices.SortFunc(keys, bytes.Compare) }
