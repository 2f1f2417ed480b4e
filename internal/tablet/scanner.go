package tablet

import (
	"bytes"
	"context"
	"encoding/binary"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// ScanSpec says what a scan returns.
type ScanSpec struct {
	// Schema is what Columns and Predicates refer to: one of the tablet's versions; nil: the latest.
	Schema *schema.Schema
	// Columns are positions, in the order wanted, each at most once. None is allowed: rows are then only counted.
	Columns    []int
	Predicates []*schema.BoundPredicate // all must hold
	// Start (inclusive) and Stop (exclusive) bound the encoded primary key; empty: unbounded. Rows up to and with After were
	// returned before; nil: none were.
	Start, Stop, After []byte
	// Limit is the most rows that the scan returns; 0: no limit.
	Limit uint64
	// Snapshot: versions with timestamps below it are seen. Every write below it must have been applied.
	Snapshot hybridtime.Timestamp
}

// Scanner returns the rows of a scan block by block. It belongs to one goroutine at a time and holds nothing of the store
// between calls.
type Scanner struct {
	cur     *cursor
	budget  time.Duration
	limited bool
	left    uint64 // rows that may still come, if limited
	done    bool

	arrow   *arrow.Schema
	columns []scanColumn
	filters []scanFilter
	// lastRows is the number of rows in the block before, as a guess for the next one.
	lastRows int
}

// scanColumn is where a projected column comes from and where it goes.
type scanColumn struct {
	source cellSource
	buf    *columnBuffer
}

type scanFilter struct {
	source cellSource
	pred   *schema.BoundPredicate
}

// cellSource is a column of the key, or one that the folder fills.
type cellSource struct {
	key    int // position in the key; -1: folded
	varLen bool
	size   int
	fold   *foldColumn
	buf    [8]byte
}

// stepBudget is how long one call of Next works, so that heavy work leaves the processor to others in time.
const stepBudget = 4 * time.Millisecond

// defaultBlockBytes is the size of a block where the caller has no wish; maxBlockBytes keeps Arrow's 32-bit offsets in range.
const (
	defaultBlockBytes = 1 << 20
	maxBlockBytes     = 1 << 30
)

// NewScanner begins a scan. An error is a *status.Error with code InvalidScanSpec, or says that the tablet is gone.
func (t *Tablet) NewScanner(spec ScanSpec) (*Scanner, error) {
	if t.deleted.Load() {
		return nil, t.errDeleted()
	}
	sc := spec.Schema
	if sc == nil {
		sc = t.Schema()
	}
	want, err := wantedColumns(sc, &spec)
	if err != nil {
		return nil, err
	}
	start, stop, nothing := sc.KeyBounds(spec.Predicates)
	spec.narrow(start, stop)
	s := &Scanner{
		cur:    newCursor(t, sc, spec.Snapshot, want, spec.Start, spec.Stop, spec.After),
		budget: stepBudget, limited: spec.Limit > 0, left: spec.Limit, done: nothing,
	}
	if s.arrow, err = arrowSchema(sc, spec.Columns); err != nil {
		return nil, status.Wrap(status.InvalidScanSpec, err, "scan")
	}
	for i, pos := range spec.Columns {
		s.columns = append(s.columns, scanColumn{
			source: s.source(sc, pos), buf: newColumnBuffer(sc.Column(pos), s.arrow.Field(i).Type),
		})
	}
	for _, p := range spec.Predicates {
		s.filters = append(s.filters, scanFilter{source: s.source(sc, p.Column()), pred: p})
	}
	return s, nil
}

// narrow cuts the bounds down to what the predicates leave of the key.
func (spec *ScanSpec) narrow(start, stop []byte) {
	if bytes.Compare(start, spec.Start) > 0 {
		spec.Start = start
	}
	if stop != nil && (len(spec.Stop) == 0 || bytes.Compare(stop, spec.Stop) < 0) {
		spec.Stop = stop
	}
}

// wantedColumns returns the positions of all columns that the scan looks at.
func wantedColumns(sc *schema.Schema, spec *ScanSpec) ([]int, error) {
	want := slices.Clone(spec.Columns)
	slices.Sort(want)
	if len(slices.Compact(slices.Clone(want))) != len(want) {
		return nil, status.New(status.InvalidScanSpec, "scan: a column is asked for twice")
	}
	for _, p := range spec.Predicates {
		if !slices.Contains(want, p.Column()) {
			want = append(want, p.Column())
		}
	}
	for _, pos := range want {
		if pos < 0 || pos >= sc.NumColumns() {
			return nil, status.New(status.InvalidScanSpec, "scan: column position %d of %d columns", pos, sc.NumColumns())
		}
	}
	return want, nil
}

func (s *Scanner) source(sc *schema.Schema, pos int) cellSource {
	c := sc.Column(pos)
	if c.Key {
		return cellSource{key: pos, varLen: c.Type.VarLen() || c.Type.Size() > 8, size: c.Type.Size()}
	}
	return cellSource{key: -1, fold: s.cur.fold.column(c.ID)}
}

// cell returns the source's cell in the row at hand, valid until the next call.
func (c *cellSource) cell(keyVals []schema.Value) ([]byte, bool) {
	switch {
	case c.key < 0:
		return c.fold.cell, c.fold.null
	case c.varLen:
		return keyVals[c.key].Bytes(), false
	default:
		binary.LittleEndian.PutUint64(c.buf[:], uint64(keyVals[c.key].Int()))
		return c.buf[:c.size], false
	}
}

// Block is a piece of a scan's result.
type Block struct {
	// Record has the columns in the order asked for; nil where none were asked for or there are no rows. The receiver
	// releases it.
	Record arrow.RecordBatch
	Rows   int
	// LastKey is the encoded primary key of the last row; nil without rows.
	LastKey []byte
}

// Next returns the next block: of about maxBytes (0: 1 MiB) at most, or less, down to no rows, where more time than one
// step may take would be needed. more is false when the scan is complete.
func (s *Scanner) Next(ctx context.Context, maxBytes int) (b Block, more bool, err error) {
	if s.done {
		return Block{}, false, nil
	}
	if maxBytes <= 0 {
		maxBytes = defaultBlockBytes
	}
	maxBytes = min(maxBytes, maxBlockBytes)
	rows := max(64, s.lastRows+s.lastRows/8)
	if s.limited {
		rows = int(min(uint64(rows), s.left))
	}
	for i := range s.columns {
		s.columns[i].buf.begin(rows)
	}
	size := 0
	read := s.cur.rowsRead
	more, err = s.cur.step(ctx, s.budget, func() (bool, error) {
		if !s.matches() {
			return false, nil
		}
		for i := range s.columns {
			c := &s.columns[i]
			cell, null := c.source.cell(s.cur.keyVals)
			size += c.buf.add(cell, null)
		}
		b.Rows++
		if b.LastKey == nil {
			b.LastKey = []byte{} // the empty string is a key too
		}
		b.LastKey = append(b.LastKey[:0], s.cur.primaryKey()...)
		return size >= maxBytes || s.limited && uint64(b.Rows) == s.left, nil
	})
	metrics := s.cur.t.store.metrics
	metrics.scannedRows.Add(float64(s.cur.rowsRead - read))
	if err != nil {
		return Block{}, true, err
	}
	metrics.returnedRows.Add(float64(b.Rows))
	if s.limited {
		s.left -= uint64(b.Rows)
		more = more && s.left > 0
	}
	s.done = !more
	s.finish(&b)
	return b, more, nil
}

func (s *Scanner) matches() bool {
	for i := range s.filters {
		f := &s.filters[i]
		if cell, null := f.source.cell(s.cur.keyVals); !f.pred.Matches(cell, null) {
			return false
		}
	}
	return true
}

func (s *Scanner) finish(b *Block) {
	if b.Rows == 0 {
		return
	}
	s.lastRows = b.Rows
	if len(s.columns) == 0 {
		return
	}
	arrays := make([]arrow.Array, len(s.columns))
	for i := range s.columns {
		arrays[i] = s.columns[i].buf.finish()
	}
	b.Record = array.NewRecordBatch(s.arrow, arrays, int64(b.Rows))
	for _, a := range arrays {
		a.Release()
	}
}

// ArrowSchema is the schema of the records, with no fields where no columns were asked for.
func (s *Scanner) ArrowSchema() *arrow.Schema { return s.arrow }

// Close ends the scan. The scanner holds nothing, so that one which is never closed costs its own memory alone.
func (s *Scanner) Close() { s.done = true }
