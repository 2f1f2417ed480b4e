package cli

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// maxRecordBytes bounds one record of an input file. No row that fits in a request is longer; what is longer is a file in
// which a quote was never closed.
const maxRecordBytes = 32 << 20

// csvField is one field of a record. Its text is valid until the next read.
type csvField struct {
	text   []byte
	quoted bool // "NA" in quotes is text, "" the empty string; bare ones may stand for NULL
	line   int  // where it begins
}

// csvReader reads CSV as RFC 4180 has it (CRLF or LF ends a record), and tells quoted fields from bare ones, which
// encoding/csv doesn't.
type csvReader struct {
	r    *bufio.Reader
	line int // of the next byte
	// blankLines makes a blank line a record of one empty field. Otherwise blank lines are skipped.
	blankLines bool
	// limit bounds a record's bytes.
	limit int

	text   []byte
	ends   []int
	fields []csvField
}

// csvError is a record that isn't CSV. The reader stands at the next line, unless fatal is set.
type csvError struct {
	line  int
	msg   string
	fatal bool
}

func (e *csvError) Error() string { return fmt.Sprintf("line %d: %s", e.line, e.msg) }

var byteOrderMark = []byte("\uFEFF")

func newCSVReader(r io.Reader) *csvReader {
	c := &csvReader{r: bufio.NewReaderSize(r, 64<<10), line: 1, limit: maxRecordBytes}
	// One byte first: a peek at all three would wait for input that may come later.
	if b, err := c.r.Peek(1); err == nil && b[0] == byteOrderMark[0] {
		if b, err := c.r.Peek(len(byteOrderMark)); err == nil && bytes.Equal(b, byteOrderMark) {
			_, _ = c.r.Discard(len(byteOrderMark)) // peeked: it is there
		}
	}
	return c
}

// read returns the next record; its fields are valid until the next call. io.EOF comes after the last one, a *csvError for
// one that isn't CSV; any other error is the input's own.
func (c *csvReader) read() ([]csvField, error) {
	for {
		c.text, c.ends, c.fields = c.text[:0], c.ends[:0], c.fields[:0]
		start := c.line
		more := true
		for more {
			var err error
			if more, err = c.field(start); err != nil {
				return nil, err
			}
		}
		if !c.blankLines && len(c.fields) == 1 && len(c.text) == 0 && !c.fields[0].quoted {
			continue
		}
		from := 0
		for i, end := range c.ends {
			c.fields[i].text = c.text[from:end:end]
			from = end
		}
		return c.fields, nil
	}
}

// field reads one field and says whether the record goes on after it.
func (c *csvReader) field(start int) (more bool, err error) {
	f := csvField{line: c.line}
	b, err := c.r.ReadByte()
	if errors.Is(err, io.EOF) && len(c.fields) == 0 {
		return false, io.EOF
	}
	if err == nil && b == '"' {
		f.quoted = true
		if err := c.quoted(start); err != nil {
			return false, err
		}
		b, err = c.r.ReadByte()
		if err == nil && b == '\r' {
			b, err = c.afterCR(b)
		}
		if err == nil && b != ',' && b != '\n' {
			return false, c.skipLine(b, c.line, "text after a closing quote: a quote within quotes is written twice")
		}
	} else {
		for err == nil && b != ',' && b != '\n' {
			if b == '"' {
				return false, c.skipLine(b, c.line, `a quote within a bare field: write the field as "…", with quotes in it doubled`)
			}
			if b == '\r' {
				if b, err = c.afterCR(b); err != nil || b == '\n' {
					break
				}
			}
			if err := c.add(b, start); err != nil {
				return false, err
			}
			b, err = c.r.ReadByte()
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	c.fields, c.ends = append(c.fields, f), append(c.ends, len(c.text))
	if err == nil && b == '\n' {
		c.line++
	}
	return err == nil && b == ',', nil
}

// quoted reads the rest of a quoted field, the closing quote included.
func (c *csvReader) quoted(start int) error {
	open := c.line
	for {
		b, err := c.r.ReadByte()
		if errors.Is(err, io.EOF) {
			return &csvError{line: open, msg: "the quote that opens here is never closed", fatal: true}
		}
		if err != nil {
			return err
		}
		if b == '"' {
			next, err := c.r.ReadByte()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			if next != '"' {
				return c.r.UnreadByte()
			}
		}
		if b == '\n' {
			c.line++
		}
		if err := c.add(b, start); err != nil {
			return err
		}
	}
}

// afterCR returns the line feed after a carriage return, or the carriage return itself if none follows.
func (c *csvReader) afterCR(cr byte) (byte, error) {
	next, err := c.r.ReadByte()
	switch {
	case errors.Is(err, io.EOF):
		return '\n', nil // a CR at the very end counts as a line's end
	case err != nil:
		return 0, err
	case next == '\n':
		return '\n', nil
	}
	return cr, c.r.UnreadByte()
}

func (c *csvReader) add(b byte, start int) error {
	if len(c.text) >= c.limit {
		return &csvError{line: start, msg: fmt.Sprintf("the record that begins here has over %d bytes: is a quote missing?", c.limit), fatal: true}
	}
	c.text = append(c.text, b)
	return nil
}

// skipLine moves to the next line, after a fault at byte b.
func (c *csvReader) skipLine(b byte, line int, msg string) error {
	var err error
	for err == nil && b != '\n' {
		b, err = c.r.ReadByte()
	}
	if err == nil {
		c.line++
	} else if !errors.Is(err, io.EOF) {
		return err
	}
	return &csvError{line: line, msg: msg}
}
