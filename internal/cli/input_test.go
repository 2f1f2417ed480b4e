package cli

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/schema"
)

// everyType is a schema with a column of each type, all but the key nullable.
func everyType(t require.TestingT) *client.Schema {
	columns, err := schema.ParseColumnSpecs("k string, i8 int8 null, i16 int16 null, i32 int32 null, i64 int64 null, s string null, " +
		"b binary null, f float null, d double null, t unixtime_micros null, o bool null, vc varchar(9) null, day date null, " +
		"d32 decimal(9,2) null, d64 decimal(18,18) null, d128 decimal(38,10) null")
	require.NoError(t, err)
	columns[0].Key = true
	s, err := schema.NewTable(columns)
	require.NoError(t, err)
	return s
}

// drawRow makes a row of everyType.
func drawRow(t *rapid.T, s *client.Schema) []client.Value {
	row := make([]client.Value, s.NumColumns())
	for i := range row {
		c := s.Column(i)
		if c.Nullable && rapid.Bool().Draw(t, "null") {
			continue
		}
		bits := 8 * c.Type.Size()
		switch c.Type {
		case client.Int8, client.Int16, client.Int32, client.Int64:
			row[i] = client.IntValue(rapid.Int64Range(math.MinInt64>>(64-bits), math.MaxInt64>>(64-bits)).Draw(t, "int"))
		case client.UnixtimeMicros:
			row[i] = client.IntValue(rapid.Int64().Draw(t, "time"))
		case client.String:
			row[i] = client.StringValue(rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "NULL", `"`, "\r\n", ",", "a\x00\u2028"})).Draw(t, "string"))
		case client.Varchar:
			row[i] = client.StringValue(rapid.StringN(0, int(c.Length), -1).Draw(t, "varchar"))
		case client.Date:
			row[i] = client.IntValue(rapid.Int64Range(-719162, 2932896).Draw(t, "date"))
		case client.Decimal32, client.Decimal64, client.Decimal128:
			digits := rapid.StringMatching(fmt.Sprintf("-?[0-9]{1,%d}", c.Precision)).Draw(t, "decimal")
			n, _ := new(big.Int).SetString(digits, 10)
			var err error
			row[i], err = c.DecimalValue(n, int(c.Scale))
			require.NoError(t, err)
		case client.Binary:
			row[i] = client.BytesValue(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
		case client.Float:
			row[i] = client.FloatValue(float64(rapid.Float32().Draw(t, "float")))
		case client.Double:
			row[i] = client.FloatValue(rapid.Float64().Draw(t, "double"))
		case client.Bool:
			row[i] = client.BoolValue(rapid.Bool().Draw(t, "bool"))
		default:
		}
	}
	return row
}

// TestRoundTrip shows I3: rows of every type, printed as CSV, JSON or NDJSON, are read back as the same rows.
func TestRoundTrip(t *testing.T) {
	s := everyType(t)
	var columns []*client.Column
	for i := range s.NumColumns() {
		columns = append(columns, s.Column(i))
	}
	for _, format := range []string{"csv", "json", "ndjson"} {
		t.Run(format, rapid.MakeCheck(func(t *rapid.T) {
			var out bytes.Buffer
			w := newRowWriter(&out, format, columns)
			var rows [][]client.Value
			for range rapid.IntRange(0, 5).Draw(t, "rows") {
				row := drawRow(t, s)
				rows = append(rows, row)
				require.NoError(t, w.row(row))
			}
			require.NoError(t, w.end())
			var src rowSource
			var err error
			if format == "csv" {
				src, err = newCSVSource(&out, s, sourceOptions{nulls: []string{""}})
			} else {
				src, err = newJSONSource(bufio.NewReader(&out), s, false)
			}
			require.NoError(t, err)
			got := newInputRow(s.NumColumns())
			for _, want := range rows {
				require.NoError(t, src.next(got))
				for i, v := range want {
					require.True(t, v.Equal(got.values[i]), "column %s: %v became %v", s.Column(i).Name, v, got.values[i])
				}
			}
			require.ErrorIs(t, src.next(got), io.EOF)
		}))
	}
}

// FuzzDecodeJSONRows shows that no input makes a panic or an endless read, and that every row has its key.
func FuzzDecodeJSONRows(f *testing.F) {
	for _, s := range []string{`{"k":"a","i8":1}`, "[{\"k\":\"a\"},\n{}]", `[1]x`, `{"k":"a"}{`, "[", "\n\n{\"k\":null}", `{"k":"a","f":1e99}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		s := everyType(t)
		src, err := newJSONSource(bufio.NewReader(bytes.NewReader(in)), s, false)
		if err != nil {
			return
		}
		row := newInputRow(s.NumColumns())
		for range len(in) + 2 {
			err := src.next(row)
			var bad *badRow
			if err == nil {
				require.True(t, row.set[0] && !row.values[0].IsNull())
			} else if !errors.As(err, &bad) {
				return
			}
		}
		t.Fatal("more rows than bytes")
	})
}

// TestOpenInput shows that gzip is seen by content, formats by name or else by the first letter, and what can't be opened.
func TestOpenInput(t *testing.T) {
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	_, err := w.Write([]byte("id\n1\n"))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	dir := t.TempDir()
	for _, c := range []struct {
		name    string
		content []byte
		format  string
		text    string
	}{
		{"a.csv", []byte("id\n1\n"), formatCSV, "id\n1\n"},
		{"a.CSV.gz", z.Bytes(), formatCSV, "id\n1\n"},
		{"plain-name", z.Bytes(), "", "id\n1\n"},
		{"a.jsonl", []byte("{}"), formatNDJSON, "{}"},
		{"a.json.gz", []byte("[]"), formatNDJSON, "[]"},
		{"empty", nil, "", ""},
		{"one", []byte{0x1f}, "", "\x1f"},
	} {
		path := filepath.Join(dir, c.name)
		require.NoError(t, os.WriteFile(path, c.content, 0o644))
		in, err := openInput(path, nil)
		require.NoError(t, err, c.name)
		require.Equal(t, c.format, in.format, c.name)
		text, err := io.ReadAll(in.content)
		require.NoError(t, err, c.name)
		require.Equal(t, c.text, string(text), c.name)
		require.Equal(t, int64(len(c.content)), in.read.Load(), c.name)
		in.close()
	}
	for text, want := range map[string]string{" \n{}": formatNDJSON, "[": formatNDJSON, "a,b": formatCSV, "": formatCSV, "\n\n": formatCSV} {
		in, err := openInput("-", strings.NewReader(text))
		require.NoError(t, err)
		require.Equal(t, want, in.sniffFormat(), text)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "bad.gz"), []byte{0x1f, 0x8b, 0, 0}, 0o644))
	_, err = openInput(filepath.Join(dir, "bad.gz"), nil)
	require.ErrorContains(t, err, "bad.gz")
}

func BenchmarkCSVSource(b *testing.B) {
	data, err := os.ReadFile("../../" + demoFile)
	require.NoError(b, err)
	z, err := gzip.NewReader(bytes.NewReader(data))
	require.NoError(b, err)
	text, err := io.ReadAll(z)
	require.NoError(b, err)
	columns, err := schema.ParseColumnSpecs(demoColumns)
	require.NoError(b, err)
	key, err := parseNames(demoKey)
	require.NoError(b, err)
	columns, err = schema.OrderKeyFirst(columns, key)
	require.NoError(b, err)
	s, err := schema.NewTable(columns)
	require.NoError(b, err)
	b.Run("file=flights", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(text)))
		row := newInputRow(s.NumColumns())
		for b.Loop() {
			src, err := newCSVSource(bytes.NewReader(text), s, sourceOptions{nulls: []string{"NA"}})
			for err == nil {
				err = src.next(row)
			}
			if !errors.Is(err, io.EOF) {
				b.Fatal(err)
			}
		}
	})
}
