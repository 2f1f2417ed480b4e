package tablet

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/schema"
)

// cursor goes over a tablet's rows at a snapshot, in key order, and folds each row's versions into cells.
//
// It keeps no iterator between steps: each step opens one and seeks to where the last one stopped. That is right because row
// versions never change and, in this form of the store, never go away while the replica is there; versions that come later
// have timestamps at or above the snapshot (the caller has seen to that: the snapshot is closed), so every step sees the
// rows that the first one saw. And it means that a scan that its client has forgotten holds neither files nor memtables.
type cursor struct {
	t        *Tablet
	schema   *schema.Schema
	snapshot hybridtime.Timestamp
	lower    []byte // store keys
	upper    []byte
	fold     folder
	keyWant  bool           // key columns are wanted
	keyVals  []schema.Value // those of the row at hand
	rowsRead uint64

	// row is the prefix of the row at hand, nil before the first. While it isn't decided, lastSeen is the timestamp of the
	// version looked at last, of which the folder knows if it is below the snapshot.
	row      []byte
	decided  bool
	lastSeen hybridtime.Timestamp
	skipped  int
	seekKey  []byte

	versionsPerLook, tooNewBeforeSeek int
}

// How often a step looks at the clock: after this many versions, where long ones count more.
const (
	defaultVersionsPerLook = 64
	bytesPerVersion        = 1 << 10
)

// defaultTooNewBeforeSeek is how many versions above the snapshot are passed over one by one before the rest is jumped over.
const defaultTooNewBeforeSeek = 8

// newCursor returns a cursor over the rows with start <= key < stop (empty: unbounded) and, where after isn't nil, key > after.
// want are positions of the schema.
func newCursor(t *Tablet, sc *schema.Schema, snapshot hybridtime.Timestamp, want []int, start, stop, after []byte) *cursor {
	c := &cursor{
		t: t, schema: sc, snapshot: snapshot, versionsPerLook: defaultVersionsPerLook, tooNewBeforeSeek: defaultTooNewBeforeSeek,
	}
	c.lower, c.upper = rowBounds(t.number)
	c.lower = appendRowPrefix(c.lower[:0], t.number, start)
	if len(stop) > 0 {
		c.upper = appendRowPrefix(c.upper[:0], t.number, stop)
	}
	if after != nil && bytes.Compare(after, start) >= 0 {
		c.row, c.decided = appendRowPrefix(nil, t.number, after), true
	}
	for _, pos := range want {
		if col := sc.Column(pos); col.Key {
			c.keyWant = true
		} else {
			c.fold.want(col)
		}
	}
	slices.SortFunc(c.fold.columns, func(a, b foldColumn) int { return cmp.Compare(a.id, b.id) })
	return c
}

// primaryKey is the encoded key of the row at hand, valid until the cursor moves.
func (c *cursor) primaryKey() []byte { return c.row[keyHeaderLen : len(c.row)-1] }

// step calls visit with the cursor at each row that there is at the snapshot, until visit says stop, the budget is used up
// or there are no more rows; more is false in the last case.
func (c *cursor) step(ctx context.Context, budget time.Duration, visit func() (stop bool, err error)) (more bool, err error) {
	deadline := time.Now().Add(budget)
	if err := ctx.Err(); err != nil {
		return true, err
	}
	if c.snapshot == 0 || compareKeys(c.lower, c.upper) >= 0 {
		return false, nil
	}
	if err := c.t.store.enter(); err != nil {
		return true, err
	}
	defer c.t.store.leave()
	it, err := c.t.store.db.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: c.lower, UpperBound: c.upper})
	if err != nil {
		return true, fmt.Errorf("tablet %s: open an iterator: %w", c.t.TabletID(), err)
	}
	more, err = c.run(ctx, it, deadline, visit)
	err = errors.Join(err, it.Close())
	if c.t.deleted.Load() {
		// The rows may have gone before the iterator was opened: what it saw means nothing.
		err = c.t.errDeleted()
	}
	return more || err != nil, err
}

func (c *cursor) run(ctx context.Context, it *pebble.Iterator, deadline time.Time, visit func() (bool, error)) (bool, error) {
	look := c.versionsPerLook
	ok := c.resume(it)
	for ok {
		if look <= 0 {
			look = c.versionsPerLook
			if err := ctx.Err(); err != nil || time.Now().After(deadline) {
				return true, err
			}
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return true, fmt.Errorf("tablet %s: scan: %w", c.t.TabletID(), err)
		}
		look -= 1 + len(v)/bytesPerVersion
		if err := c.take(it.Key(), v); err != nil {
			return true, c.corrupt(it.Key(), err)
		}
		if c.decided && c.fold.present {
			if stop, err := c.visitRow(visit); stop || err != nil {
				return true, err
			}
		}
		ok = c.advance(it)
	}
	if err := it.Error(); err != nil {
		return true, fmt.Errorf("tablet %s: scan: %w", c.t.TabletID(), err)
	}
	if c.unfinished() {
		return true, c.corrupt(c.row, errNoBase)
	}
	return false, nil
}

// errNoBase is of a row whose oldest version changes columns of nothing.
var errNoBase = errors.New("the row's oldest version isn't a whole row")

func (c *cursor) corrupt(key []byte, err error) error {
	return &CorruptionError{Tablet: c.t.TabletID(), Key: slices.Clone(key), Err: err}
}

// unfinished says whether the row at hand has versions in the folder that need older ones.
func (c *cursor) unfinished() bool { return c.row != nil && !c.decided && c.lastSeen < c.snapshot }

// resume puts the iterator where the step before stopped.
func (c *cursor) resume(it *pebble.Iterator) bool {
	switch {
	case c.row == nil:
		return it.First()
	case c.decided:
		c.seekKey = append(append(c.seekKey[:0], c.row...), prefixEnd)
	default:
		c.seekKey = appendTimestamp(append(c.seekKey[:0], c.row...), min(c.lastSeen, c.snapshot)-1)
	}
	return it.SeekGE(c.seekKey)
}

// take looks at one version: it begins a row if need be, and folds what is below the snapshot.
func (c *cursor) take(key, value []byte) error {
	pk, ts, ok := splitRowKey(key)
	if !ok {
		return errRowKey
	}
	if !c.sameRow(key) {
		if c.unfinished() {
			return errNoBase
		}
		c.row = append(append(append(c.row[:0], key[:keyHeaderLen]...), pk...), prefixEnd)
		c.decided, c.skipped = false, 0
		c.fold.begin()
	}
	c.lastSeen = ts
	if ts >= c.snapshot {
		return nil
	}
	var err error
	c.decided, err = c.fold.add(value)
	return err
}

func (c *cursor) visitRow(visit func() (bool, error)) (bool, error) {
	c.rowsRead++
	if c.keyWant {
		var err error
		if c.keyVals, err = c.schema.DecodeKey(c.keyVals[:0], c.primaryKey()); err != nil {
			return true, c.corrupt(c.row, err)
		}
	}
	return visit()
}

// advance moves the iterator to the next version that matters.
func (c *cursor) advance(it *pebble.Iterator) bool {
	if c.decided {
		// Most rows have one version. Where there are more, the rest is jumped over.
		if !it.Next() {
			return false
		}
		return !c.sameRow(it.Key()) || it.NextPrefix()
	}
	if c.lastSeen >= c.snapshot {
		if c.skipped++; c.skipped > c.tooNewBeforeSeek {
			c.seekKey = appendTimestamp(append(c.seekKey[:0], c.row...), c.snapshot-1)
			return it.SeekGE(c.seekKey)
		}
		return it.Next()
	}
	c.fold.keep()
	return it.Next()
}

func (c *cursor) sameRow(key []byte) bool {
	return len(key) == len(c.row)+tsSuffixLen && bytes.HasPrefix(key, c.row)
}
