package cli

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

// render writes records in a form that shows what is quoted: bare fields as they are, quoted ones in <>.
func render(in io.Reader, blankLines bool) string {
	r := newCSVReader(in)
	r.blankLines = blankLines
	var b strings.Builder
	for {
		fields, err := r.read()
		if errors.Is(err, io.EOF) {
			return b.String()
		}
		var fault *csvError
		if errors.As(err, &fault) {
			fmt.Fprintf(&b, "ERROR %v\n", fault)
			if fault.fatal {
				return b.String()
			}
			continue
		}
		if err != nil {
			return b.String() + err.Error()
		}
		for i, f := range fields {
			if i > 0 {
				b.WriteByte('|')
			}
			if f.quoted {
				fmt.Fprintf(&b, "<%s>", f.text)
			} else {
				b.Write(f.text)
			}
			fmt.Fprintf(&b, "@%d", f.line)
		}
		b.WriteByte('\n')
	}
}

// TestCSVReader shows records, quotes, line ends and faults, each with where it stands.
func TestCSVReader(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"empty", "", ""},
		{"plain", "a,b\nc,d\n", "a@1|b@1\nc@2|d@2\n"},
		{"no last line end", "a,b", "a@1|b@1\n"},
		{"crlf", "a,b\r\nc,d\r\n", "a@1|b@1\nc@2|d@2\n"},
		{"lone cr is data", "a\rb,c\n", "a\rb@1|c@1\n"},
		{"cr at the end", "a,b\r", "a@1|b@1\n"},
		{"nothing and empty", `,"",` + "\n", "@1|<>@1|@1\n"},
		{"quotes", `"a ""b"" c","d,e",f` + "\n", `<a "b" c>@1|<d,e>@1|f@1` + "\n"},
		{"lines in quotes", "\"a\nb\r\nc\",d\ne,f", "<a\nb\r\nc>@1|d@3\ne@4|f@4\n"},
		{"quote at the end", `a,"b"`, "a@1|<b>@1\n"},
		{"quote then crlf", "\"a\"\r\nb", "<a>@1\nb@2\n"},
		{"blank lines", "a,b\n\n\r\nc,d\n\n", "a@1|b@1\nc@4|d@4\n"},
		{"trailing comma", "a,\nb,", "a@1|@1\nb@2|@2\n"},
		{"byte order mark", "\uFEFFa,b\n", "a@1|b@1\n"},
		{"quoted byte order mark", "\"\uFEFFa\",b\n", "<\uFEFFa>@1|b@1\n"},
		{"bare quote", "a,b\nc\"x,d\ne,f\n", "a@1|b@1\nERROR line 2: a quote within a bare field: write the field as \"…\", with quotes in it doubled\ne@3|f@3\n"},
		{"text after quote", "\"a\" ,b\nc\n", "ERROR line 1: text after a closing quote: a quote within quotes is written twice\nc@2\n"},
		{"text after quote, cr", "\"a\"\rb\nc\n", "ERROR line 1: text after a closing quote: a quote within quotes is written twice\nc@2\n"},
		{"unclosed", "a\nb,\"c\nd\n", "a@1\nERROR line 2: the quote that opens here is never closed\n"},
		{"fault in the last line", "a\"", "ERROR line 1: a quote within a bare field: write the field as \"…\", with quotes in it doubled\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.want, render(strings.NewReader(c.in), false))
			require.Equal(t, c.want, render(iotest.OneByteReader(strings.NewReader(c.in)), false))
		})
	}
	require.Equal(t, "a@1\n@2\n<>@3\n", render(strings.NewReader("a\n\n\"\"\n"), true))
	require.Equal(t, "a@1\nbroken", render(io.MultiReader(strings.NewReader("a\nb"), iotest.ErrReader(errors.New("broken"))), false))
}

// TestCSVRecordLimit shows that a quote that is never closed doesn't take the whole file into memory.
func TestCSVRecordLimit(t *testing.T) {
	r := newCSVReader(strings.NewReader("a\n\"" + strings.Repeat("x", 1000)))
	r.limit = 100
	_, err := r.read()
	require.NoError(t, err)
	_, err = r.read()
	require.ErrorContains(t, err, "line 2: the record that begins here has over 100 bytes")
}

// TestCSVWriter shows which fields are quoted.
func TestCSVWriter(t *testing.T) {
	for _, c := range []struct {
		text string
		null bool
		want string
	}{
		{"", true, ""},
		{"", false, `""`},
		{"NULL", false, "NULL"},
		{"a b", false, "a b"},
		{"a,b", false, `"a,b"`},
		{`a"b`, false, `"a""b"`},
		{"a\nb", false, "\"a\nb\""},
		{"a\rb", false, "\"a\rb\""},
		{"\uFEFF", false, "\"\uFEFF\""},
		{"é", false, "é"},
	} {
		require.Equal(t, c.want, string(appendCSVField(nil, c.text, c.null)))
	}
}

// FuzzDecodeCSV compares with encoding/csv what both take, and shows that whatever is read is written and read back as the
// same fields.
func FuzzDecodeCSV(f *testing.F) {
	for _, s := range []string{"a,b\n1,\"\"\n", "\"a\"\"b\"\r\n,\n", "\uFEFFx", "a\"b\n\"c\" \n", "\"\n", "\r\r\n", "\"\r\r\n\""} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var rows [][]csvField
		r := newCSVReader(bytes.NewReader(in))
		faulty := false
		for {
			fields, err := r.read()
			if errors.Is(err, io.EOF) {
				break
			}
			var fault *csvError
			if errors.As(err, &fault) {
				faulty = true
				if fault.fatal {
					break
				}
				continue
			}
			require.NoError(t, err)
			row := make([]csvField, len(fields))
			for i, f := range fields {
				row[i] = csvField{text: bytes.Clone(f.text), quoted: f.quoted, line: f.line}
			}
			rows = append(rows, row)
		}
		// encoding/csv turns CRLF within quotes to LF and drops a CR before the end: compare where there is none.
		if !faulty && !bytes.Contains(in, []byte("\r")) {
			std := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(in, byteOrderMark)))
			std.FieldsPerRecord = -1
			want, err := std.ReadAll()
			require.NoError(t, err)
			require.Len(t, rows, len(want))
			for i := range want {
				require.Len(t, rows[i], len(want[i]))
				for j := range want[i] {
					require.Equal(t, want[i][j], string(rows[i][j].text))
				}
			}
		}
		var out []byte
		for _, row := range rows {
			for i, f := range row {
				if i > 0 {
					out = append(out, ',')
				}
				out = appendCSVField(out, string(f.text), len(f.text) == 0 && !f.quoted)
			}
			out = append(out, '\n')
		}
		again := newCSVReader(bytes.NewReader(out))
		again.blankLines = true
		for _, row := range rows {
			fields, err := again.read()
			require.NoError(t, err)
			require.Len(t, fields, len(row))
			for i, f := range row {
				require.True(t, bytes.Equal(f.text, fields[i].text))
				require.Equal(t, len(f.text) == 0 && !f.quoted, len(fields[i].text) == 0 && !fields[i].quoted)
			}
		}
		_, err := again.read()
		require.ErrorIs(t, err, io.EOF)
	})
}
