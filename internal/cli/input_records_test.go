package cli

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/schema"
)

// recordColumns has a column of each type, as columns of a table and of a record, with text of two rows; "" is NULL.
var recordColumns = []struct {
	spec string
	typ  arrow.DataType
	fill func(b array.Builder)
	text string
}{
	{"i8 int8", arrow.PrimitiveTypes.Int8, func(b array.Builder) { b.(*array.Int8Builder).Append(-128) }, "-128"},
	{"i16 int16", arrow.PrimitiveTypes.Int16, func(b array.Builder) { b.(*array.Int16Builder).Append(32767) }, "32767"},
	{"i32 int32", arrow.PrimitiveTypes.Int32, func(b array.Builder) { b.(*array.Int32Builder).Append(-7) }, "-7"},
	{"i64 int64", arrow.PrimitiveTypes.Int64, func(b array.Builder) { b.(*array.Int64Builder).Append(math.MinInt64) }, "-9223372036854775808"},
	{"f float", arrow.PrimitiveTypes.Float32, func(b array.Builder) { b.(*array.Float32Builder).Append(1.5) }, "1.5"},
	{"d double", arrow.PrimitiveTypes.Float64, func(b array.Builder) { b.(*array.Float64Builder).Append(0.1) }, "0.1"},
	{"b bool", arrow.FixedWidthTypes.Boolean, func(b array.Builder) { b.(*array.BooleanBuilder).Append(true) }, "true"},
	{"s string", arrow.BinaryTypes.String, func(b array.Builder) { b.(*array.StringBuilder).Append("ein \"Wort\"") }, "ein \"Wort\""},
	{"v varchar(3)", arrow.BinaryTypes.String, func(b array.Builder) { b.(*array.StringBuilder).Append("abc") }, "abc"},
	{"bin binary", arrow.BinaryTypes.Binary, func(b array.Builder) { b.(*array.BinaryBuilder).Append([]byte{0, 255}) }, "0x00ff"},
	{"t unixtime_micros", arrow.FixedWidthTypes.Timestamp_us, func(b array.Builder) { b.(*array.TimestampBuilder).Append(-1) }, "1969-12-31T23:59:59.999999Z"},
	{"day date", arrow.FixedWidthTypes.Date32, func(b array.Builder) { b.(*array.Date32Builder).Append(15706) }, "2013-01-01"},
	{"d9 decimal(9,2)", &arrow.Decimal128Type{Precision: 9, Scale: 2}, func(b array.Builder) { b.(*array.Decimal128Builder).Append(decimal128.FromI64(-12345)) }, "-123.45"},
	{"d38 decimal(38,0)", &arrow.Decimal128Type{Precision: 38, Scale: 0}, func(b array.Builder) {
		b.(*array.Decimal128Builder).Append(decimal128.New(1<<62, 5))
	}, "85070591730234615865843651857942052869"},
}

func everyRecord(t *testing.T) (*client.Schema, arrow.RecordBatch) {
	t.Helper()
	specs := "id int32"
	fields := []arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int32}}
	for _, c := range recordColumns {
		specs += ", " + c.spec + " null"
		name, _, _ := bytes.Cut([]byte(c.spec), []byte(" "))
		fields = append(fields, arrow.Field{Name: string(name), Type: c.typ, Nullable: true})
	}
	columns, err := schema.ParseColumnSpecs(specs)
	require.NoError(t, err)
	columns[0].Key = true
	for i := range columns {
		columns[i].ID = client.ColumnID(i + 10)
	}
	s, err := schema.New(columns, 0, 100)
	require.NoError(t, err)
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(fields, nil))
	defer b.Release()
	b.Field(0).(*array.Int32Builder).AppendValues([]int32{1, 2}, nil)
	for i, c := range recordColumns {
		c.fill(b.Field(i + 1))
		b.Field(i + 1).AppendNull()
	}
	return s, b.NewRecordBatch()
}

// readRows reads an input's rows to the end, as text by column.
func readRows(t *testing.T, in *input, s *client.Schema) (rows [][]string) {
	t.Helper()
	defer in.close()
	src, err := in.rows(s, loadFlags{op: choice{value: "insert"}})
	require.NoError(t, err)
	row := newInputRow(s.NumColumns())
	for {
		err := src.next(row)
		if errors.Is(err, io.EOF) {
			return rows
		}
		require.NoError(t, err)
		var texts []string
		for i := range s.NumColumns() {
			require.True(t, row.set[i], s.Column(i).Name)
			text := ""
			if v := row.values[i]; !v.IsNull() {
				text = s.Column(i).FormatText(v)
			}
			texts = append(texts, text)
		}
		rows = append(rows, texts)
	}
}

// TestRecordFormats writes a value of each type and a NULL, and reads them back the same.
func TestRecordFormats(t *testing.T) {
	s, rec := everyRecord(t)
	want := [][]string{{"1"}, {"2"}}
	for _, c := range recordColumns {
		want[0], want[1] = append(want[0], c.text), append(want[1], "")
	}
	for _, format := range []string{formatArrow, formatParquet} {
		t.Run(format, func(t *testing.T) {
			var buf bytes.Buffer
			w, err := newRecordWriter(&buf, format, rec.Schema())
			require.NoError(t, err)
			for range 3 {
				require.NoError(t, w.write(rec))
			}
			require.NoError(t, w.end())
			path := filepath.Join(t.TempDir(), "rows") // the content says what it is
			require.NoError(t, os.WriteFile(path, buf.Bytes(), 0o600))
			in, err := openInput(path, nil)
			require.NoError(t, err)
			require.Equal(t, append(append(append([][]string{}, want...), want...), want...), readRows(t, in, s))
		})
	}
	t.Run("parquet from a pipe", func(t *testing.T) {
		in, err := openInput("-", bytes.NewReader([]byte(parquetMagic+"...")))
		require.NoError(t, err)
		_, err = in.rows(s, loadFlags{})
		require.ErrorContains(t, err, "give the file's name")
	})
	t.Run("cut", func(t *testing.T) {
		var buf bytes.Buffer
		w, err := newRecordWriter(&buf, formatParquet, rec.Schema())
		require.NoError(t, err)
		require.NoError(t, w.write(rec)) // and no end
		path := filepath.Join(t.TempDir(), "rows.parquet")
		require.NoError(t, os.WriteFile(path, append([]byte(parquetMagic), buf.Bytes()...), 0o600))
		in, err := openInput(path, nil)
		require.NoError(t, err)
		defer in.close()
		_, err = in.rows(s, loadFlags{})
		require.ErrorContains(t, err, "not a Parquet file")
	})
}

// TestCompressedInput reads the same rows whatever they are compressed with.
func TestCompressedInput(t *testing.T) {
	columns, err := schema.ParseColumnSpecs("id int32, s string null")
	require.NoError(t, err)
	columns[0].ID, columns[0].Key, columns[1].ID = 1, true, 2
	s, err := schema.New(columns, 0, 3)
	require.NoError(t, err)
	const text = "id,s\n1,a\n2,\n"
	for name, compress := range map[string]func(io.Writer) io.WriteCloser{
		"rows.csv.gz": func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) },
		"rows.csv.zst": func(w io.Writer) io.WriteCloser {
			z, err := zstd.NewWriter(w)
			require.NoError(t, err)
			return z
		},
	} {
		path := filepath.Join(t.TempDir(), name)
		f, err := os.Create(path)
		require.NoError(t, err)
		w := compress(f)
		_, err = io.WriteString(w, text)
		require.NoError(t, errors.Join(err, w.Close(), f.Close()))
		in, err := openInput(path, nil)
		require.NoError(t, err)
		require.Equal(t, [][]string{{"1", "a"}, {"2", ""}}, readRows(t, in, s), name)
	}
}

// TestArrowValue takes values of other types where they fit exactly, and refuses them where they don't.
func TestArrowValue(t *testing.T) {
	one := func(b array.Builder, v any) arrow.Array {
		switch b := b.(type) {
		case *array.Int64Builder:
			b.Append(v.(int64))
		case *array.Uint64Builder:
			b.Append(v.(uint64))
		case *array.Float64Builder:
			b.Append(v.(float64))
		case *array.StringBuilder:
			b.Append(v.(string))
		case *array.TimestampBuilder:
			b.Append(arrow.Timestamp(v.(int64)))
		case *array.Date64Builder:
			b.Append(arrow.Date64(v.(int64)))
		case *array.Decimal128Builder:
			b.Append(decimal128.FromI64(v.(int64)))
		default:
			t.Fatalf("%T", b)
		}
		return b.NewArray()
	}
	m := memory.DefaultAllocator
	timestamps := func(u arrow.TimeUnit) array.Builder {
		return array.NewTimestampBuilder(m, &arrow.TimestampType{Unit: u})
	}
	for _, c := range []struct {
		spec  string
		array arrow.Array
		want  string // "": an error
	}{
		{"int8", one(array.NewInt64Builder(m), int64(127)), "127"},
		{"int8", one(array.NewInt64Builder(m), int64(128)), ""},
		{"int64", one(array.NewUint64Builder(m), uint64(1)<<63), ""},
		{"double", one(array.NewInt64Builder(m), int64(3)), "3"},
		{"string", one(array.NewInt64Builder(m), int64(3)), ""},
		{"int32", one(array.NewStringBuilder(m), "12"), "12"},
		{"int32", one(array.NewStringBuilder(m), "x"), ""},
		{"float", one(array.NewFloat64Builder(m), 0.5), "0.5"},
		{"float", one(array.NewFloat64Builder(m), 0.1), ""},
		{"int32", one(array.NewFloat64Builder(m), 1.0), ""},
		{"unixtime_micros", one(timestamps(arrow.Second), int64(1)), "1970-01-01T00:00:01Z"},
		{"unixtime_micros", one(timestamps(arrow.Second), int64(math.MaxInt64)), ""},
		{"unixtime_micros", one(timestamps(arrow.Millisecond), int64(-1)), "1969-12-31T23:59:59.999000Z"},
		{"unixtime_micros", one(timestamps(arrow.Nanosecond), int64(2000)), "1970-01-01T00:00:00.000002Z"},
		{"unixtime_micros", one(timestamps(arrow.Nanosecond), int64(2001)), ""},
		{"int64", one(timestamps(arrow.Microsecond), int64(1)), ""},
		{"date", one(array.NewDate64Builder(m), int64(86400000)), "1970-01-02"},
		{"date", one(array.NewDate64Builder(m), time.Hour.Milliseconds()), ""},
		{"decimal(9,3)", one(array.NewDecimal128Builder(m, &arrow.Decimal128Type{Precision: 9, Scale: 2}), int64(150)), "1.500"},
		{"decimal(9,1)", one(array.NewDecimal128Builder(m, &arrow.Decimal128Type{Precision: 9, Scale: 2}), int64(155)), ""},
		{"decimal(3,0)", one(array.NewDecimal128Builder(m, &arrow.Decimal128Type{Precision: 9, Scale: -2}), int64(3)), "300"},
	} {
		columns, err := schema.ParseColumnSpecs("c " + c.spec)
		require.NoError(t, err)
		v, err := arrowValue(&columns[0], c.array, 0)
		got := ""
		if err == nil {
			got = columns[0].FormatText(v)
		}
		require.Equal(t, c.want, got, "%s from %s %s: %v", c.spec, c.array.DataType(), c.array, err)
	}
}
