package schema

import (
	"encoding/binary"

	"github.com/nyaladb/nyala/internal/status"
)

// OpsEncoder writes row operations: docs/format/rows.md. It checks each as the server will, so that a fault is found where
// the row is made.
type OpsEncoder struct {
	rows, indirect []byte
	op             DecodedOp
	setBuf         Bitmap
	nullBuf        Bitmap
	numOps         int
}

// NewOpsEncoder returns an encoder of operations with schema s.
func NewOpsEncoder(s *Schema) *OpsEncoder {
	n := len(s.columns)
	return &OpsEncoder{
		op:     DecodedOp{schema: s, cells: make([][]byte, n)},
		setBuf: NewBitmap(n), nullBuf: NewBitmap(n),
	}
}

// Append adds one operation. Values has one Value for each column of the schema, of which those in set count; a nil set means
// all columns. On an error, a *status.Error that names the column, the encoder is as it was.
func (e *OpsEncoder) Append(t OpType, values []Value, set Bitmap) error {
	s := e.op.schema
	if len(values) != len(s.columns) || (set != nil && len(set) != s.bitmapLen) {
		return status.New(status.InvalidArgument, "%v of %d values with a bitmap of %d bytes, want %d and %d", t,
			len(values), len(set), len(s.columns), s.bitmapLen)
	}
	if !t.write() && !t.bound() {
		return status.New(status.NotSupported, "operation type %v isn't known here", t)
	}
	rows, indirect := len(e.rows), len(e.indirect)
	if err := e.append(t, values, set); err != nil {
		e.rows, e.indirect = e.rows[:rows], e.indirect[:indirect]
		return err
	}
	e.numOps++
	return nil
}

func (e *OpsEncoder) append(t OpType, values []Value, set Bitmap) error {
	s, op := e.op.schema, &e.op
	e.setBuf.ClearAll()
	e.nullBuf.ClearAll()
	for i := range values {
		if set != nil && !set.Get(i) {
			continue
		}
		e.setBuf.Set(i)
		if !values[i].IsNull() {
			continue
		}
		if !s.columns[i].Nullable {
			return s.columns[i].fault(status.InvalidArgument, "NULL in a column that isn't nullable")
		}
		e.nullBuf.Set(i)
	}
	e.rows = append(e.rows, byte(t))
	e.rows = append(e.rows, e.setBuf...)
	if s.hasNullable {
		e.rows = append(e.rows, e.nullBuf...)
	}
	for i := range values {
		op.cells[i] = nil
		if e.setBuf.Get(i) && !e.nullBuf.Get(i) {
			if err := e.appendCell(i, values[i]); err != nil {
				return err
			}
		}
	}
	op.Type, op.set, op.null = t, e.setBuf, e.nullBuf
	if err := op.check(); err != nil {
		return err
	}
	return nil
}

func (e *OpsEncoder) appendCell(i int, v Value) error {
	c := &e.op.schema.columns[i]
	if !c.Type.VarLen() {
		start := len(e.rows)
		var err error
		e.rows, err = c.AppendValueBytes(e.rows, v)
		e.op.cells[i] = e.rows[start:]
		return err
	}
	start := len(e.indirect)
	var err error
	if e.indirect, err = c.AppendValueBytes(e.indirect, v); err != nil {
		return err
	}
	e.op.cells[i] = e.indirect[start:]
	e.rows = binary.LittleEndian.AppendUint64(e.rows, uint64(start))
	e.rows = binary.LittleEndian.AppendUint64(e.rows, uint64(len(e.indirect)-start))
	return nil
}

// Len is the number of operations.
func (e *OpsEncoder) Len() int { return e.numOps }

// Size is the number of bytes of both parts.
func (e *OpsEncoder) Size() int { return len(e.rows) + len(e.indirect) }

// Bytes returns both parts, which are the encoder's own until Reset.
func (e *OpsEncoder) Bytes() (rows, indirect []byte) { return e.rows, e.indirect }

// Reset forgets all operations and keeps the memory: what Bytes returned is overwritten.
func (e *OpsEncoder) Reset() {
	e.rows, e.indirect, e.numOps = e.rows[:0], e.indirect[:0], 0
}
