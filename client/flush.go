package client

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"

	"github.com/nyaladb/nyala/internal/status"
)

// Flush sends what is buffered and waits for the answers. Several tablets are written to at once, each tablet's batches one
// after another. Row errors come in the order of Apply; all other rows are written.
//
// The error is for batches that failed as a whole: no server took them in time, or ctx ended. Their rows are among the row
// errors, with OutcomeUnknown where they may have been written all the same; later batches of the same tablet are then not
// sent, so that a key's operations never take effect out of order. Row errors alone leave the error nil.
//
// Where ctx has no deadline, each batch has Options.Timeout.
//
// With BackgroundFlush it waits for what is under way too, and returns all errors since they were taken last.
func (s *Session) Flush(ctx context.Context) ([]RowError, error) {
	if s.opts.Flush == BackgroundFlush {
		return s.flushAll(ctx)
	}
	return s.flushNow(ctx)
}

// flushNow flushes what is buffered now, once an earlier flush has ended.
func (s *Session) flushNow(ctx context.Context) ([]RowError, error) {
	select {
	case s.flushing <- struct{}{}:
		defer func() { <-s.flushing }()
	case <-ctx.Done():
		return nil, status.Wrap(status.CodeOf(ctx.Err()), ctx.Err(), "flush: an earlier one is still under way")
	}
	s.mu.Lock()
	work := s.order
	s.order = nil
	s.bg.started()
	for t := range s.free {
		if s.tables[t] == nil {
			delete(s.free, t) // not written to lately
		}
	}
	clear(s.tables)
	s.mu.Unlock()
	return s.flushTablets(ctx, work)
}

// flushTablets sends the buffers of several tablets, at most MaxInFlight at once.
//
// Those of tablets that are gone come first: their rows may belong to other tablets now, for which later operations on the same keys
// wait here too.
func (s *Session) flushTablets(ctx context.Context, work []*tabletBuffer) ([]RowError, error) {
	var rows []RowError
	var failed error
	var rest []*tabletBuffer
	for _, b := range work {
		if !b.tablet.isGone() {
			rest = append(rest, b)
			continue
		}
		faults, err := s.flushTablet(ctx, b)
		rows, failed = append(rows, faults...), cmp.Or(failed, err)
	}
	work = rest
	type outcome struct {
		rows []RowError
		err  error
	}
	outcomes := make([]outcome, len(work))
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(s.opts.MaxInFlight, len(work)) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(work); i = int(next.Add(1)) - 1 {
				outcomes[i].rows, outcomes[i].err = s.flushTablet(ctx, work[i])
			}
		})
	}
	workers.Wait()
	for _, o := range outcomes {
		rows, failed = append(rows, o.rows...), cmp.Or(failed, o.err)
	}
	return sorted(rows), failed
}

// flushTablet sends one tablet's batches in order, until one fails as a whole.
func (s *Session) flushTablet(ctx context.Context, buf *tabletBuffer) (rows []RowError, failed error) {
	for _, b := range buf.batches {
		var faults []RowError
		if failed == nil {
			faults, failed = s.send(ctx, buf.tablet, b)
		} else {
			faults = b.notSent(failed)
		}
		rows = append(rows, faults...)
		s.mu.Lock()
		s.buffered -= b.enc.Size()
		s.recycleLocked(b)
		s.releasedLocked()
		s.mu.Unlock()
	}
	return rows, failed
}

// sendTo writes one batch to one tablet. The row errors hold all that went wrong; the error is of the batch as a whole.
func (s *Session) sendTo(ctx context.Context, t *tablet, b *batch) ([]RowError, error) {
	rows, indirect := b.enc.Bytes()
	resp, werr := s.c.write(ctx, writeCall{
		table: b.table, tablet: t, rows: rows, indirect: indirect, commitWait: s.opts.CommitWait, via: s.opts.Via,
	})
	if werr != nil {
		return b.allFailed(werr.fault, werr.unknown), werr
	}
	s.mu.Lock()
	s.lastTS = max(s.lastTS, Timestamp(resp.GetTimestamp()))
	s.mu.Unlock()
	faults, err := b.rowErrors(resp.GetRowErrors())
	if err != nil {
		werr = &writeError{fault: status.Wrap(status.Corruption, err, "write to table %q", b.table.info.Name), unknown: true}
		return b.allFailed(werr.fault, true), werr
	}
	return faults, nil
}
