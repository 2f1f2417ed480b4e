package client

import (
	"context"
	"sync"

	"github.com/nyaladb/nyala/internal/status"
)

// countTablets is how many tablets a Count reads at once.
const countTablets = 8

// countTries bounds how often a count begins anew because tablets were dropped and replaced under it.
const countTries = 10

// Count returns the number of rows that match, reading several tablets at once. Columns and CountOnly are ignored. Where
// ctx has no deadline each request has Options.Timeout, not the whole.
func (t *Table) Count(ctx context.Context, o ScanOptions) (n uint64, err error) {
	for range countTries {
		if n, err = t.count(ctx, o); status.CodeOf(err) != status.TabletNotFound || o.TabletID != "" {
			break
		}
	}
	return n, err
}

func (t *Table) count(ctx context.Context, o ScanOptions) (uint64, error) {
	o.Columns, o.CountOnly = nil, true
	spec, err := t.scanSpec(o)
	if err != nil {
		return 0, err
	}
	tablets, err := t.tabletsOf(ctx, spec)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var total uint64
	snapshot := o.SnapshotTimestamp
	if len(tablets) > 0 && o.ReadMode == ReadAtSnapshot && snapshot == 0 {
		// The first tablet's server names the snapshot that all others are read at.
		first := newTabletScan(t, spec, tablets[0], 0, 0)
		if _, err := first.next(ctx); err != nil {
			return 0, err
		}
		snapshot = first.snapshot
		if total, err = first.drain(ctx); err != nil {
			return 0, err
		}
		tablets = tablets[1:]
	}
	work := make(chan *tablet)
	var mu sync.Mutex
	var failed error
	var workers sync.WaitGroup
	for range min(countTablets, len(tablets)) {
		workers.Go(func() {
			for tb := range work {
				n, err := newTabletScan(t, spec, tb, snapshot, 0).drain(ctx)
				mu.Lock()
				total += n
				if err != nil && failed == nil {
					failed = err
					cancel()
				}
				mu.Unlock()
			}
		})
	}
	for _, tb := range tablets {
		select {
		case work <- tb:
		case <-ctx.Done():
		}
	}
	close(work)
	workers.Wait()
	if failed == nil && ctx.Err() != nil {
		failed = status.Wrap(status.CodeOf(ctx.Err()), ctx.Err(), "count the rows of table %q", t.info.Name)
	}
	if failed != nil {
		return 0, failed
	}
	if o.Limit > 0 {
		total = min(total, o.Limit)
	}
	return total, nil
}

// drain reads a tablet to its end and returns how many rows it gave, those before the call included.
func (ts *tabletScan) drain(ctx context.Context) (uint64, error) {
	for !ts.finished {
		if _, err := ts.next(ctx); err != nil {
			ts.close()
			return 0, err
		}
	}
	return ts.rows, nil
}

// tabletsOf returns the tablets that a scan has to read, in order.
func (t *Table) tabletsOf(ctx context.Context, spec *scanSpec) ([]*tablet, error) {
	walk := newTabletWalk(t, spec)
	var tablets []*tablet
	for {
		tb, err := walk.next(ctx)
		if err != nil || tb == nil {
			return tablets, err
		}
		tablets = append(tablets, tb)
		walk.leave(tb)
	}
}
