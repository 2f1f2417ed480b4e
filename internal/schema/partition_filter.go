package schema

import (
	"bytes"
	"slices"
)

// maxHashCombinations bounds the values that a PartitionFilter hashes for one dimension; with more, it passes every bucket.
const maxHashCombinations = 1024

// PartitionFilter says which partitions a scan has to ask: those that may hold a row that matches its predicates. It is
// immutable and safe for concurrent use.
type PartitionFilter struct {
	ps   *PartitionSchema
	none bool
	// Range keys of matching rows lie in [start, stop), nil meaning no bound.
	start, stop []byte
	// buckets holds the possible buckets of each of the table's hash dimensions, custom those of each custom range; a nil list
	// is every bucket.
	buckets [][]uint32
	custom  [][][]uint32
}

// Filter makes a filter for a scan's predicates, which must be bound to the table's schema.
func (ps *PartitionSchema) Filter(s *Schema, preds []*BoundPredicate) *PartitionFilter {
	f := &PartitionFilter{ps: ps}
	left, possible := intervals(preds)
	if !possible {
		f.none = true
		return f
	}
	if len(ps.Range) > 0 {
		positions := positionsOf(s, ps.Range)
		f.start, f.stop = s.startKey(left, positions), s.stopKey(left, positions)
	}
	members := membersOf(preds, left)
	f.buckets = possibleBuckets(s, ps.Hash, members)
	for i := range ps.CustomRanges {
		f.custom = append(f.custom, possibleBuckets(s, ps.dimensionsOf(&ps.CustomRanges[i]), members))
	}
	return f
}

// Narrow returns a filter that also leaves out what holds no row with start <= key < stop, encoded primary keys of which the empty
// one is no bound. It helps where the range columns are the first ones of the key.
func (f *PartitionFilter) Narrow(s *Schema, start, stop []byte) (*PartitionFilter, error) {
	n := *f
	for k, i := range positionsOf(s, f.ps.Range) {
		if i != k {
			return &n, nil
		}
	}
	if len(f.ps.Range) == 0 {
		return &n, nil
	}
	if len(start) > 0 {
		key, _, err := f.ps.rangeKeyOf(s, start)
		if err != nil {
			return nil, err
		}
		if bytes.Compare(key, n.start) > 0 {
			n.start = key
		}
	}
	if len(stop) > 0 {
		key, least, err := f.ps.rangeKeyOf(s, stop)
		if err != nil {
			return nil, err
		}
		if !least {
			key = append(key, 0) // keys below stop may share its range key
		}
		if n.stop == nil || bytes.Compare(key, n.stop) < 0 {
			n.stop = key
		}
	}
	return &n, nil
}

// rangeKeyOf returns the range key of an encoded primary key that begins with the range columns, and whether the columns behind them
// have their least values.
func (ps *PartitionSchema) rangeKeyOf(s *Schema, primaryKey []byte) (key []byte, least bool, err error) {
	values, err := s.DecodeKey(nil, primaryKey)
	if err != nil {
		return nil, false, err
	}
	cells := s.CellsOf(values)
	least = true
	for i := len(ps.Range); i < s.numKey; i++ {
		least = least && bytes.Equal(cells(i), s.columns[i].Type.minimum())
	}
	return ps.RangeKey(s, cells, nil), least, nil
}

// MayContain says whether the partition may hold a matching row.
func (f *PartitionFilter) MayContain(p *Partition) bool {
	if f.none {
		return false
	}
	lower, upper := p.RangeStart(), p.RangeEnd()
	if f.stop != nil && bytes.Compare(lower, f.stop) >= 0 || len(upper) > 0 && bytes.Compare(upper, f.start) <= 0 {
		return false
	}
	buckets := f.buckets
	for i := range f.ps.CustomRanges {
		if f.ps.CustomRanges[i].contains(lower) {
			buckets = f.custom[i]
		}
	}
	for i, possible := range buckets {
		if possible != nil && i < len(p.Buckets) && !slices.Contains(possible, p.Buckets[i]) {
			return false
		}
	}
	return true
}

func positionsOf(s *Schema, ids []ColumnID) []int {
	positions := make([]int, len(ids))
	for k, id := range ids {
		positions[k] = s.IndexOfID(id)
	}
	return positions
}

// membersOf returns, by position, the values of each column to which an equality or a list confines it.
func membersOf(preds []*BoundPredicate, left map[int]interval) map[int][][]byte {
	members := make(map[int][][]byte)
	for i, iv := range left {
		if iv.lo != nil && iv.hi != nil && !iv.hiOpen && bytes.Equal(iv.lo, iv.hi) {
			members[i] = [][]byte{iv.lo}
		}
	}
	for _, p := range preds {
		list := p.members()
		if list == nil {
			continue
		}
		list = slices.DeleteFunc(list, func(v []byte) bool { return !left[p.column].contains(p.col.Type, v) })
		if have, ok := members[p.column]; !ok || len(list) < len(have) {
			members[p.column] = list
		}
	}
	return members
}

// possibleBuckets returns the buckets of each dimension that the members can hash to, nil for a dimension with a column that
// isn't confined or with too many combinations.
func possibleBuckets(s *Schema, dims []HashDimension, members map[int][][]byte) [][]uint32 {
	out := make([][]uint32, len(dims))
	for d := range dims {
		positions := positionsOf(s, ascending(dims[d].Columns))
		combinations := 1
		for _, i := range positions {
			combinations = min(combinations*len(members[i]), maxHashCombinations+1)
		}
		if combinations == 0 || combinations > maxHashCombinations {
			continue
		}
		inputs := [][]byte{nil}
		for k, i := range positions {
			var longer [][]byte
			for _, in := range inputs {
				for _, v := range members[i] {
					longer = append(longer, appendKeyCell(slices.Clone(in), s.columns[i].Type, v, k == len(positions)-1))
				}
			}
			inputs = longer
		}
		for _, in := range inputs {
			if b := dims[d].bucket(in); !slices.Contains(out[d], b) {
				out[d] = append(out[d], b)
			}
		}
	}
	return out
}
