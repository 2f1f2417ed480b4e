package cli

import (
	"fmt"
	"io"
	"os"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
)

// The formats of scan that are for machines alone: columns, not lines.
const (
	formatArrow   = "arrow"
	formatParquet = "parquet"
)

// recordWriter writes whole record batches.
type recordWriter interface {
	write(rec arrow.RecordBatch) error
	// end finishes the output. Without it what was written can't be taken for the whole.
	end() error
}

// parquetRowGroup is how many rows a row group holds at most: what is kept in memory until it is written.
const parquetRowGroup = 128 << 10

// newRecordWriter returns a writer of an Arrow IPC stream or of a Parquet file.
func newRecordWriter(w io.Writer, format string, s *arrow.Schema) (recordWriter, error) {
	if f, ok := w.(*os.File); ok && isTerminal(f) {
		return nil, usageError("--format %s isn't for a terminal: send the output to a file or a program", format)
	}
	if format == formatArrow {
		return &arrowRows{ipc.NewWriter(w, ipc.WithSchema(s))}, nil
	}
	props := parquet.NewWriterProperties(
		parquet.WithCompression(compress.Codecs.Snappy), parquet.WithMaxRowGroupLength(parquetRowGroup), parquet.WithCreatedBy("nyala"),
	)
	// The Arrow schema stands in the file too, so that readers of Arrow get the types back to the letter.
	p, err := pqarrow.NewFileWriter(s, onlyWriter{w}, props, pqarrow.NewArrowWriterProperties(pqarrow.WithStoreSchema()))
	if err != nil {
		return nil, fmt.Errorf("write Parquet: %w", err)
	}
	return &parquetRows{p}, nil
}

// onlyWriter hides a Close: standard output stays open.
type onlyWriter struct{ io.Writer }

type arrowRows struct{ w *ipc.Writer }

func (a *arrowRows) write(rec arrow.RecordBatch) error { return a.w.Write(rec) }
func (a *arrowRows) end() error                        { return a.w.Close() }

type parquetRows struct{ w *pqarrow.FileWriter }

func (p *parquetRows) write(rec arrow.RecordBatch) error { return p.w.WriteBuffered(rec) }
func (p *parquetRows) end() error                        { return p.w.Close() }
