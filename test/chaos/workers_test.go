package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/nyaladb/nyala/client"
)

const (
	// rows are written and read at the same time; after generationTime others take their place, so that what isn't known of
	// one stays little.
	rows           = 6
	generationTime = 2 * time.Second
	// operationTime is the longest that a worker waits for one operation. Most wait less: what becomes of a write that was given
	// up is then unknown.
	operationTime = 3 * time.Second
)

// workers write and read until they are stopped.
type workers struct {
	c     *cluster
	table *client.Table
	h     *history

	values  atomic.Int64
	stopped chan struct{}
	running sync.WaitGroup
	// once are the inserts of rows that nobody else writes; see insertOnce.
	once onceTable
}

// onceTable keeps book of inserts.
type onceTable struct {
	table *client.Table
	next  atomic.Int64

	mu             sync.Mutex
	acked, unknown map[int64]bool
	faults         []string
}

// createTable makes a table with a key id and a string v, of one tablet with a replica on each server.
func (c *cluster) createTable(name string) *client.Table {
	c.t.Helper()
	replicas := len(c.names) - (len(c.names)+1)%2
	t, err := c.client.CreateTable(c.t.Context(), client.CreateTableOptions{
		Name:       name,
		Columns:    []client.Column{{Name: "id", Type: client.Int64}, {Name: "v", Type: client.String, Nullable: true}},
		PrimaryKey: []string{"id"}, Replicas: replicas,
	})
	if err != nil {
		c.t.Fatalf("create table %s: %v", name, err)
	}
	return t
}

// start starts n workers that write and read single rows, and two that insert in batches.
func (c *cluster) start(n int) *workers {
	c.t.Helper()
	w := &workers{c: c, table: c.createTable("rows"), h: newHistory(), stopped: make(chan struct{})}
	w.once = onceTable{table: c.createTable("once"), acked: map[int64]bool{}, unknown: map[int64]bool{}}
	for i := range n {
		rnd := rand.New(rand.NewPCG(c.rnd.Uint64(), uint64(i)))
		w.running.Go(func() { w.work(i, rnd) })
	}
	for i := range 2 {
		w.running.Go(func() { w.insert(rand.New(rand.NewPCG(1, uint64(i)))) })
	}
	return w
}

// stop waits until every worker has ended.
func (w *workers) stop() {
	close(w.stopped)
	w.running.Wait()
}

func (w *workers) stopping() bool {
	select {
	case <-w.stopped:
		return true
	default:
		return false
	}
}

// via is the id and the name of a server to write through or read at: a random one, or none.
func (w *workers) via(rnd *rand.Rand) (id, name string) {
	i := rnd.IntN(len(w.c.names) + 1)
	if i == len(w.c.names) {
		return "", ""
	}
	return w.c.ids[w.c.names[i]], w.c.names[i]
}

func (w *workers) work(worker int, rnd *rand.Rand) {
	for !w.stopping() {
		generation := w.h.now() / int64(generationTime)
		key := generation*rows + rnd.Int64N(rows)
		ctx, cancel := context.WithTimeout(w.c.t.Context(), time.Duration(rnd.Int64N(int64(operationTime))))
		switch k := rnd.IntN(10); {
		case k < 5:
			w.write(ctx, worker, key, rnd)
		case k < 8:
			w.latest(ctx, worker, key)
		default:
			w.snapshot(ctx, worker, generation*rows, rnd)
		}
		cancel()
	}
}

func (w *workers) write(ctx context.Context, worker int, key int64, rnd *rand.Rand) {
	id, name := w.via(rnd)
	s := w.c.client.NewSession(client.SessionOptions{Via: id})
	o := operation{Worker: worker, Kind: "write", Via: name, Key: key, Value: fmt.Sprintf("v%d", w.values.Add(1))}
	op := w.table.NewUpsert()
	if err := errors.Join(op.Set("id", key), op.Set("v", o.Value)); err != nil {
		w.c.t.Error(err)
		return
	}
	o.Call = w.h.now()
	err := s.Apply(ctx, op)
	o.Return, o.Timestamp = w.h.now(), uint64(s.LastTimestamp())
	switch {
	case err == nil:
	case client.OutcomeUnknown(err):
		o.Return, o.OutcomeText = math.MaxInt64, ": "+err.Error()
	default:
		return // it never took effect
	}
	w.h.add(o)
}

func (w *workers) latest(ctx context.Context, worker int, key int64) {
	p, err := w.table.Predicate("id", client.Equal, key)
	if err != nil {
		w.c.t.Error(err)
		return
	}
	o := operation{Worker: worker, Kind: "latest", Key: key, Call: w.h.now()}
	seen, _, err := readAll(ctx, w.table, client.ScanOptions{Predicates: []client.Predicate{p}})
	if err != nil {
		return
	}
	o.Return, o.Value = w.h.now(), seen[key]
	w.h.add(o)
}

// snapshot reads a generation's rows at a snapshot that the server chooses, which lies above all that this client knows of.
func (w *workers) snapshot(ctx context.Context, worker int, first int64, rnd *rand.Rand) {
	id, name := w.via(rnd)
	from, ferr := w.table.Predicate("id", client.GreaterEqual, first)
	to, terr := w.table.Predicate("id", client.Less, first+rows)
	if err := errors.Join(ferr, terr); err != nil {
		w.c.t.Error(err)
		return
	}
	call := w.h.now()
	seen, at, err := readAll(ctx, w.table, client.ScanOptions{
		ReadMode: client.ReadAtSnapshot, ServerID: id, Predicates: []client.Predicate{from, to},
	})
	if err != nil {
		return
	}
	ret := w.h.now()
	for key := first; key < first+rows; key++ {
		w.h.add(operation{
			Worker: worker, Kind: "snapshot", Via: name, Key: key, Value: seen[key], Call: call, Return: ret, Timestamp: uint64(at),
		})
	}
}

// readAll returns what a scan shows, and its snapshot.
func readAll(ctx context.Context, t *client.Table, o client.ScanOptions) (map[int64]string, client.Timestamp, error) {
	o.Columns = []string{"id", "v"}
	sc, err := t.Scan(ctx, o)
	if err != nil {
		return nil, 0, err
	}
	defer sc.Close()
	seen := map[int64]string{}
	for {
		b, err := sc.Next(ctx)
		if errors.Is(err, io.EOF) {
			return seen, sc.SnapshotTimestamp(), nil
		}
		if err != nil {
			return nil, 0, err
		}
		ids, values := b.Record.Column(0).(*array.Int64), b.Record.Column(1).(*array.String)
		for i := range b.Rows {
			seen[ids.Value(i)] = values.Value(i)
		}
		b.Release()
	}
}

// insert inserts rows that nobody else writes, in batches, and waits long for each: the client sends a batch again and again, to
// whichever server it is to go through, under one number. So none can be there already: it would have been applied twice.
func (w *workers) insert(rnd *rand.Rand) {
	o := &w.once
	for !w.stopping() {
		id, name := w.via(rnd)
		s := w.c.client.NewSession(client.SessionOptions{Flush: client.ManualFlush, Via: id})
		n := int64(1 + rnd.IntN(5))
		first := o.next.Add(n) - n
		for key := first; key < first+n; key++ {
			op := o.table.NewInsert()
			if err := errors.Join(op.Set("id", key), op.Set("v", name), s.Apply(w.c.t.Context(), op)); err != nil {
				w.c.t.Error(err)
				return
			}
		}
		ctx, cancel := context.WithTimeout(w.c.t.Context(), 20*time.Second)
		failed, _ := s.Flush(ctx)
		cancel()
		o.mu.Lock()
		for key := first; key < first+n; key++ {
			o.acked[key] = true
		}
		for _, f := range failed {
			key := f.Op.Value(0).Int()
			delete(o.acked, key)
			if f.OutcomeUnknown {
				o.unknown[key] = true
			} else if f.Code == client.CodeAlreadyPresent {
				o.faults = append(o.faults, fmt.Sprintf("row %d, through %q: %v", key, name, f.Err))
			}
		}
		o.mu.Unlock()
	}
}

// check fails the test unless each insert took effect once if it was acknowledged, at most once if nobody knows, and else not.
func (o *onceTable) check(t *testing.T) {
	t.Helper()
	if len(o.faults) > 0 {
		t.Errorf("%d rows were inserted twice, the first: %s", len(o.faults), o.faults[0])
	}
	seen, _, err := readAll(t.Context(), o.table, client.ScanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for key := range o.acked {
		if _, ok := seen[key]; !ok {
			t.Errorf("row %d, which was acknowledged, is lost", key)
		}
	}
	for key := range seen {
		if !o.acked[key] && !o.unknown[key] {
			t.Errorf("row %d is there, and its insert was refused", key)
		}
	}
	t.Logf("%d inserts were acknowledged, of %d nobody knows", len(o.acked), len(o.unknown))
}

// finish heals what is left, waits until every server can be written through again, stops the workers, and checks what they did,
// and that all replicas hold the same.
func (w *workers) finish() {
	t := w.c.t
	t.Helper()
	w.c.net.Heal()
	w.writableThroughAll(20 * time.Second)
	w.stop()
	w.h.check(t)
	w.once.check(t)
	at := w.c.client.LatestTimestamp() + 1
	for _, table := range []*client.Table{w.table, w.once.table} {
		var first map[int64]string
		for _, name := range w.c.names {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			seen, _, err := readAll(ctx, table, client.ScanOptions{ReadMode: client.ReadAtSnapshot, SnapshotTimestamp: at, ServerID: w.c.ids[name]})
			cancel()
			if err != nil {
				if client.CodeOf(err) == client.CodeInvalidScanSpec || client.CodeOf(err) == client.CodeNotFound {
					continue // it has no replica
				}
				t.Fatalf("read %s on %s: %v", table.Name(), name, err)
			}
			if first == nil {
				first = seen
			}
			if len(seen) != len(first) {
				t.Errorf("%s holds %d rows of table %s, %s holds %d", name, len(seen), table.Name(), w.c.names[0], len(first))
			}
			for key, v := range first {
				if seen[key] != v {
					t.Errorf("row %d of table %s is %q on %s and %q on %s", key, table.Name(), seen[key], name, v, w.c.names[0])
				}
			}
		}
	}
}

// writableThroughAll writes through each server until it is taken: the liveness that a healed network must give back.
func (w *workers) writableThroughAll(within time.Duration) {
	w.c.t.Helper()
	ctx, cancel := context.WithTimeout(w.c.t.Context(), within)
	defer cancel()
	for _, name := range w.c.names {
		s := w.c.client.NewSession(client.SessionOptions{Via: w.c.ids[name]})
		op := w.once.table.NewUpsert()
		if err := errors.Join(op.Set("id", int64(-1)), op.Set("v", name), s.Apply(ctx, op)); err != nil {
			w.c.t.Fatalf("no write is taken through %s: %v", name, err)
		}
	}
	w.once.mu.Lock()
	w.once.acked[-1] = true
	w.once.mu.Unlock()
}
