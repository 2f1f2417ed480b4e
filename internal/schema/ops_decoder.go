package schema

import (
	"encoding/binary"
	"fmt"

	"github.com/nyaladb/nyala/internal/status"
)

// OpsDecoder reads row operations: docs/format/rows.md. It copies nothing and allocates nothing per row.
//
// Two kinds of fault are told apart. If the bytes can't be read (short, a value outside the indirect data) or hold an
// operation that no write may hold, Next returns an error and nothing of the request may be applied: call CountOps first
// where that matters. If one row is at fault, Next returns it with its RowError, and the rest goes on.
type OpsDecoder struct {
	rows, indirect []byte
	pos            int
	bounds         bool
	err            error
	op             DecodedOp
}

// NewOpsDecoder returns a decoder of a write's row operations, which were encoded with schema s.
func NewOpsDecoder(s *Schema, rows, indirect []byte) *OpsDecoder {
	d := &OpsDecoder{}
	d.Reset(s, rows, indirect)
	return d
}

// Reset starts over with other operations. A decoder that is reused for the same schema allocates nothing.
func (d *OpsDecoder) Reset(s *Schema, rows, indirect []byte) {
	d.rows, d.indirect, d.pos, d.err = rows, indirect, 0, nil
	cells := d.op.cells
	if d.op.schema != s {
		cells = make([][]byte, len(s.columns))
	}
	d.op = DecodedOp{Index: -1, schema: s, cells: cells}
}

// Next returns the next operation, nil at the end. The operation is the decoder's own and is overwritten by the next call.
// After an error every further call returns it again.
func (d *OpsDecoder) Next() (*DecodedOp, error) {
	if d.err != nil {
		return nil, d.err
	}
	if d.pos == len(d.rows) {
		return nil, nil
	}
	start := d.pos
	d.op.Index++
	if err := d.next(); err != nil {
		err.Msg = fmt.Sprintf("row operation %d at byte %d of %d: %s", d.op.Index, start, len(d.rows), err.Msg)
		d.err = err
		return nil, err
	}
	return &d.op, nil
}

func (d *OpsDecoder) next() *status.Error {
	op, s := &d.op, d.op.schema
	op.Type, op.RowError, op.null = OpType(d.rows[d.pos]), nil, nil
	d.pos++
	if err := d.checkType(op.Type); err != nil {
		return err
	}
	bitmaps := s.bitmapLen
	if s.hasNullable {
		bitmaps *= 2
	}
	if len(d.rows)-d.pos < bitmaps {
		return status.New(status.Corruption, "the data ends within its bitmaps")
	}
	op.set = Bitmap(d.rows[d.pos : d.pos+s.bitmapLen])
	if s.hasNullable {
		op.null = Bitmap(d.rows[d.pos+s.bitmapLen : d.pos+bitmaps])
	}
	d.pos += bitmaps
	for i := range s.cells {
		if !op.set.Get(i) {
			op.cells[i] = nil
			continue
		}
		null := op.null != nil && op.null.Get(i)
		layout := s.cells[i]
		if null && !layout.notNull {
			op.cells[i] = nil
			continue
		}
		cell, err := d.cell(i, layout)
		if err != nil {
			return err
		}
		op.cells[i] = cell
		switch {
		case op.RowError != nil:
		case null:
			op.RowError = s.columns[i].fault(status.InvalidArgument, "NULL in a column that isn't nullable")
		case len(cell) > MaxCellSize:
			op.RowError = s.columns[i].fault(status.CellTooLarge, "the value has %d bytes, the most is %d", len(cell), MaxCellSize)
		}
	}
	if op.RowError == nil {
		op.RowError = op.check()
	}
	return nil
}

// checkType refuses, for the whole request, what may not stand in it.
func (d *OpsDecoder) checkType(t OpType) *status.Error {
	switch {
	case d.bounds && t.bound(), !d.bounds && t.write():
		return nil
	case d.bounds:
		return status.New(status.InvalidArgument, "%v can't stand among range bounds", t)
	case t == 0 || t.bound():
		return status.New(status.InvalidArgument, "%v can't stand in a write", t)
	default:
		return status.New(status.NotSupported, "operation type %v isn't known here", t)
	}
}

// cell reads column i's cell at the decoder's position.
func (d *OpsDecoder) cell(i int, layout cellLayout) ([]byte, *status.Error) {
	end := d.pos + int(layout.size)
	if end > len(d.rows) {
		return nil, d.op.schema.columns[i].fault(status.Corruption, "the data ends within its cell")
	}
	cell := d.rows[d.pos:end:end]
	d.pos = end
	if !layout.varLen {
		return cell, nil
	}
	offset, length := binary.LittleEndian.Uint64(cell), binary.LittleEndian.Uint64(cell[8:])
	if n := uint64(len(d.indirect)); offset > n || length > n-offset {
		return nil, d.op.schema.columns[i].fault(status.Corruption,
			"its value, %d bytes from %d on, lies outside the indirect data of %d bytes", length, offset, n)
	}
	return d.indirect[offset : offset+length : offset+length], nil
}

// CountOps reads all row operations once and returns how many there are, or the fault that concerns them all.
func CountOps(s *Schema, rows, indirect []byte) (int, error) {
	d := NewOpsDecoder(s, rows, indirect)
	for {
		op, err := d.Next()
		if err != nil {
			return 0, err
		}
		if op == nil {
			return d.op.Index + 1, nil
		}
	}
}
