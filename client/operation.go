package client

import (
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// Operation is one change to one row. It isn't safe for concurrent use. Session.Apply copies it: afterwards it may be
// changed, reset and applied again, so that a loop over a million rows needs one Operation.
type Operation struct {
	// Tag is the caller's own: it comes back with the row's error. The line number of a file, for example.
	Tag uint64

	table   *Table
	kind    OpType
	values  []schema.Value
	set     schema.Bitmap
	scratch [16]byte
}

// NewInsert returns an operation that writes a new row. A key that is already there is a CodeAlreadyPresent.
func (t *Table) NewInsert() *Operation { return t.newOperation(schema.Insert) }

// NewUpsert returns an operation that writes a new row, or changes the columns that are set of one that is there.
func (t *Table) NewUpsert() *Operation { return t.newOperation(schema.Upsert) }

// NewUpdate returns an operation that changes the columns that are set, besides the key. No such key is a CodeNotFound.
func (t *Table) NewUpdate() *Operation { return t.newOperation(schema.Update) }

// NewDelete returns an operation that deletes a row. No such key is a CodeNotFound. Only the key says which: other columns that
// are set are left out.
func (t *Table) NewDelete() *Operation { return t.newOperation(schema.Delete) }

// NewInsertIgnore is NewInsert, but that a key that is there already is no error: the row stays as it is.
func (t *Table) NewInsertIgnore() *Operation { return t.newOperation(schema.InsertIgnore) }

// NewUpsertIgnore is NewUpsert: they differ for columns that can't be changed, which no table has.
func (t *Table) NewUpsertIgnore() *Operation { return t.newOperation(schema.UpsertIgnore) }

// NewUpdateIgnore is NewUpdate, but that it is no error if there is no such key.
func (t *Table) NewUpdateIgnore() *Operation { return t.newOperation(schema.UpdateIgnore) }

// NewDeleteIgnore is NewDelete, but that it is no error if there is no such key.
func (t *Table) NewDeleteIgnore() *Operation { return t.newOperation(schema.DeleteIgnore) }

// NewOperation returns an operation of the given type.
func (t *Table) NewOperation(kind OpType) (*Operation, error) {
	switch plain, _ := kind.Plain(); plain {
	case schema.Insert, schema.Upsert, schema.Update, schema.Delete:
		return t.newOperation(kind), nil
	default:
		return nil, status.New(status.InvalidArgument, "%v is no operation on rows", kind)
	}
}

func (t *Table) newOperation(kind OpType) *Operation {
	n := t.schema.NumColumns()
	return &Operation{table: t, kind: kind, values: make([]schema.Value, n), set: schema.NewBitmap(n)}
}

// Type is what the operation does.
func (op *Operation) Type() OpType { return op.kind }

// Table is the table that the operation is for.
func (op *Operation) Table() *Table { return op.table }

// Reset takes all columns back to unset. The table and the type stay.
func (op *Operation) Reset() {
	clear(op.values)
	op.set.ClearAll()
	op.Tag = 0
}

// Set gives a column a value: nil for NULL; any Go integer, range-checked, for integer columns; any integer or float that the
// type can hold for float and double; string or []byte for string, varchar and binary; bool; time.Time, or an integer of
// microseconds, for unixtime_micros; time.Time (its date where it is), a string as in 2013-01-01, or an integer of days for
// date; a Decimal, a string as in 123.45, or an integer for decimals, which are never rounded: what doesn't fit is an error; a
// Value for any. A varchar is cut to its length. A []byte is kept, not copied, until Apply. An error names the column, and
// leaves it as it was.
func (op *Operation) Set(column string, value any) error {
	i, err := op.table.column(column)
	if err != nil {
		return err
	}
	v, err := convert(op.table.schema.Column(i), value)
	if err != nil {
		return err
	}
	return op.SetValue(i, v)
}

// SetValue gives the column at position i of the schema a value. It allocates nothing.
func (op *Operation) SetValue(i int, v Value) error {
	if i < 0 || i >= len(op.values) {
		return status.New(status.InvalidArgument, "table %q has no column at position %d; it has %d", op.table.info.Name, i, len(op.values))
	}
	col := op.table.schema.Column(i)
	switch {
	case v.IsNull():
		if !col.Nullable {
			return status.New(status.InvalidArgument, "column %q (%s): NULL in a column that isn't nullable", col.Name, col.TypeName())
		}
	case !col.Type.VarLen() || v.Bytes() == nil:
		if _, err := col.AppendValueBytes(op.scratch[:0], v); err != nil {
			return err
		}
		if err := col.CheckValue(v); err != nil {
			return err
		}
	case col.Type == schema.Varchar && len(v.Bytes()) > int(col.Length):
		v = schema.BytesValue(col.CutVarchar(v.Bytes()))
	}
	if len(v.Bytes()) > schema.MaxCellSize {
		return status.New(status.CellTooLarge, "column %q (%s): the value has %d bytes, the most is %d", col.Name, col.TypeName(),
			len(v.Bytes()), schema.MaxCellSize)
	}
	op.values[i] = v
	op.set.Set(i)
	return nil
}

// Unset takes a column back to unset: an insert then stores its default or NULL, an update or upsert of an existing row
// leaves it as it is.
func (op *Operation) Unset(i int) {
	op.values[i] = schema.Value{}
	op.set.Clear(i)
}

// IsSet says whether the column at position i has been set, to a value or to NULL.
func (op *Operation) IsSet(i int) bool { return op.set.Get(i) }

// Value returns the value of the column at position i, NULL if it is unset.
func (op *Operation) Value(i int) Value { return op.values[i] }

// keyCells appends the value bytes of the key columns, unset ones with their defaults, one after another, and where each
// ends.
func (op *Operation) keyCells(buf []byte, ends []int) ([]byte, []int, error) {
	s := op.table.schema
	plain, _ := op.kind.Plain()
	for i := range s.NumKeyColumns() {
		col := s.Column(i)
		switch {
		case op.set.Get(i):
			var err error
			if buf, err = col.AppendValueBytes(buf, op.values[i]); err != nil {
				return buf, ends, err
			}
		case col.WriteDefault != nil && (plain == schema.Insert || plain == schema.Upsert):
			buf = append(buf, col.WriteDefault...)
		default:
			return buf, ends, status.New(status.InvalidArgument, "column %q (%s): %v without a value for a key column",
				col.Name, col.TypeName(), op.kind)
		}
		ends = append(ends, len(buf))
	}
	return buf, ends, nil
}

// travelling is which columns go to the server: of a delete the key alone.
func (op *Operation) travelling(buf schema.Bitmap) schema.Bitmap {
	if plain, _ := op.kind.Plain(); plain != schema.Delete {
		return op.set
	}
	s := op.table.schema
	buf = append(buf[:0], op.set...)
	for i := s.NumKeyColumns(); i < s.NumColumns(); i++ {
		buf.Clear(i)
	}
	return buf
}

// encodedSize is how many bytes the operation takes in a request.
func (op *Operation) encodedSize() int {
	s := op.table.schema
	n := 1 + len(op.set)
	if s.HasNullable() {
		n += len(op.set)
	}
	columns := len(op.values)
	if plain, _ := op.kind.Plain(); plain == schema.Delete {
		columns = s.NumKeyColumns()
	}
	for i := range columns {
		if op.set.Get(i) && !op.values[i].IsNull() {
			col := s.Column(i)
			n += col.Type.Size()
			if col.Type.VarLen() {
				n += len(op.values[i].Bytes())
			}
		}
	}
	return n
}

// operationOf rebuilds an operation from its encoded form; the cells are copied.
func operationOf(t *Table, d *schema.DecodedOp, tag uint64) *Operation {
	op := t.newOperation(d.Type)
	op.Tag = tag
	for i := range op.values {
		if !d.IsSet(i) {
			continue
		}
		v := d.Value(i)
		if b := v.Bytes(); b != nil {
			v = schema.BytesValue(append(make([]byte, 0, len(b)), b...))
		}
		op.values[i] = v
		op.set.Set(i)
	}
	return op
}
