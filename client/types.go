package client

import (
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
)

// The kinds of operations.
const (
	Insert = schema.Insert
	Upsert = schema.Upsert
	Update = schema.Update
	Delete = schema.Delete
)

// ParseType returns the type with the given name: "int64", "unixtime_micros".
func ParseType(name string) (Type, error) { return schema.ParseType(name) }

// Null returns the NULL value.
func Null() Value { return schema.Null() }

// IntValue returns a value for columns of integers, and of times as microseconds since the epoch.
func IntValue(v int64) Value { return schema.IntValue(v) }

// FloatValue returns a value for float and double columns.
func FloatValue(v float64) Value { return schema.FloatValue(v) }

// BoolValue returns a value for bool columns.
func BoolValue(v bool) Value { return schema.BoolValue(v) }

// StringValue returns a value for string and binary columns, with a copy of s.
func StringValue(s string) Value { return schema.StringValue(s) }

// BytesValue returns a value for string and binary columns, which keeps b itself.
func BytesValue(b []byte) Value { return schema.BytesValue(b) }
