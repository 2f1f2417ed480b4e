package client

import (
	"math/big"

	"github.com/nyaladb/nyala/internal/schema"
)

// What a program needs to describe columns and values, under names that it can import.
type (
	// Type is a column's data type.
	Type = schema.Type
	// Column describes one column.
	Column = schema.Column
	// ColumnID names a column of a table for good.
	ColumnID = schema.ColumnID
	// Schema is a table's columns, key columns first, at one version.
	Schema = schema.Schema
	// PartitionSchema says how a table's rows are divided among its tablets.
	PartitionSchema = schema.PartitionSchema
	// Value is one cell; the zero Value is NULL.
	Value = schema.Value
	// Predicate is a condition on one column; Table.Predicate makes one.
	Predicate = schema.Predicate
	// OpType is what an Operation does.
	OpType = schema.OpType
)

// The types of columns.
const (
	Int8           = schema.Int8
	Int16          = schema.Int16
	Int32          = schema.Int32
	Int64          = schema.Int64
	String         = schema.String
	Bool           = schema.Bool
	Float          = schema.Float
	Double         = schema.Double
	Binary         = schema.Binary
	UnixtimeMicros = schema.UnixtimeMicros
	// Decimal32 has a Precision of 1 to 9 digits, Decimal64 10 to 18, Decimal128 19 to 38; DecimalType chooses. Scale of them
	// stand behind the point.
	Decimal32  = schema.Decimal32
	Decimal64  = schema.Decimal64
	Decimal128 = schema.Decimal128
	// Varchar is a string of at most Length characters: longer ones are cut when they are set.
	Varchar = schema.Varchar
	// Date is a day from 0001-01-01 to 9999-12-31.
	Date = schema.Date
)

// The kinds of operations.
const (
	Insert = schema.Insert
	Upsert = schema.Upsert
	Update = schema.Update
	Delete = schema.Delete
	// With IGNORE a row that is there already, or isn't, is no error: the operation then changes nothing.
	InsertIgnore = schema.InsertIgnore
	UpsertIgnore = schema.UpsertIgnore
	UpdateIgnore = schema.UpdateIgnore
	DeleteIgnore = schema.DeleteIgnore
)

// DecimalType returns the decimal type for a precision, which is 1 to 38.
func DecimalType(precision int) Type {
	switch {
	case precision <= 9:
		return Decimal32
	case precision <= 18:
		return Decimal64
	default:
		return Decimal128
	}
}

// Decimal is the number Unscaled / 10^Scale, exactly: a value for decimal columns of any scale that can hold it.
type Decimal struct {
	Unscaled *big.Int
	Scale    int
}

// NewDecimal returns unscaled / 10^scale.
func NewDecimal(unscaled int64, scale int) Decimal {
	return Decimal{Unscaled: big.NewInt(unscaled), Scale: scale}
}

// ParseType returns the type with the given name: "int64", "unixtime_micros".
func ParseType(name string) (Type, error) { return schema.ParseType(name) }

// Null returns the NULL value.
func Null() Value { return schema.Null() }

// IntValue returns a value for columns of integers, of times as microseconds and dates as days since the epoch, and of decimals
// of up to 18 digits as their unscaled integers.
func IntValue(v int64) Value { return schema.IntValue(v) }

// FloatValue returns a value for float and double columns.
func FloatValue(v float64) Value { return schema.FloatValue(v) }

// BoolValue returns a value for bool columns.
func BoolValue(v bool) Value { return schema.BoolValue(v) }

// StringValue returns a value for string, varchar and binary columns, with a copy of s.
func StringValue(s string) Value { return schema.StringValue(s) }

// BytesValue returns a value for string, varchar and binary columns, which keeps b itself.
func BytesValue(b []byte) Value { return schema.BytesValue(b) }
