package cli

import (
	"errors"
	"fmt"
	"io"

	"github.com/nyaladb/nyala/client"
)

// csvSource reads rows from CSV with a header line.
type csvSource struct {
	reader  *csvReader
	schema  *client.Schema
	columns []int           // the table's position of each field, -1: not the table's
	nulls   map[string]bool // bare fields that stand for NULL
}

// sourceOptions say how rows are read from an input; nulls is for CSV alone.
type sourceOptions struct {
	nulls       []string // what stands for NULL
	ignoreExtra bool     // columns that the table doesn't have are left out
	keyAlone    bool     // rows are updated or deleted: only the key must be there
}

// newCSVSource reads the header and says what doesn't suit the table.
func newCSVSource(r io.Reader, s *client.Schema, o sourceOptions) (*csvSource, error) {
	src := &csvSource{reader: newCSVReader(r), schema: s, nulls: map[string]bool{}}
	for _, n := range o.nulls {
		src.nulls[n] = true
	}
	header, err := src.reader.read()
	if errors.Is(err, io.EOF) {
		return nil, errors.New("the input is empty: CSV begins with a line of column names")
	}
	if err != nil {
		return nil, err
	}
	seen := map[int]bool{}
	for _, f := range header {
		name := string(f.text)
		i := s.IndexOf(name)
		switch {
		case i < 0 && !o.ignoreExtra:
			return nil, fmt.Errorf("line 1: %s%s", unknownColumn(name, s), extraColumnsHint)
		case i >= 0 && seen[i]:
			return nil, fmt.Errorf("line 1: column %q stands there twice", name)
		}
		seen[i] = true
		src.columns = append(src.columns, i)
	}
	src.reader.blankLines = len(src.columns) == 1
	if err := checkColumns(s, o.keyAlone, func(i int) bool { return seen[i] }); err != nil {
		return nil, fmt.Errorf("line 1: %w", err)
	}
	return src, nil
}

// extraColumnsHint is what load says beside unknownColumn.
const extraColumnsHint = " (--ignore_extra_columns leaves such columns out)"

// unknownColumn says that the table has no such column, and which one may be meant.
func unknownColumn(name string, s *client.Schema) string {
	var names []string
	for _, c := range s.Columns() {
		names = append(names, c.Name)
	}
	if near := nearest(name, names); near != "" {
		return fmt.Sprintf("the table has no column %q; did you mean %q?", name, near)
	}
	return fmt.Sprintf("the table has no column %q; it has %s", name, quoteNames(names))
}

// checkColumns names the columns that every row must have but the input doesn't.
func checkColumns(s *client.Schema, keyAlone bool, has func(i int) bool) error {
	var missing []string
	for i := range s.NumColumns() {
		c := s.Column(i)
		must := !c.Nullable && c.WriteDefault == nil
		if keyAlone {
			must = c.Key
		}
		if must && !has(i) {
			missing = append(missing, c.Name)
		}
	}
	switch len(missing) {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("column %s is missing: it can't be NULL", quoteNames(missing))
	}
	return fmt.Errorf("columns %s are missing: they can't be NULL", quoteNames(missing))
}

func (s *csvSource) next(row *inputRow) error {
	fields, err := s.reader.read()
	var fault *csvError
	if errors.As(err, &fault) && !fault.fatal {
		return &badRow{line: uint64(fault.line), err: errors.New(fault.msg)}
	}
	if err != nil {
		return err
	}
	row.reset(uint64(fields[0].line))
	if len(fields) != len(s.columns) {
		return &badRow{line: row.line, err: fmt.Errorf("%s, but the header has %d", plural(len(fields), "field"), len(s.columns))}
	}
	for k, f := range fields {
		i := s.columns[k]
		if i < 0 {
			continue
		}
		v, err := s.value(s.schema.Column(i), f)
		if err != nil {
			return &badRow{line: uint64(f.line), err: err}
		}
		row.put(i, v)
	}
	return nil
}

func (s *csvSource) value(c *client.Column, f csvField) (client.Value, error) {
	text := string(f.text)
	if f.quoted || !s.nulls[text] {
		return c.ParseText(text)
	}
	err := checkNull(c)
	if err != nil && text == "" && (c.Type == client.String || c.Type == client.Varchar) {
		err = fmt.Errorf(`%w (nothing is NULL; the empty string is "", or use --null with another word)`, err)
	}
	return client.Null(), err
}

func (s *csvSource) place(line uint64) string { return fmt.Sprintf("line %d", line) }
