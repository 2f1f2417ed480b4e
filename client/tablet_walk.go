package client

import (
	"bytes"
	"context"
	"encoding/binary"
	"time"

	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// tabletWalk finds the tablets that a scan has to read, one after another in the order of partition keys: those that can hold a row
// that matches, in ranges that were added before the walk began too.
//
// What is known may be old: ranges may have been added where none is known, with hash dimensions of their own that aren't known
// either. So the master is asked before the first such gap is passed that a matching row can lie in, by its range key alone; its
// answer brings the partition schema up to date while only tablets of the first buckets have been passed. A range that was dropped
// and added again with other hash dimensions is learned of when one of its old tablets is asked; tablets that were passed by the
// old ones then count for nothing.
type tabletWalk struct {
	t      *Table
	spec   *scanSpec
	began  time.Time
	cursor []byte // partition key from which the next tablet is sought
	ended  bool

	// filter knows which tablets can hold a matching row, by the partition schema of the version.
	filter  *schema.PartitionFilter
	version uint64
	skipped bool // a tablet was left out by it
	found   bool // a tablet was not
	read    bool // one has been read
}

func newTabletWalk(t *Table, spec *scanSpec) *tabletWalk {
	return &tabletWalk{t: t, spec: spec, began: time.Now()}
}

// next returns the tablet at hand, nil past the last one. Until past is called it is the same, or what has taken its place.
func (w *tabletWalk) next(ctx context.Context) (*tablet, error) {
	id := w.spec.options.TabletID
	for !w.ended {
		t, err := w.t.locations.seek(ctx, w.cursor, w.began, w.empty)
		if err != nil {
			return nil, err
		}
		known := w.t.locations.known.Load()
		if w.filter != nil && w.version != known.version && w.skipped {
			if w.read {
				return nil, status.New(status.Aborted, "scan of table %q: its ranges have changed while it was read: scan again", w.t.info.Name)
			}
			w.filter, w.cursor, w.skipped = nil, nil, false
			continue
		}
		switch {
		case t == nil:
			w.ended = true
		case t.id == id, id == "" && w.filterOf(known).MayContain(&schema.Partition{Buckets: t.hash, Start: t.start, End: t.end}):
			w.found = true
			return t, nil
		default:
			w.skipped = true
			w.leave(t)
		}
	}
	if id != "" && !w.found {
		return nil, status.New(status.TabletNotFound, "table %q has no tablet %s", w.t.info.Name, id)
	}
	return nil, nil
}

// past goes past a tablet that has been read.
func (w *tabletWalk) past(t *tablet) {
	w.read = true
	w.leave(t)
}

// leave goes past a tablet that hasn't been.
func (w *tabletWalk) leave(t *tablet) {
	w.cursor = t.end
	w.ended = len(t.end) == 0 || t.id == w.spec.options.TabletID
}

// filterOf returns the filter for what is known.
func (w *tabletWalk) filterOf(m *keyMap) *schema.PartitionFilter {
	if w.filter == nil || w.version != m.version {
		w.filter, w.version = w.spec.filter(m.partition), m.version
	}
	return w.filter
}

// maxGaps bounds how many combinations of buckets empty looks at.
const maxGaps = 64

// empty says whether no tablet that the scan would read can lie between two partition keys (to nil: the end): there are no such
// buckets, or no row there matches by its range key.
func (w *tabletWalk) empty(m *keyMap, from, to []byte) bool {
	if w.spec.options.TabletID != "" {
		return true // it can't have come later than it was heard of
	}
	filter := w.filter
	if filter == nil || w.version != m.version { // not kept here: that the version has changed has yet to be noticed
		filter = w.spec.filter(m.partition)
	}
	dims := bucketBounds(m.partition)
	for range maxGaps {
		buckets, lower, ok := validBuckets(dims, from)
		if !ok || to != nil && bytes.Compare(append(appendBuckets(nil, buckets), lower...), to) >= 0 {
			return true
		}
		// Up to the end of what lies in these buckets.
		gap := schema.Partition{Start: lower}
		next := nextBuckets(dims, buckets)
		if to != nil && (next == nil || bytes.Compare(to, next) < 0) {
			gap.End = to[min(4*len(dims), len(to)):]
		}
		if filter.MayContain(&gap) {
			return false
		}
		if next == nil {
			return true
		}
		from = next
	}
	return false
}

// bucketBounds returns the greatest number of buckets that any range has, by dimension.
func bucketBounds(ps *schema.PartitionSchema) []uint32 {
	dims := make([]uint32, len(ps.Hash))
	for i, d := range ps.Hash {
		dims[i] = d.Buckets
	}
	for _, r := range ps.CustomRanges {
		for i, d := range r.Hash {
			dims[i] = max(dims[i], d.Buckets)
		}
	}
	return dims
}

// validBuckets returns the first buckets, with the range key behind them, at or behind a partition key; false: there are none.
func validBuckets(dims []uint32, key []byte) (buckets []uint32, rest []byte, ok bool) {
	buckets = make([]uint32, len(dims))
	for i := range dims {
		if len(key) < 4 {
			return buckets, nil, true // the key ends here: all that follows lies behind it
		}
		buckets[i], key = binary.BigEndian.Uint32(key), key[4:]
		if buckets[i] < dims[i] {
			continue
		}
		buckets[i] = 0
		for i--; i >= 0; i-- {
			if buckets[i]++; buckets[i] < dims[i] {
				return buckets, nil, true
			}
			buckets[i] = 0
		}
		return nil, nil, false
	}
	return buckets, key, true
}

// nextBuckets is the partition key at which the next combination of buckets begins, nil if there is none.
func nextBuckets(dims, buckets []uint32) []byte {
	next := append([]uint32{}, buckets...)
	for i := len(next) - 1; i >= 0; i-- {
		if next[i]++; next[i] < dims[i] {
			return appendBuckets(nil, next)
		}
		next[i] = 0
	}
	return nil
}

func appendBuckets(dst []byte, buckets []uint32) []byte {
	for _, b := range buckets {
		dst = binary.BigEndian.AppendUint32(dst, b)
	}
	return dst
}
