package schema

import (
	"bytes"
	"math"
	"slices"
	"sort"

	"github.com/nyaladb/nyala/internal/status"
)

// BoundPredicate is a Predicate made ready for one schema: its values are decoded once, and Matches is a comparison or two. It
// is immutable and safe for concurrent use.
type BoundPredicate struct {
	column int
	col    *Column
	test   test

	// Integers and booleans: matches lo <= cell <= hi, or a member of ints, rising.
	loInt, hiInt int64
	ints         []int64
	// Floating-point numbers: loFloat <= cell < hiFloat, without the upper bound unless hasHiFloat; floats, rising.
	loFloat, hiFloat float64
	hasHiFloat       bool
	floats           []float64
	// 128-bit integers: lo <= cell <= hi; list, rising.
	lo128, hi128 int128
	int128s      []int128
	// Bytes: loBytes <= cell < hiBytes; a nil hiBytes is no bound; list, rising.
	loBytes, hiBytes []byte
	list             [][]byte
}

type test uint8

const (
	testNothing test = iota
	testNull
	testNotNull
	testInt
	testIntList
	testInt128
	testInt128List
	testFloat
	testFloatEqual
	testFloatList
	testBytes
	testBytesEqual
	testBytesList
)

// Bind checks the predicate against a schema. An error is a *status.Error with code InvalidScanSpec (an unknown column, a
// range without bounds, a value of the wrong length), or what was wrong with a constructor's value.
func (p Predicate) Bind(s *Schema) (*BoundPredicate, error) {
	if p.err != nil {
		return nil, p.err
	}
	i := s.IndexOf(p.Column)
	if i < 0 {
		return nil, status.New(status.InvalidScanSpec, "predicate: the table has no column %q", p.Column)
	}
	b := &BoundPredicate{column: i, col: &s.columns[i]}
	if err := p.checkValues(b.col); err != nil {
		return nil, err
	}
	switch p.Kind {
	case PredicateRange:
		b.bindRange(p.Lower, p.Upper)
	case PredicateEquality:
		b.bindEqual(p.Value)
	case PredicateInList:
		b.bindList(p.Values)
	case PredicateIsNull:
		if b.col.Nullable {
			b.test = testNull
		}
	case PredicateIsNotNull:
		b.test = testNotNull
	case PredicateNone:
		return nil, status.New(status.InvalidScanSpec, "the predicate on column %q says nothing", p.Column)
	}
	return b, nil
}

// BindAll binds each of a scan's predicates.
func BindAll(s *Schema, preds []Predicate) ([]*BoundPredicate, error) {
	out := make([]*BoundPredicate, 0, len(preds))
	for _, p := range preds {
		b, err := p.Bind(s)
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}

func (p Predicate) checkValues(c *Column) error {
	check := func(b []byte) error {
		if size := c.Type.Size(); !c.Type.VarLen() && len(b) != size {
			return c.fault(status.InvalidScanSpec, "predicate: its value has %d bytes, want %d", len(b), size)
		}
		return nil
	}
	switch p.Kind {
	case PredicateRange:
		if p.Lower == nil && p.Upper == nil {
			return c.fault(status.InvalidScanSpec, "predicate: a range without bounds")
		}
		for _, b := range [][]byte{p.Lower, p.Upper} {
			if b == nil {
				continue
			}
			if err := check(b); err != nil {
				return err
			}
		}
	case PredicateEquality:
		return check(p.Value)
	case PredicateInList:
		for _, b := range p.Values {
			if err := check(b); err != nil {
				return err
			}
		}
	case PredicateNone, PredicateIsNull, PredicateIsNotNull:
	}
	return nil
}

func (b *BoundPredicate) bindRange(lower, upper []byte) {
	switch b.col.Type.class() {
	case classInt, classBool:
		smallest, largest := b.col.Type.intRange()
		b.test, b.loInt, b.hiInt = testInt, smallest, largest
		if lower != nil {
			b.loInt = b.intOf(lower)
		}
		if upper != nil {
			hi := b.intOf(upper)
			if hi == smallest {
				b.test = testNothing
				return
			}
			b.hiInt = hi - 1
		}
		if b.loInt > b.hiInt {
			b.test = testNothing
		}
	case classInt128:
		b.test, b.lo128, b.hi128 = testInt128, minInt128, maxInt128
		if lower != nil {
			b.lo128 = int128Of(lower)
		}
		if upper != nil {
			hi := int128Of(upper)
			if hi == minInt128 {
				b.test = testNothing
				return
			}
			b.hi128 = hi.prev()
		}
		if b.lo128.compare(b.hi128) > 0 {
			b.test = testNothing
		}
	case classFloat:
		b.test, b.loFloat = testFloat, math.Inf(-1)
		if lower != nil {
			b.loFloat = floatOf(lower)
		}
		if upper != nil {
			b.hiFloat, b.hasHiFloat = floatOf(upper), true
		}
		if math.IsNaN(b.loFloat) || math.IsNaN(b.hiFloat) || b.hasHiFloat && b.loFloat >= b.hiFloat {
			b.test = testNothing
		}
	case classBytes:
		b.test, b.loBytes, b.hiBytes = testBytes, lower, upper
		if upper != nil && bytes.Compare(lower, upper) >= 0 {
			b.test = testNothing
		}
	case classNone:
	}
}

func (b *BoundPredicate) bindEqual(v []byte) {
	switch b.col.Type.class() {
	case classInt, classBool:
		b.test, b.loInt = testInt, b.intOf(v)
		b.hiInt = b.loInt
	case classInt128:
		b.test, b.lo128 = testInt128, int128Of(v)
		b.hi128 = b.lo128
	case classFloat:
		if b.loFloat = floatOf(v); !math.IsNaN(b.loFloat) {
			b.test = testFloatEqual
		}
	case classBytes:
		b.test, b.loBytes = testBytesEqual, v
	case classNone:
	}
}

func (b *BoundPredicate) bindList(values [][]byte) {
	values = slices.Clone(values)
	t := b.col.Type
	if t.class() == classFloat {
		values = slices.DeleteFunc(values, func(v []byte) bool { return math.IsNaN(floatOf(v)) })
	}
	slices.SortFunc(values, t.Compare)
	values = slices.CompactFunc(values, func(x, y []byte) bool { return t.Compare(x, y) == 0 })
	switch {
	case len(values) == 0:
		return
	case len(values) == 1:
		b.bindEqual(values[0])
		return
	}
	switch t.class() {
	case classInt, classBool:
		b.test = testIntList
		for _, v := range values {
			b.ints = append(b.ints, b.intOf(v))
		}
	case classInt128:
		b.test = testInt128List
		for _, v := range values {
			b.int128s = append(b.int128s, int128Of(v))
		}
	case classFloat:
		b.test = testFloatList
		for _, v := range values {
			b.floats = append(b.floats, floatOf(v))
		}
	case classBytes:
		b.test, b.list = testBytesList, values
	case classNone:
	}
}

// intOf reads a cell of an integer or boolean column.
func (b *BoundPredicate) intOf(cell []byte) int64 {
	if b.col.Type == Bool {
		return int64(min(cell[0], 1))
	}
	return intOf(cell)
}

// Column is the position of the predicate's column in the schema.
func (b *BoundPredicate) Column() int { return b.column }

// Nothing says that no cell at all matches: the scan is empty.
func (b *BoundPredicate) Nothing() bool { return b.test == testNothing }

// Matches says whether a cell, given by its value bytes, matches. The cell isn't read if it is NULL.
func (b *BoundPredicate) Matches(cell []byte, null bool) bool {
	if null {
		return b.test == testNull
	}
	switch b.test {
	case testNothing, testNull:
		return false
	case testNotNull:
		return true
	case testInt, testIntList:
		return b.MatchesInt(b.intOf(cell))
	case testFloat, testFloatEqual, testFloatList:
		return b.MatchesFloat(floatOf(cell))
	case testInt128, testInt128List:
		return b.matchesInt128(int128Of(cell))
	case testBytes, testBytesEqual, testBytesList:
		return b.MatchesBytes(cell)
	}
	return false
}

// MatchesInt is Matches for the value of a cell that isn't NULL, in a column of integers, times, dates, small decimals or
// booleans (0 and 1).
func (b *BoundPredicate) MatchesInt(v int64) bool {
	switch b.test {
	case testInt:
		return b.loInt <= v && v <= b.hiInt
	case testIntList:
		_, ok := slices.BinarySearch(b.ints, v)
		return ok
	default:
		return b.test == testNotNull
	}
}

// MatchesFloat is Matches for the value of a cell that isn't NULL, in a column of floating-point numbers.
func (b *BoundPredicate) MatchesFloat(v float64) bool {
	switch b.test {
	case testFloat:
		return b.loFloat <= v && (!b.hasHiFloat || v < b.hiFloat)
	case testFloatEqual:
		return v == b.loFloat
	case testFloatList:
		i := sort.SearchFloat64s(b.floats, v)
		return i < len(b.floats) && b.floats[i] == v
	default:
		return b.test == testNotNull
	}
}

func (b *BoundPredicate) matchesInt128(v int128) bool {
	switch b.test {
	case testInt128:
		return b.lo128.compare(v) <= 0 && v.compare(b.hi128) <= 0
	case testInt128List:
		_, ok := slices.BinarySearchFunc(b.int128s, v, int128.compare)
		return ok
	default:
		return b.test == testNotNull
	}
}

// MatchesBytes is Matches for a cell that isn't NULL, in a column of strings or bytes.
func (b *BoundPredicate) MatchesBytes(v []byte) bool {
	switch b.test {
	case testBytes:
		return bytes.Compare(b.loBytes, v) <= 0 && (b.hiBytes == nil || bytes.Compare(v, b.hiBytes) < 0)
	case testBytesEqual:
		return bytes.Equal(b.loBytes, v)
	case testBytesList:
		_, ok := slices.BinarySearchFunc(b.list, v, bytes.Compare)
		return ok
	default:
		return b.test == testNotNull
	}
}
