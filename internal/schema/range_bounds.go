package schema

import (
	"bytes"
	"slices"

	"github.com/nyaladb/nyala/internal/status"
)

// DecodeRangeBounds reads the range bounds and split rows of a new table, which have the layout of row operations but set
// only range columns: docs/format/rows.md. Bounds come in pairs, a lower directly followed by its upper. Exclusive lower and
// inclusive upper bounds are turned into the ordinary kind. The result has encoded range keys; splits are in rising order.
//
// A fault is a *status.Error: InvalidArgument, or Corruption where the bytes can't be read.
func (ps *PartitionSchema) DecodeRangeBounds(s *Schema, rows, indirect []byte) (ranges []RangeWithHash, splits [][]byte, err error) {
	d := NewOpsDecoder(s, rows, indirect)
	d.bounds = true
	var lower *RangeWithHash // waits for its upper
	for {
		op, err := d.Next()
		if err != nil {
			return nil, nil, err
		}
		if op == nil {
			break
		}
		bound, err := ps.rangeBoundOf(op)
		if err != nil {
			return nil, nil, err
		}
		isUpper := op.Type == RangeUpperBound || op.Type == InclusiveRangeUpperBound
		if isUpper != (lower != nil) {
			return nil, nil, op.boundFault("want a lower bound and directly after it its upper bound")
		}
		switch {
		case op.Type == SplitRow:
			splits = append(splits, bound)
		case lower == nil:
			lower = &RangeWithHash{Lower: bound}
		default:
			lower.Upper = bound
			ranges, lower = append(ranges, *lower), nil
		}
	}
	if lower != nil {
		return nil, nil, status.New(status.InvalidArgument, "the last lower bound has no upper bound")
	}
	slices.SortFunc(splits, bytes.Compare)
	return ranges, splits, ps.ValidateRanges(s, ranges)
}

func (op *DecodedOp) boundFault(why string) *status.Error {
	return status.New(status.InvalidArgument, "%v, number %d: %s", op.Type, op.Index, why)
}

// rangeBoundOf encodes one bound; the empty key is unbounded.
func (ps *PartitionSchema) rangeBoundOf(op *DecodedOp) ([]byte, error) {
	s := op.schema
	if op.RowError != nil {
		return nil, op.boundFault(op.RowError.Msg)
	}
	for i := range s.columns {
		if op.IsSet(i) && !slices.Contains(ps.Range, s.columns[i].ID) {
			return nil, op.boundFault("column \"" + s.columns[i].Name + "\" isn't a range column")
		}
	}
	positions := positionsOf(s, ps.Range)
	cells := make([][]byte, len(positions)) // nil: unset
	for k, i := range positions {
		if op.IsSet(i) {
			cells[k] = nonNil(op.Cell(i))
		}
	}
	key, fault := boundKey(s, positions, op.Type, cells)
	if fault != "" {
		return nil, op.boundFault(fault)
	}
	return key, nil
}

// boundKey encodes the bound that the cells of the range columns make, nil ones being unset, or says what is wrong with it. It
// may overwrite cells.
func boundKey(s *Schema, positions []int, kind OpType, cells [][]byte) (key []byte, fault string) {
	unset := !slices.ContainsFunc(cells, func(cell []byte) bool { return cell != nil })
	switch kind {
	case SplitRow:
		if unset {
			return nil, "it sets no column"
		}
	case ExclusiveRangeLowerBound:
		if !incrementCells(s, positions, cells) {
			return nil, "no row lies above it"
		}
		unset = false
	case InclusiveRangeUpperBound:
		unset = unset || !incrementCells(s, positions, cells)
	default:
	}
	if unset {
		return []byte{}, ""
	}
	for k, i := range positions {
		t := s.columns[i].Type
		cell := cells[k]
		if cell == nil {
			cell = t.minimum()
		}
		key = appendKeyCell(key, t, cell, k == len(positions)-1)
	}
	return key, ""
}

// incrementCells turns the cells into the next key: the last column's next value, and where it has none that column unset and
// the one before it instead. It says false if no key comes after.
func incrementCells(s *Schema, positions []int, cells [][]byte) bool {
	for k := len(positions) - 1; k >= 0; k-- {
		t := s.columns[positions[k]].Type
		if cells[k] == nil {
			cells[k] = t.minimum()
		}
		if next, ok := t.successor(cells[k]); ok {
			cells[k] = next
			return true
		}
		cells[k] = nil
	}
	return false
}

// minimum is the value that an unset column of a bound stands for.
func (t Type) minimum() []byte {
	switch t.class() {
	case classInt:
		if t == Date {
			return appendLittleEndian(nil, uint64(int64(minDateDays)&0xffffffff), 4)
		}
		smallest, _ := t.intRange()
		return appendLittleEndian(nil, uint64(smallest), t.Size())
	case classInt128:
		return minInt128.append(nil)
	case classBytes, classNone, classBool, classFloat:
	}
	return []byte{}
}

// SplitRanges cuts ranges, or the unbounded one if there are none, at the split points, which are encoded range keys. A split
// that is no range's inner point is an InvalidArgument: it would leave an empty range.
func SplitRanges(ranges []RangeWithHash, splits [][]byte) ([]RangeWithHash, error) {
	if len(ranges) == 0 {
		ranges = []RangeWithHash{{}}
	}
	ranges = slices.Clone(ranges)
	for _, split := range splits {
		i := slices.IndexFunc(ranges, func(r RangeWithHash) bool { return r.contains(split) && !bytes.Equal(r.Lower, split) })
		if i < 0 {
			return nil, status.New(status.InvalidArgument, "the split %x repeats another, equals a bound or lies outside of all ranges", split)
		}
		above := ranges[i]
		above.Lower = split
		ranges[i].Upper = split
		ranges = slices.Insert(ranges, i+1, above)
	}
	return ranges, nil
}
