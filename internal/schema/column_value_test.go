package schema

import (
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/nyaladb/nyala/internal/status"
)

// TestDecimalValue shows that a number of any scale becomes a column's value exactly or not at all.
func TestDecimalValue(t *testing.T) {
	for _, c := range []struct {
		precision, scale uint8
		unscaled         string
		of               int
		want             string // its text; "" for an error
	}{
		{4, 2, "11", 1, "1.10"},
		{4, 2, "1100", 3, "1.10"},
		{4, 2, "9999", 2, "99.99"},
		{4, 2, "-9999", 2, "-99.99"},
		{4, 2, "99995", 3, ""},
		{4, 2, "10000", 2, ""},
		{4, 2, "100", 0, ""},
		{4, 2, "0", 500, "0.00"},
		{4, 2, "1", 100000, ""},
		{4, 0, "12", -2, "1200"},
		{38, 0, strings.Repeat("9", 38), 0, strings.Repeat("9", 38)},
		{38, 0, "-" + strings.Repeat("9", 38), 0, "-" + strings.Repeat("9", 38)},
		{38, 0, "1" + strings.Repeat("0", 38), 0, ""},
		{38, 38, strings.Repeat("9", 38), 38, "0." + strings.Repeat("9", 38)},
		{18, 18, "-" + strings.Repeat("9", 18), 18, "-0." + strings.Repeat("9", 18)},
	} {
		col := decimalColumn(c.precision, c.scale)
		n, ok := new(big.Int).SetString(c.unscaled, 10)
		if !ok {
			t.Fatal(c.unscaled)
		}
		v, err := col.DecimalValue(n, c.of)
		switch {
		case c.want == "":
			if status.CodeOf(err) != status.InvalidArgument {
				t.Errorf("%se-%d in %s: %v, %v", c.unscaled, c.of, col.TypeName(), v, err)
			}
		case err != nil:
			t.Errorf("%se-%d in %s: %v", c.unscaled, c.of, col.TypeName(), err)
		default:
			if got := col.FormatText(v); got != c.want {
				t.Errorf("%se-%d in %s: %s, want %s", c.unscaled, c.of, col.TypeName(), got, c.want)
			}
			if err := col.CheckValue(v); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestCheckValue shows the rules that cells alone don't have.
func TestCheckValue(t *testing.T) {
	date, small, large := Column{Name: "c", Type: Date}, decimalColumn(4, 2), decimalColumn(20, 0)
	huge, _ := new(big.Int).SetString("100000000000000000000", 10)
	for _, c := range []struct {
		col  Column
		v    Value
		good bool
	}{
		{date, IntValue(minDateDays), true},
		{date, IntValue(maxDateDays), true},
		{date, IntValue(minDateDays - 1), false},
		{date, IntValue(maxDateDays + 1), false},
		{small, IntValue(9999), true},
		{small, IntValue(-10000), false},
		{small, BytesValue(make([]byte, 16)), false},
		{large, BytesValue(int128FromBig(new(big.Int).Sub(huge, big.NewInt(1))).append(nil)), true},
		{large, BytesValue(int128FromBig(huge).append(nil)), false},
		{large, IntValue(1), false},
		{Column{Name: "c", Type: UnixtimeMicros}, IntValue(-1 << 63), true},
	} {
		if err := c.col.CheckValue(c.v); (err == nil) != c.good {
			t.Errorf("%v in %s: %v", c.v, c.col.TypeName(), err)
		}
	}
}

// TestCutVarchar compares the cut with one of runes.
func TestCutVarchar(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, n := rapid.String().Draw(t, "s"), rapid.IntRange(1, 12).Draw(t, "length")
		col := Column{Name: "c", Type: Varchar, Length: uint16(n)}
		want := []rune(s)
		if got := string(col.CutVarchar([]byte(s))); got != string(want[:min(n, len(want))]) {
			t.Fatalf("%q cut to %d: %q", s, n, got)
		}
	})
	col := Column{Name: "c", Type: Varchar, Length: 10}
	if got := string(col.CutVarchar([]byte("ééééééééééé"))); got != strings.Repeat("é", 10) {
		t.Error(got)
	}
}
