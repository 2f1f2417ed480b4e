package tablet

import (
	"fmt"
	"sync"
	"sync/atomic"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// Tablet is one replica's state in the store. Its methods are safe for concurrent use; operations are applied to it through
// one Batch at a time.
type Tablet struct {
	store     *Store
	number    ident.LocalNumber
	record    *nyalav1.ReplicaRecord
	partition schema.Partition
	partSpec  *schema.PartitionSchema
	// rowLower and rowUpper are the bounds of its rows in the store.
	rowLower, rowUpper []byte
	// wholeSpace: every row is in the partition.
	wholeSpace bool

	// state and meta are what is committed to the store and so visible to reads.
	state atomic.Pointer[stateRecord]
	meta  atomic.Pointer[tabletMeta]

	// inBatch guards against two batches at once: what each decides rests on what the other would write.
	inBatch atomic.Bool
	recent  recentKeys
	deleted atomic.Bool

	mu       sync.Mutex
	requests *requestTable
	// failed is the error that ended the tablet: memory and store may differ from then on.
	failed error
}

// tabletMeta is what changes seldom. It is immutable; changes make a new one.
type tabletMeta struct {
	// record is what the replica was created from, with the name that the table has by now.
	record  *nyalav1.ReplicaRecord
	config  *nyalav1.RaftConfig
	current *schema.Schema
	// schemas holds all versions, current included; plans maps operations in each to current.
	schemas map[uint32]*schema.Schema
	plans   map[uint32]*writePlan
}

func newTabletMeta(record *nyalav1.ReplicaRecord, config *nyalav1.RaftConfig, schemas map[uint32]*schema.Schema) *tabletMeta {
	m := &tabletMeta{record: record, config: config, schemas: schemas, plans: make(map[uint32]*writePlan, len(schemas))}
	for _, s := range schemas {
		if m.current == nil || s.Version() > m.current.Version() {
			m.current = s
		}
	}
	for v, s := range schemas {
		m.plans[v] = newWritePlan(s, m.current)
	}
	return m
}

// newTablet makes a tablet of what a ReplicaRecord says, without state.
func newTablet(s *Store, n ident.LocalNumber, rec *nyalav1.ReplicaRecord, sc *schema.Schema) (*Tablet, error) {
	p := rec.GetPartition()
	t := &Tablet{
		store: s, number: n, record: rec, requests: newRequestTable(s.opts.requestLimits()),
		partSpec: schema.PartitionSchemaFromProto(rec.GetPartitionSchema()), partition: schema.PartitionFromProto(p),
	}
	t.rowLower, t.rowUpper = rowBounds(n)
	if err := t.partSpec.Validate(sc); err != nil {
		return nil, fmt.Errorf("tablet %s: partition schema: %w", rec.GetTabletId(), err)
	}
	t.wholeSpace = len(p.GetHashBuckets()) == 0 && len(p.GetPartitionKeyStart()) == 0 && len(p.GetPartitionKeyEnd()) == 0
	return t, nil
}

// Number is the replica's number on this server.
func (t *Tablet) Number() ident.LocalNumber { return t.number }

// TabletID is the tablet's id.
func (t *Tablet) TabletID() ident.TabletID { return ident.TabletID(t.record.GetTabletId()) }

// TableID is the id of the tablet's table.
func (t *Tablet) TableID() ident.TableID { return ident.TableID(t.record.GetTableId()) }

// TableName is the name of the tablet's table, as the last applied change of its schema had it.
func (t *Tablet) TableName() string { return t.meta.Load().record.GetTableName() }

// ReplicaID is the replica's id within its tablet.
func (t *Tablet) ReplicaID() ident.ReplicaID { return ident.ReplicaID(t.record.GetReplicaId()) }

// Record is what the replica was created from, with the name that its table has by now. It isn't to be changed.
func (t *Tablet) Record() *nyalav1.ReplicaRecord { return t.meta.Load().record }

// Schema is the latest schema that was applied.
func (t *Tablet) Schema() *schema.Schema { return t.meta.Load().current }

// SchemaAt returns the schema at a version, nil if the tablet never had it.
func (t *Tablet) SchemaAt(version uint32) *schema.Schema { return t.meta.Load().schemas[version] }

// ScanSchema returns the schema at the version that a scan's columns and predicates are given in, and a function that says
// why one of its columns, by position, can't be read any more: it was dropped.
func (t *Tablet) ScanSchema(version uint32) (*schema.Schema, func(column int) *status.Error, error) {
	meta := t.meta.Load()
	s := meta.schemas[version]
	if s == nil {
		return nil, nil, errUnknownSchema(version, meta.current.Version())
	}
	return s, func(i int) *status.Error {
		if meta.current.IndexOfID(s.Column(i).ID) < 0 {
			return errDropped(s, i)
		}
		return nil
	}, nil
}

// Partition is the tablet's share of its table.
func (t *Tablet) Partition() schema.Partition { return t.partition }

// PartitionSchema says how the table is split.
func (t *Tablet) PartitionSchema() *schema.PartitionSchema { return t.partSpec }

// Config is the latest Raft config that was applied. It isn't to be changed.
func (t *Tablet) Config() *nyalav1.RaftConfig { return t.meta.Load().config }

// DiskBytes is about what the tablet takes: in the store's files, and what is in memory alone, as it stands there. It reads no row.
func (t *Tablet) DiskBytes() (uint64, error) {
	if err := t.store.enter(); err != nil {
		return 0, err
	}
	defer t.store.leave()
	n, err := t.store.db.EstimateDiskUsage(numberBounds(t.number))
	if err != nil {
		return 0, fmt.Errorf("tablet %s: size: %w", t.TabletID(), err)
	}
	// From a flush until the store has found out what is durable by it, that counts twice.
	return n + t.recent.bytes(), nil
}

// Applied returns the index of the last applied entry and the timestamp of the last applied one that had a timestamp.
// Reads see all of it.
func (t *Tablet) Applied() (ident.Index, hybridtime.Timestamp) {
	s := t.state.Load()
	return s.applied, s.timestamp
}

// Err is the error that ended the tablet, nil while it is sound.
func (t *Tablet) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}

func (t *Tablet) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failed == nil {
		t.failed = err
	}
}

func (t *Tablet) errDeleted() error {
	return status.New(status.TabletNotFound, "tablet %s: this server's replica was deleted", t.TabletID())
}

// LookupState says what is known of a request.
type LookupState int

// The states of a request.
const (
	LookupNew   LookupState = iota // not applied as far as is known: execute it
	LookupDone                     // applied: here is the first answer
	LookupStale                    // below what is remembered: never execute it
)

// Lookup says what is known of a request: what an operation that carries it would be told if it were applied now.
func (t *Tablet) Lookup(id *nyalav1.StoredRequestId) (Result, LookupState) {
	cid, ok := clientIDOf(id)
	if !ok {
		return Result{}, LookupNew
	}
	t.mu.Lock()
	v, r := t.requests.find(cid, id.GetSeqNo())
	visible := v == verdictDone && r.timestamp <= t.state.Load().timestamp
	t.mu.Unlock()
	switch {
	case v == verdictStale:
		return Result{Stale: true}, LookupStale
	case !visible:
		// An answer that its batch hasn't committed yet isn't one: reads wouldn't see its rows.
		return Result{}, LookupNew
	}
	res := Result{Timestamp: r.timestamp, Duplicate: true}
	if !r.hasErrors {
		return res, LookupDone
	}
	rowErrors, err := t.store.answer(t.number, cid, id.GetSeqNo())
	if err != nil {
		// It was forgotten in between, or can't be read: the operation itself will tell.
		return Result{}, LookupNew
	}
	res.RowErrors = rowErrors
	return res, LookupDone
}

func clientIDOf(id *nyalav1.StoredRequestId) (ClientID, bool) {
	if len(id.GetClientId()) != len(ClientID{}) {
		return ClientID{}, false
	}
	return ClientID(id.GetClientId()), true
}
