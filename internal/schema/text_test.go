package schema

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/nyaladb/nyala/internal/status"
)

func decimalColumn(precision, scale uint8) Column {
	return Column{Name: "d", Type: decimalType(precision), Precision: precision, Scale: scale}
}

// TestParseText shows the text forms of each type, and what the value reads as when it is written again.
func TestParseText(t *testing.T) {
	of := func(typ Type) Column { return testColumn("c", typ) }
	varchar := Column{Name: "c", Type: Varchar, Length: 3}
	minusOne := int128{-1, math.MaxUint64}.append(nil)
	for _, c := range []struct {
		column Column
		text   string
		want   Value
		again  string // "": as text
	}{
		{of(Int8), "-128", IntValue(-128), ""},
		{of(Int8), "+7", IntValue(7), "7"},
		{of(Int64), "9223372036854775807", IntValue(math.MaxInt64), ""},
		{of(Bool), "true", BoolValue(true), ""},
		{of(Bool), "FALSE", BoolValue(false), "false"},
		{of(Float), "0.1", FloatValue(float64(float32(0.1))), ""},
		{of(Double), "0.1", FloatValue(0.1), ""},
		{of(Double), "1000000", FloatValue(1e6), ""},
		{of(Double), "1e21", FloatValue(1e21), "1e+21"},
		{of(Double), "1e-7", FloatValue(1e-7), "1e-07"},
		{of(Double), "-0", FloatValue(math.Copysign(0, -1)), ""},
		{of(Double), "inf", FloatValue(math.Inf(1)), "+Inf"},
		{of(String), "", BytesValue([]byte{}), ""},
		{of(String), "naïve, \"x\"", StringValue("naïve, \"x\""), ""},
		{varchar, "äöü", StringValue("äöü"), ""},
		{of(Binary), "0x00fF", BytesValue([]byte{0, 0xff}), "0x00ff"},
		{of(Binary), "0x", BytesValue([]byte{}), ""},
		{of(UnixtimeMicros), "2013-01-01T10:00:00Z", IntValue(1357034400_000000), ""},
		{of(UnixtimeMicros), "2013-01-01T12:00:00.5+02:00", IntValue(1357034400_500000), "2013-01-01T10:00:00.500000Z"},
		{of(UnixtimeMicros), "2013-01-01T10:00:00.000001Z", IntValue(1357034400_000001), ""},
		{of(UnixtimeMicros), "1357034400000000", IntValue(1357034400_000000), "2013-01-01T10:00:00Z"},
		{of(UnixtimeMicros), "1969-12-31T23:59:59.999999Z", IntValue(-1), ""},
		{of(UnixtimeMicros), "0000-01-01T00:00:00Z", IntValue(minTextMicros), ""},
		{of(UnixtimeMicros), "9999-12-31T23:59:59.999999Z", IntValue(maxTextMicros), ""},
		{of(UnixtimeMicros), "9223372036854775807", IntValue(math.MaxInt64), ""},
		{of(Date), "2020-01-01", IntValue(18262), ""},
		{of(Date), "0001-01-01", IntValue(minDateDays), ""},
		{of(Date), "9999-12-31", IntValue(maxDateDays), ""},
		{of(Date), "1969-12-31", IntValue(-1), ""},
		{decimalColumn(5, 2), "123.45", IntValue(12345), ""},
		{decimalColumn(5, 2), "-.5", IntValue(-50), "-0.50"},
		{decimalColumn(5, 2), "7", IntValue(700), "7.00"},
		{decimalColumn(5, 2), "1.200", IntValue(120), "1.20"},
		{decimalColumn(5, 5), "0.00001", IntValue(1), ""},
		{decimalColumn(18, 0), "999999999999999999", IntValue(999999999999999999), ""},
		{decimalColumn(38, 2), "-0.01", BytesValue(minusOne), ""},
	} {
		t.Run(c.column.TypeName()+"/"+c.text, func(t *testing.T) {
			v, err := c.column.ParseText(c.text)
			if err != nil {
				t.Fatal(err)
			}
			if !v.Equal(c.want) {
				t.Errorf("%v, want %v", v, c.want)
			}
			again := c.again
			if again == "" {
				again = c.text
			}
			if got := c.column.FormatText(v); got != again {
				t.Errorf("written as %q, want %q", got, again)
			}
		})
	}
}

// TestParseTextFaults shows that an error names column, type and text and says why.
func TestParseTextFaults(t *testing.T) {
	of := func(typ Type) Column { return testColumn("c", typ) }
	for _, c := range []struct {
		column Column
		text   string
		want   string
	}{
		{of(Int8), "128", `column "c" (int8): "128": out of range -128 to 127`},
		{of(Int32), "", `column "c" (int32): "": not an integer`},
		{of(Int64), "12.5", `column "c" (int64): "12.5": not an integer`},
		{of(Bool), "yes", `column "c" (bool): "yes": want true or false`},
		{of(Float), "1e39", `column "c" (float): "1e39": the number is out of range`},
		{of(Double), "x", `column "c" (double): "x": not a number`},
		{of(String), "\xff", `column "c" (string): "\xff": not valid UTF-8`},
		{of(Binary), "abc", `column "c" (binary): "abc": binary values are written in hexadecimal after 0x, as in 0x00ff`},
		{of(Binary), "0xabc", `column "c" (binary): "0xabc": want an even number of hexadecimal digits after 0x`},
		{of(UnixtimeMicros), "2013-01-01", `column "c" (unixtime_micros): "2013-01-01": want a time as in 2013-01-01T10:00:00Z, or an integer of microseconds since 1970`},
		{of(UnixtimeMicros), "2013-01-01T10:00:00.0000001Z", `column "c" (unixtime_micros): "2013-01-01T10:00:00.0000001Z": times are held to the microsecond: at most six digits behind the second's point`},
		{of(Date), "2013-02-30", `column "c" (date): "2013-02-30": want a date as in 2013-01-01, from 0001-01-01 to 9999-12-31`},
		{of(Date), "0000-01-01", `column "c" (date): "0000-01-01": want a date as in 2013-01-01, from 0001-01-01 to 9999-12-31`},
		{decimalColumn(5, 2), "1.234", `column "d" (decimal(5,2)): "1.234": more digits behind the point than the scale 2`},
		{decimalColumn(5, 2), "1000", `column "d" (decimal(5,2)): "1000": more digits than the precision 5 allows`},
		{decimalColumn(5, 2), "1e3", `column "d" (decimal(5,2)): "1e3": not a decimal number`},
		{decimalColumn(5, 2), "-", `column "d" (decimal(5,2)): "-": not a decimal number`},
		{of(Int64), strings.Repeat("x", 100), `column "c" (int64): "` + strings.Repeat("x", 60) + `"… (100 bytes): not an integer`},
	} {
		_, err := c.column.ParseText(c.text)
		if err == nil || err.Error() != c.want || status.CodeOf(err) != status.InvalidArgument {
			t.Errorf("%q: %v (%v)\nwant %s", c.text, err, status.CodeOf(err), c.want)
		}
	}
	for _, typ := range []Type{String, Binary} {
		c := of(typ)
		if _, err := c.ParseText("0x" + strings.Repeat("00", MaxCellSize+1)); status.CodeOf(err) != status.CellTooLarge {
			t.Errorf("%v over the limit: %v", typ, err)
		}
	}
}

// TestTextRoundTrip shows I7 for values of every type, and that value bytes come back as the same value.
func TestTextRoundTrip(t *testing.T) {
	for _, typ := range allTypes {
		t.Run(typ.String(), rapid.MakeCheck(func(t *rapid.T) {
			c := testColumn("c", typ)
			v := drawValue(t, &c)
			b, err := c.ValueBytes(v)
			if err != nil {
				t.Fatal(err)
			}
			back, err := c.ValueFromBytes(b)
			if err != nil || !back.Equal(v) {
				t.Fatalf("value bytes %x came back as %v, %v, were %v", b, back, err, v)
			}
			text := c.FormatText(v)
			v2, err := c.ParseText(text)
			if !readable(&c, v) {
				return
			}
			if err != nil {
				t.Fatalf("%q: %v", text, err)
			}
			if b2, err := c.ValueBytes(v2); err != nil || typ.Compare(b, b2) != 0 || !bytes.Equal(b, b2) && !math.IsNaN(v.Float()) {
				t.Fatalf("%v is written as %q and read as %v, %v", v, text, v2, err)
			}
		}))
	}
	c := testColumn("c", String)
	if got := c.FormatText(Null()); got != "NULL" {
		t.Errorf("NULL is written as %q", got)
	}
}

// readable says whether ParseText takes the value's form: servers store what a client sends, and some of it no text form is
// read for.
func readable(c *Column, v Value) bool {
	switch c.Type {
	case String, Varchar:
		return utf8.Valid(v.Bytes())
	default:
		return c.CheckValue(v) == nil
	}
}

// TestCells has cells in bytes.
func TestCells(t *testing.T) {
	for _, c := range []struct {
		column Column
		text   string
		want   string
	}{
		{decimalColumn(5, 2), "123.45", "39300000"},
		{testColumn("c", Date), "2020-01-01", "56470000"},
		{testColumn("c", Bool), "true", "01"},
		{testColumn("c", Int16), "-2", "feff"},
		{testColumn("c", Int64), "-2", "feffffffffffffff"},
		{testColumn("c", Double), "1", "000000000000f03f"},
		{testColumn("c", Float), "1", "0000803f"},
		{testColumn("c", String), "hi", "6869"},
		{decimalColumn(38, 0), "-2", "fe" + strings.Repeat("ff", 15)},
	} {
		v, err := c.column.ParseText(c.text)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := c.column.ValueBytes(v); err != nil || !bytes.Equal(b, unhex(t, c.want)) {
			t.Errorf("%s %s: %x, %v, want %s", c.column.TypeName(), c.text, b, err, c.want)
		}
	}
}

// TestValueBytesFaults shows values that don't suit their columns.
func TestValueBytesFaults(t *testing.T) {
	of := func(typ Type) Column { return testColumn("c", typ) }
	for _, c := range []struct {
		column Column
		v      Value
		want   status.Code
	}{
		{of(Int8), IntValue(128), status.InvalidArgument},
		{of(Int32), FloatValue(1), status.InvalidArgument},
		{of(Double), IntValue(1), status.InvalidArgument},
		{of(Float), FloatValue(1e300), status.InvalidArgument},
		{of(Bool), IntValue(1), status.InvalidArgument},
		{of(String), Null(), status.InvalidArgument},
		{of(Decimal128), BytesValue(make([]byte, 15)), status.InvalidArgument},
		{of(Binary), BytesValue(make([]byte, MaxCellSize+1)), status.CellTooLarge},
		{Column{Name: "c"}, IntValue(1), status.InvalidArgument},
	} {
		if b, err := c.column.ValueBytes(c.v); status.CodeOf(err) != c.want || b != nil {
			t.Errorf("%s: %x, %v", c.column.TypeName(), b, err)
		}
	}
	c := of(Int32)
	if _, err := c.ValueFromBytes(make([]byte, 3)); status.CodeOf(err) != status.InvalidArgument {
		t.Errorf("three bytes for an int32: %v", err)
	}
}
