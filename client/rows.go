package client

import (
	"encoding/binary"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/schema"
)

// Batch is some rows of a scan.
//
// Its owner calls Release once, when done with Record and all that was taken from it. To keep the record, or one of its
// columns, beyond that, Retain it first and Release it later.
type Batch struct {
	// Record holds the columns in the order asked for; nil with CountOnly. Their Arrow types: integers, floats and bool as
	// their like; string and varchar as utf8, binary as binary, unixtime_micros as timestamp[us, UTC], date as date32, decimals
	// as decimal128.
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
		start := a.ValueOffset(row) - a.ValueOffset(0)
		return schema.BytesValue(a.ValueBytes()[start : start+a.ValueLen(row)])
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
	case *array.Decimal128:
		n := a.Value(row)
		if b.Column(column).Type != schema.Decimal128 {
			return schema.IntValue(int64(n.LowBits()))
		}
		cell := binary.LittleEndian.AppendUint64(make([]byte, 0, 16), n.LowBits())
		return schema.BytesValue(binary.LittleEndian.AppendUint64(cell, uint64(n.HighBits())))
	}
	return schema.BytesValue([]byte(a.ValueStr(row)))
}

// decodeBatch turns an answer with at least one row into a batch, without copying the columns. It takes at most the
// answer's NumRows from the record.
func decodeBatch(spec *scanSpec, resp *nyalav1.ScanResponse) (*Batch, error) {
	b := &Batch{Rows: int(resp.GetNumRows()), schema: spec.schema, positions: spec.positions}
	if len(spec.positions) == 0 {
		return b, nil
	}
	rec, err := decodeIPC(spec.arrow, resp.GetArrowIpc())
	if err != nil {
		return nil, fmt.Errorf("the Arrow stream is damaged: %w", err)
	}
	if rec.NumRows() < int64(b.Rows) {
		rec.Release()
		return nil, fmt.Errorf("the server sent %d rows and said %d", rec.NumRows(), b.Rows)
	}
	if rec.NumRows() > int64(b.Rows) {
		cut := rec.NewSlice(0, int64(b.Rows))
		rec.Release()
		rec = cut
	}
	b.Record = rec
	return b, nil
}
