package schema

import (
	"bytes"
	"slices"
	"strings"

	"github.com/nyaladb/nyala/internal/status"
)

// RangeSpec is a range as people give it: by values of the range columns, in their order. Values are value bytes; nil ones, and
// those that are left out at the end, are unset and stand for the least value. A bound without any value is no bound.
type RangeSpec struct {
	Lower, Upper [][]byte
	// LowerExclusive: rows at the lower bound are outside. UpperInclusive: rows at the upper bound are inside.
	LowerExclusive, UpperInclusive bool
}

// RangeOf encodes a range. A fault is an InvalidArgument that says which bound it is.
func (ps *PartitionSchema) RangeOf(s *Schema, spec RangeSpec) (RangeWithHash, error) {
	lowerKind, upperKind := RangeLowerBound, RangeUpperBound
	if spec.LowerExclusive {
		lowerKind = ExclusiveRangeLowerBound
	}
	if spec.UpperInclusive {
		upperKind = InclusiveRangeUpperBound
	}
	var r RangeWithHash
	var err error
	if r.Lower, err = ps.boundOf(s, "lower bound", lowerKind, spec.Lower); err != nil {
		return r, err
	}
	if r.Upper, err = ps.boundOf(s, "upper bound", upperKind, spec.Upper); err != nil {
		return r, err
	}
	if len(r.Upper) > 0 && bytes.Compare(r.Lower, r.Upper) >= 0 {
		return r, status.New(status.InvalidArgument, "the range %s is empty", ps.FormatRange(s, r.Lower, r.Upper))
	}
	return r, nil
}

// SplitOf encodes a point at which ranges are cut in two.
func (ps *PartitionSchema) SplitOf(s *Schema, values [][]byte) ([]byte, error) {
	return ps.boundOf(s, "split", SplitRow, values)
}

func (ps *PartitionSchema) boundOf(s *Schema, what string, kind OpType, values [][]byte) ([]byte, error) {
	if len(ps.Range) == 0 {
		return nil, status.New(status.InvalidArgument, "%s: the table has no range columns", what)
	}
	if len(values) > len(ps.Range) {
		return nil, status.New(status.InvalidArgument, "%s: it has %d values, but there are %d range columns", what, len(values), len(ps.Range))
	}
	positions := positionsOf(s, ps.Range)
	cells := make([][]byte, len(positions))
	set := false
	for k, v := range values {
		c := &s.columns[positions[k]]
		if v != nil && !c.Type.VarLen() && len(v) != c.Type.Size() {
			return nil, c.fault(status.InvalidArgument, "%s: its value has %d bytes, want %d", what, len(v), c.Type.Size())
		}
		cells[k], set = v, set || v != nil
	}
	if !set && kind == ExclusiveRangeLowerBound {
		kind = RangeLowerBound // "(" before nothing is no bound, as "[" is
	}
	key, fault := boundKey(s, positions, kind, cells)
	if fault != "" {
		return nil, status.New(status.InvalidArgument, "%s: %s", what, fault)
	}
	return key, nil
}

// RangeKey appends a row's range key to dst; cell is as in PartitionKey.
func (ps *PartitionSchema) RangeKey(s *Schema, cell func(i int) []byte, dst []byte) []byte {
	return appendComponents(s, ps.Range, cell, dst)
}

// DecodeRangeKey returns the values of the range columns in an encoded range key.
func (ps *PartitionSchema) DecodeRangeKey(s *Schema, key []byte) ([]Value, error) {
	var values []Value
	rest := key
	var err error
	for k, i := range positionsOf(s, ps.Range) {
		if values, rest, err = s.columns[i].decodeKeyCell(values, rest, k == len(ps.Range)-1); err != nil {
			return nil, err
		}
	}
	if len(rest) > 0 {
		return nil, status.New(status.Corruption, "range key of %d bytes: %d bytes follow its last column", len(key), len(rest))
	}
	return values, nil
}

// FormatRange writes the range between two encoded range keys as ParseRanges reads it: [0, 100), ['a', ), [(1, 'a'), (2, 'b')).
func (ps *PartitionSchema) FormatRange(s *Schema, lower, upper []byte) string {
	return "[" + ps.FormatRangeKey(s, lower) + ", " + ps.FormatRangeKey(s, upper) + ")"
}

// FormatRangeKey writes an encoded range key as a bound of ParseRanges; nothing for the empty one.
func (ps *PartitionSchema) FormatRangeKey(s *Schema, key []byte) string {
	if len(key) == 0 {
		return ""
	}
	values, err := ps.DecodeRangeKey(s, key)
	if err != nil {
		return "?" // no range key of this table
	}
	texts := make([]string, len(values))
	for k, i := range positionsOf(s, ps.Range) {
		texts[k] = s.columns[i].formatLiteral(values[k])
	}
	if len(texts) == 1 {
		return texts[0]
	}
	return "(" + strings.Join(texts, ", ") + ")"
}

// NumPartitionsOf is the length of PartitionsOf, at most the largest uint64.
func (ps *PartitionSchema) NumPartitionsOf(ranges []RangeWithHash) uint64 {
	return (&PartitionSchema{Hash: ps.Hash, CustomRanges: ranges}).NumPartitions()
}

// WithRanges returns the partition schema of a table with the given ranges: it keeps those that have hash dimensions of their
// own, in rising order.
func (ps *PartitionSchema) WithRanges(ranges []RangeWithHash) *PartitionSchema {
	out := &PartitionSchema{Hash: ps.Hash, Range: ps.Range}
	for _, r := range ranges {
		if r.Hash != nil && !slices.EqualFunc(r.Hash, ps.Hash, HashDimension.equal) {
			out.CustomRanges = append(out.CustomRanges, r)
		}
	}
	slices.SortFunc(out.CustomRanges, func(a, b RangeWithHash) int { return bytes.Compare(a.Lower, b.Lower) })
	return out
}

func (d HashDimension) equal(o HashDimension) bool {
	return d.Buckets == o.Buckets && d.Seed == o.Seed && slices.Equal(ascending(d.Columns), ascending(o.Columns))
}
