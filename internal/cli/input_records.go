package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/big"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/nyaladb/nyala/client"
)

// recordSource reads rows from record batches: those of an Arrow IPC stream or of a Parquet file.
type recordSource struct {
	schema  *client.Schema
	columns []int // the table's position of each of the file's columns, -1: not the table's
	records array.RecordReader
	// rec is the batch that is being read, row the next row in it, and rows those before it.
	rec  arrow.RecordBatch
	row  int
	rows uint64
	done func()
}

// recordBatchRows is how many rows of a Parquet file are decoded at once.
const recordBatchRows = 8192

// openRecords opens the input's record batches. done is to be called when nothing is read from them any more.
func (in *input) openRecords(format string) (records array.RecordReader, done func(), err error) {
	if format == formatArrow {
		r, err := ipc.NewReader(in.content)
		if err != nil {
			return nil, nil, fmt.Errorf("not an Arrow IPC stream: %w", err)
		}
		return r, r.Release, nil
	}
	if in.file == nil || in.size == 0 {
		return nil, nil, errors.New("a Parquet file is read from its end: give the file's name instead of standard input")
	}
	f, err := file.NewParquetReader(&countingFile{in})
	if err != nil {
		return nil, nil, fmt.Errorf("not a Parquet file: %w", err)
	}
	r, err := pqarrow.NewFileReader(f, pqarrow.ArrowReadProperties{BatchSize: recordBatchRows}, memory.DefaultAllocator)
	if err != nil {
		return nil, nil, err
	}
	rr, err := r.GetRecordReader(context.Background(), nil, nil)
	if err != nil {
		return nil, nil, err
	}
	return rr, func() { rr.Release(); f.Close() }, nil
}

// countingFile is the input's file for readers that jump about in it.
type countingFile struct{ in *input }

func (c *countingFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := c.in.file.ReadAt(p, off)
	c.in.read.Add(int64(n))
	return n, err
}

func (c *countingFile) Seek(offset int64, whence int) (int64, error) {
	return c.in.file.Seek(offset, whence)
}

// newRecordSource says what in the file doesn't suit the table.
func newRecordSource(records array.RecordReader, done func(), s *client.Schema, o sourceOptions) (*recordSource, error) {
	src := &recordSource{schema: s, records: records, done: done}
	seen := map[int]bool{}
	for _, f := range records.Schema().Fields() {
		i := s.IndexOf(f.Name)
		switch {
		case i < 0 && !o.ignoreExtra:
			return nil, errors.New(unknownColumn(f.Name, s) + extraColumnsHint)
		case i >= 0 && seen[i]:
			return nil, fmt.Errorf("column %q stands there twice", f.Name)
		}
		seen[i] = true
		src.columns = append(src.columns, i)
	}
	return src, checkColumns(s, o.keyAlone, func(i int) bool { return seen[i] })
}

func (s *recordSource) next(row *inputRow) error {
	for s.rec == nil || s.row == int(s.rec.NumRows()) {
		if s.rec != nil {
			s.rows += uint64(s.rec.NumRows())
		}
		if !s.records.Next() {
			s.rec = nil
			s.done()
			if err := s.records.Err(); err != nil && !errors.Is(err, io.EOF) {
				return fmt.Errorf("after row %d: %w", s.rows, err)
			}
			return io.EOF
		}
		s.rec, s.row = s.records.RecordBatch(), 0
	}
	r := s.row
	s.row++
	row.reset(s.rows + uint64(r) + 1)
	for k, i := range s.columns {
		if i < 0 {
			continue
		}
		v, err := arrowValue(s.schema.Column(i), s.rec.Column(k), r)
		if err != nil {
			return &badRow{line: row.line, err: err}
		}
		row.put(i, v)
	}
	return nil
}

func (s *recordSource) place(line uint64) string { return "row " + strconv.FormatUint(line, 10) }

// arrowValue turns a cell into a value of the column. What the column can't hold exactly is an error: nothing is rounded.
func arrowValue(c *client.Column, a arrow.Array, r int) (client.Value, error) {
	if a.IsNull(r) {
		return client.Null(), checkNull(c)
	}
	switch a := a.(type) {
	case *array.Dictionary:
		return arrowValue(c, a.Dictionary(), a.GetValueIndex(r))
	case *array.Timestamp:
		return timestampValue(c, int64(a.Value(r)), a.DataType().(*arrow.TimestampType).Unit)
	case *array.Date32:
		return daysValue(c, int64(a.Value(r)))
	case *array.Date64:
		const day = 24 * 60 * 60 * 1000
		ms := int64(a.Value(r))
		if ms%day != 0 {
			return client.Value{}, badValue(c, "%d ms since 1970 is no whole day", ms)
		}
		return daysValue(c, ms/day)
	case *array.Decimal32:
		return decimalValue(c, big.NewInt(int64(a.Value(r))), a.DataType())
	case *array.Decimal64:
		return decimalValue(c, big.NewInt(int64(a.Value(r))), a.DataType())
	case *array.Decimal128:
		return decimalValue(c, a.Value(r).BigInt(), a.DataType())
	case *array.Decimal256:
		return decimalValue(c, a.Value(r).BigInt(), a.DataType())
	case *array.Binary:
		return bytesValue(c, a.Value(r))
	case *array.LargeBinary:
		return bytesValue(c, a.Value(r))
	case *array.FixedSizeBinary:
		return bytesValue(c, a.Value(r))
	case *array.String:
		return c.ParseText(a.Value(r))
	case *array.LargeString:
		return c.ParseText(a.Value(r))
	case *array.Boolean:
		if c.Type != client.Bool {
			return client.Value{}, badValue(c, "%v is no value of the type", a.Value(r))
		}
		return client.BoolValue(a.Value(r)), nil
	case *array.Int8, *array.Int16, *array.Int32, *array.Int64, *array.Uint8, *array.Uint16, *array.Uint32, *array.Uint64:
		return numberValue(c, a.ValueStr(r))
	case *array.Float32:
		return floatValue(c, float64(a.Value(r)), 32)
	case *array.Float64:
		return floatValue(c, a.Value(r), 64)
	}
	return client.Value{}, badValue(c, "values of the file's type %s can't be taken", a.DataType())
}

func timestampValue(c *client.Column, n int64, unit arrow.TimeUnit) (client.Value, error) {
	if c.Type != client.UnixtimeMicros {
		return client.Value{}, badValue(c, "a moment is no value of the type")
	}
	micros := n
	switch unit {
	case arrow.Second, arrow.Millisecond:
		factor := int64(1000)
		if unit == arrow.Second {
			factor = 1e6
		}
		if micros = n * factor; micros/factor != n {
			return client.Value{}, badValue(c, "%d %s since 1970 is out of range", n, unit)
		}
	case arrow.Nanosecond:
		if n%1000 != 0 {
			return client.Value{}, badValue(c, "%d ns since 1970 is finer than microseconds", n)
		}
		micros = n / 1000
	default:
	}
	return client.IntValue(micros), nil
}

func daysValue(c *client.Column, days int64) (client.Value, error) {
	if c.Type != client.Date {
		return client.Value{}, badValue(c, "a date is no value of the type")
	}
	v := client.IntValue(days)
	return v, c.CheckValue(v)
}

func decimalValue(c *client.Column, unscaled *big.Int, t arrow.DataType) (client.Value, error) {
	scale := t.(arrow.DecimalType).GetScale()
	switch c.Type {
	case client.Decimal32, client.Decimal64, client.Decimal128:
		if scale >= 0 {
			return c.DecimalValue(unscaled, int(scale))
		}
		return c.DecimalValue(new(big.Int).Mul(unscaled, new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(-scale)), nil)), 0)
	default:
		return client.Value{}, badValue(c, "a decimal is no value of the type")
	}
}

func bytesValue(c *client.Column, b []byte) (client.Value, error) {
	if c.Type == client.Binary {
		return client.BytesValue(append([]byte(nil), b...)), nil // the batch's memory is another's after the next one
	}
	return c.ParseText(string(b)) // Parquet files without logical types hold strings as plain bytes
}

// numberValue takes an integer's text: ranges are checked where text is read.
func numberValue(c *client.Column, text string) (client.Value, error) {
	if c.Type == client.String || c.Type == client.Varchar || c.Type == client.Binary || c.Type == client.Bool || c.Type == client.Date {
		return client.Value{}, badValue(c, "the number %s is no value of the type", text)
	}
	return c.ParseText(text)
}

func floatValue(c *client.Column, f float64, bits int) (client.Value, error) {
	switch {
	case c.Type == client.Double, c.Type == client.Float && (bits == 32 || float64(float32(f)) == f || f != f):
		return client.FloatValue(f), nil
	case c.Type == client.Float:
		return client.Value{}, badValue(c, "%v isn't a float's value: it would be rounded", f)
	}
	return client.Value{}, badValue(c, "the number %v is no value of the type", f)
}

// peekIs says whether the input begins with the given bytes.
func peekIs(r *bufio.Reader, magic string) bool {
	b, err := r.Peek(len(magic))
	return err == nil && string(b) == magic
}
