package wal

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/nyaladb/nyala/internal/invariant"
)

// Mem is the store in memory: the same logs, batches and recovery as Bolt's, on maps instead of a file, and failing in the
// ways in which bbolt's file does. It is for tests and simulations.
type Mem struct {
	*core
	medium *memory
}

// Failure is a way in which a commit goes wrong.
type Failure int

const (
	// FailNoSpace: the disk is full. Nothing changes and the store goes on.
	FailNoSpace Failure = iota + 1
	// FailWrite: a write of the pages fails. The store has failed; after a restart the batch isn't there.
	FailWrite
	// FailSync: the sync fails. The store has failed; after a restart the batch isn't there.
	FailSync
	// FailSyncKept: the sync fails, after all had reached the disk. The store has failed; after a restart the batch is there,
	// though nobody was told so.
	FailSyncKept
	// FailMap: reading the map faults. The store has failed; after a restart the batch isn't there.
	FailMap
)

func (f Failure) String() string {
	switch f {
	case FailNoSpace:
		return "no space"
	case FailWrite:
		return "write of the pages"
	case FailSync:
		return "sync"
	case FailSyncKept:
		return "sync that lost nothing"
	case FailMap:
		return "fault while reading the map"
	}
	return fmt.Sprintf("failure %d", int(f))
}

// Failures are all ways to fail.
var Failures = []Failure{FailNoSpace, FailWrite, FailSync, FailSyncKept, FailMap}

// NewMem returns an empty store.
func NewMem() *Mem {
	m := &memory{buckets: map[bucketID]map[string][]byte{}}
	for _, b := range allBuckets {
		m.buckets[b] = map[string][]byte{}
	}
	m.number = 1
	m.buckets[bucketTally][string(formatKey)] = encodeFormat()
	m.buckets[bucketTally][string(tallyKey)] = (&tally{commit: 1, nextSeq: 1}).encode()
	s, err := openMem(m)
	invariant.Check(err == nil, "wal: an empty store in memory is damaged: %v", err)
	return s
}

func openMem(m *memory) (*Mem, error) {
	s := &Mem{medium: m}
	met, err := newMetrics(nil, nil)
	if err != nil {
		return nil, err
	}
	s.core = newCore("(memory)", slog.New(slog.DiscardHandler), met, DefaultCacheBytes)
	s.backend = m
	if err := rebuild(s.core, m); err != nil {
		return nil, err
	}
	return s, nil
}

// Crash returns what a power cut leaves: a store opened on what is durable. The old one must not be used any more.
func (s *Mem) Crash() *Mem {
	n, err := s.Reopen()
	invariant.Check(err == nil, "wal: %v; after Corrupt use Reopen", err)
	return n
}

// Reopen is Crash for a store that may have been damaged by Corrupt.
func (s *Mem) Reopen() (*Mem, error) {
	s.closed.Store(true)
	return openMem(s.medium.clone())
}

// FailNext makes the next commit (or Trim that has something to do) fail in the given way.
func (s *Mem) FailNext(f Failure) {
	s.medium.mu.Lock()
	defer s.medium.mu.Unlock()
	s.medium.next = f
}

// SetFull makes the disk full, or gives it room again: while full, each commit is refused with ErrNoSpace. Trim still works,
// as in a file that keeps room for it.
func (s *Mem) SetFull(full bool) {
	s.medium.mu.Lock()
	defer s.medium.mu.Unlock()
	s.medium.full = full
}

// Corrupt changes durable records: edit gets the name of the bucket ("e" entries, "g" groups, "s" terms and votes, "m"
// values, "t" tally), key and value of each, in order, and returns the value to put instead; nil removes the record.
func (s *Mem) Corrupt(edit func(bucket string, key, value []byte) []byte) {
	m := s.medium
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range allBuckets {
		for _, k := range slices.Sorted(maps.Keys(m.buckets[b])) {
			if v := edit(string(rune(b)), []byte(k), slices.Clone(m.buckets[b][k])); v != nil {
				m.buckets[b][k] = v
			} else {
				delete(m.buckets[b], k)
			}
		}
	}
}

// memory is Mem's backend. What stands in it is durable.
type memory struct {
	mu      sync.RWMutex
	buckets map[bucketID]map[string][]byte
	number  uint64
	next    Failure
	full    bool
}

func (m *memory) clone() *memory {
	m.mu.RLock()
	defer m.mu.RUnlock()
	c := &memory{buckets: map[bucketID]map[string][]byte{}, number: m.number, full: m.full}
	for b, records := range m.buckets {
		c.buckets[b] = maps.Clone(records) // values are never written in place
	}
	return c
}

func (m *memory) apply(muts []mutation, t *tally, trim bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.next
	m.next = 0
	switch {
	case f == FailNoSpace, m.full && !trim:
		return fmt.Errorf("memory: %w", ErrNoSpace)
	case f != 0 && f != FailSyncKept:
		return &faultError{fmt.Errorf("injected: %v", f)}
	}
	t.commit = m.number + 1
	for _, x := range muts {
		if x.value == nil {
			delete(m.buckets[x.bucket], string(x.key))
		} else {
			m.buckets[x.bucket][string(x.key)] = slices.Clone(x.value)
		}
	}
	m.buckets[bucketTally][string(tallyKey)] = t.encode()
	m.number = t.commit
	if f == FailSyncKept {
		return &faultError{fmt.Errorf("injected: %v", f)}
	}
	return nil
}

func (m *memory) read(fn func(get getter) error) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return fn(func(bucket bucketID, key []byte) []byte { return m.buckets[bucket][string(key)] })
}

func (m *memory) records(bucket bucketID, fn func(key, value []byte) error) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, k := range slices.Sorted(maps.Keys(m.buckets[bucket])) {
		if err := fn([]byte(k), m.buckets[bucket][k]); err != nil {
			return err
		}
	}
	return nil
}

func (m *memory) commit() uint64   { return m.number }
func (m *memory) fileBytes() int64 { return 0 }
func (m *memory) close() error     { return nil }
