package tablet

import "github.com/cockroachdb/pebble/v2"

// committedRows looks at a tablet's rows as they were before a batch. No other batch adds to them meanwhile, so its iterators
// stay good for the whole batch; what the batch itself adds is in the overlay.
type committedRows struct {
	opened bool
	recent []*keyGeneration
	all    *pebble.Iterator
	files  *pebble.Iterator
}

// iterator returns the one to ask for a key with the given hash. Both are opened when they are first needed.
func (c *committedRows) iterator(t *Tablet, hash uint64) (*pebble.Iterator, error) {
	if !c.opened {
		// Before the files are looked at: see recentKeys.
		c.recent, c.opened = t.recent.snapshot(), true
	}
	it, onlyFiles := &c.files, true
	if mayHold(c.recent, hash) {
		it, onlyFiles = &c.all, false
	}
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

func (c *committedRows) close() {
	for _, it := range []*pebble.Iterator{c.all, c.files} {
		if it != nil {
			// Its errors were seen where it was used.
			_ = it.Close()
		}
	}
	*c = committedRows{}
}
