package schema

import (
	"math/big"
	"strconv"
	"unicode/utf8"

	"github.com/nyaladb/nyala/internal/status"
)

// What a column takes beyond what its cells can hold. Servers store whatever fits a cell, as Kudu's do: these rules are kept
// where values are made.

// CheckValue says whether a value that isn't NULL keeps the column's own rules: the days that dates have, the digits of a
// decimal's precision. An error is a *status.Error with code InvalidArgument.
func (c *Column) CheckValue(v Value) error {
	switch c.Type {
	case Date:
		if days := v.Int(); days < minDateDays || days > maxDateDays {
			return c.fault(status.InvalidArgument, "day %d is out of range: %d (0001-01-01) to %d (9999-12-31)", days, minDateDays, maxDateDays)
		}
	case Decimal32, Decimal64, Decimal128:
		if c.fitsPrecision(v) {
			return nil
		}
		n, err := c.Unscaled(v)
		if err != nil {
			return err
		}
		return c.checkDigits(n, n.String()+"e-"+strconv.Itoa(int(c.Scale)))
	default:
	}
	return nil
}

// powersOfTen holds 10^n for each precision.
var powersOfTen = func() (powers [39]int128) {
	n := big.NewInt(1)
	for i := range powers {
		powers[i] = int128FromBig(n)
		n.Mul(n, big.NewInt(10))
	}
	return powers
}()

// fitsPrecision is the quick way to a yes.
func (c *Column) fitsPrecision(v Value) bool {
	n := int128{lo: v.bits, hi: v.Int() >> 63}
	switch {
	case c.Type == Decimal128 && len(v.bytes) == Decimal128.Size():
		n = int128Of(v.bytes)
	case c.Type == Decimal128 || v.kind != kindInt:
		return false
	}
	limit := powersOfTen[c.Precision]
	negative := int128{lo: -limit.lo, hi: ^limit.hi}
	if limit.lo == 0 {
		negative.hi++
	}
	return n.compare(limit) < 0 && n.compare(negative) > 0
}

// checkDigits checks an unscaled value, which text stands for in the error.
func (c *Column) checkDigits(n *big.Int, text string) error {
	if digits := new(big.Int).Abs(n).String(); len(digits) > int(c.Precision) {
		return c.badText(text, "more digits than the precision "+strconv.Itoa(int(c.Precision))+" allows")
	}
	return nil
}

// DecimalValue returns unscaled / 10^scale as a value of a decimal column, whatever the column's own scale. A number that the
// column can't hold exactly is an InvalidArgument: nothing is rounded.
func (c *Column) DecimalValue(unscaled *big.Int, scale int) (Value, error) {
	const mostScale = 1000 // beyond any number that fits
	text := func() string { return unscaled.String() + "e" + strconv.Itoa(-scale) }
	shift := int(c.Scale) - scale
	if shift > mostScale || shift < -mostScale {
		return Value{}, c.fault(status.InvalidArgument, "a decimal of scale %d is out of range", scale)
	}
	n := new(big.Int).Set(unscaled)
	power := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(shift, -shift))), nil)
	if shift >= 0 {
		n.Mul(n, power)
	} else {
		rest := new(big.Int)
		if n.QuoRem(n, power, rest); rest.Sign() != 0 {
			return Value{}, c.badText(text(), "more digits behind the point than the scale "+strconv.Itoa(int(c.Scale)))
		}
	}
	if err := c.checkDigits(n, text()); err != nil {
		return Value{}, err
	}
	return c.unscaledValue(n), nil
}

// unscaledValue is the value of an unscaled integer that fits the column.
func (c *Column) unscaledValue(n *big.Int) Value {
	if c.Type != Decimal128 {
		return IntValue(n.Int64())
	}
	return BytesValue(int128FromBig(n).append(nil))
}

// Unscaled returns the unscaled integer of a decimal column's value: the value times 10^Scale.
func (c *Column) Unscaled(v Value) (*big.Int, error) {
	switch {
	case c.Type == Decimal128 && len(v.Bytes()) == Decimal128.Size():
		return int128Of(v.Bytes()).big(), nil
	case (c.Type == Decimal32 || c.Type == Decimal64) && v.kind == kindInt:
		return big.NewInt(v.Int()), nil
	}
	return nil, c.fault(status.InvalidArgument, "the value is %v, want a decimal's unscaled integer", v.kind)
}

// CutVarchar returns at most the first Length characters of a varchar's bytes, as Kudu's clients store them. A byte that isn't
// UTF-8 counts as one character.
func (c *Column) CutVarchar(b []byte) []byte {
	if c.Type != Varchar || len(b) <= int(c.Length) {
		return b
	}
	pos := 0
	for range int(c.Length) {
		if pos == len(b) {
			break
		}
		_, size := utf8.DecodeRune(b[pos:])
		pos += size
	}
	return b[:pos:pos]
}

// DefaultValueBytes returns a default for the column: the value bytes of v, which must keep the column's rules; a varchar is
// cut.
func (c *Column) DefaultValueBytes(v Value) ([]byte, error) {
	if v.IsNull() {
		return nil, c.fault(status.InvalidArgument, "a default can't be NULL: a nullable column without a default stores NULL")
	}
	if c.Type == Varchar && v.kind == kindBytes {
		v = BytesValue(c.CutVarchar(v.bytes))
	}
	b, err := c.ValueBytes(v)
	if err != nil {
		return nil, err
	}
	return b, c.CheckValue(v)
}
