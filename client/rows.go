package client

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/schema"
)

// Batch is some rows of a scan.
//
// Its owner calls Release once, when done with Record and all that was taken from it. To keep the record, or one of its
// columns, beyond that, Retain it first and Release it later.
type Batch struct {
	// Record holds the columns in the order asked for; nil with CountOnly.
	Record arrow.RecordBatch
	// Rows is the number of rows.
	Rows int

	schema    *schema.Schema
	positions []int
}

// Release gives the batch's memory back.
func (b *Batch) Release() {
	if b.Record != nil {
		b.Record.Release()
		b.Record = nil
	}
}

// Column returns the description of the batch's column i.
func (b *Batch) Column(i int) *Column { return b.schema.Column(b.positions[i]) }

// Value returns one cell. A string's bytes are the record's own: valid until Release.
func (b *Batch) Value(column, row int) Value {
	a := b.Record.Column(column)
	if a.IsNull(row) {
		return schema.Null()
	}
	switch a := a.(type) {
	case *array.Int64:
		return schema.IntValue(a.Value(row))
	case *array.Int32:
		return schema.IntValue(int64(a.Value(row)))
	case *array.Int16:
		return schema.IntValue(int64(a.Value(row)))
	case *array.Int8:
		return schema.IntValue(int64(a.Value(row)))
	case *array.String:
		return schema.BytesValue([]byte(a.Value(row)))
	case *array.Binary:
		return schema.BytesValue(a.Value(row))
	case *array.Float64:
		return schema.FloatValue(a.Value(row))
	case *array.Float32:
		return schema.FloatValue(float64(a.Value(row)))
	case *array.Boolean:
		return schema.BoolValue(a.Value(row))
	case *array.Timestamp:
		return schema.IntValue(int64(a.Value(row)))
	case *array.Date32:
		return schema.IntValue(int64(a.Value(row)))
	}
	return schema.BytesValue([]byte(a.ValueStr(row)))
}

// decodeBatch turns an answer with at least one row into a batch, without copying the columns. It takes at most the
// answer's NumRows from the record.
func decodeBatch(s *schema.Schema, positions []int, resp *nyalav1.ScanResponse) (*Batch, error) {
	b := &Batch{Rows: int(resp.GetNumRows()), schema: s, positions: positions}
	if len(positions) == 0 {
		return b, nil
	}
	rec, err := decodeIPC(resp.GetArrowIpc())
	if err != nil {
		return nil, err
	}
	switch {
	case int(rec.NumCols()) != len(positions):
		err = fmt.Errorf("the server sent %d columns, asked for were %d", rec.NumCols(), len(positions))
	case rec.NumRows() < int64(b.Rows):
		err = fmt.Errorf("the server sent %d rows and said %d", rec.NumRows(), b.Rows)
	}
	if err != nil {
		rec.Release()
		return nil, err
	}
	if rec.NumRows() > int64(b.Rows) {
		cut := rec.NewSlice(0, int64(b.Rows))
		rec.Release()
		rec = cut
	}
	b.Record = rec
	return b, nil
}

// decodeIPC returns the one record batch of an Arrow IPC stream. The record's buffers are parts of data.
func decodeIPC(data []byte) (rec arrow.RecordBatch, err error) {
	reader, err := ipc.NewReaderFromMessageReader(&messages{data: data})
	if err != nil {
		return nil, err
	}
	defer reader.Release()
	if !reader.Next() {
		if err := reader.Err(); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		return nil, errors.New("the Arrow stream holds no record batch")
	}
	rec = reader.RecordBatch()
	rec.Retain()
	return rec, nil
}

// messages reads an IPC stream that lies in memory, message by message, without copying.
type messages struct {
	data []byte
}

const continuation = 0xffffffff

// Message returns the next message, io.EOF at the end.
func (m *messages) Message() (msg *ipc.Message, err error) {
	defer func() {
		if p := recover(); p != nil { // the metadata reader's way to say that offsets lead nowhere
			msg, err = nil, fmt.Errorf("the Arrow stream's metadata is damaged: %v", p)
		}
	}()
	if len(m.data) == 0 {
		return nil, io.EOF
	}
	if len(m.data) < 8 || binary.LittleEndian.Uint32(m.data) != continuation {
		return nil, errors.New("the Arrow stream is damaged: no message where one should be")
	}
	size := uint64(binary.LittleEndian.Uint32(m.data[4:]))
	m.data = m.data[8:]
	if size == 0 {
		m.data = nil
		return nil, io.EOF
	}
	if size < 4 || size > uint64(len(m.data)) {
		return nil, fmt.Errorf("the Arrow stream is damaged: metadata of %d bytes in %d", size, len(m.data))
	}
	meta := m.data[:size:size]
	msg = ipc.NewMessage(memory.NewBufferBytes(meta), memory.NewBufferBytes(nil))
	n := msg.BodyLen()
	m.data = m.data[size:]
	if n < 0 || n > int64(len(m.data)) {
		return nil, fmt.Errorf("the Arrow stream is damaged: a body of %d bytes in %d", n, len(m.data))
	}
	msg = ipc.NewMessage(memory.NewBufferBytes(meta), memory.NewBufferBytes(m.data[:n:n]))
	m.data = m.data[n:]
	return msg, nil
}

// Retain and Release have nothing to count: the garbage collector owns the memory.
func (m *messages) Retain() {}

// Release does nothing.
func (m *messages) Release() {}
