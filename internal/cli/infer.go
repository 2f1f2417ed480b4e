package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/nyaladb/nyala/client"
)

// Inferring a table's columns from an input: from the types that the file itself has (Parquet, Arrow), or from what the values
// at the beginning of a text file look like. A later value that doesn't suit is rejected as any other.

// inferred are the types that text may turn out to have, the first that suits all values is taken; else it's a string.
var inferred = []client.Type{client.Bool, client.Int64, client.Double, client.Date, client.UnixtimeMicros}

// guess is what is known of a column of text.
type guess struct {
	name   string
	values int
	may    []bool // by inferred
}

func newGuess(name string) *guess {
	g := &guess{name: name, may: make([]bool, len(inferred))}
	for i := range g.may {
		g.may[i] = true
	}
	return g
}

// see takes a value in. Numbers that would lose their leading zeros (postal codes) are text, and a moment has to look like one.
func (g *guess) see(text string, types ...client.Type) {
	g.values++
	for i, t := range inferred {
		if !g.may[i] {
			continue
		}
		c := client.Column{Name: g.name, Type: t}
		_, err := c.ParseText(text)
		number := strings.TrimLeft(text, "+-")
		switch {
		case len(types) > 0 && !slices.Contains(types, t):
			err = errors.New("not of this JSON type")
		case (t == client.Int64 || t == client.Double) && len(number) > 1 && number[0] == '0' && number[1] != '.':
			err = errors.New("leading zeros")
		case t == client.UnixtimeMicros && !strings.ContainsAny(text, "Tt "):
			err = errors.New("a number")
		}
		g.may[i] = err == nil
	}
}

func (g *guess) column() client.Column {
	c := client.Column{Name: g.name, Type: client.String, Nullable: true}
	for i, t := range inferred {
		if g.values > 0 && g.may[i] {
			c.Type = t
			break
		}
	}
	return c
}

// createLike creates a table with the input's columns. They are shown first.
func (a *app) createLike(ctx context.Context, c *client.Client, table string, in *input, f loadFlags) (*client.Table, error) {
	switch _, err := c.OpenTable(ctx, table); {
	case err == nil:
		return nil, fmt.Errorf("table %q is there already: load into it without --create", table)
	case client.CodeOf(err) != client.CodeTableNotFound:
		return nil, err
	}
	columns, err := in.inferColumns(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", in.name, err)
	}
	o := client.CreateTableOptions{Name: table, Replicas: f.replicas}
	if f.key != "" {
		if o.PrimaryKey, err = parseNames(f.key); err != nil {
			return nil, usageError("--primary_key %q: %w", f.key, err)
		}
	}
	for _, h := range f.hashes {
		dimension, err := parseHash(h)
		if err != nil {
			return nil, usageError("--hash %q: %w", h, err)
		}
		o.Hash = append(o.Hash, dimension)
	}
	g := newGrid("COLUMN", "TYPE", "NULL", "KEY")
	for i := range columns {
		null, key := "null", ""
		if slices.Contains(o.PrimaryKey, columns[i].Name) {
			columns[i].Nullable = false
			null, key = "", "key"
		}
		g.add(columns[i].Name, columns[i].TypeName(), null, key)
	}
	o.Columns = columns
	a.note("columns of %s:", in.name)
	if err := g.print(a.Err); err != nil {
		return nil, err
	}
	if len(o.PrimaryKey) == 0 {
		return nil, usageError("--primary_key is missing: which of these columns tell rows apart?")
	}
	return a.makeTable(ctx, c, o)
}

// inferColumns looks at the beginning of the input, without reading it.
func (in *input) inferColumns(f loadFlags) ([]client.Column, error) {
	format := f.format.value
	if format == "" {
		format = in.format
	}
	if format == "" {
		format = in.sniffFormat()
	}
	if format == formatParquet || format == formatArrow {
		return in.inferRecords(format)
	}
	sample, err := in.content.Peek(sampleBytes)
	whole := errors.Is(err, io.EOF)
	if err != nil && !whole && !errors.Is(err, bufio.ErrBufferFull) {
		return nil, err
	}
	if end := bytes.LastIndexByte(sample, '\n'); !whole && end >= 0 {
		sample = sample[:end+1]
	}
	var guesses []*guess
	if format == formatCSV {
		guesses, err = guessCSV(sample, f.nulls)
	} else {
		guesses, err = guessJSON(sample, whole)
	}
	if err != nil {
		return nil, err
	}
	var columns []client.Column
	for _, g := range guesses {
		columns = append(columns, g.column())
	}
	if len(columns) == 0 {
		return nil, errors.New("there are no rows to tell the columns from")
	}
	return columns, nil
}

// guessCSV reads the sample; a record that isn't CSV is passed over, as the load will reject it.
func guessCSV(sample []byte, nulls []string) ([]*guess, error) {
	r := newCSVReader(bytes.NewReader(sample))
	header, err := r.read()
	if err != nil {
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		return nil, err
	}
	var guesses []*guess
	for _, f := range header {
		guesses = append(guesses, newGuess(string(f.text)))
	}
	for {
		fields, err := r.read()
		var fault *csvError
		switch {
		case errors.As(err, &fault) && !fault.fatal:
			continue
		case err != nil: // the end, or of the sample in the middle of a quoted field
			return guesses, nil
		case len(fields) != len(guesses):
			continue
		}
		for i, f := range fields {
			if f.quoted || !slices.Contains(nulls, string(f.text)) {
				guesses[i].see(string(f.text))
			}
		}
	}
}

// guessJSON reads objects, one after the other or in an array. Columns come in the order in which they are met first.
func guessJSON(sample []byte, whole bool) ([]*guess, error) {
	dec := json.NewDecoder(bytes.NewReader(sample))
	dec.UseNumber()
	var guesses []*guess
	byName := map[string]*guess{}
	var column *guess
	depth := 0
	for {
		t, err := dec.Token()
		if err != nil {
			if whole && !errors.Is(err, io.EOF) {
				return nil, jsonFault(err)
			}
			return guesses, nil
		}
		switch t := t.(type) {
		case json.Delim:
			switch {
			case column != nil:
				return nil, fmt.Errorf("column %q: a list or an object is no value of a column", column.name)
			case t == '{':
				depth++
			case t == '}':
				depth--
			}
			continue
		case string:
			if depth == 1 && column == nil {
				if column = byName[t]; column == nil {
					column = newGuess(t)
					byName[t] = column
					guesses = append(guesses, column)
				}
				continue
			}
			if column != nil {
				column.see(t, client.Date, client.UnixtimeMicros)
			}
		case json.Number:
			if column != nil {
				column.see(t.String(), client.Int64, client.Double)
			}
		case bool:
			if column != nil {
				column.see(fmt.Sprint(t), client.Bool)
			}
		}
		if column == nil {
			return nil, errors.New("not JSON objects")
		}
		column = nil
	}
}

// inferRecords goes by the file's own types.
func (in *input) inferRecords(format string) ([]client.Column, error) {
	if format == formatArrow {
		return nil, errors.New("--create can't look into an Arrow stream before it is read: create the table first, or load a Parquet file")
	}
	records, done, err := in.openRecords(format)
	if err != nil {
		return nil, err
	}
	defer done()
	var columns []client.Column
	for _, f := range records.Schema().Fields() {
		c, err := columnOf(f)
		if err != nil {
			return nil, err
		}
		columns = append(columns, c)
	}
	return columns, nil
}

// columnOf is the column that holds every value of an Arrow field.
func columnOf(f arrow.Field) (client.Column, error) {
	c := client.Column{Name: f.Name, Nullable: true}
	t := f.Type
	if d, ok := t.(*arrow.DictionaryType); ok {
		t = d.ValueType
	}
	switch t.ID() {
	case arrow.BOOL:
		c.Type = client.Bool
	case arrow.INT8:
		c.Type = client.Int8
	case arrow.INT16, arrow.UINT8:
		c.Type = client.Int16
	case arrow.INT32, arrow.UINT16:
		c.Type = client.Int32
	case arrow.INT64, arrow.UINT32, arrow.UINT64:
		c.Type = client.Int64
	case arrow.FLOAT32:
		c.Type = client.Float
	case arrow.FLOAT64:
		c.Type = client.Double
	case arrow.STRING, arrow.LARGE_STRING:
		c.Type = client.String
	case arrow.BINARY, arrow.LARGE_BINARY, arrow.FIXED_SIZE_BINARY:
		c.Type = client.Binary
	case arrow.TIMESTAMP:
		c.Type = client.UnixtimeMicros
	case arrow.DATE32, arrow.DATE64:
		c.Type = client.Date
	case arrow.DECIMAL32, arrow.DECIMAL64, arrow.DECIMAL128, arrow.DECIMAL256:
		d := t.(arrow.DecimalType)
		precision, scale := int(d.GetPrecision()), int(d.GetScale())
		if precision > 38 || scale < 0 || scale > precision {
			return c, fmt.Errorf("column %q: no type holds the file's %s", f.Name, t)
		}
		c.Type, c.Precision, c.Scale = client.DecimalType(precision), uint8(precision), uint8(scale)
	default:
		return c, fmt.Errorf("column %q: no type holds the file's %s; create the table without it and load with --ignore_extra_columns", f.Name, t)
	}
	return c, nil
}
