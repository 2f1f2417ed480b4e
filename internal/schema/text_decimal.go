package schema

import (
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// parseDecimal reads digits with at most the column's scale of them behind the point and at most its precision in all.
func (c *Column) parseDecimal(s string) (Value, error) {
	digits, negative := s, false
	if strings.HasPrefix(s, "-") || strings.HasPrefix(s, "+") {
		digits, negative = s[1:], s[0] == '-'
	}
	whole, fraction, _ := strings.Cut(digits, ".")
	if whole+fraction == "" || strings.Trim(whole+fraction, "0123456789") != "" {
		return Value{}, c.badText(s, "not a decimal number")
	}
	if extra := len(fraction) - int(c.Scale); extra > 0 {
		if strings.Trim(fraction[c.Scale:], "0") != "" {
			return Value{}, c.badText(s, "more digits behind the point than the scale "+strconv.Itoa(int(c.Scale)))
		}
		fraction = fraction[:c.Scale]
	}
	unscaled := strings.TrimLeft(whole+fraction+strings.Repeat("0", int(c.Scale)-len(fraction)), "0")
	if len(unscaled) > int(c.Precision) {
		return Value{}, c.badText(s, "more digits than the precision "+strconv.Itoa(int(c.Precision))+" allows")
	}
	n := new(big.Int)
	if unscaled != "" {
		n.SetString(unscaled, 10)
	}
	if negative {
		n.Neg(n)
	}
	return c.unscaledValue(n), nil
}

func (c *Column) appendDecimal(dst []byte, v Value) []byte {
	n := big.NewInt(v.Int())
	if c.Type == Decimal128 {
		if len(v.Bytes()) != c.Type.Size() {
			return dst
		}
		n = int128Of(v.Bytes()).big()
	}
	if n.Sign() < 0 {
		dst = append(dst, '-')
		n = new(big.Int).Neg(n)
	}
	digits, scale := n.String(), int(c.Scale)
	if len(digits) <= scale {
		digits = strings.Repeat("0", scale-len(digits)+1) + digits
	}
	dst = append(dst, digits[:len(digits)-scale]...)
	if scale == 0 {
		return dst
	}
	return append(append(dst, '.'), digits[len(digits)-scale:]...)
}

var two64 = new(big.Int).Lsh(big.NewInt(1), 64)

func (v int128) big() *big.Int {
	n := new(big.Int).Mul(big.NewInt(v.hi), two64)
	return n.Add(n, new(big.Int).SetUint64(v.lo))
}

// int128FromBig returns n's value, which must fit.
func int128FromBig(n *big.Int) int128 {
	m := new(big.Int).Add(n, new(big.Int).Lsh(two64, 64)) // two's complement: n mod 2^128, one bit above
	b := m.Bytes()
	b = slices.Concat(make([]byte, 17), b)
	b = b[len(b)-16:]
	return int128{hi: int64(new(big.Int).SetBytes(b[:8]).Uint64()), lo: new(big.Int).SetBytes(b[8:]).Uint64()}
}
