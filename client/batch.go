package client

import (
	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// tabletBuffer has the batches for one tablet, in order.
type tabletBuffer struct {
	tablet  *tablet
	batches []*batch
}

func (b *tabletBuffer) last() *batch { return b.batches[len(b.batches)-1] }

// batch is the rows of one request, as they travel, and for each its place in the order of Apply and its tag. Nothing else
// is kept of a row: what an error needs is decoded again.
type batch struct {
	table *Table
	enc   *schema.OpsEncoder
	set   schema.Bitmap // scratch
	index []uint64
	tags  []uint64
}

func newBatch(t *Table) *batch {
	return &batch{table: t, enc: schema.NewOpsEncoder(t.schema), set: schema.NewBitmap(t.schema.NumColumns())}
}

func (b *batch) reset() {
	b.enc.Reset()
	b.index, b.tags = b.index[:0], b.tags[:0]
}

// fits says whether a row of the given size may still come in.
func (b *batch) fits(size int, o SessionOptions) bool {
	return b.enc.Len() < o.BatchRows && b.enc.Size()+size <= o.BatchBytes
}

// append encodes an operation of the given size, unless it has a fault or no request could hold it.
func (b *batch) append(op *Operation, size int, index uint64, maxMessage int) error {
	if size > maxMessage-requestOverhead {
		return status.New(status.TooLarge, "the row takes %d bytes, more than a request of at most %d bytes can hold",
			size, maxMessage)
	}
	if err := b.enc.Append(op.kind, op.values, op.travelling(b.set)); err != nil {
		return err
	}
	b.index = append(b.index, index)
	b.tags = append(b.tags, op.Tag)
	return nil
}

// rowErrors turns a server's answer into errors with their operations.
func (b *batch) rowErrors(answer []*nyalav1.RowError) ([]RowError, error) {
	if len(answer) == 0 {
		return nil, nil
	}
	faults := make(map[int]*Error, len(answer))
	for _, e := range answer {
		if e.GetRowIndex() >= uint32(len(b.index)) {
			return nil, status.New(status.Corruption, "the server names row %d of a batch of %d rows", e.GetRowIndex(), len(b.index))
		}
		faults[int(e.GetRowIndex())] = &Error{Code: Code(e.GetCode()), Msg: e.GetMessage()}
	}
	return b.errorsOf(func(i int) error {
		if e := faults[i]; e != nil {
			return e
		}
		return nil
	}, false)
}

// allFailed is an error for each row of a batch that failed as a whole.
func (b *batch) allFailed(err *Error, unknown bool) []RowError {
	rows, derr := b.errorsOf(func(int) error { return err }, unknown)
	if derr != nil { // our own encoding: it can't fail to decode
		return []RowError{{Index: b.index[0], Code: status.CodeOf(derr), Err: derr, OutcomeUnknown: unknown}}
	}
	return rows
}

// notSent is an error for each row of a batch that was held back because one before it failed.
func (b *batch) notSent(failed error) []RowError {
	return b.allFailed(status.Wrap(status.CodeOf(failed), failed, "not sent, because an earlier batch of its tablet failed"), false)
}

// errorsOf decodes the batch and makes an error of each row for which fault has one.
func (b *batch) errorsOf(fault func(i int) error, unknown bool) ([]RowError, error) {
	rows, indirect := b.enc.Bytes()
	d := schema.NewOpsDecoder(b.table.schema, rows, indirect)
	var list []RowError
	for {
		op, err := d.Next()
		if err != nil || op == nil {
			return list, err
		}
		if err := fault(op.Index); err != nil {
			list = append(list, RowError{
				Op: operationOf(b.table, op, b.tags[op.Index]), Index: b.index[op.Index],
				Code: status.CodeOf(err), Err: err, OutcomeUnknown: unknown,
			})
		}
	}
}
