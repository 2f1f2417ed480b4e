package rig

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nyaladb/nyala/client"
)

// tabletsPerTable is how many tablets a table of CreateTablets has at most: as in the measurements of others.
const tabletsPerTable = 200

// Tablet is one tablet of the tables that CreateTablets made, and a key that belongs into it.
type Tablet struct {
	client.Tablet
	Table *client.Table
	Key   int64
}

// Write writes the tablet's row.
func (t *Tablet) Write(ctx context.Context, s *client.Session) error {
	return s.Apply(ctx, Upsert(t.Table, t.Key))
}

// CreateTablets makes tables of at most 200 hash partitions with three replicas each until there are so many tablets, and returns
// how long it took until all were led.
func (c *Cluster) CreateTablets(ctx context.Context, total int) ([]*Tablet, time.Duration, error) {
	start := time.Now()
	var tables []*client.Table
	for made := 0; made < total; made += tabletsPerTable {
		t, err := c.CreateTable(ctx, fmt.Sprintf("t%03d", made/tabletsPerTable), min(tabletsPerTable, total-made))
		if err != nil {
			return nil, 0, err
		}
		tables = append(tables, t)
		Say("%d of %d tablets are led, after %v", min(made+tabletsPerTable, total), total, time.Since(start).Round(time.Millisecond))
	}
	took := time.Since(start)
	var all []*Tablet
	for _, t := range tables {
		tablets, err := c.tabletsOf(ctx, t)
		if err != nil {
			return nil, 0, err
		}
		all = append(all, tablets...)
	}
	return all, took, nil
}

// tabletsOf lists a table's tablets and finds a key for each.
func (c *Cluster) tabletsOf(ctx context.Context, t *client.Table) ([]*Tablet, error) {
	list, err := c.Client.Tablets(ctx, t)
	if err != nil {
		return nil, err
	}
	byStart := map[string]*Tablet{}
	all := make([]*Tablet, len(list))
	for i, l := range list {
		all[i] = &Tablet{Tablet: l, Table: t, Key: -1}
		byStart[string(l.PartitionKeyStart)] = all[i]
	}
	for key, left := int64(0), len(all); left > 0; key++ {
		tablet := all[0]
		if len(all) > 1 {
			op := Upsert(t, key)
			pk := t.PartitionSchema().PartitionKey(t.Schema(), t.Schema().CellsOf([]client.Value{op.Value(0), op.Value(1)}), nil)
			if tablet = byStart[string(pk[:4])]; tablet == nil { // what follows the bucket is the key, which has no bound
				return nil, fmt.Errorf("no tablet of table %s begins at %x", t.Name(), pk[:4])
			}
		}
		if tablet.Key < 0 {
			tablet.Key = key
			left--
		}
	}
	return all, nil
}

// WriteEach writes a row to each tablet, several at once.
func (c *Cluster) WriteEach(ctx context.Context, tablets []*Tablet) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range 16 {
		workers.Go(func() {
			s := c.Client.NewSession(client.SessionOptions{})
			for i := next.Add(1) - 1; i < int64(len(tablets)); i = next.Add(1) - 1 {
				if err := tablets[i].Write(ctx, s); err != nil {
					cancel(fmt.Errorf("write to tablet %s: %w", tablets[i].ID, err))
					return
				}
			}
		})
	}
	workers.Wait()
	return context.Cause(ctx)
}
