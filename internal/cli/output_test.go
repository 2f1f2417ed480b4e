package cli

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nyaladb/nyala/client"
)

// TestGrid shows that columns line up whatever is in them, and that nothing disturbs the terminal.
func TestGrid(t *testing.T) {
	g := newGrid("NAME", "N", "NOTE").numbers(1)
	g.add("plain", 1, "")
	g.add("naïve", 12345, "x")
	g.add("日本語", -7, "wide")
	g.add("a\nb\tc\x1b[31m", 0, "\xff\u202e")
	var b bytes.Buffer
	require.NoError(t, g.print(&b))
	require.Equal(t, `NAME                 N  NOTE
---------------  -----  ----------
plain                1
naïve            12345  x
日本語              -7  wide
a\nb\tc\x1b[31m      0  \xff\u202e
`, b.String())
}

// TestPrintable shows that what is harmless stays as it is.
func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "a b": "a b", "日本 é": "日本 é", "\ufffd": "\ufffd", "a\x00": `a\x00`, "a\r\n": `a\r\n`, "\u0085": `\u0085`, "\u2028": `\u2028`,
		"\xc3(": `\xc3(`,
	} {
		require.Equal(t, want, printable(in))
	}
}

// TestThousands shows counts as people write them.
func TestThousands(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 27004: "27,004", -1234567: "-1,234,567", -100: "-100"} {
		require.Equal(t, want, thousands(n))
	}
	require.Equal(t, "1 row", plural(1, "row"))
	require.Equal(t, "2,000 rows", plural(2000, "row"))
}

// TestTableRowsStream shows that a long table is printed as it comes, with the widths of its first rows.
func TestTableRowsStream(t *testing.T) {
	columns := []*client.Column{{Name: "id", Type: client.Int64}, {Name: "s", Type: client.String}}
	var b bytes.Buffer
	w := newRowWriter(&b, "table", columns)
	for i := range tableRowsHeld + 1 {
		require.NoError(t, w.row([]client.Value{client.IntValue(int64(i)), client.StringValue("x")}))
	}
	require.NoError(t, w.row([]client.Value{client.IntValue(1e9), client.StringValue("wider")}))
	require.NoError(t, w.end())
	lines := strings.Split(b.String(), "\n")
	require.Equal(t, []string{" id  s", "---  -", "  0  x"}, lines[:3])
	require.Equal(t, []string{"1000  x", "1000000000  wider", ""}, lines[len(lines)-3:])
}

// FuzzJSONString shows that every string that is UTF-8 comes back from its JSON form.
func FuzzJSONString(f *testing.F) {
	f.Add("a\"b\\c\n\x00\u2028<>&é日")
	f.Fuzz(func(t *testing.T, s string) {
		s = strings.ToValidUTF8(s, "")
		var back string
		require.NoError(t, json.Unmarshal(appendJSONString(nil, s), &back))
		require.Equal(t, s, back)
	})
}

// TestJSONNumbers shows that floating-point numbers come back from JSON, and those that JSON lacks as strings.
func TestJSONNumbers(t *testing.T) {
	c := &client.Column{Name: "x", Type: client.Double}
	for _, v := range []float64{0, math.Copysign(0, -1), 0.1, 1e21, 5e-324, math.MaxFloat64, -1.5} {
		var back float64
		require.NoError(t, json.Unmarshal(appendJSONValue(nil, c, client.FloatValue(v)), &back))
		require.Equal(t, math.Float64bits(v), math.Float64bits(back))
	}
	require.Equal(t, `"NaN"`, string(appendJSONValue(nil, c, client.FloatValue(math.NaN()))))
	require.Equal(t, `"-Inf"`, string(appendJSONValue(nil, c, client.FloatValue(math.Inf(-1)))))
}
