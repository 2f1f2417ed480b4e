package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/nyaladb/nyala/client"
)

// inputRow is one row of an input file, as values in the table's order.
type inputRow struct {
	line   uint64
	bytes  int64 // about what it takes in memory
	values []client.Value
	set    []bool
}

func newInputRow(columns int) *inputRow {
	return &inputRow{values: make([]client.Value, columns), set: make([]bool, columns)}
}

func (r *inputRow) reset(line uint64) {
	clear(r.values)
	clear(r.set)
	r.line, r.bytes = line, int64(64*len(r.values))
}

func (r *inputRow) put(i int, v client.Value) {
	r.values[i], r.set[i] = v, true
	r.bytes += int64(len(v.Bytes()))
}

// rowSource reads rows one by one.
type rowSource interface {
	// next fills row. io.EOF comes after the last row; a *badRow is a row that can't be taken, the next call goes on after
	// it; any other error ends the input.
	next(row *inputRow) error
	// place says where a row stands, by inputRow's or badRow's line.
	place(line uint64) string
}

// badRow is a row of the input that can't be written.
type badRow struct {
	line uint64
	err  error
}

func (e *badRow) Error() string { return fmt.Sprintf("line %d: %v", e.line, e.err) }

func (e *badRow) Unwrap() error { return e.err }

// The formats of input files.
const (
	formatCSV    = "csv"
	formatNDJSON = "ndjson"
)

// input is an open input file.
type input struct {
	name    string // for messages
	file    *os.File
	read    atomic.Int64 // bytes of the file that were read, compressed ones where it is compressed
	size    int64        // of the file; 0: not known
	content *bufio.Reader
	zstd    *zstd.Decoder // nil: not compressed so
	format  string        // as far as the name says: empty if it doesn't
}

// What files begin with.
const (
	gzipMagic    = "\x1f\x8b"
	zstdMagic    = "\x28\xb5\x2f\xfd"
	parquetMagic = "PAR1"
	arrowMagic   = "\xff\xff\xff\xff" // of an IPC stream
)

// sampleBytes is how much of the content can be looked at before it is read.
const sampleBytes = 256 << 10

// openInput opens a file, or standard input for "-". Content compressed with gzip or zstd is decompressed, whatever its name.
func openInput(name string, stdin io.Reader) (*input, error) {
	in := &input{name: name, format: formatOf(name)}
	raw := stdin
	if name == "-" {
		in.name = "standard input"
	} else {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		info, err := f.Stat()
		if err == nil && info.IsDir() {
			err = fmt.Errorf("%s is a folder", name)
		}
		if err != nil {
			f.Close()
			return nil, err
		}
		if info.Mode().IsRegular() {
			in.size = info.Size()
		}
		in.file, raw = f, f
	}
	counted := bufio.NewReaderSize(&countingReader{r: raw, n: &in.read}, 64<<10)
	in.content = counted
	var err error
	switch {
	case peekIs(counted, gzipMagic):
		var z *gzip.Reader
		if z, err = gzip.NewReader(counted); err == nil {
			in.content = bufio.NewReaderSize(z, sampleBytes)
		}
	case peekIs(counted, zstdMagic):
		if in.zstd, err = zstd.NewReader(counted, zstd.WithDecoderConcurrency(1)); err == nil {
			in.content = bufio.NewReaderSize(in.zstd, sampleBytes)
		}
	default:
		in.content = bufio.NewReaderSize(counted, sampleBytes)
	}
	if err != nil {
		in.close()
		return nil, fmt.Errorf("%s: %w", in.name, err)
	}
	return in, nil
}

func (in *input) close() {
	if in.zstd != nil {
		in.zstd.Close()
	}
	if in.file != nil {
		in.file.Close()
	}
}

// formatOf is the format that a file's name says it has.
func formatOf(name string) string {
	name = strings.ToLower(name)
	for _, compression := range []string{".gz", ".zst", ".zstd"} {
		name = strings.TrimSuffix(name, compression)
	}
	switch {
	case strings.HasSuffix(name, ".csv"):
		return formatCSV
	case strings.HasSuffix(name, ".parquet"):
		return formatParquet
	case strings.HasSuffix(name, ".arrows"):
		return formatArrow
	case strings.HasSuffix(name, ".ndjson"), strings.HasSuffix(name, ".jsonl"), strings.HasSuffix(name, ".json"):
		return formatNDJSON
	}
	return ""
}

// sniffFormat tells the formats apart by their first bytes, JSON from CSV by the first that isn't blank.
func (in *input) sniffFormat() string {
	switch {
	case peekIs(in.content, parquetMagic):
		return formatParquet
	case peekIs(in.content, arrowMagic):
		return formatArrow
	}
	for n := 1; n <= 1024; n++ {
		b, err := in.content.Peek(n)
		if err != nil {
			break
		}
		switch b[n-1] {
		case ' ', '\t', '\r', '\n':
			continue
		case '{', '[':
			return formatNDJSON
		}
		break
	}
	return formatCSV
}

type countingReader struct {
	r io.Reader
	n *atomic.Int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// badValue names the column of a value that can't be taken. Errors of package schema name it themselves.
func badValue(c *client.Column, format string, args ...any) error {
	return fmt.Errorf("column %q (%s): "+format, append([]any{c.Name, c.TypeName()}, args...)...)
}

var errNullKey = errors.New("NULL in a column that isn't nullable")

// checkNull says whether a column may be NULL.
func checkNull(c *client.Column) error {
	if c.Nullable {
		return nil
	}
	return badValue(c, "%w", errNullKey)
}
