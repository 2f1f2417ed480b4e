package tablet

import (
	"fmt"
	"maps"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/invariant"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// Op is one committed log entry. Every entry of a log is applied, in order, those without effect too.
type Op struct {
	Index     ident.Index
	Timestamp hybridtime.Timestamp // 0: the entry has none
	// At most one of the following is set.
	Write  *nyalav1.WriteOp
	Config *nyalav1.RaftConfig
	Schema *nyalav1.Schema // a new version of the table's schema
	// TableName goes with a Schema: the table's name from that version on; empty: as it was.
	TableName string
}

// Result is what became of an Op. It is the same on every replica.
type Result struct {
	Timestamp hybridtime.Timestamp // of the write that the answer is about; with Duplicate the first one's
	RowErrors []*nyalav1.RowError  // rows that were not applied, by rising index; the others were
	// Err says that the whole request was refused and nothing of it applied. It isn't remembered: sent again the request is
	// tried again.
	Err *status.Error
	// Duplicate: the request was applied before; this is its first answer.
	Duplicate bool
	// Stale: the request is older than what is remembered of its client; it was not applied now.
	Stale bool
	// Skipped: the entry was applied before, and nothing is known of its answer.
	Skipped bool
}

// Batch applies log entries of one or more tablets and commits them to the store at once. It belongs to one goroutine. A
// tablet may be in one uncommitted batch at a time.
//
// Nothing shows before Commit. A batch that is closed without it, or whose Commit fails, ends the tablets that it touched.
type Batch struct {
	store   *Store
	pb      *pebble.Batch
	touched []*pending
	counts  rowCounts
	done    bool
	*scratch
}

// scratch is memory that goes from batch to batch.
type scratch struct {
	rows      rowApplier
	sink      requestChanges
	keyBuf    []byte
	valBuf    []byte
	clientBuf []byte
}

// pending is a tablet's state within an uncommitted batch.
type pending struct {
	t       *Tablet
	state   stateRecord
	meta    *tabletMeta
	overlay *overlay
	rows    committedRows
	answers map[requestKey][]*nyalav1.RowError
}

type requestKey struct {
	id  ClientID
	seq uint64
}

// NewBatch returns an empty batch. It must be closed.
func (s *Store) NewBatch() *Batch {
	return &Batch{store: s, pb: s.db.NewBatch(), scratch: s.scratch.Get().(*scratch)}
}

// Size is the number of bytes in the batch so far.
func (b *Batch) Size() int { return b.pb.Len() }

// Apply applies one entry. An entry at or below the tablet's applied index is skipped.
//
// What concerns the request alone is in the Result. An error ends the tablet: the entry could not be applied, and the tablet
// takes no further one. What the batch holds of earlier entries and of other tablets stays good and can be committed.
func (b *Batch) Apply(t *Tablet, op Op) (Result, error) {
	invariant.Check(!b.done, "apply to a batch that was committed or closed")
	if err := t.Err(); err != nil {
		return Result{}, err
	}
	p := b.pendingOf(t)
	if op.Index <= p.state.applied {
		return Result{Skipped: true}, nil
	}
	res, err := b.apply(p, op)
	if err != nil {
		t.fail(err)
		return Result{}, err
	}
	p.state.applied = op.Index
	if op.Timestamp != 0 {
		p.state.timestamp = op.Timestamp
	}
	return res, nil
}

func (b *Batch) pendingOf(t *Tablet) *pending {
	for _, p := range b.touched {
		if p.t == t {
			return p
		}
	}
	invariant.Check(t.inBatch.CompareAndSwap(false, true), "tablet %s is in two batches at once", t.TabletID())
	p := &pending{t: t, state: *t.state.Load(), meta: t.meta.Load(), overlay: b.store.overlays.Get().(*overlay)}
	b.touched = append(b.touched, p)
	return p
}

func (b *Batch) apply(p *pending, op Op) (Result, error) {
	if op.Index != p.state.applied+1 || op.Timestamp != 0 && op.Timestamp <= p.state.timestamp ||
		op.Timestamp == 0 && op.Write != nil {
		return Result{}, &OrderError{
			Tablet: p.t.TabletID(), Applied: p.state.applied, Index: op.Index,
			AppliedTimestamp: p.state.timestamp, Timestamp: op.Timestamp,
		}
	}
	switch {
	case op.Write != nil:
		return b.applyWrite(p, op)
	case op.Config != nil:
		if err := b.putMessage(p.t.number, kindConfig, op.Config); err != nil {
			return Result{}, err
		}
		meta := *p.meta
		meta.config = op.Config
		p.meta = &meta
	case op.Schema != nil:
		return b.applySchema(p, op)
	}
	return Result{Timestamp: op.Timestamp}, nil
}

// applySchema adds a version of the schema, a later one than all before, and the table's name with it; versions in between may
// never have come here. Entries in older versions stay readable. One that is there already is no error: a master that didn't hear
// says it again.
func (b *Batch) applySchema(p *pending, op Op) (Result, error) {
	res := Result{Timestamp: op.Timestamp}
	sc, err := schema.FromProto(op.Schema)
	if err != nil {
		res.Err = status.Wrap(status.InvalidSchema, err, "schema version %d", op.Schema.GetVersion())
		return res, nil
	}
	if have := p.meta.current.Version(); sc.Version() <= have {
		if known := p.meta.schemas[sc.Version()]; known == nil || !proto.Equal(known.ToProto(), op.Schema) {
			res.Err = status.New(status.MismatchedSchema, "schema version %d doesn't follow version %d", sc.Version(), have)
		}
		return res, nil
	}
	if err := sameKey(p.meta.current, sc); err != nil {
		res.Err = err
		return res, nil
	}
	b.keyBuf = appendSchemaKey(b.keyBuf[:0], p.t.number, sc.Version())
	if err := b.putMessageAt(b.keyBuf, op.Schema); err != nil {
		return Result{}, err
	}
	schemas := maps.Clone(p.meta.schemas)
	schemas[sc.Version()] = sc
	meta := newTabletMeta(p.meta.record, p.meta.config, schemas)
	if name := op.TableName; name != "" && name != meta.record.GetTableName() {
		meta.record = proto.CloneOf(meta.record)
		meta.record.TableName = name
		if err := b.putMessage(p.t.number, kindReplica, meta.record); err != nil {
			return Result{}, err
		}
	}
	p.meta = meta
	return res, nil
}

// sameKey holds that the primary key never changes: rows stand under it.
func sameKey(from, to *schema.Schema) *status.Error {
	same := from.NumKeyColumns() == to.NumKeyColumns()
	for i := 0; same && i < from.NumKeyColumns(); i++ {
		same = from.Column(i).ID == to.Column(i).ID && from.Column(i).Type == to.Column(i).Type
	}
	if !same {
		return status.New(status.InvalidSchema, "schema version %d changes the primary key, which can't be changed", to.Version())
	}
	return nil
}

// applyWrite decides everything first, with reads that may fail, and then adds to the batch what can't fail: so an entry is
// in the batch whole or not at all.
func (b *Batch) applyWrite(p *pending, op Op) (Result, error) {
	t, rid := p.t, op.Write.GetRequestId()
	b.sink.reset()
	t.mu.Lock()
	t.requests.expire(op.Timestamp, t.requests.limits.saidBy(op.Write), &b.sink)
	t.mu.Unlock()

	id, tracked := clientIDOf(rid)
	res, v, err := b.applyOnce(p, op, id, tracked)
	if err != nil {
		return Result{}, err
	}
	executed := v == verdictNew && res.Err == nil
	if executed && tracked {
		if b.valBuf, err = appendRequest(b.valBuf[:0], res.Timestamp, res.RowErrors); err != nil {
			return Result{}, fmt.Errorf("tablet %s: encode an answer: %w", t.TabletID(), err)
		}
	}
	if tracked {
		t.mu.Lock()
		t.requests.begin(id, rid.GetSeqNo(), rid.GetFirstIncompleteSeqNo(), op.Timestamp, &b.sink)
		if executed {
			t.requests.remember(id, rid.GetSeqNo(), op.Timestamp, len(res.RowErrors) > 0, &b.sink)
		}
		t.mu.Unlock()
	}
	// The removals go first: one may be of the very number that is remembered now, from a client that was forgotten.
	b.emitRequests(t.number)
	if executed {
		b.emitRows(p, op.Index, op.Timestamp)
		if tracked {
			b.emitAnswer(p, id, rid.GetSeqNo(), res.RowErrors)
		}
	}
	return res, nil
}

// applyOnce applies the rows of a write unless it was applied before.
func (b *Batch) applyOnce(p *pending, op Op, id ClientID, tracked bool) (Result, verdict, error) {
	w := op.Write
	if !tracked && w.GetRequestId() != nil {
		return Result{Timestamp: op.Timestamp, Err: errClientID(w.GetRequestId())}, verdictNew, nil
	}
	if tracked {
		seq := w.GetRequestId().GetSeqNo()
		p.t.mu.Lock()
		v, first := p.t.requests.find(id, seq)
		p.t.mu.Unlock()
		switch v {
		case verdictStale:
			b.store.metrics.requests[verdictStale].Inc()
			return Result{Timestamp: op.Timestamp, Stale: true}, v, nil
		case verdictDone:
			b.store.metrics.requests[verdictDone].Inc()
			res, err := b.firstAnswer(p, id, first)
			return res, v, err
		case verdictNew:
			b.store.metrics.requests[verdictNew].Inc()
		}
	}
	res, err := b.resolveRows(p, op)
	return res, verdictNew, err
}

func (b *Batch) firstAnswer(p *pending, id ClientID, r *request) (Result, error) {
	res := Result{Timestamp: r.timestamp, Duplicate: true}
	if !r.hasErrors {
		return res, nil
	}
	if errs, ok := p.answers[requestKey{id, r.seq}]; ok {
		res.RowErrors = errs
		return res, nil
	}
	_, errs, err := b.store.loadRequest(p.t.number, id, r.seq)
	if err != nil {
		return Result{}, fmt.Errorf("tablet %s: answer of client %s's request %d: %w", p.t.TabletID(), id, r.seq, err)
	}
	res.RowErrors = errs
	return res, nil
}

// resolveRows decides what the rows of a write become. It adds nothing to the batch: emitRows does.
func (b *Batch) resolveRows(p *pending, op Op) (Result, error) {
	res := Result{Timestamp: op.Timestamp}
	plan := p.meta.plans[op.Write.GetSchemaVersion()]
	if plan == nil {
		res.Err = errUnknownSchema(op.Write.GetSchemaVersion(), p.meta.current.Version())
		return res, nil
	}
	o, a := p.overlay, &b.rows
	o.op++
	if err := a.decode(plan, o, op.Write.GetRowOperations()); err != nil {
		res.Err = err
		return res, nil
	}
	a.sort(o)
	if a.asks > 0 {
		if err := a.ask(p); err != nil {
			return Result{}, err
		}
	}
	if err := a.resolve(plan, o); err != nil {
		return Result{}, err
	}
	res.RowErrors = a.errs
	return res, nil
}

// errUnknownSchema: a later version is on its way here, so that the caller may try again; an older one never was.
func errUnknownSchema(version, latest uint32) *status.Error {
	if version > latest {
		return status.New(status.ServiceUnavailable, "schema version %d hasn't come here yet: the latest is %d", version, latest)
	}
	return status.New(status.MismatchedSchema, "schema version %d is unknown here: the latest is %d", version, latest)
}

// emitRows adds the versions of the operation that resolveRows resolved last.
func (b *Batch) emitRows(p *pending, index ident.Index, ts hybridtime.Timestamp) {
	o, a := p.overlay, &b.rows
	p.t.recent.add(index, o, a.touched)
	for _, n := range a.touched {
		e := &o.entries[n]
		if e.valLen == 0 {
			continue
		}
		key := o.key(e)
		d := b.pb.SetDeferred(rowKeyLen(len(key)), e.valLen)
		putRowKey(d.Key, p.t.number, key, ts)
		copy(d.Value, o.value(e))
		must(d.Finish())
	}
	b.counts.add(a.counts)
}

// must is for additions to a batch in memory, which fail only once it was committed.
func must(err error) {
	invariant.Check(err == nil, "add to a batch: %v", err)
}

// Commit makes all that was applied visible, each tablet's share at once, and closes the batch. It isn't durable yet: the log
// is what a crash leaves, and OnDurable tells when the store no longer needs it.
func (b *Batch) Commit() error {
	invariant.Check(!b.done, "commit of a batch that was committed or closed")
	defer b.Close()
	for _, p := range b.touched {
		if p.state == *p.t.state.Load() {
			continue
		}
		b.keyBuf = appendRecordKey(b.keyBuf[:0], p.t.number, kindState)
		b.valBuf = appendState(b.valBuf[:0], p.state)
		if err := b.pb.Set(b.keyBuf, b.valBuf, nil); err != nil {
			return fmt.Errorf("tablet store: %w", err)
		}
	}
	n := b.pb.Len()
	if !b.pb.Empty() {
		if err := b.pb.Commit(pebble.NoSync); err != nil {
			return fmt.Errorf("tablet store: commit: %w", err)
		}
	}
	for _, p := range b.touched {
		p.t.meta.Store(p.meta)
		state := p.state
		p.t.state.Store(&state)
	}
	b.done = true
	for _, p := range b.touched {
		if p.t.deleted.Load() {
			// It was deleted in between: what this batch brought back goes again.
			if err := b.store.deleteKeys(p.t.number); err != nil {
				return err
			}
		}
	}
	b.store.committed(n, b.counts)
	return nil
}

// Close gives up what the batch holds. After Commit it does nothing.
func (b *Batch) Close() {
	if b.pb == nil {
		return
	}
	for _, p := range b.touched {
		if !b.done && p.state != *p.t.state.Load() {
			p.t.fail(fmt.Errorf("tablet %s: a batch with applied entries was dropped: restart the replica from its log", p.t.TabletID()))
		}
		p.rows.close()
		p.overlay.reset()
		b.store.overlays.Put(p.overlay)
		p.t.inBatch.Store(false)
	}
	b.done = true
	_ = b.pb.Close()
	b.rows.release()
	b.store.scratch.Put(b.scratch)
	b.pb, b.touched, b.scratch = nil, nil, nil
}
