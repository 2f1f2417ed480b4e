package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// printJSON writes one JSON document, indented, for machines and for people who look at it.
func printJSON(w io.Writer, doc any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(doc)
}

// grid is a table for people: columns line up, numbers to the right, no trailing blanks.
type grid struct {
	header []string
	right  []bool // columns that are set flush right
	rows   [][]string
	indent string
}

func newGrid(header ...string) *grid { return &grid{header: header, right: make([]bool, len(header))} }

// numbers sets the columns at the given positions flush right.
func (g *grid) numbers(columns ...int) *grid {
	for _, c := range columns {
		g.right[c] = true
	}
	return g
}

// add appends a row; what isn't text is printed by its default form.
func (g *grid) add(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = printable(fmt.Sprint(c))
	}
	g.rows = append(g.rows, row)
}

// widths returns the width of each column, the header's and the rows'.
func (g *grid) widths() []int {
	w := make([]int, len(g.header))
	for i, h := range g.header {
		w[i] = displayWidth(h)
	}
	for _, row := range g.rows {
		for i, cell := range row {
			w[i] = max(w[i], displayWidth(cell))
		}
	}
	return w
}

// print writes the header, a rule and the rows.
func (g *grid) print(w io.Writer) error {
	widths := g.widths()
	b := g.line(nil, g.header, widths)
	rule := make([]string, len(widths))
	for i, n := range widths {
		rule[i] = strings.Repeat("-", n)
	}
	b = g.line(b, rule, widths)
	for _, row := range g.rows {
		b = g.line(b, row, widths)
	}
	_, err := w.Write(b)
	return err
}

// line appends one line to dst.
func (g *grid) line(dst []byte, cells []string, widths []int) []byte {
	dst = append(dst, g.indent...)
	for i, cell := range cells {
		if i > 0 {
			dst = append(dst, "  "...)
		}
		gap := max(0, widths[i]-displayWidth(cell))
		if g.right[i] {
			dst = append(blanks(dst, gap), cell...)
		} else {
			dst = blanks(append(dst, cell...), gap)
		}
	}
	return append(bytes.TrimRight(dst, " "), '\n')
}

func blanks(dst []byte, n int) []byte {
	for range n {
		dst = append(dst, ' ')
	}
	return dst
}

// displayWidth is the number of columns that a terminal gives to s, near enough to line tables up: combining marks take
// none, the wide letters of East Asia and emoji two.
func displayWidth(s string) int {
	n := 0
	for _, r := range s {
		switch {
		case r < 0x300:
			n++
		case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		case unicode.In(r, unicode.Han, unicode.Hangul, unicode.Hiragana, unicode.Katakana), r >= 0x1F300 && r <= 0x1FAFF,
			r >= 0xFF01 && r <= 0xFF60:
			n += 2
		default:
			n++
		}
	}
	return n
}

// printable returns s with what would disturb a terminal or a table written as escapes: control characters, line breaks,
// marks that turn the direction of writing, bytes that aren't UTF-8.
func printable(s string) string {
	clean := true
	for i, r := range s {
		if unsafeRune(r) || r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD") {
			clean = false
			break
		}
	}
	if clean {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\r':
			b.WriteString(`\r`)
		case unsafeRune(r) && r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		case unsafeRune(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteString(s[:size])
		}
		s = s[size:]
	}
	return b.String()
}

// unsafeRune says whether a terminal would do something else than show r. The joiners of scripts and emoji are let through.
func unsafeRune(r rune) bool {
	return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' || unicode.Is(unicode.Cf, r) && r != '\u200C' && r != '\u200D'
}

// thousands writes n with commas: 27,004.
func thousands[N int | int64 | uint64](n N) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// plural writes a count with its noun: "1 row", "27,004 rows".
func plural[N int | int64 | uint64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return thousands(n) + " " + noun + "s"
}
