package client

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/nyaladb/nyala/internal/schema"
)

// typesTable is a table that exists in this process alone, with a column of each type, nullable but for the key.
func typesTable(tb testing.TB) *Table {
	columns := []Column{{Name: "key", Type: Int64, Key: true}}
	for _, t := range []Type{Int8, Int16, Int32, Int64, String, Bool, Float, Double, Binary, UnixtimeMicros} {
		columns = append(columns, Column{Name: t.String(), Type: t, Nullable: true})
	}
	columns = append(columns,
		Column{Name: "decimal", Type: DecimalType(4), Precision: 4, Scale: 2, Nullable: true},
		Column{Name: "decimal64", Type: DecimalType(18), Precision: 18, Scale: 18, Nullable: true},
		Column{Name: "decimal128", Type: DecimalType(38), Precision: 38, Nullable: true},
		Column{Name: "varchar", Type: Varchar, Length: 3, Nullable: true},
		Column{Name: "date", Type: Date, Nullable: true})
	s, err := schema.NewTable(columns)
	if err != nil {
		tb.Fatal(err)
	}
	ps := &schema.PartitionSchema{Hash: []schema.HashDimension{{Columns: []schema.ColumnID{0}, Buckets: 4}}}
	return &Table{info: TableInfo{Name: "types"}, schema: s, partition: ps}
}

// TestSet converts Go values, or says why not, with the column's name.
func TestSet(t *testing.T) {
	table := typesTable(t)
	at := time.Date(2013, 1, 1, 10, 0, 0, 123456789, time.FixedZone("", 3600))
	for _, f := range []struct {
		column string
		value  any
		want   Value
	}{
		{"int8", int8(-128), IntValue(-128)},
		{"int8", uint8(127), IntValue(127)},
		{"int16", -5, IntValue(-5)},
		{"int16", uint16(32767), IntValue(32767)},
		{"int32", int16(7), IntValue(7)},
		{"int32", uint32(7), IntValue(7)},
		{"int64", int32(7), IntValue(7)},
		{"int64", uint64(math.MaxInt64), IntValue(math.MaxInt64)},
		{"int64", uint(1), IntValue(1)},
		{"int64", int64(math.MinInt64), IntValue(math.MinInt64)},
		{"int64", nil, Null()},
		{"string", "x", StringValue("x")},
		{"string", []byte("y"), StringValue("y")},
		{"string", "", StringValue("")},
		{"binary", "x", StringValue("x")},
		{"binary", []byte(nil), BytesValue([]byte{})},
		{"binary", nil, Null()},
		{"bool", true, BoolValue(true)},
		{"float", 1.5, FloatValue(1.5)},
		{"float", float32(0.25), FloatValue(0.25)},
		{"double", 3, FloatValue(3)},
		{"double", uint8(3), FloatValue(3)},
		{"double", math.Inf(1), FloatValue(math.Inf(1))},
		{"float", math.Inf(-1), FloatValue(math.Inf(-1))},
		{"unixtime_micros", at, IntValue(at.UnixMicro())},
		{"unixtime_micros", 5, IntValue(5)},
		{"int32", IntValue(9), IntValue(9)},
		{"decimal", "1.10", IntValue(110)},
		{"decimal", NewDecimal(11, 1), IntValue(110)},
		{"decimal", NewDecimal(1100, 3), IntValue(110)},
		{"decimal", NewDecimal(-9, -1), IntValue(-9000)},
		{"decimal", Decimal{Scale: 9}, IntValue(0)},
		{"decimal", 99, IntValue(9900)},
		{"decimal", uint64(1), IntValue(100)},
		{"decimal", IntValue(-9999), IntValue(-9999)},
		{"decimal64", "-0.999999999999999999", IntValue(-999999999999999999)},
		{"decimal128", "-1", BytesValue(bytes.Repeat([]byte{0xff}, 16))},
		{"decimal128", uint64(math.MaxUint64), BytesValue(append(bytes.Repeat([]byte{0xff}, 8), make([]byte, 8)...))},
		{"varchar", "äöüß", StringValue("äöü")},
		{"varchar", []byte("abcd"), StringValue("abc")},
		{"varchar", "ä", StringValue("ä")},
		{"varchar", StringValue("abcd"), StringValue("abc")},
		{"varchar", strings.Repeat("x", 1<<17), StringValue("xxx")},
		{"date", time.Date(1969, 12, 31, 23, 0, 0, 0, time.FixedZone("", -18000)), IntValue(-1)},
		{"date", time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC), IntValue(-719162)},
		{"date", "9999-12-31", IntValue(2932896)},
		{"date", -719162, IntValue(-719162)},
	} {
		op := table.NewInsert()
		if err := op.Set(f.column, f.value); err != nil {
			t.Errorf("%s = %v: %v", f.column, f.value, err)
			continue
		}
		i := table.schema.IndexOf(f.column)
		if got := op.Value(i); !got.Equal(f.want) || !op.IsSet(i) {
			t.Errorf("%s = %v: %v, want %v", f.column, f.value, got, f.want)
		}
		if op.Unset(i); op.IsSet(i) {
			t.Errorf("%s is still set", f.column)
		}
	}
	for _, f := range []struct {
		column string
		value  any
		code   Code
		want   string
	}{
		{"nope", 1, CodeInvalidArgument, `table "types" has no column "nope"; it has key, int8, `},
		{"key", nil, CodeInvalidArgument, `column "key" (int64): NULL in a column that isn't nullable`},
		{"int8", 128, CodeInvalidArgument, `column "int8" (int8): 128 is out of range`},
		{"int16", -32769, CodeInvalidArgument, "out of range"},
		{"int32", int64(1) << 31, CodeInvalidArgument, "out of range"},
		{"int64", uint64(1) << 63, CodeInvalidArgument, "9223372036854775808 is out of range"},
		{"int64", 1.0, CodeInvalidArgument, `column "int64" (int64): the value is a float64, want an integer`},
		{"int64", "1", CodeInvalidArgument, "is a string, want an integer"},
		{"int64", true, CodeInvalidArgument, "is a bool"},
		{"string", 1, CodeInvalidArgument, "want a string or []byte"},
		{"binary", 1, CodeInvalidArgument, "want a string or []byte"},
		{"bool", 1, CodeInvalidArgument, "is a int, want a bool"},
		{"float", "x", CodeInvalidArgument, "want a float or an integer"},
		{"float", 1e300, CodeInvalidArgument, "out of range"},
		{"double", 1<<53 + 1, CodeInvalidArgument, "no exact floating-point form"},
		{"unixtime_micros", "now", CodeInvalidArgument, "want a time.Time or an integer of microseconds"},
		{"unixtime_micros", time.Date(300_000, 1, 1, 0, 0, 0, 0, time.UTC), CodeInvalidArgument, "the year 300000 is out of range"},
		{"string", strings.Repeat("x", 1<<16+1), CodeCellTooLarge, "the value has 65537 bytes, the most is 65536"},
		{"binary", make([]byte, 1<<17), CodeCellTooLarge, "the most is 65536"},
		{"int32", StringValue("x"), CodeInvalidArgument, "want an integer"},
		{"string", IntValue(1), CodeInvalidArgument, "want a string"},
		{"string", struct{}{}, CodeInvalidArgument, "is a struct {}"},
		{"decimal", "99.995", CodeInvalidArgument, "more digits behind the point than the scale 2"},
		{"decimal", NewDecimal(99995, 3), CodeInvalidArgument, "more digits behind the point than the scale 2"},
		{"decimal", "100.00", CodeInvalidArgument, "more digits than the precision 4 allows"},
		{"decimal", 100, CodeInvalidArgument, "more digits than the precision 4 allows"},
		{"decimal", IntValue(10000), CodeInvalidArgument, "more digits than the precision 4 allows"},
		{"decimal", 1.1, CodeInvalidArgument, "is a float64, want a Decimal, a string as in 123.45 or an integer"},
		{"decimal128", "1" + strings.Repeat("0", 38), CodeInvalidArgument, "more digits than the precision 38 allows"},
		{"decimal128", IntValue(1), CodeInvalidArgument, "the value is an integer"},
		{"varchar", 5, CodeInvalidArgument, "want a string or []byte"},
		{"date", -719163, CodeInvalidArgument, "day -719163 is out of range"},
		{"date", 2932897, CodeInvalidArgument, "day 2932897 is out of range"},
		{"date", time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), CodeInvalidArgument, "out of range"},
		{"date", "2013-02-30", CodeInvalidArgument, "want a date"},
		{"date", true, CodeInvalidArgument, "want a time.Time, a string as in 2013-01-01 or an integer of days"},
	} {
		op := table.NewInsert()
		err := op.Set(f.column, f.value)
		if CodeOf(err) != f.code || !strings.Contains(err.Error(), f.want) {
			t.Errorf("%s = %.20v: %v (%v), want %v with %q", f.column, f.value, err, CodeOf(err), f.code, f.want)
		}
		if i := table.schema.IndexOf(f.column); i >= 0 && op.IsSet(i) {
			t.Errorf("%s is set after an error", f.column)
		}
	}
	op := table.NewInsert()
	for _, i := range []int{-1, table.schema.NumColumns()} {
		if err := op.SetValue(i, IntValue(1)); CodeOf(err) != CodeInvalidArgument {
			t.Errorf("position %d: %v", i, err)
		}
	}
	if err := op.Set("string", strings.Repeat("x", 1<<16)); err != nil {
		t.Errorf("the largest cell: %v", err)
	}
	op.Tag = 5
	op.Reset()
	if op.IsSet(5) || op.Tag != 0 || op.Type() != Insert || op.Table() != table {
		t.Error("reset left something")
	}
}
