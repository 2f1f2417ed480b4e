package client

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// A batch is made with what is known of its table: the schema, where the ranges are, which tablets there are. A table that was
// altered since has the batch refused as a whole, before any of it was applied: the tablet is gone with its range, or doesn't hold a
// row of it, or doesn't know a schema that old. Its rows are then taken apart and sent again by what the master says now.

// maxRedirects bounds how often a batch's rows are sent elsewhere.
const maxRedirects = 16

// part is a batch for a tablet.
type part struct {
	tablet *tablet
	batch  *batch
	tries  int
}

// send writes one batch, to other tablets than the given one where the table was altered. The row errors hold all that went wrong;
// the error is of rows that failed as a whole.
func (s *Session) send(ctx context.Context, t *tablet, b *batch) ([]RowError, error) {
	rows, err := s.sendTo(ctx, t, b)
	if err == nil || !altered(err) {
		return rows, err
	}
	ctx, cancel := withTimeout(ctx, s.c.opts.Timeout)
	defer cancel()
	rows = nil
	r := s.c.newRetry()
	// What has still to be sent, in order: a key's operations must take effect in theirs.
	waiting := []refusal{{part{tablet: t, batch: b}, err}}
	for len(waiting) > 0 {
		parts, faults, err := s.redirect(ctx, waiting[0])
		waiting = waiting[1:]
		rows = append(rows, faults...)
		for i, p := range parts {
			faults, err = s.sendTo(ctx, p.tablet, p.batch)
			if err != nil && altered(err) && p.tries < maxRedirects && r.pause(ctx, leaderlessBackoff) == nil {
				var again []refusal
				for _, p := range parts[i:] {
					again = append(again, refusal{p, err})
				}
				waiting, err = append(again, waiting...), nil
				break
			}
			rows = append(rows, faults...)
			if err != nil {
				for _, p := range parts[i+1:] {
					rows = append(rows, p.batch.notSent(err)...)
				}
				break
			}
		}
		if err != nil {
			for _, w := range waiting {
				rows = append(rows, w.batch.notSent(err)...)
			}
			return sorted(rows), err
		}
	}
	return sorted(rows), nil
}

func sorted(rows []RowError) []RowError {
	slices.SortFunc(rows, func(a, b RowError) int { return cmp.Compare(a.Index, b.Index) })
	return rows
}

type refusal struct {
	part

	err error
}

// altered says whether a batch failed because its table may have been altered since it was made.
func altered(err error) bool {
	switch status.CodeOf(err) {
	case status.TabletNotFound, status.RowNotInPartition, status.MismatchedSchema:
		return true
	default:
		return false
	}
}

// redirect makes batches for where a refused one's rows belong now. Rows that belong nowhere are row errors. Where nothing has
// changed, all of them are.
func (s *Session) redirect(ctx context.Context, r refusal) (parts []part, faults []RowError, err error) {
	old := r.batch.table
	fail := func(err error) ([]part, []RowError, error) {
		var e *Error
		if !errors.As(err, &e) {
			e = status.Wrap(status.CodeOf(err), err, "write to table %q", old.info.Name)
		}
		return nil, r.batch.allFailed(e, false), err
	}
	table, err := s.c.openTable(ctx, old.id(), "write to table "+old.info.Name)
	if err != nil {
		return fail(err)
	}
	if status.CodeOf(r.err) == status.MismatchedSchema && table.schema.Version() == old.schema.Version() {
		return fail(r.err)
	}
	if _, err := table.locations.question(r.tablet.start, lookupTablets, nil).wait(ctx); err != nil {
		return fail(err)
	}
	tb := newTableBuffer(table)
	at := map[*tablet]int{} // the last part of each tablet
	rows, indirect := r.batch.enc.Bytes()
	d := schema.NewOpsDecoder(old.schema, rows, indirect)
	for {
		decoded, err := d.Next()
		if err != nil {
			return fail(err)
		}
		if decoded == nil {
			return parts, faults, nil
		}
		op := operationOf(old, decoded, r.batch.tags[decoded.Index])
		index := r.batch.index[decoded.Index]
		t, moved, err := tb.place(ctx, op)
		if err == nil {
			size := moved.encodedSize()
			i, ok := at[t]
			if !ok || !parts[i].batch.fits(size, s.opts) {
				i = len(parts)
				at[t] = i
				parts = append(parts, part{tablet: t, batch: newBatch(table), tries: r.tries + 1})
			}
			err = parts[i].batch.append(moved, size, index, s.c.opts.MaxMessageSize)
		}
		if err != nil {
			faults = append(faults, RowError{Op: op, Index: index, Code: status.CodeOf(err), Err: err})
		}
	}
}

// place finds the tablet of an operation that was made with another version of the table's schema, and makes it anew with this one.
func (tb *tableBuffer) place(ctx context.Context, op *Operation) (*tablet, *Operation, error) {
	moved, err := op.in(tb.table)
	if err != nil {
		return nil, nil, err
	}
	t, err := tb.locate(ctx, moved)
	return t, moved, err
}

// in returns the operation in another version of its table's schema. One that sets a column that was dropped is a
// CodeMismatchedSchema.
func (op *Operation) in(t *Table) (*Operation, error) {
	out := t.newOperation(op.kind)
	out.Tag = op.Tag
	for i, v := range op.values {
		if !op.set.Get(i) {
			continue
		}
		c := op.table.schema.Column(i)
		at := t.schema.IndexOfID(c.ID)
		if at < 0 {
			return nil, t.dropped(c.Name)
		}
		out.values[at] = v
		out.set.Set(at)
	}
	return out, nil
}

func (t *Table) dropped(column string) *Error {
	return status.New(status.MismatchedSchema, "column %q of table %q was dropped: open the table again", column, t.info.Name)
}
