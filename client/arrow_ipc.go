package client

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/nyaladb/nyala/internal/schema"
)

// An answer to a scan is an Arrow IPC stream of one record batch: a schema message, a record batch message, an end mark. This
// file reads that much of the format and no more, for two reasons. The columns are used where they lie in the answer, without
// a copy; for that the format aligns them to eight bytes, and so is the answer. And what the stream says of itself is checked before it is believed: arrow-go's own reader takes lengths as they
// come, and a few changed bytes make it ask for hundreds of gigabytes.

// Message kinds, type tags and units of Arrow's Message.fbs and Schema.fbs.
const (
	ipcContinuation = 0xffffffff
	ipcSchema       = 1
	ipcRecordBatch  = 3

	ipcInt           = 2
	ipcFloatingPoint = 3
	ipcBinary        = 4
	ipcUTF8          = 5
	ipcBool          = 6
	ipcDecimal       = 7
	ipcDate          = 8
	ipcTimestamp     = 10

	ipcSinglePrecision = 1
	ipcDoublePrecision = 2
	ipcMicroseconds    = 2
	ipcDays            = 0
)

// arrowType is the Arrow type in which a column's values come: integers, floats and bool as their like, string and varchar as
// utf8, binary as binary, unixtime_micros as timestamp[us, UTC], date as date32, decimals as decimal128.
func arrowType(c *schema.Column) arrow.DataType {
	switch c.Type {
	case schema.Int8:
		return arrow.PrimitiveTypes.Int8
	case schema.Int16:
		return arrow.PrimitiveTypes.Int16
	case schema.Int32:
		return arrow.PrimitiveTypes.Int32
	case schema.Int64:
		return arrow.PrimitiveTypes.Int64
	case schema.Bool:
		return arrow.FixedWidthTypes.Boolean
	case schema.Float:
		return arrow.PrimitiveTypes.Float32
	case schema.Double:
		return arrow.PrimitiveTypes.Float64
	case schema.String, schema.Varchar:
		return arrow.BinaryTypes.String
	case schema.UnixtimeMicros:
		return arrow.FixedWidthTypes.Timestamp_us
	case schema.Date:
		return arrow.FixedWidthTypes.Date32
	case schema.Decimal32, schema.Decimal64, schema.Decimal128:
		return &arrow.Decimal128Type{Precision: int32(c.Precision), Scale: int32(c.Scale)}
	default:
		return arrow.BinaryTypes.Binary
	}
}

// arrowSchema is the Arrow schema of a projection.
func arrowSchema(s *schema.Schema, positions []int) *arrow.Schema {
	fields := make([]arrow.Field, len(positions))
	for k, i := range positions {
		c := s.Column(i)
		fields[k] = arrow.Field{Name: c.Name, Type: arrowType(c), Nullable: c.Nullable}
	}
	return arrow.NewSchema(fields, nil)
}

// decodeIPC returns the one record batch of an IPC stream, whose schema must be the one given. The record's buffers are parts
// of data.
func decodeIPC(want *arrow.Schema, data []byte) (arrow.RecordBatch, error) {
	header, kind, _, rest, err := nextMessage(data)
	if err != nil {
		return nil, err
	}
	if kind != ipcSchema {
		return nil, fmt.Errorf("a message of kind %d where its schema should be", kind)
	}
	if err := checkSchema(want, header); err != nil {
		return nil, err
	}
	header, kind, body, _, err := nextMessage(rest)
	if err != nil {
		return nil, err
	}
	if kind != ipcRecordBatch {
		return nil, fmt.Errorf("a message of kind %d where its rows should be", kind)
	}
	return decodeRecord(want, header, body)
}

// nextMessage takes a message off an IPC stream: its header table and kind, its body, and what follows.
func nextMessage(data []byte) (header flatTable, kind uint8, body, rest []byte, err error) {
	if len(data) < 8 || binary.LittleEndian.Uint32(data) != ipcContinuation {
		return header, 0, nil, nil, errors.New("no message where one should be")
	}
	size := uint64(binary.LittleEndian.Uint32(data[4:]))
	data = data[8:]
	if size == 0 || size%8 != 0 || size > uint64(len(data)) || size > math.MaxInt32 {
		return header, 0, nil, nil, fmt.Errorf("metadata of %d bytes in %d", size, len(data))
	}
	message := flatRoot(data[:size])
	data = data[size:]
	kind = message.fieldUint8(1)
	header, _ = message.fieldTable(2)
	n := message.fieldInt64(3)
	if header.bad == nil || *message.bad {
		return header, 0, nil, nil, errFlatBuffer
	}
	if n < 0 || n > int64(len(data)) {
		return header, 0, nil, nil, fmt.Errorf("a body of %d bytes in %d", n, len(data))
	}
	return header, kind, data[:n:n], data[n:], nil
}

// checkSchema compares a Schema table with the schema that was asked for.
func checkSchema(want *arrow.Schema, t flatTable) error {
	if t.fieldInt16(0) != 0 {
		return errors.New("it is big-endian")
	}
	at, n := t.fieldVector(1, 4)
	if int(n) != want.NumFields() && t.err() == nil {
		return fmt.Errorf("the server sent %d columns, asked for were %d", n, want.NumFields())
	}
	for i := range n {
		field := t
		field.pos = t.follow(at + 4*i)
		f := want.Field(int(i))
		name, tag := field.fieldString(0), field.fieldUint8(2)
		kind, ok := field.fieldTable(3)
		switch {
		case field.err() != nil:
			return field.err()
		case name != f.Name:
			return fmt.Errorf("column %d is %q, asked for was %q", i, name, f.Name)
		case !ok || !sameType(f.Type, tag, kind):
			return fmt.Errorf("column %q isn't of Arrow type %s", name, f.Type)
		}
	}
	return t.err()
}

// sameType says whether a type table with the given tag is the type t.
func sameType(t arrow.DataType, tag uint8, table flatTable) bool {
	integer := func(bits int32) bool {
		return tag == ipcInt && table.fieldInt32(0) == bits && table.fieldUint8(1) == 1
	}
	switch t := t.(type) {
	case *arrow.Int8Type:
		return integer(8)
	case *arrow.Int16Type:
		return integer(16)
	case *arrow.Int32Type:
		return integer(32)
	case *arrow.Int64Type:
		return integer(64)
	case *arrow.BooleanType:
		return tag == ipcBool
	case *arrow.Float32Type:
		return tag == ipcFloatingPoint && table.fieldInt16(0) == ipcSinglePrecision
	case *arrow.Float64Type:
		return tag == ipcFloatingPoint && table.fieldInt16(0) == ipcDoublePrecision
	case *arrow.StringType:
		return tag == ipcUTF8
	case *arrow.BinaryType:
		return tag == ipcBinary
	case *arrow.TimestampType:
		return tag == ipcTimestamp && table.fieldInt16(0) == ipcMicroseconds
	case *arrow.Date32Type:
		return tag == ipcDate && table.fieldInt16(0) == ipcDays
	case *arrow.Decimal128Type:
		bits := table.fieldInt32(2)
		return tag == ipcDecimal && table.fieldInt32(0) == t.Precision && table.fieldInt32(1) == t.Scale && (bits == 0 || bits == 128)
	}
	return false
}

// recordReader takes the nodes and buffers of a RecordBatch table, column by column.
type recordReader struct {
	table          flatTable
	body           []byte
	rows           int64
	nodes, buffers uint32 // where the next ones lie
	nodesLeft      uint32
	buffersLeft    uint32
}

// decodeRecord builds the record of a RecordBatch table.
func decodeRecord(want *arrow.Schema, t flatTable, body []byte) (arrow.RecordBatch, error) {
	r := recordReader{table: t, body: body, rows: t.fieldInt64(0)}
	r.nodes, r.nodesLeft = t.fieldVector(1, 16)
	r.buffers, r.buffersLeft = t.fieldVector(2, 16)
	_, compressed := t.fieldTable(3)
	switch {
	case t.err() != nil:
		return nil, t.err()
	case compressed:
		return nil, errors.New("it is compressed, which this client can't read")
	case r.rows < 0 || r.rows > math.MaxInt32:
		return nil, fmt.Errorf("it says that it has %d rows", r.rows)
	}
	columns := make([]arrow.Array, 0, want.NumFields())
	defer func() {
		for _, c := range columns {
			c.Release()
		}
	}()
	for i := range want.NumFields() {
		c, err := r.column(want.Field(i).Type)
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", want.Field(i).Name, err)
		}
		columns = append(columns, c)
	}
	return array.NewRecordBatch(want, columns, r.rows), nil
}

// column takes the next column, which is of type t.
func (r *recordReader) column(t arrow.DataType) (arrow.Array, error) {
	if r.nodesLeft == 0 {
		return nil, errors.New("it is missing")
	}
	length, nulls := int64(r.table.uint64(r.nodes)), int64(r.table.uint64(r.nodes+8))
	r.nodes, r.nodesLeft = r.nodes+16, r.nodesLeft-1
	if length != r.rows || nulls < 0 || nulls > length {
		return nil, fmt.Errorf("%d values with %d NULLs in %d rows", length, nulls, r.rows)
	}
	validity, err := r.buffer((length + 7) / 8)
	if err != nil && nulls > 0 {
		return nil, err
	}
	if nulls == 0 {
		validity = nil
	}
	var buffers []*memory.Buffer
	switch t := t.(type) {
	case arrow.BinaryDataType:
		offsets, values, err := r.varLen(length)
		if err != nil {
			return nil, err
		}
		buffers = []*memory.Buffer{validity, offsets, values}
	case arrow.FixedWidthDataType:
		values, err := r.buffer((length*int64(t.BitWidth()) + 7) / 8)
		if err != nil {
			return nil, err
		}
		buffers = []*memory.Buffer{validity, values}
	default:
		return nil, fmt.Errorf("no reader for Arrow type %s", t)
	}
	data := array.NewData(t, int(length), buffers, nil, int(nulls), 0)
	defer data.Release()
	return array.MakeFromData(data), nil
}

// buffer takes the next buffer, which must hold at least so many bytes.
func (r *recordReader) buffer(least int64) (*memory.Buffer, error) {
	if r.buffersLeft == 0 {
		return nil, errors.New("a buffer is missing")
	}
	offset, length := int64(r.table.uint64(r.buffers)), int64(r.table.uint64(r.buffers+8))
	r.buffers, r.buffersLeft = r.buffers+16, r.buffersLeft-1
	if offset < 0 || offset%8 != 0 || length < 0 || offset > int64(len(r.body)) || length > int64(len(r.body))-offset {
		return nil, fmt.Errorf("a buffer of %d bytes at %d in a body of %d", length, offset, len(r.body))
	}
	if length < least {
		return nil, fmt.Errorf("a buffer of %d bytes where %d are needed", length, least)
	}
	return memory.NewBufferBytes(r.body[offset : offset+length : offset+length]), nil
}

// varLen takes the two buffers of n values of variable length. Offsets that fall, or lead out of the values, are an error
// here so that they can't be a panic later.
func (r *recordReader) varLen(n int64) (offsets, values *memory.Buffer, err error) {
	if offsets, err = r.buffer(4 * (n + 1)); err != nil {
		return nil, nil, err
	}
	if values, err = r.buffer(0); err != nil {
		return nil, nil, err
	}
	list := arrow.Int32Traits.CastFromBytes(offsets.Bytes())[:n+1]
	signs, before := int32(0), list[0]
	for _, o := range list {
		signs |= o | (o - before) // negative where an offset is, or is less than the one before it
		before = o
	}
	if signs < 0 || int(before) > values.Len() {
		return nil, nil, fmt.Errorf("offsets that fall, or lead out of %d bytes of values", values.Len())
	}
	return offsets, values, nil
}
