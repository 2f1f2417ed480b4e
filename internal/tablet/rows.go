package tablet

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// rowApplier turns the row operations of one log entry into row versions: at most one per key, whatever the operations on
// it were. It works in three passes over flat memory that is kept from entry to entry:
//
//  1. decode: each operation's cells are encoded into the overlay's arena, its key is looked up in the overlay, and keys
//     whose rows may or may not exist are noted. A fault of the whole request shows here, before anything was decided.
//  2. ask: the store is asked for the noted keys, in key order, one seek each, which a bloom filter mostly answers.
//  3. resolve: the operations are taken in their order, against what is known of each key by then.
//
// What comes out depends on the store's state and the entry alone.
type rowApplier struct {
	dec     schema.OpsDecoder
	ops     []rowOp
	touched []int32 // overlay entries, by rising key once asked
	asks    int     // how many of them are wanted
	errs    []*nyalav1.RowError
	seekKey []byte
	counts  rowCounts
}

// rowOp is one operation between the passes.
type rowOp struct {
	entry          int32
	index          uint32
	typ            schema.OpType // without IGNORE
	ignore         bool
	full           bool // an insert or upsert that sets all columns
	valOff, valLen int  // its version in the arena, header included
}

// rowCounts feed the metrics.
type rowCounts struct {
	inserted, upserted, updated, deleted, duplicateKey, failed uint64
	insertIgnored, updateIgnored, deleteIgnored                uint64
}

// decode is the first pass. Its error fails the whole request.
func (a *rowApplier) decode(plan *writePlan, o *overlay, ops *nyalav1.RowOperations) *status.Error {
	a.ops, a.touched, a.asks, a.errs = a.ops[:0], a.touched[:0], 0, nil
	a.counts = rowCounts{}
	a.dec.Reset(plan.from, ops.GetRows(), ops.GetIndirectData())
	for {
		op, err := a.dec.Next()
		if err != nil {
			return asStatus(err)
		}
		if op == nil {
			return nil
		}
		if op.RowError != nil {
			a.rowError(uint32(op.Index), op.RowError.Code, op.RowError.Msg)
			continue
		}
		if err := plan.refuses(op); err != nil {
			return err
		}
		a.decodeOp(plan, o, op)
	}
}

// Memory that a row applier keeps from batch to batch.
const keepRowOps = 1 << 14

// release lets go of what the last entry was made of.
func (a *rowApplier) release() {
	a.dec, a.errs = schema.OpsDecoder{}, nil
	if cap(a.ops) > keepRowOps {
		a.ops, a.touched = nil, nil
	}
}

func asStatus(err error) *status.Error {
	return &status.Error{Code: status.MismatchedSchema, Msg: err.Error(), Err: err}
}

func (a *rowApplier) decodeOp(plan *writePlan, o *overlay, op *schema.DecodedOp) {
	r := rowOp{index: uint32(op.Index), valOff: len(o.arena)}
	r.typ, r.ignore = op.Type.Plain()
	if r.typ == schema.Insert || r.typ == schema.Upsert {
		if r.full = plan.setsAll(op); !r.full {
			if id, unset := plan.firstRequiredUnset(op); unset {
				a.rowError(r.index, status.InvalidArgument, missingColumn(op.Type, id))
				return
			}
		}
	}
	switch r.typ {
	case schema.Insert:
		o.arena = plan.appendWhole(appendVersionHeader(o.arena, wholeRow), op)
	case schema.Upsert:
		kind := someColumns
		if r.full {
			kind = wholeRow
		}
		o.arena = plan.appendSet(appendVersionHeader(o.arena, kind), op)
	case schema.Update:
		o.arena = plan.appendSet(appendVersionHeader(o.arena, someColumns), op)
	case schema.Delete:
		o.arena = appendVersionHeader(o.arena, deletedRow)
	default:
		a.rowError(r.index, status.NotSupported, fmt.Sprintf("%v isn't supported", op.Type))
		return
	}
	r.valLen = len(o.arena) - r.valOff
	keyOff := len(o.arena)
	o.arena = plan.from.KeyOfOp(o.arena, op)
	r.entry = o.entry(keyOff)
	e := &o.entries[r.entry]
	if e.op != o.op {
		e.op, e.valLen, e.decided, e.wanted = o.op, 0, e.known, false
		a.touched = append(a.touched, r.entry)
	}
	switch {
	case r.full && r.typ == schema.Upsert:
		e.decided = true
	case !e.decided:
		e.decided, e.wanted = true, true
		a.asks++
	}
	a.ops = append(a.ops, r)
}

func missingColumn(t schema.OpType, id schema.ColumnID) string {
	return fmt.Sprintf("%v in an older version of the schema leaves column id %d unset, which has no default", t, id)
}

func (a *rowApplier) rowError(index uint32, code status.Code, msg string) {
	a.counts.failed++
	a.errs = append(a.errs, &nyalav1.RowError{RowIndex: index, Code: nyalav1.ErrorCode(code), Message: msg})
}

// sort puts the touched keys in order: seeks and insertions that go forward cost less.
func (a *rowApplier) sort(o *overlay) {
	byKey := func(x, y int32) int { return bytes.Compare(o.key(&o.entries[x]), o.key(&o.entries[y])) }
	if !slices.IsSortedFunc(a.touched, byKey) {
		slices.SortFunc(a.touched, byKey)
	}
}

// probeAsks is how many keys must be asked for before the gap around one is looked for: that is a seek through all memtables and
// files, where a bloom filter would mostly have answered.
const probeAsks = 8

// ask is the second pass. The keys come in order, so a probe for one may answer for those that follow: where keys rise, as in most
// loads, one seek answers for a whole entry. The next probe is made only where the last one has answered for another key.
func (a *rowApplier) ask(p *pending) error {
	o, rows, probe := p.overlay, &p.rows, a.asks >= probeAsks
	for _, n := range a.touched {
		e := &o.entries[n]
		if !e.wanted {
			continue
		}
		e.wanted, e.known, e.exists = false, true, false
		key := o.key(e)
		if rows.gap.holds(key) {
			probe = true
			continue
		}
		a.seekKey = appendRowPrefix(a.seekKey[:0], p.t.number, key)
		var it *pebble.Iterator
		var err error
		if probe {
			probe = false
			it, err = rows.probe(p.t, a.seekKey, key)
		} else {
			it, err = rows.seek(p.t, a.seekKey, e.hash)
		}
		if it != nil && err == nil {
			// The first version is the latest: it alone says whether there is a row.
			e.exists, err = rowExists(p.t, it)
		}
		if err != nil {
			return fmt.Errorf("tablet %s: look up a row: %w", p.t.TabletID(), err)
		}
	}
	return nil
}

// rowExists says whether a row is there whose latest version the iterator stands at.
func rowExists(t *Tablet, it *pebble.Iterator) (bool, error) {
	v, err := it.ValueAndErr()
	if err != nil {
		return false, err
	}
	kind, _, err := parseVersion(v)
	if err != nil {
		return false, &CorruptionError{Tablet: t.TabletID(), Key: slices.Clone(it.Key()), Err: err}
	}
	return kind != deletedRow, nil
}

// The messages of rows that fail against the tablet's contents are Kudu's.
const (
	msgAlreadyPresent = "key already present"
	msgNotFound       = "key not found"
)

// resolve is the third pass. Afterwards each touched entry with a value is to be written.
func (a *rowApplier) resolve(plan *writePlan, o *overlay) error {
	failedBefore := len(a.errs)
	for i := range a.ops {
		r := &a.ops[i]
		e := &o.entries[r.entry]
		switch {
		case r.ignore && a.ignored(r, e):
		case r.typ == schema.Insert && e.exists:
			a.counts.duplicateKey++
			a.rowError(r.index, status.AlreadyPresent, msgAlreadyPresent)
		case (r.typ == schema.Update || r.typ == schema.Delete) && !e.exists:
			a.rowError(r.index, status.NotFound, msgNotFound)
		default:
			if err := a.resolveOp(plan, o, r, e); err != nil {
				return err
			}
		}
	}
	if failedBefore > 0 && failedBefore < len(a.errs) {
		slices.SortFunc(a.errs, func(x, y *nyalav1.RowError) int { return cmp.Compare(x.RowIndex, y.RowIndex) })
	}
	return nil
}

// ignored says whether an operation with IGNORE has nothing to do, and counts it then.
func (a *rowApplier) ignored(r *rowOp, e *overlayEntry) bool {
	switch {
	case r.typ == schema.Insert && e.exists:
		a.counts.insertIgnored++
	case r.typ == schema.Update && !e.exists:
		a.counts.updateIgnored++
	case r.typ == schema.Delete && !e.exists:
		a.counts.deleteIgnored++
	default:
		return false
	}
	return true
}

// resolveOp gives the entry the version that it has after an operation that succeeds.
func (a *rowApplier) resolveOp(plan *writePlan, o *overlay, r *rowOp, e *overlayEntry) error {
	switch r.typ {
	case schema.Insert:
		a.counts.inserted++
		e.valOff, e.valLen = r.valOff, r.valLen
	case schema.Delete:
		a.counts.deleted++
		e.valOff, e.valLen = r.valOff, r.valLen
		e.exists = false
		return nil
	case schema.Update:
		a.counts.updated++
		return o.overlayCells(e, r)
	default: // Upsert
		a.counts.upserted++
		switch {
		case r.full:
			e.valOff, e.valLen = r.valOff, r.valLen
		case e.exists && r.valLen == 1:
			// It sets nothing, and the row is there: nothing changes.
		case e.exists:
			return o.overlayCells(e, r)
		default:
			if err := o.setMerged(e, wholeRow, plan.defaults, o.arena[r.valOff+1:r.valOff+r.valLen]); err != nil {
				return err
			}
		}
	}
	e.exists, e.known = true, true
	return nil
}
