package tablet

import (
	"bytes"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// committedRows looks at a tablet's rows as they were before a batch. No other batch adds to them meanwhile, so its iterators
// stay good for the whole batch; what the batch itself adds is in the overlay.
type committedRows struct {
	opened bool
	recent []*keyGeneration
	all    *pebble.Iterator
	files  *pebble.Iterator
	gap    keyGap
}

// keyGap is a range of primary keys in which there was no version before the batch: from lower on, which was sought, up to upper,
// which was found; no upper: to the end of the tablet. The empty one holds nothing.
type keyGap struct {
	lower, upper   []byte
	known, bounded bool
}

func (g *keyGap) holds(key []byte) bool {
	return g.known && bytes.Compare(g.lower, key) <= 0 && (!g.bounded || bytes.Compare(key, g.upper) < 0)
}

// seek returns an iterator that stands at the latest version of the row whose prefix is seekKey, nil if there is none.
func (c *committedRows) seek(t *Tablet, seekKey []byte, hash uint64) (*pebble.Iterator, error) {
	it, err := c.iterator(t, hash)
	if err != nil {
		return nil, err
	}
	if !it.SeekPrefixGE(seekKey) {
		return nil, it.Error()
	}
	return it, nil
}

// iterator returns the one to ask for a key with the given hash. Both are opened when they are first needed.
func (c *committedRows) iterator(t *Tablet, hash uint64) (*pebble.Iterator, error) {
	if !c.opened {
		// Before the files are looked at: see recentKeys.
		c.recent, c.opened = t.recent.snapshot(), true
	}
	if mayHold(c.recent, hash) {
		return open(t, &c.all, false)
	}
	return open(t, &c.files, true)
}

func open(t *Tablet, it **pebble.Iterator, onlyFiles bool) (*pebble.Iterator, error) {
	if *it == nil {
		var err error
		*it, err = t.store.db.NewIter(&pebble.IterOptions{
			LowerBound: t.rowLower, UpperBound: t.rowUpper, UseL6Filters: true, OnlyReadGuaranteedDurable: onlyFiles,
		})
		if err != nil {
			return nil, err
		}
	}
	return *it, nil
}

// probe returns an iterator that stands at the latest version of the row with the primary key, nil if there is none; then the
// gap in which the key lies is known. seekKey is the row's prefix.
func (c *committedRows) probe(t *Tablet, seekKey, key []byte) (*pebble.Iterator, error) {
	it, err := open(t, &c.all, false)
	if err != nil {
		return nil, err
	}
	found := it.SeekGE(seekKey)
	if err := it.Error(); err != nil {
		return nil, err
	}
	if found {
		next, _, ok := splitRowKey(it.Key())
		if !ok {
			return nil, &CorruptionError{Tablet: t.TabletID(), Key: slices.Clone(it.Key()), Err: errRowKey}
		}
		if bytes.Equal(next, key) {
			return it, nil
		}
		c.gap.upper = append(c.gap.upper[:0], next...)
	}
	c.gap.lower, c.gap.known, c.gap.bounded = append(c.gap.lower[:0], key...), true, found
	return nil, nil
}

func (c *committedRows) close() {
	for _, it := range []*pebble.Iterator{c.all, c.files} {
		if it != nil {
			// Its errors were seen where it was used.
			_ = it.Close()
		}
	}
	*c = committedRows{}
}
