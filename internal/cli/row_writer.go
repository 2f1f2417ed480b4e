package cli

import (
	"bufio"
	"encoding/json"
	"io"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/nyaladb/nyala/client"
)

// rowWriter prints rows in one of scan's formats.
type rowWriter interface {
	row(values []client.Value) error
	// end finishes the output and flushes it.
	end() error
	// flush writes what is buffered without finishing.
	flush() error
}

func newRowWriter(w io.Writer, format string, columns []*client.Column) rowWriter {
	out := bufio.NewWriterSize(w, 64<<10)
	switch format {
	case "csv":
		return newCSVRows(out, columns)
	case "json":
		return newJSONRows(out, columns, true)
	case "ndjson":
		return newJSONRows(out, columns, false)
	}
	return &tableRows{out: out, columns: columns}
}

// csvRows prints CSV with a header line.
type csvRows struct {
	out     *bufio.Writer
	columns []*client.Column
	buf     []byte
	text    []byte
}

func newCSVRows(out *bufio.Writer, columns []*client.Column) *csvRows {
	c := &csvRows{out: out, columns: columns}
	for i, col := range columns {
		if i > 0 {
			c.buf = append(c.buf, ',')
		}
		c.buf = appendCSVField(c.buf, col.Name, false)
	}
	c.buf = append(c.buf, '\n')
	return c // the header goes out with the first row, or the end
}

func (c *csvRows) row(values []client.Value) error {
	for i, v := range values {
		if i > 0 {
			c.buf = append(c.buf, ',')
		}
		c.text = c.columns[i].AppendText(c.text[:0], v)
		c.buf = appendCSVField(c.buf, string(c.text), v.IsNull())
	}
	c.buf = append(c.buf, '\n')
	_, err := c.out.Write(c.buf)
	c.buf = c.buf[:0]
	return err
}

func (c *csvRows) flush() error {
	if _, err := c.out.Write(c.buf); err != nil {
		return err
	}
	c.buf = c.buf[:0]
	return c.out.Flush()
}

func (c *csvRows) end() error { return c.flush() }

// jsonRows prints JSON objects, one to a line, alone or as the elements of one array.
type jsonRows struct {
	out     *bufio.Writer
	columns []*client.Column
	names   [][]byte // each as `"name":`
	array   bool
	rows    int
	buf     []byte
}

func newJSONRows(out *bufio.Writer, columns []*client.Column, array bool) *jsonRows {
	j := &jsonRows{out: out, columns: columns, array: array}
	for _, c := range columns {
		j.names = append(j.names, append(appendJSONString(nil, c.Name), ':'))
	}
	return j
}

func (j *jsonRows) row(values []client.Value) error {
	j.buf = j.buf[:0]
	if j.array {
		lead := ",\n"
		if j.rows == 0 {
			lead = "[\n"
		}
		j.buf = append(j.buf, lead...)
	}
	j.rows++
	j.buf = append(j.buf, '{')
	for i, v := range values {
		if i > 0 {
			j.buf = append(j.buf, ',')
		}
		j.buf = append(j.buf, j.names[i]...)
		j.buf = appendJSONValue(j.buf, j.columns[i], v)
	}
	j.buf = append(j.buf, '}')
	if !j.array {
		j.buf = append(j.buf, '\n')
	}
	_, err := j.out.Write(j.buf)
	return err
}

func (j *jsonRows) flush() error { return j.out.Flush() }

func (j *jsonRows) end() error {
	tail := ""
	if j.array {
		tail = "\n]\n"
		if j.rows == 0 {
			tail = "[]\n"
		}
	}
	if _, err := j.out.WriteString(tail); err != nil {
		return err
	}
	return j.out.Flush()
}

// appendJSONValue writes numbers as JSON numbers (those that JSON has), all else by its text form as a string.
func appendJSONValue(dst []byte, c *client.Column, v client.Value) []byte {
	if v.IsNull() {
		return append(dst, "null"...)
	}
	switch c.Type {
	case client.Int8, client.Int16, client.Int32, client.Int64:
		return strconv.AppendInt(dst, v.Int(), 10)
	case client.Bool:
		return strconv.AppendBool(dst, v.Bool())
	case client.Float, client.Double:
		if !math.IsNaN(v.Float()) && !math.IsInf(v.Float(), 0) {
			return c.AppendText(dst, v)
		}
	default:
	}
	return appendJSONString(dst, c.FormatText(v))
}

// appendJSONString writes a JSON string. Bytes that aren't UTF-8, which no string column takes from a load, become U+FFFD.
func appendJSONString(dst []byte, s string) []byte {
	plain := true
	for i := 0; i < len(s) && plain; i++ {
		plain = s[i] >= 0x20 && s[i] != '"' && s[i] != '\\' && s[i] < utf8.RuneSelf
	}
	if plain {
		return append(append(append(dst, '"'), s...), '"')
	}
	b, err := json.Marshal(s)
	if err != nil { // a string always has a form
		return append(dst, `""`...)
	}
	return append(dst, b...)
}

// tableRowsHeld is how many rows a table's column widths are measured on. Later rows that are wider stick out.
const tableRowsHeld = 1000

// tableRows prints a table for people.
type tableRows struct {
	out     *bufio.Writer
	columns []*client.Column
	held    *grid
	widths  []int // once the held rows are out
}

func (t *tableRows) row(values []client.Value) error {
	cells := make([]string, len(values))
	for i, v := range values {
		cells[i] = printable(t.columns[i].FormatText(v))
	}
	if t.widths != nil {
		_, err := t.out.Write(t.held.line(nil, cells, t.widths))
		return err
	}
	g := t.grid()
	g.rows = append(g.rows, cells)
	if len(g.rows) < tableRowsHeld {
		return nil
	}
	return t.release()
}

func (t *tableRows) grid() *grid {
	if t.held == nil {
		names := make([]string, len(t.columns))
		for i, c := range t.columns {
			names[i] = printable(c.Name)
		}
		t.held = newGrid(names...)
		for i, c := range t.columns {
			switch c.Type {
			case client.Int8, client.Int16, client.Int32, client.Int64, client.Float, client.Double,
				client.Decimal32, client.Decimal64, client.Decimal128:
				t.held.numbers(i)
			default:
			}
		}
	}
	return t.held
}

// release prints the rows that were held back.
func (t *tableRows) release() error {
	if t.widths != nil {
		return nil
	}
	g := t.grid()
	t.widths = g.widths()
	if err := g.print(t.out); err != nil {
		return err
	}
	g.rows = nil
	return nil
}

func (t *tableRows) flush() error {
	if err := t.release(); err != nil {
		return err
	}
	return t.out.Flush()
}

func (t *tableRows) end() error { return t.flush() }
