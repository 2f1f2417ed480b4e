package tablet

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"github.com/nyaladb/nyala/internal/ident"
)

// watcher follows Pebble's flushes and compactions on a goroutine of its own, since Pebble's callbacks run under its locks:
// it finds out how far each replica is durable, and keeps what Pressure says up to date.
//
// A replica's durable index is what its state record says when read with OnlyReadGuaranteedDurable, that is from files
// alone. Everything an entry did stands in one batch with the state record that names it; a batch is in one memtable;
// memtables are flushed whole and in order. So if the files say "applied 7", all that entries 1 to 7 did is in the files.
type watcher struct {
	store  *Store
	wake   chan struct{} // capacity 1: one wake-up stands for any number of events
	quit   chan struct{}
	done   chan struct{}
	begun  bool
	flushd atomic.Bool // a flush ended since the last look

	mu       sync.Mutex
	reported map[ident.LocalNumber]ident.Index

	pressure atomic.Pointer[Pressure]
	// since is the number of bytes committed since the pressure was computed.
	since atomic.Int64
}

func newWatcher(s *Store) *watcher {
	w := &watcher{
		store: s, wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
		reported: map[ident.LocalNumber]ident.Index{},
	}
	w.pressure.Store(&Pressure{})
	return w
}

// notify is called by Pebble, with its locks held: it only leaves word.
func (w *watcher) notify(flushed bool) {
	if flushed {
		w.flushd.Store(true)
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *watcher) start() {
	w.begun = true
	go w.run()
}

// stop ends the goroutine after a last look.
func (w *watcher) stop() {
	if w.begun {
		close(w.quit)
		<-w.done
	}
}

func (w *watcher) run() {
	defer close(w.done)
	for {
		select {
		case <-w.wake:
			w.look()
		case <-w.quit:
			w.look()
			return
		}
	}
}

func (w *watcher) look() {
	w.updatePressure()
	if !w.flushd.Swap(false) {
		return
	}
	moved, err := w.durable()
	if err != nil {
		// The log is held for longer than it need be, until the next flush tells.
		w.store.opts.Logger.Error("tablet store: how far replicas are durable can't be read", "error", err)
		return
	}
	if len(moved) > 0 && w.store.opts.OnDurable != nil {
		w.store.opts.OnDurable(moved)
	}
}

// durable returns the durable index of each loaded replica for which it moved since the last call. It reads one record for
// each replica that has applied something since.
func (w *watcher) durable() (map[ident.LocalNumber]ident.Index, error) {
	s := w.store
	s.mu.Lock()
	candidates := make([]*Tablet, 0, len(s.tablets))
	for _, t := range s.tablets {
		candidates = append(candidates, t)
	}
	s.mu.Unlock()
	it, err := s.db.NewIter(&pebble.IterOptions{OnlyReadGuaranteedDurable: true})
	if err != nil {
		return nil, err
	}
	defer func() { _ = it.Close() }()
	w.mu.Lock()
	defer w.mu.Unlock()
	moved := map[ident.LocalNumber]ident.Index{}
	var key []byte
	for _, t := range candidates {
		if applied, _ := t.Applied(); t.deleted.Load() || applied == w.reported[t.number] {
			continue
		}
		key = appendRecordKey(key[:0], t.number, kindState)
		if !it.SeekPrefixGE(key) {
			if err := it.Error(); err != nil {
				return nil, err
			}
			continue // nothing of it is durable yet
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return nil, err
		}
		state, err := decodeState(v)
		if err != nil {
			return nil, fmt.Errorf("replica %d: %w", t.number, err)
		}
		if state.applied > w.reported[t.number] {
			w.reported[t.number] = state.applied
			moved[t.number] = state.applied
			t.recent.durable(state.applied)
		}
	}
	return moved, nil
}

func (w *watcher) forget(n ident.LocalNumber) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.reported, n)
}
