package tablet

import (
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/invariant"
	"github.com/nyaladb/nyala/internal/schema"
)

// TestRandom drives a store with several tablets of a random schema and a naive model with the same random entries: all kinds of
// operations on values of every type and at its ends, in batches of several tablets and several entries each, with clients that
// send again and that know an old schema, schema changes, flushes, compactions, restarts, copies under other numbers, and crashes
// that keep a random part of what wasn't synced. It compares every answer, the answer at every replay
// after a crash, and scans of every form at random snapshots.
func TestRandom(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &machine{fs: vfs.NewCrashableMem(), models: map[ident.LocalNumber]*modelTablet{}, durable: map[ident.LocalNumber]ident.Index{}}
		m.open(rt)
		defer func() { m.close(rt) }()
		first := drawSchema(rt)
		for n := ident.LocalNumber(1); n <= 3; n++ {
			m.models[n] = newModelTablet(first)
			if _, err := m.store.Create(n, replicaRecord(n, m.models[n].schema)); err != nil {
				rt.Fatal(err)
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"write":   m.write,
			"write2":  m.write,
			"scan":    m.scan,
			"scan2":   m.scan,
			"lookup":  m.lookup,
			"flush":   m.flush,
			"compact": m.compact,
			"restart": m.restart,
			"crash":   m.crash,
			"delete":  m.delete,
			"copy":    m.copy,
		})
		m.checkAll(rt)
		m.checkPredicates(rt)
	})
}

// checkPredicates scans each tablet with each operator on each column.
func (m *machine) checkPredicates(t *rapid.T) {
	for _, n := range m.numbers() {
		s := m.models[n].schema
		for column := range s.NumColumns() {
			for _, op := range operators {
				spec := ScanSpec{Schema: s, Columns: allColumns(s), Snapshot: hybridtime.Max}
				if rapid.Bool().Draw(t, "earlier") {
					spec.Snapshot, spec.Stop = drawSnapshot(t, m.models[n]), drawBound(t, s, "stop")
				}
				bound, naive := drawPredicate(t, s, m.models[n].scan(s, spec.Snapshot), column, op)
				spec.Predicates = []*schema.BoundPredicate{bound}
				m.compare(t, n, spec, []modelPredicate{naive}, 0, false)
			}
		}
	}
}

type machine struct {
	fs      *vfs.MemFS
	store   *Store
	models  map[ident.LocalNumber]*modelTablet
	next    ident.LocalNumber
	mu      sync.Mutex
	durable map[ident.LocalNumber]ident.Index // written by the store's goroutine
}

func (m *machine) open(t *rapid.T) {
	o := testOptions(m.fs)
	o.MemtableBytes = 64 << 10
	o.OnDurable = func(moved map[ident.LocalNumber]ident.Index) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for n, i := range moved {
			m.durable[n] = i
		}
	}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	m.store = s
}

func (m *machine) close(t *rapid.T) {
	if err := m.store.Close(); err != nil {
		t.Fatal(err)
	}
}

func (m *machine) numbers() []ident.LocalNumber {
	var out []ident.LocalNumber
	for n := range m.models {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

func (m *machine) tablet(t *rapid.T, n ident.LocalNumber) *Tablet {
	tb, ok, err := m.store.Load(n)
	if err != nil || !ok {
		t.Fatalf("load %d: %v, %v", n, ok, err)
	}
	return tb
}

// write applies one batch of entries to some of the tablets.
func (m *machine) write(t *rapid.T) {
	b := m.store.NewBatch()
	defer b.Close()
	for range rapid.SampledFrom([]int{1, 2, 3, 4, 16}).Draw(t, "entries") {
		n := rapid.SampledFrom(m.numbers()).Draw(t, "tablet")
		model := m.models[n]
		e := drawEntry(t, model)
		if e.op.Write != nil {
			if err := m.tablet(t, n).CheckWrite(e.op.Write); (err == nil) != (e.rows != nil && !e.dropped && model.schemas[e.op.Write.GetSchemaVersion()] != nil) {
				// CheckWrite looks at the committed state, which may lack a schema of this very batch.
				if model.schema == m.tablet(t, n).Schema() {
					t.Fatalf("check: %v", err)
				}
			}
		}
		model.log = append(model.log, e)
		last := &model.log[len(model.log)-1]
		want, dup := model.apply(last)
		last.result = want
		m.applyEntry(t, b, n, last, dup)
	}
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
}

func (m *machine) applyEntry(t *rapid.T, b *Batch, n ident.LocalNumber, e *modelEntry, dup bool) {
	res, err := b.Apply(m.tablet(t, n), e.op)
	if err != nil {
		t.Fatalf("tablet %d, entry %d: %v", n, e.op.Index, err)
	}
	if got := resultText(res); got != e.result || res.Skipped || res.Duplicate != dup {
		t.Fatalf("tablet %d, entry %d: %s (duplicate %v), want %s (%v)", n, e.op.Index, got, res.Duplicate, e.result, dup)
	}
}

func (m *machine) scan(t *rapid.T) {
	n := rapid.SampledFrom(m.numbers()).Draw(t, "tablet")
	model := m.models[n]
	spec := ScanSpec{
		Schema:   model.schema,
		Snapshot: drawSnapshot(t, model),
		Limit:    uint64(rapid.SampledFrom([]int{0, 0, 1, 3}).Draw(t, "limit")),
	}
	if rapid.Bool().Draw(t, "old schema") {
		spec.Schema = model.schemas[rapid.SampledFrom(slices.Sorted(maps.Keys(model.schemas))).Draw(t, "version")]
	}
	spec.Columns = rapid.Permutation(allColumns(spec.Schema)).Draw(t, "columns")
	spec.Columns = spec.Columns[:rapid.IntRange(0, len(spec.Columns)).Draw(t, "count")]
	var preds []modelPredicate
	for range rapid.IntRange(0, 2).Draw(t, "predicates") {
		column := rapid.IntRange(0, spec.Schema.NumColumns()-1).Draw(t, "column")
		if rapid.Bool().Draw(t, "of the key") {
			column = rapid.IntRange(0, spec.Schema.NumKeyColumns()-1).Draw(t, "key column")
		}
		bound, naive := drawPredicate(t, spec.Schema, model.scan(spec.Schema, spec.Snapshot), column, rapid.SampledFrom(operators).Draw(t, "operator"))
		spec.Predicates, preds = append(spec.Predicates, bound), append(preds, naive)
	}
	spec.Start, spec.Stop, spec.After = drawBound(t, spec.Schema, "start"), drawBound(t, spec.Schema, "stop"), drawBound(t, spec.Schema, "after")
	if spec.Start != nil && rapid.IntRange(0, 2).Draw(t, "after the first") == 0 {
		spec.After = spec.Start
	}
	m.compare(t, n, spec, preds, rapid.SampledFrom([]int{1, 20, 0}).Draw(t, "bytes"), rapid.Bool().Draw(t, "no time"))
}

// compare scans, in blocks, with noTime in steps of one version each, otherwise with jumps over what is too new, and compares with
// the model.
func (m *machine) compare(t *rapid.T, n ident.LocalNumber, spec ScanSpec, preds []modelPredicate, maxBytes int, noTime bool) {
	model := m.models[n]
	want := model.filter(model.scan(spec.Schema, spec.Snapshot), spec, preds)
	sc, err := m.tablet(t, n).NewScanner(spec)
	if err != nil {
		t.Fatal(err)
	}
	if noTime {
		sc.budget, sc.cur.versionsPerLook = -1, 1
	} else {
		sc.cur.tooNewBeforeSeek = 1
	}
	for more := true; more; {
		var b Block
		if b, more, err = sc.Next(t.Context(), maxBytes); err != nil {
			t.Fatal(err)
		}
		if b.Rows > len(want) {
			t.Fatalf("%d rows too many", b.Rows-len(want))
		}
		if b.Rows > 0 && string(b.LastKey) != want[b.Rows-1].key {
			t.Fatalf("last key %x, want %x", b.LastKey, want[b.Rows-1].key)
		}
		if b.Record != nil {
			for i := range b.Rows {
				if !want[i].matches(spec.Schema, spec.Columns, b.Record, i) {
					t.Fatalf("row %v, want %v", b.Record, want[i].values)
				}
			}
			b.Record.Release()
		}
		want = want[b.Rows:]
	}
	if len(want) > 0 {
		t.Fatalf("%d rows are missing, the first %q", len(want), want[0].key)
	}
}

func (m *machine) lookup(t *rapid.T) {
	n := rapid.SampledFrom(m.numbers()).Draw(t, "tablet")
	id := &nyalav1.StoredRequestId{
		ClientId: append(make([]byte, 15), byte(rapid.IntRange(0, 3).Draw(t, "client"))), SeqNo: rapid.Uint64Range(0, 20).Draw(t, "seq"),
	}
	res, got := m.tablet(t, n).Lookup(id)
	want, answer := LookupNew, ""
	if c := m.models[n].clients[string(id.ClientId)]; c != nil {
		if a, ok := c.answers[id.SeqNo]; ok {
			want, answer = LookupDone, a
		}
		if id.SeqNo < c.bound {
			want = LookupStale
		}
	}
	if got != want || got == LookupDone && resultText(res) != answer {
		t.Fatalf("lookup %v: %v %s, want %v %s", id, got, resultText(res), want, answer)
	}
}

func (m *machine) flush(t *rapid.T) {
	if err := m.store.Flush(); err != nil {
		t.Fatal(err)
	}
}

func (m *machine) compact(t *rapid.T) {
	lower, _ := numberBounds(0)
	_, upper := numberBounds(1 << 20)
	if err := m.store.db.Compact(t.Context(), lower, upper, false); err != nil {
		t.Fatal(err)
	}
}

func (m *machine) restart(t *rapid.T) {
	m.close(t)
	for n, model := range m.models {
		if m.durable[n] != ident.Index(len(model.log)) {
			t.Fatalf("tablet %d: durable through %d after a close, want %d", n, m.durable[n], len(model.log))
		}
	}
	m.open(t)
	m.replay(t)
}

// crash takes the files as a power cut would leave them, and replays the logs.
func (m *machine) crash(t *rapid.T) { m.crashDuring(t, func() {}) }

// crashDuring is a crash in the middle of something, which undo ends for the process that is left behind.
func (m *machine) crashDuring(t *rapid.T, undo func()) {
	seed := rapid.Uint64().Draw(t, "seed")
	m.mu.Lock()
	told := maps.Clone(m.durable)
	m.mu.Unlock()
	// What was told before the crash must be there after it.
	left := m.fs.CrashClone(vfs.CrashCloneCfg{
		UnsyncedDataPercent: rapid.SampledFrom([]int{0, 50, 100}).Draw(t, "kept"), RNG: rand.New(rand.NewPCG(seed, 1)),
	})
	undo()
	m.close(t)
	m.fs, m.durable = left, map[ident.LocalNumber]ident.Index{}
	m.open(t)
	for n, i := range told {
		if tb, ok, err := m.store.Load(n); m.models[n] != nil && (err != nil || !ok) {
			t.Fatalf("tablet %d was durable through %d and is gone: %v", n, i, err)
		} else if ok {
			if applied, _ := tb.Applied(); applied < i {
				t.Fatalf("tablet %d was durable through %d and is at %d", n, i, applied)
			}
		}
	}
	m.replay(t)
	m.checkAll(t)
}

// replay does what a server does at its start.
func (m *machine) replay(t *rapid.T) {
	numbers, err := m.store.ListNumbers()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range numbers {
		if m.models[n] == nil {
			if err := m.store.Delete(n); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, n := range m.numbers() {
		model := m.models[n]
		tb, ok, err := m.store.Load(n)
		if err == nil && !ok {
			tb, err = m.store.Create(n, replicaRecord(n, model.schemas[0]))
		}
		if err != nil {
			t.Fatal(err)
		}
		// The log may begin before what the store has applied: that is skipped (I2).
		applied, _ := tb.Applied()
		from := max(0, int(applied)-rapid.IntRange(0, 2).Draw(t, "applied before"))
		for from < len(model.log) {
			next := min(len(model.log), from+rapid.IntRange(1, 5).Draw(t, "at once"))
			m.replayBatch(t, tb, int(applied), model.log[from:next])
			from = next
		}
	}
}

func (m *machine) replayBatch(t *rapid.T, tb *Tablet, applied int, entries []modelEntry) {
	b := m.store.NewBatch()
	defer b.Close()
	for i := range entries {
		e := &entries[i]
		res, err := b.Apply(tb, e.op)
		before := int(e.op.Index) <= applied
		if err != nil || res.Skipped != before || !before && resultText(res) != e.result {
			t.Fatalf("tablet %d, entry %d again: %s (skipped %v), %v, want %s", tb.Number(), e.op.Index, resultText(res), res.Skipped, err, e.result)
		}
	}
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
}

func (m *machine) delete(t *rapid.T) {
	if rapid.IntRange(0, 3).Draw(t, "really") > 0 {
		return
	}
	n := rapid.SampledFrom(m.numbers()).Draw(t, "tablet")
	tb := m.tablet(t, n)
	sc, err := tb.NewScanner(ScanSpec{Snapshot: hybridtime.Max})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.store.Delete(n); err != nil {
		t.Fatal(err)
	}
	if _, _, err := sc.Next(t.Context(), 0); err == nil {
		t.Fatal("a scan of a deleted tablet ended well")
	}
	if _, ok, err := m.store.Load(n); ok || err != nil {
		t.Fatalf("deleted, and loaded: %v", err)
	}
	delete(m.models, n)
	m.next = max(m.next, 3) + 1
	m.models[m.next] = newModelTablet(m.models0())
	if _, err := m.store.Create(m.next, replicaRecord(m.next, m.models[m.next].schema)); err != nil {
		t.Fatal(err)
	}
	numbers, err := m.store.ListNumbers()
	if err != nil || !slices.Equal(numbers, m.numbers()) {
		t.Fatalf("the store has %v, want %v: %v", numbers, m.numbers(), err)
	}
}

// models0 is the schema that all tablets begin with.
func (m *machine) models0() *schema.Schema {
	for _, model := range m.models {
		return model.schemas[0]
	}
	return nil
}

// checkAll compares the whole of each tablet: rows, applied state, config, name, and that two ways of counting agree.
func (m *machine) checkAll(t *rapid.T) {
	for _, n := range m.numbers() {
		model, tb := m.models[n], m.tablet(t, n)
		invariant.Check(model.applied == len(model.log), "model %d", n)
		if i, _ := tb.Applied(); int(i) != len(model.log) {
			t.Fatalf("tablet %d: applied %d, want %d", n, i, len(model.log))
		}
		if got := tb.Config().GetOpidIndex(); got != model.config {
			t.Fatalf("tablet %d: config %d, want %d", n, got, model.config)
		}
		if got := tb.TableName(); got != model.name {
			t.Fatalf("tablet %d: its table is %q, want %q", n, got, model.name)
		}
		m.compare(t, n, ScanSpec{Schema: model.schema, Columns: allColumns(model.schema), Snapshot: hybridtime.Max}, nil, 0, false)
		rows, _, err := tb.Checksum(t.Context(), hybridtime.Max)
		if err != nil || int(rows) != len(model.scan(model.schema, hybridtime.Max)) {
			t.Fatalf("checksum counts %d rows: %v", rows, err)
		}
	}
}
