package schema

import (
	"fmt"
	"math"
	"strings"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/status"
)

// PredicateKind says what a Predicate tests.
type PredicateKind uint8

// The kinds of predicates. NULL cells match PredicateIsNull alone.
const (
	PredicateNone PredicateKind = iota
	// PredicateRange holds cells in [Lower, Upper); a nil bound is absent.
	PredicateRange
	// PredicateEquality holds cells that equal Value.
	PredicateEquality
	// PredicateInList holds cells that equal one of Values; none: nothing matches.
	PredicateInList
	PredicateIsNull
	PredicateIsNotNull
)

// Predicate is a condition on one column, which it names. All of a scan's predicates must hold. Values are value bytes.
// Floating-point numbers compare as IEEE 754 has it: -0 equals 0, NaN matches no range, no equality and no list.
type Predicate struct {
	Column       string
	Kind         PredicateKind
	Lower, Upper []byte
	Value        []byte
	Values       [][]byte

	// err is what was wrong with the value given to a constructor; Bind returns it.
	err error
}

// Equal is: the cell equals v.
func Equal(c *Column, v Value) Predicate {
	b, err := c.ValueBytes(v)
	return Predicate{Column: c.Name, Kind: PredicateEquality, Value: b, err: err}
}

// In is: the cell equals one of the values.
func In(c *Column, values ...Value) Predicate {
	p := Predicate{Column: c.Name, Kind: PredicateInList}
	for _, v := range values {
		b, err := c.ValueBytes(v)
		if err != nil {
			p.err = err
			break
		}
		p.Values = append(p.Values, b)
	}
	return p
}

// Less is: the cell is less than v.
func Less(c *Column, v Value) Predicate {
	b, err := c.ValueBytes(v)
	return Predicate{Column: c.Name, Kind: PredicateRange, Upper: b, err: err}
}

// GreaterEqual is: the cell is v or greater.
func GreaterEqual(c *Column, v Value) Predicate {
	b, err := c.ValueBytes(v)
	return Predicate{Column: c.Name, Kind: PredicateRange, Lower: b, err: err}
}

// LessEqual is: the cell is v or less, which is to say less than v's successor. If v is the type's largest, every cell that
// isn't NULL matches.
func LessEqual(c *Column, v Value) Predicate {
	b, err := c.ValueBytes(v)
	if err != nil {
		return Predicate{Column: c.Name, Kind: PredicateRange, err: err}
	}
	if next, ok := c.Type.successor(b); ok {
		return Predicate{Column: c.Name, Kind: PredicateRange, Upper: next}
	}
	if c.Type.class() == classFloat {
		// All numbers, but not NaN; and nothing at all where v is NaN itself.
		if math.IsNaN(floatOf(b)) {
			return Predicate{Column: c.Name, Kind: PredicateInList}
		}
		return GreaterEqual(c, FloatValue(math.Inf(-1)))
	}
	return IsNotNull(c)
}

// Greater is: the cell is greater than v. If v is the type's largest, nothing matches.
func Greater(c *Column, v Value) Predicate {
	b, err := c.ValueBytes(v)
	if err != nil {
		return Predicate{Column: c.Name, Kind: PredicateRange, err: err}
	}
	if next, ok := c.Type.successor(b); ok {
		return Predicate{Column: c.Name, Kind: PredicateRange, Lower: next}
	}
	return Predicate{Column: c.Name, Kind: PredicateInList}
}

// IsNull is: the cell is NULL.
func IsNull(c *Column) Predicate { return Predicate{Column: c.Name, Kind: PredicateIsNull} }

// IsNotNull is: the cell isn't NULL.
func IsNotNull(c *Column) Predicate { return Predicate{Column: c.Name, Kind: PredicateIsNotNull} }

// successor returns the smallest value of the type that is greater than the one with value bytes b, and false if there is
// none (also for NaN).
func (t Type) successor(b []byte) ([]byte, bool) {
	switch t.class() {
	case classInt:
		v := intOf(b)
		if v == math.MaxInt64>>(64-8*len(b)) {
			return nil, false
		}
		return appendLittleEndian(nil, uint64(v+1), len(b)), true
	case classInt128:
		v := int128Of(b)
		if v == maxInt128 {
			return nil, false
		}
		return v.next().append(nil), true
	case classBool:
		if b[0] != 0 {
			return nil, false
		}
		return []byte{1}, true
	case classFloat:
		return floatSuccessor(b)
	case classBytes:
		return append(b[:len(b):len(b)], 0), true
	case classNone:
	}
	return nil, false
}

func floatSuccessor(b []byte) ([]byte, bool) {
	v := floatOf(b)
	if math.IsNaN(v) || math.IsInf(v, 1) {
		return nil, false
	}
	if len(b) == 4 {
		next := math.Nextafter32(float32(v), float32(math.Inf(1)))
		return appendLittleEndian(nil, uint64(math.Float32bits(next)), 4), true
	}
	return appendLittleEndian(nil, math.Float64bits(math.Nextafter(v, math.Inf(1))), 8), true
}

// PredicateFromProto turns a message into a predicate, which shares its bytes. Bind does the checks that need the schema. An
// error is a *status.Error with code InvalidScanSpec.
func PredicateFromProto(m *nyalav1.Predicate) (Predicate, error) {
	p := Predicate{Column: m.GetColumn()}
	switch k := m.GetKind().(type) {
	case *nyalav1.Predicate_Range_:
		p.Kind, p.Lower, p.Upper = PredicateRange, k.Range.GetLower(), k.Range.GetUpper()
	case *nyalav1.Predicate_Equality_:
		p.Kind, p.Value = PredicateEquality, k.Equality.GetValue()
	case *nyalav1.Predicate_InList_:
		p.Kind, p.Values = PredicateInList, k.InList.GetValues()
	case *nyalav1.Predicate_IsNull_:
		p.Kind = PredicateIsNull
	case *nyalav1.Predicate_IsNotNull_:
		p.Kind = PredicateIsNotNull
	default:
		return p, status.New(status.InvalidScanSpec, "the predicate on column %q says nothing", p.Column)
	}
	return p, nil
}

// ToProto returns the predicate as a message, which shares its bytes.
func (p Predicate) ToProto() *nyalav1.Predicate {
	m := &nyalav1.Predicate{Column: p.Column}
	switch p.Kind {
	case PredicateRange:
		m.Kind = &nyalav1.Predicate_Range_{Range: &nyalav1.Predicate_Range{Lower: p.Lower, Upper: p.Upper}}
	case PredicateEquality:
		m.Kind = &nyalav1.Predicate_Equality_{Equality: &nyalav1.Predicate_Equality{Value: p.Value}}
	case PredicateInList:
		m.Kind = &nyalav1.Predicate_InList_{InList: &nyalav1.Predicate_InList{Values: p.Values}}
	case PredicateIsNull:
		m.Kind = &nyalav1.Predicate_IsNull_{IsNull: &nyalav1.Predicate_IsNull{}}
	case PredicateIsNotNull:
		m.Kind = &nyalav1.Predicate_IsNotNull_{IsNotNull: &nyalav1.Predicate_IsNotNull{}}
	case PredicateNone:
	}
	return m
}

// Format is the predicate as a where clause has it, for messages; s must have the column.
func (p Predicate) Format(s *Schema) string {
	i := s.IndexOf(p.Column)
	if i < 0 {
		return fmt.Sprintf("predicate on unknown column %q", p.Column)
	}
	c, name := &s.columns[i], quoteIdentifier(p.Column)
	literal := func(b []byte) string {
		v, err := c.ValueFromBytes(b)
		if err != nil {
			return fmt.Sprintf("%x", b)
		}
		return c.formatLiteral(v)
	}
	switch p.Kind {
	case PredicateRange:
		var parts []string
		if p.Lower != nil {
			parts = append(parts, name+" >= "+literal(p.Lower))
		}
		if p.Upper != nil {
			parts = append(parts, name+" < "+literal(p.Upper))
		}
		return strings.Join(parts, " AND ")
	case PredicateEquality:
		return name + " = " + literal(p.Value)
	case PredicateInList:
		values := make([]string, len(p.Values))
		for i, v := range p.Values {
			values[i] = literal(v)
		}
		return name + " IN (" + strings.Join(values, ", ") + ")"
	case PredicateIsNull:
		return name + " IS NULL"
	case PredicateIsNotNull:
		return name + " IS NOT NULL"
	case PredicateNone:
	}
	return "nothing"
}
