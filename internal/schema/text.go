package schema

import (
	"encoding/hex"
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nyaladb/nyala/internal/status"
)

// The text forms of values, as CSV files and the command line have them. FormatText's form reads back as the same value.
//
//	integers           decimal digits: -12
//	bool               true, false (any case when read)
//	float, double      the shortest decimal that reads back the same: 0.1, 1e+21, NaN, +Inf
//	string, varchar    itself; valid UTF-8 when read (a varchar that is too long is cut when it is written, not here)
//	binary             hexadecimal after 0x: 0x00ff
//	unixtime_micros    RFC 3339: 2013-01-01T10:00:00Z, written in UTC and with six digits of a second's fraction if it isn't
//	                   zero; or an integer, microseconds since 1970, which is how times outside the years 0 to 9999 are written
//	date               2013-01-01, from 0001-01-01 to 9999-12-31
//	decimal            digits with as many behind the point as the scale says: 123.45

const (
	minDateDays   = -719162 // 0001-01-01
	maxDateDays   = 2932896 // 9999-12-31
	secondsPerDay = 24 * 60 * 60
)

// Times that RFC 3339 can write: from 0000-01-01 on, below 10000-01-01.
var (
	minTextMicros = time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	maxTextMicros = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro() - 1
)

// ParseText returns the value that a text form stands for. It never returns NULL: how that is written is the caller's. An
// error is a *status.Error (InvalidArgument, or CellTooLarge) that names column, type and text.
func (c *Column) ParseText(s string) (Value, error) {
	switch c.Type {
	case Int8, Int16, Int32, Int64:
		return c.parseInt(s)
	case Bool:
		switch {
		case strings.EqualFold(s, "true"):
			return BoolValue(true), nil
		case strings.EqualFold(s, "false"):
			return BoolValue(false), nil
		}
		return Value{}, c.badText(s, "want true or false")
	case Float, Double:
		v, err := strconv.ParseFloat(s, 8*c.Type.Size())
		switch {
		case errors.Is(err, strconv.ErrRange):
			return Value{}, c.badText(s, "the number is out of range")
		case err != nil:
			return Value{}, c.badText(s, "not a number")
		}
		return FloatValue(v), nil
	case String, Varchar:
		return c.parseString(s)
	case Binary:
		return c.parseBinary(s)
	case UnixtimeMicros:
		return c.parseTime(s)
	case Date:
		return c.parseDate(s)
	case Decimal32, Decimal64, Decimal128:
		return c.parseDecimal(s)
	}
	return Value{}, c.badText(s, "the type has no text form")
}

// badText is the error for a text that isn't a value of the column. A long text is cut.
func (c *Column) badText(s, why string) *status.Error {
	const most = 60
	if len(s) <= most {
		return c.fault(status.InvalidArgument, "%q: %s", s, why)
	}
	return c.fault(status.InvalidArgument, "%q… (%d bytes): %s", s[:most], len(s), why)
}

func (c *Column) parseInt(s string) (Value, error) {
	v, err := strconv.ParseInt(s, 10, 8*c.Type.Size())
	switch {
	case errors.Is(err, strconv.ErrRange):
		lo, hi := c.Type.intRange()
		return Value{}, c.badText(s, "out of range "+strconv.FormatInt(lo, 10)+" to "+strconv.FormatInt(hi, 10))
	case err != nil:
		return Value{}, c.badText(s, "not an integer")
	}
	return IntValue(v), nil
}

func (c *Column) parseString(s string) (Value, error) {
	switch {
	case !utf8.ValidString(s):
		return Value{}, c.badText(s, "not valid UTF-8")
	case len(s) > MaxCellSize:
		return Value{}, c.tooLarge(len(s))
	}
	return StringValue(s), nil
}

func (c *Column) tooLarge(n int) *status.Error {
	return c.fault(status.CellTooLarge, "the value has %d bytes, the most is %d", n, MaxCellSize)
}

func (c *Column) parseBinary(s string) (Value, error) {
	digits, ok := strings.CutPrefix(s, "0x")
	if !ok {
		return Value{}, c.badText(s, "binary values are written in hexadecimal after 0x, as in 0x00ff")
	}
	if len(digits) > 2*MaxCellSize {
		return Value{}, c.tooLarge(len(digits) / 2)
	}
	b, err := hex.DecodeString(digits)
	if err != nil {
		return Value{}, c.badText(s, "want an even number of hexadecimal digits after 0x")
	}
	return BytesValue(b), nil
}

func (c *Column) parseTime(s string) (Value, error) {
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		if t.Nanosecond()%1000 != 0 {
			return Value{}, c.badText(s, "times are held to the microsecond: at most six digits behind the second's point")
		}
		return IntValue(t.UnixMicro()), nil
	}
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return Value{}, c.badText(s, "want a time as in 2013-01-01T10:00:00Z, or an integer of microseconds since 1970")
	}
	return IntValue(v), nil
}

func (c *Column) parseDate(s string) (Value, error) {
	t, err := time.Parse(time.DateOnly, s)
	if err != nil || t.Year() < 1 {
		return Value{}, c.badText(s, "want a date as in 2013-01-01, from 0001-01-01 to 9999-12-31")
	}
	return IntValue(t.Unix() / secondsPerDay), nil
}

// FormatText returns the text form of a value of the column, "NULL" for NULL: where text and NULL must be told apart, ask
// IsNull first.
func (c *Column) FormatText(v Value) string { return string(c.AppendText(nil, v)) }

// AppendText appends FormatText's form to dst.
func (c *Column) AppendText(dst []byte, v Value) []byte {
	if v.IsNull() {
		return append(dst, "NULL"...)
	}
	switch c.Type {
	case Int8, Int16, Int32, Int64:
		return strconv.AppendInt(dst, v.Int(), 10)
	case Bool:
		return strconv.AppendBool(dst, v.Bool())
	case Float, Double:
		return appendFloat(dst, v.Float(), 8*c.Type.Size())
	case String, Varchar:
		return append(dst, v.Bytes()...)
	case Binary:
		return hex.AppendEncode(append(dst, "0x"...), v.Bytes())
	case UnixtimeMicros:
		return appendTime(dst, v.Int())
	case Date:
		if v.Int() < minDateDays || v.Int() > maxDateDays {
			return strconv.AppendInt(dst, v.Int(), 10) // stored by a client that doesn't check; it has no other form
		}
		return time.Unix(v.Int()*secondsPerDay, 0).UTC().AppendFormat(dst, time.DateOnly)
	case Decimal32, Decimal64, Decimal128:
		return c.appendDecimal(dst, v)
	}
	return dst
}

// appendFloat writes an exponent only where the plain form would be long.
func appendFloat(dst []byte, v float64, bits int) []byte {
	if a := math.Abs(v); a != 0 && (a < 1e-6 || a >= 1e21) {
		return strconv.AppendFloat(dst, v, 'e', -1, bits)
	}
	return strconv.AppendFloat(dst, v, 'f', -1, bits)
}

func appendTime(dst []byte, usec int64) []byte {
	if usec < minTextMicros || usec > maxTextMicros {
		return strconv.AppendInt(dst, usec, 10)
	}
	t := time.UnixMicro(usec).UTC()
	dst = t.AppendFormat(dst, time.RFC3339) // this layout has a fast path of its own
	fraction := t.Nanosecond() / 1000
	if fraction == 0 {
		return dst
	}
	dst = append(dst[:len(dst)-1], ".000000Z"...)
	for i := len(dst) - 2; fraction > 0; i-- {
		dst[i] = '0' + byte(fraction%10)
		fraction /= 10
	}
	return dst
}

// formatLiteral is the value as a where clause has it.
func (c *Column) formatLiteral(v Value) string {
	s := c.FormatText(v)
	switch c.Type {
	case String, Varchar, Date, UnixtimeMicros:
		return "'" + strings.ReplaceAll(s, "'", "''") + "'"
	case Float, Double:
		if math.IsNaN(v.Float()) || math.IsInf(v.Float(), 0) {
			return "'" + s + "'"
		}
	default:
	}
	return s
}
