package tablet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// Store holds the state of all of a server's replicas in one Pebble database without a log of its own. Its methods are safe
// for concurrent use.
type Store struct {
	opts    Options
	db      *pebble.DB
	pebble  *pebble.Options
	metrics *metrics
	watcher *watcher

	overlays sync.Pool // *overlay
	scratch  sync.Pool // *scratch

	// gate is held for reading by everything short that reads the database, and for writing to close it.
	gate   sync.RWMutex
	closed bool

	mu      sync.Mutex
	tablets map[ident.LocalNumber]*Tablet // created or loaded, and not deleted
}

// Open opens the store in a folder, or makes it. It starts one goroutine, which Close ends, besides Pebble's own.
func Open(opts Options) (*Store, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	opts.setDefaults()
	s := &Store{opts: opts, tablets: map[ident.LocalNumber]*Tablet{}}
	seed := maphash.MakeSeed()
	s.overlays.New = func() any { return newOverlay(seed) }
	s.scratch.New = func() any { return new(scratch) }
	s.watcher = newWatcher(s)
	if err := opts.FS.MkdirAll(opts.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("tablet store: make the folder %s: %w", opts.Dir, err)
	}
	if err := clearImports(&opts); err != nil {
		return nil, err
	}
	s.pebble = pebbleOptions(&opts, s.watcher.notify)
	s.pebble.EnsureDefaults()
	db, err := pebble.Open(opts.Dir, s.pebble)
	if err != nil {
		return nil, fmt.Errorf("tablet store: open %s: %w", opts.Dir, err)
	}
	s.db = db
	if s.metrics, err = newMetrics(s, opts.Registerer); err != nil {
		return nil, errors.Join(fmt.Errorf("tablet store: %w", err), db.Close())
	}
	s.watcher.start()
	return s, nil
}

// Close flushes and closes the store. No batch may be open, and none may be begun any more; reads under way are waited for,
// later ones get an error. OnDurable isn't called after it. A second Close does nothing.
func (s *Store) Close() error {
	s.gate.Lock()
	closed := s.closed
	s.closed = true
	s.gate.Unlock()
	if closed {
		return nil
	}
	// Without a log in Pebble what isn't flushed is gone at Close; it would be replayed, but needn't be.
	err := s.db.Flush()
	s.watcher.stop()
	s.metrics.unregister()
	return errors.Join(err, s.db.Close())
}

// enter keeps the database open until leave.
func (s *Store) enter() error {
	s.gate.RLock()
	if s.closed {
		s.gate.RUnlock()
		return status.New(status.ServiceUnavailable, "tablet store %s: it is closed: the server is stopping", s.opts.Dir)
	}
	return nil
}

func (s *Store) leave() { s.gate.RUnlock() }

// Flush makes durable all that was committed before the call.
func (s *Store) Flush() error {
	if err := s.db.Flush(); err != nil {
		return fmt.Errorf("tablet store: flush: %w", err)
	}
	return nil
}

// Create makes a replica's state before the first entry of its log. Like all that the store does it isn't durable yet: after
// a crash Load may not find it, and it is created again from the same record.
func (s *Store) Create(n ident.LocalNumber, rec *nyalav1.ReplicaRecord) (*Tablet, error) {
	if n == 0 {
		return nil, status.New(status.InvalidArgument, "tablet %s: the replica's local number is 0", rec.GetTabletId())
	}
	sc, err := schema.FromProto(rec.GetSchema())
	if err != nil {
		return nil, fmt.Errorf("tablet %s: schema: %w", rec.GetTabletId(), err)
	}
	t, err := newTablet(s, n, rec, sc)
	if err != nil {
		return nil, err
	}
	t.meta.Store(newTabletMeta(rec, rec.GetConfig(), map[uint32]*schema.Schema{sc.Version(): sc}))
	t.state.Store(&stateRecord{})

	s.mu.Lock()
	defer s.mu.Unlock()
	if _, found, err := s.get(appendRecordKey(nil, n, kindState)); err != nil || found || s.tablets[n] != nil {
		return nil, errors.Join(err, status.New(status.TabletAlreadyExists, "tablet %s: the store already has a replica with number %d",
			rec.GetTabletId(), n))
	}
	b := s.NewBatch()
	defer b.Close()
	if err := b.create(t, sc); err != nil {
		return nil, err
	}
	s.tablets[n] = t
	return t, nil
}

// create writes all of a new replica's records in one batch, so that a crash leaves all or none.
func (b *Batch) create(t *Tablet, sc *schema.Schema) error {
	if err := b.putMessage(t.number, kindReplica, t.record); err != nil {
		return err
	}
	if err := b.putMessage(t.number, kindConfig, t.Config()); err != nil {
		return err
	}
	b.keyBuf = appendSchemaKey(b.keyBuf[:0], t.number, sc.Version())
	if err := b.putMessageAt(b.keyBuf, t.record.GetSchema()); err != nil {
		return err
	}
	b.keyBuf = appendRecordKey(b.keyBuf[:0], t.number, kindState)
	b.valBuf = appendState(b.valBuf[:0], stateRecord{})
	must(b.pb.Set(b.keyBuf, b.valBuf, nil))
	return b.Commit()
}

// Load opens a replica that the store has, false if it has none with that number. A replica is loaded once; a second call
// returns the same Tablet.
func (s *Store) Load(n ident.LocalNumber) (*Tablet, bool, error) {
	s.mu.Lock()
	t := s.tablets[n]
	s.mu.Unlock()
	if t != nil {
		return t, true, nil
	}
	if err := s.enter(); err != nil {
		return nil, false, err
	}
	defer s.leave()
	t, err := s.load(n)
	if t == nil || err != nil {
		return nil, false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if other := s.tablets[n]; other != nil {
		return other, true, nil
	}
	s.tablets[n] = t
	return t, true, nil
}

// Delete removes all that the store has of a replica, loaded or not. Reads under way fail. After a crash the replica may be
// back; numbers are never given twice, so deleting it again is always right.
func (s *Store) Delete(n ident.LocalNumber) error {
	s.mu.Lock()
	if t := s.tablets[n]; t != nil {
		t.fail(t.errDeleted())
		t.deleted.Store(true)
		delete(s.tablets, n)
	}
	s.mu.Unlock()
	s.watcher.forget(n)
	return s.deleteKeys(n)
}

func (s *Store) deleteKeys(n ident.LocalNumber) error {
	lower, upper := numberBounds(n)
	if err := s.db.DeleteRange(lower, upper, pebble.NoSync); err != nil {
		return fmt.Errorf("tablet store: delete replica %d: %w", n, err)
	}
	return nil
}

// ListNumbers returns the numbers of all replicas that the store holds anything of, rising: what the log doesn't know is to
// be deleted.
func (s *Store) ListNumbers() ([]ident.LocalNumber, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	it, err := s.db.NewIter(nil)
	if err != nil {
		return nil, fmt.Errorf("tablet store: list the replicas: %w", err)
	}
	var out []ident.LocalNumber
	for ok := it.First(); ok; {
		n := ident.LocalNumber(binary.BigEndian.Uint64(it.Key()))
		out = append(out, n)
		_, next := numberBounds(n)
		ok = it.SeekGE(next)
	}
	if err := errors.Join(it.Error(), it.Close()); err != nil {
		return nil, fmt.Errorf("tablet store: list the replicas: %w", err)
	}
	return out, nil
}

// get returns a copy of a record.
func (s *Store) get(key []byte) (v []byte, found bool, err error) {
	raw, closer, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("tablet store: read %v: %w", keyFormatter(key), err)
	}
	v = append([]byte(nil), raw...)
	return v, true, closer.Close()
}
