package client

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// ReadMode says which moment a scan reads.
type ReadMode int

const (
	// ReadLatest sees every write that was acknowledged, to anybody, before the scan came to the tablet. Leaders serve it.
	ReadLatest ReadMode = iota
	// ReadAtSnapshot sees, in all tablets, the writes with timestamps below ScanOptions.SnapshotTimestamp. Any replica serves
	// it.
	ReadAtSnapshot
	// ReadYourWrites sees at least what this client has written or seen so far (LatestTimestamp), without waiting for more. Each
	// tablet is read at a moment of its own. Any replica serves it.
	ReadYourWrites
)

// ReplicaChoice says which replica of each tablet a scan reads.
type ReplicaChoice int

const (
	// LeaderReplica is the tablet's leader; a snapshot goes to another replica while the leader can't be reached.
	LeaderReplica ReplicaChoice = iota
	// ClosestReplica is one on this machine if there is any, else any. ReadLatest can't have it.
	ClosestReplica
)

// ScanOptions say what to read. The zero value reads all columns of all rows, as they are now.
type ScanOptions struct {
	// Columns to return, in this order; empty: all.
	Columns []string
	// CountOnly returns batches without columns: only their Rows tells something.
	CountOnly bool
	// Predicates must all hold for a row. Table.Predicate makes one.
	Predicates []Predicate
	// LowerKey and UpperKey bound the primary key, by values of its first columns: rows at LowerKey and above, and below UpperKey.
	// Columns that are left out have their least values. Values are converted as Operation.Set does.
	LowerKey, UpperKey []any
	// Limit is the most rows to return; 0: all.
	Limit    uint64
	ReadMode ReadMode
	// SnapshotTimestamp goes with ReadAtSnapshot; 0: the present, which the first tablet's server names.
	SnapshotTimestamp Timestamp
	Replica           ReplicaChoice
	// ServerID asks the replicas on this tablet server alone, where not empty. ReadLatest can't have it.
	ServerID string
	// TabletID reads this one tablet, where not empty.
	TabletID string
	// BatchSizeBytes is about how much a batch holds; 0: the server's default, 1 MiB.
	BatchSizeBytes int

	// lowerKey and upperKey are encoded; nil: no bound.
	lowerKey, upperKey []byte
}

// scanSpec is ScanOptions, checked, in the form that requests take.
type scanSpec struct {
	options    ScanOptions
	schema     *schema.Schema
	columns    []string
	positions  []int
	arrow      *arrow.Schema // of the columns
	predicates []*nyalav1.Predicate
	bound      []*schema.BoundPredicate
}

func (t *Table) scanSpec(o ScanOptions) (*scanSpec, error) {
	fault := func(format string, args ...any) (*scanSpec, error) {
		return nil, status.New(status.InvalidScanSpec, "scan of table %q: %s", t.info.Name, fmt.Sprintf(format, args...))
	}
	switch {
	case o.ReadMode < ReadLatest || o.ReadMode > ReadYourWrites:
		return fault("unknown read mode %d", o.ReadMode)
	case o.ReadMode == ReadLatest && (o.Replica != LeaderReplica || o.ServerID != ""):
		return fault("only a leader serves ReadLatest: use ReadAtSnapshot or ReadYourWrites to choose a replica")
	case o.ReadMode != ReadAtSnapshot && o.SnapshotTimestamp != 0:
		return fault("a snapshot timestamp needs ReadAtSnapshot")
	case o.BatchSizeBytes < 0:
		return fault("a batch of %d bytes", o.BatchSizeBytes)
	case o.CountOnly && len(o.Columns) > 0:
		return fault("CountOnly returns no columns, but %d are asked for", len(o.Columns))
	}
	o.BatchSizeBytes = min(o.BatchSizeBytes, t.c.opts.MaxMessageSize/4)
	spec := &scanSpec{options: o, schema: t.schema}
	if !o.CountOnly {
		spec.columns = o.Columns
		if len(spec.columns) == 0 {
			for _, col := range t.schema.Columns() {
				spec.columns = append(spec.columns, col.Name)
			}
		}
	}
	for k, name := range spec.columns {
		i, err := t.column(name)
		if err != nil {
			return nil, err
		}
		if slices.Contains(spec.columns[:k], name) {
			return fault("column %q is asked for twice", name)
		}
		spec.positions = append(spec.positions, i)
	}
	spec.arrow = arrowSchema(t.schema, spec.positions)
	bound, err := schema.BindAll(t.schema, o.Predicates)
	if err != nil {
		return nil, status.Wrap(status.CodeOf(err), err, "scan of table %q", t.info.Name)
	}
	for _, p := range o.Predicates {
		spec.predicates = append(spec.predicates, p.ToProto())
	}
	spec.bound = bound
	if err := spec.keyBounds(t); err != nil {
		return nil, err
	}
	return spec, nil
}

// keyBounds encodes the bounds of the primary key.
func (s *scanSpec) keyBounds(t *Table) (err error) {
	o := &s.options
	if len(o.LowerKey) > 0 {
		if o.lowerKey, err = t.keyBound(o.LowerKey); err != nil {
			return err
		}
	}
	if len(o.UpperKey) > 0 {
		if o.upperKey, err = t.keyBound(o.UpperKey); err != nil {
			return err
		}
		if len(o.upperKey) == 0 { // the least key of all, which as a bound would be none
			nothing := schema.In(t.schema.Column(0))
			b, err := nothing.Bind(t.schema)
			if err != nil {
				return err
			}
			s.bound, s.predicates = append(s.bound, b), append(s.predicates, nothing.ToProto())
		}
	}
	for _, key := range [][]byte{o.lowerKey, o.upperKey} {
		if len(key) > 0 {
			if _, err := t.schema.DecodeKey(nil, key); err != nil { // of a scan token
				return status.Wrap(status.InvalidScanSpec, err, "scan of table %q", t.info.Name)
			}
		}
	}
	return nil
}

func (t *Table) keyBound(values []any) ([]byte, error) {
	if n := t.schema.NumKeyColumns(); len(values) > n {
		return nil, status.New(status.InvalidScanSpec, "scan of table %q: a bound of %d values, but the key has %d columns", t.info.Name, len(values), n)
	}
	var cells [][]byte
	for i, value := range values {
		v, err := operand(t.schema.Column(i), value)
		if err != nil {
			return nil, err
		}
		b, err := t.schema.Column(i).ValueBytes(v)
		if err != nil {
			return nil, err
		}
		cells = append(cells, b)
	}
	return t.schema.EncodeKeyPrefix(cells), nil
}

// filter knows which tablets can hold a matching row, by a partition schema.
func (s *scanSpec) filter(ps *PartitionSchema) *schema.PartitionFilter {
	f := ps.Filter(s.schema, s.bound)
	if n, err := f.Narrow(s.schema, s.options.lowerKey, s.options.upperKey); err == nil { // keyBounds has seen to that
		return n
	}
	return f
}

// Comparison is what a Predicate tests.
type Comparison int

// The comparisons. NULL matches IsNull alone. For one of several values there is Table.PredicateIn.
const (
	Equal Comparison = iota
	Less
	LessEqual
	Greater
	GreaterEqual
	IsNull
	IsNotNull
)

// Predicate returns the condition that a column's cell compares with value in the given way; value is converted as
// Operation.Set does, and ignored by IsNull and IsNotNull.
func (t *Table) Predicate(column string, comparison Comparison, value any) (Predicate, error) {
	i, err := t.column(column)
	if err != nil {
		return Predicate{}, err
	}
	col := t.schema.Column(i)
	switch comparison {
	case IsNull:
		return schema.IsNull(col), nil
	case IsNotNull:
		return schema.IsNotNull(col), nil
	default:
	}
	v, err := operand(col, value)
	if err != nil {
		return Predicate{}, err
	}
	switch comparison {
	case Equal:
		return schema.Equal(col, v), nil
	case Less:
		return schema.Less(col, v), nil
	case LessEqual:
		return schema.LessEqual(col, v), nil
	case Greater:
		return schema.Greater(col, v), nil
	case GreaterEqual:
		return schema.GreaterEqual(col, v), nil
	default:
		return Predicate{}, status.New(status.InvalidArgument, "unknown comparison %d", comparison)
	}
}

// PredicateIn returns the condition that a column's cell is one of the values, which are converted as Operation.Set does. Without
// values nothing matches.
func (t *Table) PredicateIn(column string, values ...any) (Predicate, error) {
	i, err := t.column(column)
	if err != nil {
		return Predicate{}, err
	}
	col := t.schema.Column(i)
	list := make([]schema.Value, 0, len(values))
	for _, value := range values {
		v, err := operand(col, value)
		if err != nil {
			return Predicate{}, err
		}
		list = append(list, v)
	}
	return schema.In(col, list...), nil
}

// operand converts a value that a column is compared with.
func operand(col *schema.Column, value any) (schema.Value, error) {
	v, err := convert(col, value)
	if err != nil {
		return v, err
	}
	if v.IsNull() {
		return v, status.New(status.InvalidScanSpec, "column %q: NULL compares with nothing: use IsNull", col.Name)
	}
	if _, err := col.ValueBytes(v); err != nil {
		return v, err
	}
	return v, col.CheckValue(v)
}

// Scanner reads a table, tablet after tablet in the order of partition keys, the rows of each in the order of their primary
// keys. Tablets that can't hold a row that matches the predicates aren't asked. It isn't safe for concurrent use.
//
// If a server fails, the scan goes on at another replica right after the last row that it returned, at the snapshot that it
// had in that tablet: no row is repeated or left out.
type Scanner struct {
	t        *Table
	spec     *scanSpec
	walk     *tabletWalk
	cur      *tabletScan
	snapshot Timestamp
	returned uint64
	err      error
}

// Scan returns a scanner; nothing is read before its first Next. Close it if it isn't read to the end.
func (t *Table) Scan(_ context.Context, o ScanOptions) (*Scanner, error) {
	spec, err := t.scanSpec(o)
	if err != nil {
		return nil, err
	}
	return &Scanner{t: t, spec: spec, walk: newTabletWalk(t, spec), snapshot: o.SnapshotTimestamp}, nil
}

// Next returns the next batch, which holds at least one row, or io.EOF after the last. The caller releases the batch. After
// any other error the scanner can't go on, unless ctx ended: a Next with another ctx then goes on where this one was.
func (s *Scanner) Next(ctx context.Context) (*Batch, error) {
	for s.err == nil {
		if s.cur == nil {
			if err := s.nextTablet(ctx); err != nil {
				return nil, s.fail(ctx, err)
			}
			continue
		}
		resp, err := s.cur.next(ctx)
		if err != nil && s.cur.replaced() {
			s.cur = nil // its range was dropped before anything was read: what is there now is read
			continue
		}
		if err != nil {
			return nil, s.fail(ctx, err)
		}
		if s.spec.options.ReadMode == ReadAtSnapshot {
			s.snapshot = s.cur.snapshot
		}
		if s.cur.finished {
			s.endTablet()
		}
		if resp.GetNumRows() == 0 {
			continue
		}
		b, err := s.batch(resp)
		if err != nil {
			return nil, s.fail(ctx, err)
		}
		return b, nil
	}
	return nil, s.err
}

// fail keeps an error for good, but for one that comes from the caller's context.
func (s *Scanner) fail(ctx context.Context, err error) error {
	if ctx.Err() == nil || s.t.c.isClosed() {
		s.err = err
		s.Close()
		s.err = err
	}
	return err
}

// nextTablet begins with the next tablet; past the last one it ends the scan.
func (s *Scanner) nextTablet(ctx context.Context) error {
	t, err := s.walk.next(ctx)
	switch {
	case err != nil:
		return err
	case t == nil:
		s.err = io.EOF
	default:
		s.cur = newTabletScan(s.t, s.spec, t, s.snapshot, s.returned)
	}
	return nil
}

// endTablet goes past the tablet that has been read.
func (s *Scanner) endTablet() {
	s.returned += s.cur.rows
	s.walk.past(s.cur.tablet)
	s.cur = nil
	if limit := s.spec.options.Limit; limit > 0 && s.returned >= limit {
		s.err = io.EOF
	}
}

// batch decodes an answer.
func (s *Scanner) batch(resp *nyalav1.ScanResponse) (*Batch, error) {
	b, err := decodeBatch(s.spec, resp)
	if err != nil {
		return nil, status.Wrap(status.Corruption, err, "scan of table %q", s.t.info.Name)
	}
	return b, nil
}

// SnapshotTimestamp returns the snapshot of a ReadAtSnapshot scan: the one asked for, or the one that the first answer named
// (0 before it).
func (s *Scanner) SnapshotTimestamp() Timestamp { return s.snapshot }

// KeepAlive keeps the server from dropping the scan while nothing is read from it for long (--scanner_ttl_ms, a minute by default). A
// scan that was dropped goes on all the same, at the snapshot that it had, as long as the history reaches back to it; so an
// error is no reason to give the scan up.
func (s *Scanner) KeepAlive(ctx context.Context) error {
	if s.cur == nil {
		return nil
	}
	ctx, cancel := withTimeout(ctx, s.t.c.opts.Timeout)
	defer cancel()
	if err := asCallError(s.cur.keepAlive(ctx)); err != nil {
		return err.fault
	}
	return nil
}

// ArrowSchema describes the batches' records; without columns (CountOnly) it has no fields.
func (s *Scanner) ArrowSchema() *arrow.Schema { return s.spec.arrow }

// Close ends the scan, and lets the server forget it. It may be called more than once. Batches stay valid until released.
func (s *Scanner) Close() {
	if s.cur != nil {
		s.cur.close()
		s.cur = nil
	}
	if s.err == nil {
		s.err = status.New(status.IllegalState, "the scanner is closed")
	}
}
