package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/nyaladb/nyala/client"
)

// jsonSource reads rows from JSON objects, one to a line (NDJSON) or as the elements of one array, which is what scan prints.
type jsonSource struct {
	r           *bufio.Reader
	schema      *client.Schema
	ignoreExtra bool
	keyAlone    bool // only the key must be there
	line        uint64
	buf         []byte

	// array reads the elements of an array; nil: lines.
	array *json.Decoder
	// rows counts the elements read. The decoder reads ahead, so an element's number stands in for its line.
	rows  uint64
	ended bool
}

func newJSONSource(r *bufio.Reader, s *client.Schema, ignoreExtra bool) (*jsonSource, error) {
	src := &jsonSource{r: r, schema: s, ignoreExtra: ignoreExtra}
	for {
		b, err := r.Peek(1)
		if err != nil {
			return src, nil // the first next says so
		}
		switch b[0] {
		case '\n':
			src.line++
			fallthrough
		case ' ', '\t', '\r':
			_, _ = r.Discard(1) // peeked: it is there
			continue
		case '[':
			src.array = json.NewDecoder(r)
			if _, err := src.array.Token(); err != nil {
				return nil, err
			}
		}
		return src, nil
	}
}

func (s *jsonSource) next(row *inputRow) error {
	if s.array != nil {
		return s.nextElement(row)
	}
	for {
		line, err := s.readLine()
		if err != nil {
			return err
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		row.reset(s.line)
		if err := s.parse(line, row); err != nil {
			return &badRow{line: s.line, err: err}
		}
		return nil
	}
}

// readLine returns the next line; the last one needs no line end.
func (s *jsonSource) readLine() ([]byte, error) {
	s.buf = s.buf[:0]
	s.line++
	for {
		part, err := s.r.ReadSlice('\n')
		s.buf = append(s.buf, part...)
		switch {
		case err == nil || errors.Is(err, io.EOF) && len(s.buf) > 0:
			return s.buf, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		case len(s.buf) > maxRecordBytes:
			return nil, fmt.Errorf("line %d has over %d bytes", s.line, maxRecordBytes)
		}
	}
}

func (s *jsonSource) place(line uint64) string {
	if s.array != nil {
		return fmt.Sprintf("row %d", line)
	}
	return fmt.Sprintf("line %d", line)
}

// nextElement reads one element of the array.
func (s *jsonSource) nextElement(row *inputRow) error {
	if s.ended {
		return io.EOF
	}
	if !s.array.More() {
		return s.endArray()
	}
	s.rows++
	row.reset(s.rows)
	var element json.RawMessage
	if err := s.array.Decode(&element); err != nil {
		return fmt.Errorf("row %d: %w", s.rows, jsonFault(err))
	}
	if err := s.parse(element, row); err != nil {
		return &badRow{line: s.rows, err: err}
	}
	return nil
}

// endArray reads what follows the last element: a bracket and nothing else.
func (s *jsonSource) endArray() error {
	switch _, err := s.array.Token(); {
	case errors.Is(err, io.EOF):
		return fmt.Errorf("the array of rows isn't closed: the input ends after row %d", s.rows)
	case err != nil:
		return fmt.Errorf("after row %d: %w", s.rows, jsonFault(err))
	}
	s.ended = true
	if _, err := s.array.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more text after the array of rows")
	}
	return io.EOF
}

// parse reads one object.
func (s *jsonSource) parse(text []byte, row *inputRow) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	if t, err := dec.Token(); err != nil {
		return jsonFault(err)
	} else if t != json.Delim('{') {
		return errors.New("not a JSON object")
	}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return jsonFault(err)
		}
		name, _ := t.(string) // within an object a token before a value is a string
		i := s.schema.IndexOf(name)
		if i < 0 {
			if !s.ignoreExtra {
				return errors.New(unknownColumn(name, s.schema) + extraColumnsHint)
			}
			var skip json.RawMessage
			if err := dec.Decode(&skip); err != nil {
				return jsonFault(err)
			}
			continue
		}
		c := s.schema.Column(i)
		if row.set[i] {
			return badValue(c, "it stands there twice")
		}
		if t, err = dec.Token(); err != nil {
			return jsonFault(err)
		}
		v, err := jsonValue(c, t)
		if err != nil {
			return err
		}
		row.put(i, v)
	}
	if _, err := dec.Token(); err != nil {
		return jsonFault(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more text after the object")
	}
	return checkColumns(s.schema, s.keyAlone, func(i int) bool { return row.set[i] })
}

// jsonValue turns a JSON value into one of the column: strings and numbers by their text.
func jsonValue(c *client.Column, t json.Token) (client.Value, error) {
	switch t := t.(type) {
	case nil:
		return client.Null(), checkNull(c)
	case bool:
		if c.Type == client.Bool {
			return client.BoolValue(t), nil
		}
		return client.Value{}, badValue(c, "%v is no value of the type", t)
	case json.Number:
		if c.Type == client.String || c.Type == client.Varchar || c.Type == client.Binary {
			return client.Value{}, badValue(c, "the number %s isn't a string", t)
		}
		return c.ParseText(t.String())
	case string:
		return c.ParseText(t)
	}
	return client.Value{}, badValue(c, "a list or an object is no value of the type")
}

func jsonFault(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the JSON object isn't complete")
	}
	return fmt.Errorf("not JSON: %w", err)
}
