package schema

import (
	"bytes"
	"fmt"
	"math"
)

// Value is one cell in memory. The zero Value is NULL. It doesn't know its column: a time, a date, a small decimal's unscaled
// integer are integers, and so on; the Column's methods turn it into bytes or text and back.
//
//	int8 … int64, unixtime_micros, date, decimal32, decimal64    IntValue
//	bool                                                         BoolValue
//	float, double                                                FloatValue
//	string, binary, varchar                                      BytesValue, StringValue
//	decimal128                                                   BytesValue: the 16 bytes of its cell
type Value struct {
	kind  valueKind
	bits  uint64
	bytes []byte
}

type valueKind uint8

const (
	kindNull valueKind = iota
	kindInt
	kindBool
	kindFloat
	kindBytes
)

func (k valueKind) String() string {
	return [...]string{"NULL", "an integer", "a boolean", "a floating-point number", "a string"}[k]
}

// Null returns the NULL value.
func Null() Value { return Value{} }

// IntValue returns an integer.
func IntValue(v int64) Value { return Value{kind: kindInt, bits: uint64(v)} }

// FloatValue returns a floating-point number.
func FloatValue(v float64) Value { return Value{kind: kindFloat, bits: math.Float64bits(v)} }

// BoolValue returns a boolean.
func BoolValue(v bool) Value {
	if v {
		return Value{kind: kindBool, bits: 1}
	}
	return Value{kind: kindBool}
}

// BytesValue returns a value of variable length, which keeps b itself.
func BytesValue(b []byte) Value { return Value{kind: kindBytes, bytes: b} }

// StringValue returns a value of variable length with a copy of s.
func StringValue(s string) Value { return Value{kind: kindBytes, bytes: []byte(s)} }

// IsNull says whether v is NULL.
func (v Value) IsNull() bool { return v.kind == kindNull }

// Int returns an integer's value, and what a boolean's cell holds; 0 for any other.
func (v Value) Int() int64 {
	if v.kind == kindFloat {
		return 0
	}
	return int64(v.bits)
}

// Float returns a floating-point number's value, 0 for any other.
func (v Value) Float() float64 {
	if v.kind != kindFloat {
		return 0
	}
	return math.Float64frombits(v.bits)
}

// Bool returns a boolean's value, false for any other.
func (v Value) Bool() bool { return v.kind == kindBool && v.bits != 0 }

// Bytes returns the bytes of a value of variable length, nil for any other. They are the value's own, not a copy.
func (v Value) Bytes() []byte { return v.bytes }

// Equal says whether both are the same value: NULL equals NULL, floating-point numbers compare by their bits.
func (v Value) Equal(o Value) bool {
	return v.kind == o.kind && v.bits == o.bits && bytes.Equal(v.bytes, o.bytes)
}

// String is for messages and tests; Column.FormatText gives the text form.
func (v Value) String() string {
	switch v.kind {
	case kindInt:
		return fmt.Sprint(v.Int())
	case kindBool:
		return fmt.Sprint(v.Bool())
	case kindFloat:
		return fmt.Sprint(v.Float())
	case kindBytes:
		return fmt.Sprintf("%q", v.bytes)
	case kindNull:
	}
	return "NULL"
}
