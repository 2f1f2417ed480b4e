package schema

import "github.com/nyaladb/nyala/internal/status"

// DecodedOp is one row operation. Its cells are slices of the decoder's input: it costs no copy, and it is valid until the
// decoder's next call.
type DecodedOp struct {
	Type OpType
	// Index is the operation's number within its request, from 0 on.
	Index int
	// RowError says why this row alone can't be applied (InvalidArgument, CellTooLarge, KeyTooLarge); nil: it is sound.
	RowError *status.Error

	schema *Schema
	set    Bitmap
	null   Bitmap // nil if the schema has no nullable column
	cells  [][]byte
}

// Schema is the schema that the operation's positions refer to.
func (op *DecodedOp) Schema() *Schema { return op.schema }

// IsSet says whether the operation gives column i a value or NULL.
func (op *DecodedOp) IsSet(i int) bool { return op.set.Get(i) }

// IsNull says whether the operation sets column i to NULL.
func (op *DecodedOp) IsNull(i int) bool { return op.null != nil && op.null.Get(i) && op.set.Get(i) }

// Cell returns the value bytes of column i, which must be set and not NULL. As an exception, a key column that an insert or
// upsert leaves unset has its write default here, so that keys can be made from cells alone.
func (op *DecodedOp) Cell(i int) []byte { return op.cells[i] }

// Value returns column i's value, NULL if it is NULL or unset. A value of variable length shares the decoder's input.
func (op *DecodedOp) Value(i int) Value {
	if !op.IsSet(i) || op.IsNull(i) {
		return Value{}
	}
	return op.schema.columns[i].Type.valueOf(op.cells[i])
}

// check looks for what is wrong with the row as a whole. NULLs and single cells were looked at before.
func (op *DecodedOp) check() *status.Error {
	s := op.schema
	switch plain, _ := op.Type.Plain(); plain {
	case Insert, Upsert:
		if i := op.set.firstMissing(s.requiredBits); i >= 0 {
			return s.columns[i].fault(status.InvalidArgument, "%v without a value for a column that is neither nullable nor has a default", op.Type)
		}
		if op.set.firstMissing(s.keyBits) >= 0 {
			op.fillKeyDefaults()
		}
	case Update:
		if i := op.set.firstMissing(s.keyBits); i >= 0 {
			return s.columns[i].fault(status.InvalidArgument, "%v without a value for a key column", op.Type)
		}
		if op.set.firstCommon(s.nonKeyBits) < 0 {
			return status.New(status.InvalidArgument, "%v sets no column besides the key", op.Type)
		}
	case Delete:
		if i := op.set.firstMissing(s.keyBits); i >= 0 {
			return s.columns[i].fault(status.InvalidArgument, "%v without a value for a key column", op.Type)
		}
		if i := op.set.firstCommon(s.nonKeyBits); i >= 0 {
			return s.columns[i].fault(status.InvalidArgument, "%v takes key columns alone", op.Type)
		}
	default:
		return nil
	}
	if n := s.encodedKeySize(op.cells); n > MaxEncodedKeySize {
		return status.New(status.KeyTooLarge, "the encoded primary key has %d bytes, the most is %d", n, MaxEncodedKeySize)
	}
	return nil
}

func (op *DecodedOp) fillKeyDefaults() {
	for i := range op.schema.numKey {
		if !op.set.Get(i) {
			op.cells[i] = op.schema.columns[i].WriteDefault
		}
	}
}
