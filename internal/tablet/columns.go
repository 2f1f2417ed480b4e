package tablet

import (
	"encoding/binary"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/nyaladb/nyala/internal/schema"
)

// arrowType is the Arrow type of a column. Decimals of every width are decimal128, which every reader knows.
func arrowType(c *schema.Column) (arrow.DataType, error) {
	switch c.Type {
	case schema.Int8:
		return arrow.PrimitiveTypes.Int8, nil
	case schema.Int16:
		return arrow.PrimitiveTypes.Int16, nil
	case schema.Int32:
		return arrow.PrimitiveTypes.Int32, nil
	case schema.Int64:
		return arrow.PrimitiveTypes.Int64, nil
	case schema.Bool:
		return arrow.FixedWidthTypes.Boolean, nil
	case schema.Float:
		return arrow.PrimitiveTypes.Float32, nil
	case schema.Double:
		return arrow.PrimitiveTypes.Float64, nil
	case schema.String, schema.Varchar:
		return arrow.BinaryTypes.String, nil
	case schema.Binary:
		return arrow.BinaryTypes.Binary, nil
	case schema.UnixtimeMicros:
		return arrow.FixedWidthTypes.Timestamp_us, nil
	case schema.Date:
		return arrow.FixedWidthTypes.Date32, nil
	case schema.Decimal32, schema.Decimal64, schema.Decimal128:
		return &arrow.Decimal128Type{Precision: int32(c.Precision), Scale: int32(c.Scale)}, nil
	}
	return nil, fmt.Errorf("column %q: type %v has no Arrow type", c.Name, c.Type)
}

// arrowSchema is the Arrow schema of a projection.
func arrowSchema(s *schema.Schema, columns []int) (*arrow.Schema, error) {
	fields := make([]arrow.Field, 0, len(columns))
	for _, pos := range columns {
		c := s.Column(pos)
		t, err := arrowType(c)
		if err != nil {
			return nil, err
		}
		fields = append(fields, arrow.Field{Name: c.Name, Type: t, Nullable: c.Nullable})
	}
	return arrow.NewSchema(fields, nil), nil
}

// columnBuffer gathers one column of a block in Arrow's layout. Cells are little-endian, as Arrow's values are, so most are
// copied as they stand; no per-value builder comes between.
type columnBuffer struct {
	typ  arrow.DataType
	kind bufferKind
	size int // bytes per value of the fixed-width kind

	rows     int
	nulls    int
	values   []byte
	offsets  []byte // of the bytes kind: int32s
	validity []byte // nil until the first NULL
	// lastBytes is the length of values in the block before, as a guess for the next one.
	lastBytes int
}

type bufferKind uint8

const (
	bufferFixed bufferKind = iota
	bufferBits
	bufferBytes
	bufferDecimal // cells narrower than the 16 bytes of Arrow's values
)

func newColumnBuffer(c *schema.Column, typ arrow.DataType) *columnBuffer {
	b := &columnBuffer{typ: typ, size: c.Type.Size()}
	switch {
	case c.Type.VarLen():
		b.kind = bufferBytes
	case c.Type == schema.Bool:
		b.kind = bufferBits
	case c.Type == schema.Decimal32 || c.Type == schema.Decimal64:
		b.kind = bufferDecimal
	}
	return b
}

// begin makes room for about the given number of rows.
func (b *columnBuffer) begin(rows int) {
	b.rows, b.nulls, b.validity = 0, 0, nil
	switch b.kind {
	case bufferBits:
		b.values = make([]byte, 0, (rows+7)/8)
	case bufferBytes:
		b.values = make([]byte, 0, b.lastBytes)
		b.offsets = append(make([]byte, 0, 4*(rows+1)), 0, 0, 0, 0)
	case bufferDecimal:
		b.values = make([]byte, 0, 16*rows)
	case bufferFixed:
		b.values = make([]byte, 0, b.size*rows)
	}
}

// add appends a cell and returns how many bytes it took.
func (b *columnBuffer) add(cell []byte, null bool) int {
	before := len(b.values)
	switch b.kind {
	case bufferFixed:
		if null {
			b.values = append(b.values, zeros[:b.size]...)
		} else {
			b.values = append(b.values, cell...)
		}
	case bufferBytes:
		if !null {
			b.values = append(b.values, cell...)
		}
		b.offsets = binary.LittleEndian.AppendUint32(b.offsets, uint32(len(b.values)))
		before -= 4
	case bufferBits:
		if b.rows&7 == 0 {
			b.values = append(b.values, 0)
		}
		if !null && cell[0] != 0 {
			b.values[b.rows>>3] |= 1 << (b.rows & 7)
		}
	case bufferDecimal:
		b.addDecimal(cell, null)
	}
	if null {
		b.addNull()
	} else if b.validity != nil {
		b.validity = growBits(b.validity, b.rows)
		b.validity[b.rows>>3] |= 1 << (b.rows & 7)
	}
	b.rows++
	return len(b.values) - before
}

var zeros [16]byte

// addNull clears the row's validity bit. Rows before the first NULL are valid.
func (b *columnBuffer) addNull() {
	if b.validity == nil {
		b.validity = make([]byte, b.rows>>3+1, cap(b.values)/8+16)
		for i := range b.rows >> 3 {
			b.validity[i] = 0xff
		}
		b.validity[b.rows>>3] = 1<<(b.rows&7) - 1
	}
	b.validity = growBits(b.validity, b.rows)
	b.nulls++
}

func growBits(bits []byte, row int) []byte {
	if row>>3 == len(bits) {
		return append(bits, 0)
	}
	return bits
}

// addDecimal widens a cell, with its sign.
func (b *columnBuffer) addDecimal(cell []byte, null bool) {
	var v int64
	switch {
	case null:
	case len(cell) == 4:
		v = int64(int32(binary.LittleEndian.Uint32(cell)))
	default:
		v = int64(binary.LittleEndian.Uint64(cell))
	}
	b.values = binary.LittleEndian.AppendUint64(b.values, uint64(v))
	b.values = binary.LittleEndian.AppendUint64(b.values, uint64(v>>63))
}

// finish returns the column, whose memory is its own from then on.
func (b *columnBuffer) finish() arrow.Array {
	b.lastBytes = len(b.values)
	buffers := make([]*memory.Buffer, 0, 3)
	if b.validity == nil {
		buffers = append(buffers, nil)
	} else {
		buffers = append(buffers, memory.NewBufferBytes(b.validity))
	}
	if b.kind == bufferBytes {
		buffers = append(buffers, memory.NewBufferBytes(b.offsets))
	}
	buffers = append(buffers, memory.NewBufferBytes(b.values))
	data := array.NewData(b.typ, b.rows, buffers, nil, b.nulls, 0)
	b.values, b.offsets, b.validity = nil, nil, nil
	defer data.Release()
	return array.MakeFromData(data)
}
