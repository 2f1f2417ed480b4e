package tablet

import (
	"cmp"
	"slices"

	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// writePlan maps row operations in one version of the schema to cells of the latest one. Columns that came later are as if
// unset; an operation that sets a column that is gone by now is refused.
type writePlan struct {
	from  *schema.Schema
	cells []planCell // the latest schema's columns besides the key, by rising id
	gone  []int      // positions in from of columns that the latest schema doesn't have
	// defaults are the cells of a row that sets nothing: write defaults, else NULL. Columns that must be set are left out.
	defaults []byte
}

type planCell struct {
	id  schema.ColumnID
	pos int // in the operation's schema; -1: not there
	// what an insert stores where the column is unset: def, NULL, or (required) nothing, which is a row error
	def      []byte
	null     bool
	required bool
}

func newWritePlan(from, to *schema.Schema) *writePlan {
	p := &writePlan{from: from}
	for i := to.NumKeyColumns(); i < to.NumColumns(); i++ {
		c := to.Column(i)
		p.cells = append(p.cells, planCell{
			id: c.ID, pos: from.IndexOfID(c.ID), def: c.WriteDefault,
			null: c.WriteDefault == nil && c.Nullable, required: c.WriteDefault == nil && !c.Nullable,
		})
	}
	slices.SortFunc(p.cells, func(a, b planCell) int { return cmp.Compare(a.id, b.id) })
	for i := from.NumKeyColumns(); i < from.NumColumns(); i++ {
		if to.IndexOfID(from.Column(i).ID) < 0 {
			p.gone = append(p.gone, i)
		}
	}
	var w cellWriter
	for _, c := range p.cells {
		if !c.required {
			w.add(c.id, c.def, c.null)
		}
	}
	p.defaults = w.buf
	return p
}

// appendWhole appends the cells of a whole row, unset columns filled in. The operation must leave no required one unset.
func (p *writePlan) appendWhole(dst []byte, op *schema.DecodedOp) []byte {
	w := cellWriter{buf: dst}
	for i := range p.cells {
		c := &p.cells[i]
		if c.pos >= 0 && op.IsSet(c.pos) {
			w.add(c.id, op.Cell(c.pos), op.IsNull(c.pos))
		} else {
			w.add(c.id, c.def, c.null)
		}
	}
	return w.buf
}

// appendSet appends the cells that the operation sets.
func (p *writePlan) appendSet(dst []byte, op *schema.DecodedOp) []byte {
	w := cellWriter{buf: dst}
	for i := range p.cells {
		if c := &p.cells[i]; c.pos >= 0 && op.IsSet(c.pos) {
			w.add(c.id, op.Cell(c.pos), op.IsNull(c.pos))
		}
	}
	return w.buf
}

// refuses says why an operation can't be taken any more: it gives a value to a column that was dropped. The column may be there
// again under its old name, but then it is another one.
func (p *writePlan) refuses(op *schema.DecodedOp) *status.Error {
	if plain, _ := op.Type.Plain(); plain == schema.Delete {
		return nil
	}
	for _, i := range p.gone {
		if op.IsSet(i) {
			return errDropped(p.from, i)
		}
	}
	return nil
}

// errDropped is of a column, by its position in an older version of the schema.
func errDropped(from *schema.Schema, i int) *status.Error {
	return status.New(status.MismatchedSchema, "column %q of schema version %d was dropped: open the table again", from.Column(i).Name, from.Version())
}

// setsAll says whether the operation sets every column of the latest schema.
func (p *writePlan) setsAll(op *schema.DecodedOp) bool {
	for i := range p.cells {
		if c := &p.cells[i]; c.pos < 0 || !op.IsSet(c.pos) {
			return false
		}
	}
	return true
}

// firstRequiredUnset returns a column that must be set and isn't. Within one version of the schema the decoder has seen to
// that.
func (p *writePlan) firstRequiredUnset(op *schema.DecodedOp) (schema.ColumnID, bool) {
	for i := range p.cells {
		if c := &p.cells[i]; c.required && (c.pos < 0 || !op.IsSet(c.pos)) {
			return c.id, true
		}
	}
	return 0, false
}
