package client

import (
	"math"
	"math/big"
	"time"

	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// convert turns a Go value into one that suits the column. Whether a number fits the column's width is for AppendValueBytes
// to say.
func convert(col *schema.Column, value any) (schema.Value, error) {
	switch v := value.(type) {
	case nil:
		return schema.Null(), nil
	case schema.Value:
		return v, nil
	}
	switch col.Type {
	case schema.Bool:
		if v, ok := value.(bool); ok {
			return schema.BoolValue(v), nil
		}
	case schema.String, schema.Binary, schema.Varchar:
		switch v := value.(type) {
		case string:
			return schema.StringValue(v), nil
		case []byte:
			if v == nil {
				v = []byte{}
			}
			return schema.BytesValue(v), nil
		}
	case schema.Float, schema.Double:
		return convertFloat(col, value)
	case schema.UnixtimeMicros:
		if v, ok := value.(time.Time); ok {
			return convertTime(col, v)
		}
		return convertInt(col, value)
	case schema.Date:
		return convertDate(col, value)
	case schema.Decimal32, schema.Decimal64, schema.Decimal128:
		return convertDecimal(col, value)
	default:
		return convertInt(col, value)
	}
	return schema.Value{}, wrongType(col, value)
}

func wrongType(col *schema.Column, value any) error {
	want := "an integer"
	switch col.Type {
	case schema.Bool:
		want = "a bool"
	case schema.String, schema.Binary, schema.Varchar:
		want = "a string or []byte"
	case schema.Float, schema.Double:
		want = "a float or an integer"
	case schema.UnixtimeMicros:
		want = "a time.Time or an integer of microseconds"
	case schema.Date:
		want = "a time.Time, a string as in 2013-01-01 or an integer of days"
	case schema.Decimal32, schema.Decimal64, schema.Decimal128:
		want = "a Decimal, a string as in 123.45 or an integer"
	default:
	}
	return status.New(status.InvalidArgument, "column %q (%s): the value is a %T, want %s", col.Name, col.TypeName(), value, want)
}

// integer returns any Go integer as an int64; fits is false for one too large, ok for what is no integer.
func integer(value any) (n int64, fits, ok bool) {
	var u uint64
	switch v := value.(type) {
	case int:
		return int64(v), true, true
	case int8:
		return int64(v), true, true
	case int16:
		return int64(v), true, true
	case int32:
		return int64(v), true, true
	case int64:
		return v, true, true
	case uint:
		u = uint64(v)
	case uint8:
		u = uint64(v)
	case uint16:
		u = uint64(v)
	case uint32:
		u = uint64(v)
	case uint64:
		u = v
	default:
		return 0, false, false
	}
	return int64(u), u <= math.MaxInt64, true
}

func convertInt(col *schema.Column, value any) (schema.Value, error) {
	n, fits, ok := integer(value)
	switch {
	case !ok:
		return schema.Value{}, wrongType(col, value)
	case !fits:
		return schema.Value{}, status.New(status.InvalidArgument, "column %q (%s): %v is out of range", col.Name, col.TypeName(), value)
	}
	return schema.IntValue(n), nil
}

// convertFloat takes floats, and those integers that a float64 holds exactly.
func convertFloat(col *schema.Column, value any) (schema.Value, error) {
	switch v := value.(type) {
	case float64:
		return schema.FloatValue(v), nil
	case float32:
		return schema.FloatValue(float64(v)), nil
	}
	n, fits, ok := integer(value)
	if !ok {
		return schema.Value{}, wrongType(col, value)
	}
	const exact = 1 << 53
	if !fits || n > exact || n < -exact {
		return schema.Value{}, status.New(status.InvalidArgument, "column %q (%s): the integer %v has no exact floating-point form",
			col.Name, col.TypeName(), value)
	}
	return schema.FloatValue(float64(n)), nil
}

// convertDate takes a time's date in its own location, a text, or days since 1970-01-01.
func convertDate(col *schema.Column, value any) (schema.Value, error) {
	switch v := value.(type) {
	case time.Time:
		y, m, d := v.Date()
		return schema.IntValue(time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix() / 86400), nil
	case string:
		return col.ParseText(v)
	}
	return convertInt(col, value)
}

// convertDecimal takes numbers of any scale. None is rounded: one that the column can't hold exactly is an error.
func convertDecimal(col *schema.Column, value any) (schema.Value, error) {
	switch v := value.(type) {
	case string:
		return col.ParseText(v)
	case Decimal:
		if v.Unscaled == nil {
			return col.DecimalValue(new(big.Int), v.Scale)
		}
		return col.DecimalValue(v.Unscaled, v.Scale)
	case uint64:
		return col.DecimalValue(new(big.Int).SetUint64(v), 0)
	case uint:
		return col.DecimalValue(new(big.Int).SetUint64(uint64(v)), 0)
	}
	n, _, ok := integer(value)
	if !ok {
		return schema.Value{}, wrongType(col, value)
	}
	return col.DecimalValue(big.NewInt(n), 0)
}

// convertTime takes a time to the microsecond, cutting off what is finer.
func convertTime(col *schema.Column, t time.Time) (schema.Value, error) {
	const most = math.MaxInt64 / 1_000_000
	if s := t.Unix(); s >= most || s <= -most {
		return schema.Value{}, status.New(status.InvalidArgument, "column %q (%s): the year %d is out of range", col.Name, col.TypeName(), t.Year())
	}
	return schema.IntValue(t.UnixMicro()), nil
}
