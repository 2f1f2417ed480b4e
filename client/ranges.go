package client

import (
	"context"
	"slices"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// RangePartition is a range of a table's rows. Bounds have values of the range columns, in their order; nil ones, and those left
// out at the end, stand for the least value. A bound without values is no bound. Values are converted as Operation.Set does.
type RangePartition struct {
	Lower, Upper []any
	// LowerExclusive: rows at the lower bound are outside. UpperInclusive: rows at the upper bound are inside.
	LowerExclusive, UpperInclusive bool
	// Hash has dimensions of the range's own, as many as the table has. None: the table's.
	Hash []HashPartition
}

// proto converts the bounds for range columns.
func (r *RangePartition) proto(columns []*schema.Column) (*nyalav1.RangePartition, error) {
	lower, err := rangeValues(columns, r.Lower)
	if err != nil {
		return nil, status.Wrap(status.CodeOf(err), err, "lower bound")
	}
	upper, err := rangeValues(columns, r.Upper)
	if err != nil {
		return nil, status.Wrap(status.CodeOf(err), err, "upper bound")
	}
	p := &nyalav1.RangePartition{Lower: lower, LowerExclusive: r.LowerExclusive, Upper: upper, UpperInclusive: r.UpperInclusive}
	p.Hash, err = hashProto(r.Hash)
	return p, err
}

func rangeValues(columns []*schema.Column, values []any) ([]*nyalav1.RangeValue, error) {
	if len(values) > len(columns) {
		return nil, status.New(status.InvalidArgument, "it has %d values, but there are %d range columns", len(values), len(columns))
	}
	out := make([]*nyalav1.RangeValue, 0, len(values))
	for i, value := range values {
		if value == nil {
			out = append(out, &nyalav1.RangeValue{})
			continue
		}
		v, err := convert(columns[i], value)
		if err != nil {
			return nil, err
		}
		if err := columns[i].CheckValue(v); err != nil {
			return nil, err
		}
		b, err := columns[i].ValueBytes(v)
		if err != nil {
			return nil, err
		}
		out = append(out, &nyalav1.RangeValue{Value: append([]byte{}, b...)})
	}
	return out, nil
}

func hashProto(dims []HashPartition) ([]*nyalav1.CreateTableRequest_HashByName, error) {
	var out []*nyalav1.CreateTableRequest_HashByName
	for _, h := range dims {
		if h.Buckets < 2 {
			return nil, status.New(status.InvalidSchema, "hash of %q has %d buckets, the least is 2", h.Columns, h.Buckets)
		}
		out = append(out, &nyalav1.CreateTableRequest_HashByName{Columns: h.Columns, NumBuckets: uint32(h.Buckets), Seed: h.Seed})
	}
	return out, nil
}

// rangeColumns finds range columns by name.
func rangeColumns(s *schema.Schema, names []string) ([]*schema.Column, error) {
	var out []*schema.Column
	for _, name := range names {
		i := s.IndexOf(name)
		if i < 0 || !s.Column(i).Key {
			return nil, status.New(status.InvalidSchema, "range column %q is not in the primary key", name)
		}
		out = append(out, s.Column(i))
	}
	return out, nil
}

// notCovered is of a row that is in no range.
func (t *Table) notCovered(ps *schema.PartitionSchema, cell func(i int) []byte) *Error {
	if len(ps.Range) == 0 {
		return status.New(status.NotFound, "table %q has no tablet for the row", t.info.Name)
	}
	names := ""
	for i, c := range t.RangeColumns() {
		if names += c.Name; i+1 < len(ps.Range) {
			names += ", "
		}
	}
	return status.New(status.NotFound, "table %q has no range partition for the row: %s = %s", t.info.Name, names,
		ps.FormatRangeKey(t.schema, ps.RangeKey(t.schema, cell, nil)))
}

// RangeColumns are the columns of the table's range key, in their order; none: the table isn't divided by ranges.
func (t *Table) RangeColumns() []*Column {
	var out []*schema.Column
	for _, id := range t.partition.Range {
		out = append(out, t.schema.Column(t.schema.IndexOfID(id)))
	}
	return out
}

// TableRange is one of a table's ranges, as the master has it now.
type TableRange struct {
	// Lower (inclusive) and Upper (exclusive) have a value for each range column; nil: no bound.
	Lower, Upper []Value
	// Text is the range as nyala's command line takes it: [0, 100), ['a', ).
	Text string
	// Hash has the hash dimensions that hold in the range.
	Hash []schema.HashDimension
	// Tablets is how many tablets the range has.
	Tablets int
}

// Ranges asks the master for a table's ranges, in rising order.
func (t *Table) Ranges(ctx context.Context) ([]TableRange, error) {
	now, err := t.c.openTable(ctx, t.id(), "list the ranges of table "+t.info.Name)
	if err != nil {
		return nil, err
	}
	tablets, err := t.c.Tablets(ctx, now)
	if err != nil {
		return nil, err
	}
	ps := now.partition
	var out []TableRange
	at := map[string]int{}
	slices.SortStableFunc(tablets, func(a, b Tablet) int { return slices.Compare(a.partition().RangeStart(), b.partition().RangeStart()) })
	for _, tb := range tablets {
		p := tb.partition()
		if i, ok := at[string(p.RangeStart())]; ok {
			out[i].Tablets++
			continue
		}
		at[string(p.RangeStart())] = len(out)
		r := TableRange{Text: ps.FormatRange(t.schema, p.RangeStart(), p.RangeEnd()), Hash: ps.HashOf(p.RangeStart()), Tablets: 1}
		if r.Lower, err = rangeBound(t.schema, ps, p.RangeStart()); err != nil {
			return nil, err
		}
		if r.Upper, err = rangeBound(t.schema, ps, p.RangeEnd()); err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

func rangeBound(s *schema.Schema, ps *schema.PartitionSchema, key []byte) ([]Value, error) {
	if len(key) == 0 {
		return nil, nil
	}
	return ps.DecodeRangeKey(s, key)
}

func (t *Tablet) partition() *schema.Partition {
	return &schema.Partition{Buckets: t.HashBuckets, Start: t.PartitionKeyStart, End: t.PartitionKeyEnd}
}
