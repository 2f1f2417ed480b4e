package schema

import (
	"bytes"
	"cmp"
	"fmt"
	"math"

	"pgregory.net/rapid"
)

// Generators of the property tests. Values are drawn from a small domain half of the time, so that equal values, prefixes and
// neighbours come up, and their ends are not rare.

var (
	allTypes = []Type{
		Int8, Int16, Int32, Int64, String, Bool, Float, Double, Binary, UnixtimeMicros,
		Decimal32, Decimal64, Decimal128, Varchar, Date,
	}
	keyTypes = []Type{Int8, Int16, Int32, Int64, String, Binary, UnixtimeMicros, Decimal32, Decimal64, Decimal128, Varchar, Date}
)

// drawSchema draws a schema of any types: 1 to 4 key columns and up to 9 others.
func drawSchema(t *rapid.T) *Schema {
	var columns []Column
	for i := range rapid.IntRange(1, 4).Draw(t, "key columns") {
		c := testColumn(fmt.Sprintf("k%d", i), rapid.SampledFrom(keyTypes).Draw(t, "key type"))
		c.Key = true
		columns = append(columns, c)
	}
	nullables := rapid.Bool().Draw(t, "nullables")
	for i := range rapid.IntRange(0, 9).Draw(t, "other columns") {
		c := testColumn(fmt.Sprintf("v%d", i), rapid.SampledFrom(allTypes).Draw(t, "type"))
		c.Nullable = nullables && rapid.Bool().Draw(t, "nullable")
		columns = append(columns, c)
	}
	for i := range columns {
		columns[i].ID = ColumnID(3 * i)
		if rapid.IntRange(0, 3).Draw(t, "default") == 0 {
			b, err := columns[i].ValueBytes(drawValue(t, &columns[i]))
			if err != nil {
				t.Fatal(err)
			}
			columns[i].WriteDefault = b
		}
	}
	s, err := New(columns, 5, ColumnID(3*len(columns)))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// drawValue draws a value of the column that isn't NULL.
func drawValue(t *rapid.T, c *Column) Value {
	small := rapid.Bool().Draw(t, "small")
	switch c.Type.class() {
	case classInt:
		lo, hi := c.Type.intRange()
		if small {
			return IntValue(rapid.SampledFrom([]int64{lo, lo + 1, -1, 0, 1, 2, hi - 1, hi}).Draw(t, c.Name))
		}
		return IntValue(rapid.Int64Range(lo, hi).Draw(t, c.Name))
	case classBool:
		return BoolValue(rapid.Bool().Draw(t, c.Name))
	case classFloat:
		v := rapid.Float64().Draw(t, c.Name)
		if small {
			v = rapid.SampledFrom([]float64{math.Inf(-1), -1, math.Copysign(0, -1), 0, 0.5, 1, math.Inf(1), math.NaN()}).Draw(t, c.Name)
		}
		if c.Type == Float {
			v = float64(float32(v))
		}
		return FloatValue(v)
	case classInt128:
		if small {
			v := rapid.SampledFrom([]int128{
				minInt128, minInt128.next(),
				{-1, math.MaxUint64},
				{},
				{0, 1},
				{0, math.MaxUint64},
				{1, 0},
				maxInt128.prev(), maxInt128,
			}).Draw(t, c.Name)
			return BytesValue(v.append(nil))
		}
		return BytesValue(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, c.Name))
	case classBytes:
		if small {
			return BytesValue(rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 2, 'a', 0xff}), 0, 4).Draw(t, c.Name))
		}
		return BytesValue(rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, c.Name))
	case classNone:
	}
	t.Fatalf("%v has no class", c.Type)
	return Value{}
}

// drawRow draws a value for every column, NULL in some of the nullable ones.
func drawRow(t *rapid.T, s *Schema) []Value {
	row := make([]Value, s.NumColumns())
	for i := range row {
		if c := s.Column(i); !c.Nullable || rapid.IntRange(0, 3).Draw(t, "null") > 0 {
			row[i] = drawValue(t, c)
		}
	}
	return row
}

// compareValues is the model of the order of values, by another way than the package's own.
func compareValues(c *Column, a, b Value) int {
	switch c.Type {
	case Decimal128:
		return int128Of(a.Bytes()).big().Cmp(int128Of(b.Bytes()).big())
	case String, Binary, Varchar:
		return bytes.Compare(a.Bytes(), b.Bytes())
	default:
		return cmp.Compare(a.Int(), b.Int())
	}
}

func compareKeys(s *Schema, a, b []Value) int {
	for i := range s.NumKeyColumns() {
		if d := compareValues(s.Column(i), a[i], b[i]); d != 0 {
			return d
		}
	}
	return 0
}

func sign(n int) int { return cmp.Compare(n, 0) }
