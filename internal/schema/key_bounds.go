package schema

import "slices"

// interval is what a set of predicates leaves of a column's values: lo <= cell, and cell <= hi, or cell < hi if hiOpen. A nil
// bound is absent.
type interval struct {
	lo, hi []byte
	hiOpen bool
}

// KeyBounds returns encoded primary keys between which all rows lie that match every predicate: start <= key < stop, nil
// meaning no bound. None says that no row at all can match. The predicates must be bound to this schema; they still have to be
// applied to each row.
//
// Lower bounds go into start column by column as long as each key column has one: a row with a greater value in an earlier
// column stands behind start whatever follows. Likewise inclusive upper bounds go into stop; the first exclusive one ends it,
// and where a column has none, stop is the first key that doesn't begin with what was gathered so far.
func (s *Schema) KeyBounds(preds []*BoundPredicate) (start, stop []byte, none bool) {
	left, possible := intervals(preds)
	if !possible {
		return nil, nil, true
	}
	positions := make([]int, s.numKey)
	for i := range positions {
		positions[i] = i
	}
	return s.startKey(left, positions), s.stopKey(left, positions), false
}

// intervals returns what the predicates leave of each column that they bound, by position. It says false if that is nothing
// for any column.
func intervals(preds []*BoundPredicate) (map[int]interval, bool) {
	columns := make(map[int]interval)
	for _, p := range preds {
		if p.test == testNothing {
			return nil, false
		}
		columns[p.column] = columns[p.column].narrow(p.col.Type, p.interval())
	}
	for _, p := range preds {
		iv, possible := p.narrowToList(columns[p.column])
		if !possible || iv.empty(p.col.Type) {
			return nil, false
		}
		columns[p.column] = iv
	}
	return columns, true
}

// startKey encodes the lower bounds of the columns at the positions, which are the components of a key.
func (s *Schema) startKey(columns map[int]interval, positions []int) []byte {
	var key []byte
	for k, i := range positions {
		lo := columns[i].lo
		if lo == nil {
			break
		}
		key = appendKeyCell(key, s.columns[i].Type, lo, k == len(positions)-1)
	}
	return key
}

func (s *Schema) stopKey(columns map[int]interval, positions []int) []byte {
	var key []byte
	for k, i := range positions {
		iv := columns[i]
		if iv.hi == nil {
			return prefixSuccessor(key)
		}
		key = appendKeyCell(key, s.columns[i].Type, iv.hi, k == len(positions)-1)
		if iv.hiOpen {
			return key
		}
	}
	return append(key, 0)
}

// prefixSuccessor returns the smallest key that is greater than every key beginning with prefix, nil if there is none. It
// may overwrite prefix.
func prefixSuccessor(prefix []byte) []byte {
	for len(prefix) > 0 {
		last := len(prefix) - 1
		if prefix[last] < 0xff {
			prefix[last]++
			return prefix
		}
		prefix = prefix[:last]
	}
	return nil
}

// narrow returns what is left of both intervals.
func (iv interval) narrow(t Type, o interval) interval {
	if iv.lo == nil || o.lo != nil && t.Compare(o.lo, iv.lo) > 0 {
		iv.lo = o.lo
	}
	if o.hi == nil {
		return iv
	}
	if iv.hi == nil {
		iv.hi, iv.hiOpen = o.hi, o.hiOpen
		return iv
	}
	if c := t.Compare(o.hi, iv.hi); c < 0 || c == 0 && o.hiOpen {
		iv.hi, iv.hiOpen = o.hi, o.hiOpen
	}
	return iv
}

func (iv interval) empty(t Type) bool {
	if iv.lo == nil || iv.hi == nil {
		return false
	}
	c := t.Compare(iv.lo, iv.hi)
	return c > 0 || c == 0 && iv.hiOpen
}

func (iv interval) contains(t Type, v []byte) bool {
	if iv.lo != nil && t.Compare(v, iv.lo) < 0 {
		return false
	}
	if iv.hi == nil {
		return true
	}
	c := t.Compare(v, iv.hi)
	return c < 0 || c == 0 && !iv.hiOpen
}

// interval is the predicate's own; it has no bounds where the predicate isn't one that bounds. The type's own ends count as
// bounds only where they make a single value, with which a key's next column still tells rows apart.
func (b *BoundPredicate) interval() interval {
	closed := func(lo, hi []byte) interval { return interval{lo: lo, hi: hi} }
	switch b.test {
	case testInt:
		var iv interval
		smallest, largest := b.col.Type.intRange()
		single := b.loInt == b.hiInt
		if single || b.loInt > smallest {
			iv.lo = b.intCell(b.loInt)
		}
		if single || b.hiInt < largest {
			iv.hi = b.intCell(b.hiInt)
		}
		return iv
	case testIntList:
		return closed(b.intCell(b.ints[0]), b.intCell(b.ints[len(b.ints)-1]))
	case testInt128:
		var iv interval
		single := b.lo128 == b.hi128
		if single || b.lo128 != minInt128 {
			iv.lo = b.lo128.append(nil)
		}
		if single || b.hi128 != maxInt128 {
			iv.hi = b.hi128.append(nil)
		}
		return iv
	case testInt128List:
		return closed(b.int128s[0].append(nil), b.int128s[len(b.int128s)-1].append(nil))
	case testBytes:
		// What is less than x 00 is x or less.
		if n := len(b.hiBytes); n > 0 && b.hiBytes[n-1] == 0 {
			return closed(b.loBytes, b.hiBytes[:n-1])
		}
		return interval{lo: b.loBytes, hi: b.hiBytes, hiOpen: true}
	case testBytesEqual:
		v := nonNil(b.loBytes)
		return closed(v, v)
	case testBytesList:
		return closed(nonNil(b.list[0]), b.list[len(b.list)-1])
	case testNothing, testNull, testNotNull, testFloat, testFloatEqual, testFloatList:
		// Floating-point columns are in no key, and a conflict on one is found row by row.
	}
	return interval{}
}

func nonNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

func (b *BoundPredicate) intCell(v int64) []byte {
	return appendLittleEndian(nil, uint64(v), b.col.Type.Size())
}

// narrowToList takes the members of a list predicate into account that lie within what the column's predicates left. It says
// false if none does.
func (b *BoundPredicate) narrowToList(iv interval) (interval, bool) {
	members := b.members()
	if members == nil {
		return iv, true
	}
	members = slices.DeleteFunc(members, func(v []byte) bool { return !iv.contains(b.col.Type, v) })
	if len(members) == 0 {
		return iv, false
	}
	return interval{lo: nonNil(members[0]), hi: nonNil(members[len(members)-1])}, true
}

// members returns a list predicate's values in rising order, in a slice of the caller's; nil: it isn't one.
func (b *BoundPredicate) members() [][]byte {
	var members [][]byte
	switch b.test {
	case testIntList:
		for _, v := range b.ints {
			members = append(members, b.intCell(v))
		}
	case testInt128List:
		for _, v := range b.int128s {
			members = append(members, v.append(nil))
		}
	case testBytesList:
		members = slices.Clone(b.list)
	default:
	}
	return members
}
