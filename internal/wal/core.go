package wal

import (
	"errors"
	"log/slog"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
)

// mutation is one record put, or deleted where value is nil.
type mutation struct {
	bucket bucketID
	key    []byte
	value  []byte
}

// getter looks a record up; nil where there is none. The result may be read until the read transaction ends.
type getter func(bucket bucketID, key []byte) []byte

// backend is the medium under the core: a bbolt file, or maps in memory.
type backend interface {
	// apply makes the mutations durable in their order, together with the tally, whose commit number it sets; or changes
	// nothing. An error that is ErrNoSpace changed nothing; after any other the backend is never asked to apply again.
	// What muts points to is only valid during the call.
	apply(muts []mutation, t *tally, trim bool) error
	// read runs fn within one read transaction. fn must be short: while it runs, pages that commits free can't be used again.
	read(fn func(get getter) error) error
	fileBytes() int64
	close() error
}

// source is what a backend offers at open: its records, by bucket, in the order of their keys.
type source interface {
	// records calls fn for each record. Key and value are valid during the call only.
	records(bucket bucketID, fn func(key, value []byte) error) error
	// commit is the number of the last commit.
	commit() uint64
}

// core is all of a store but its medium: the logs' index, what a batch means, the trash, the cache. Bolt and Mem share it;
// a naive model in the tests checks it.
type core struct {
	path    string
	log     *slog.Logger
	metrics *metrics
	backend backend
	stamp   hybridtime.Timestamp // highest in any log at open
	numbers atomic.Uint64        // the last number given out

	boot string // MetaBoot's value on this machine now; empty: unknown, or the medium has no use for it

	failed atomic.Pointer[FailedError]
	closed atomic.Bool

	// writer is held through a commit; it guards what follows.
	writer sync.Mutex
	tally  tally
	trash  trash
	strays []*badRecord // unreadable records of groups that are gone
	wrote  bool         // something was committed since the store was opened
	cache  cache
	// Reused by each plan.
	arena  []byte
	muts   []mutation
	doomed []doomed

	// counts of what is live, for Size.
	liveEntries, liveBytes, trashRecords, trashBytes, cacheBytes atomic.Int64

	// mu guards what follows; taken inside writer, never around a log's own lock.
	mu   sync.RWMutex
	logs map[ident.LocalNumber]*Log
	meta map[MetaKey]metaValue
}

type metaValue struct {
	value []byte
	crc   uint32
}

// Commit implements Store.
func (c *core) Commit(b *Batch) error {
	c.writer.Lock()
	defer c.writer.Unlock()
	if err := c.Err(); err != nil {
		return err
	}
	if b.Empty() {
		return nil
	}
	begin := time.Now()
	p := newPlan(c)
	for i := range b.ops {
		p.apply(&b.ops[i])
	}
	if c.boot != "" && string(c.meta[MetaBoot].value) != c.boot { // the writer alone changes the map
		p.apply(&op{kind: opMeta, key: MetaBoot, record: []byte(c.boot)})
	}
	p.takeTrash(c.quota(p.puts))
	if err := c.write(p, false); err != nil {
		return err
	}
	c.metrics.committed(b, time.Since(begin))
	return nil
}

// quota is how many dead records a commit of n new ones deletes: about as many, a quarter more, so that a backlog shrinks;
// twice as many once there is more dead than alive.
func (c *core) quota(n int) int {
	const least = 8
	if c.trash.bytes > c.liveBytes.Load() {
		return 2*n + least
	}
	return n + n/4 + least
}

// Trim implements Store.
func (c *core) Trim(max int) (bool, error) {
	c.writer.Lock()
	defer c.writer.Unlock()
	if err := c.Err(); err != nil {
		return false, err
	}
	if c.trash.records == 0 && len(c.strays) == 0 {
		return false, nil
	}
	begin := time.Now()
	err := c.trim(max)
	if errors.Is(err, ErrNoSpace) && max > trimOnFullDisk {
		err = c.trim(trimOnFullDisk)
	}
	if err != nil {
		return false, err
	}
	c.metrics.trimmed(time.Since(begin))
	return c.trash.records > 0 || len(c.strays) > 0, nil
}

// trimOnFullDisk is how many records the room kept for deletions is sure to suffice for.
const trimOnFullDisk = 64

func (c *core) trim(max int) error {
	p := newPlan(c)
	p.takeTrash(max)
	return c.write(p, true)
}

// write makes a plan durable and then visible.
func (c *core) write(p *plan, trim bool) error {
	p.finish()
	err := c.backend.apply(p.muts, &p.tally, trim)
	c.keepBuffers(p)
	if err != nil {
		c.trash.putBack(p.doomed)
		if errors.Is(err, ErrNoSpace) {
			c.metrics.failures.WithLabelValues("no_space").Inc()
			return err
		}
		c.metrics.failures.WithLabelValues("failed").Inc()
		return c.fail(err)
	}
	p.publish()
	c.wrote = true
	return nil
}

// keepBuffers keeps a plan's memory for the next one, unless it was an unusually large one.
func (c *core) keepBuffers(p *plan) {
	const most = 8 << 20 // bytes of records
	c.arena, c.muts, c.doomed = nil, nil, nil
	if cap(p.arena) <= most {
		clear(p.muts)
		c.arena, c.muts, c.doomed = p.arena[:0], p.muts[:0], p.doomed
	}
}

// fail ends the store's life: whatever comes, the first cause stays.
func (c *core) fail(err error) error {
	f := &FailedError{Path: c.path, Err: err}
	if c.failed.CompareAndSwap(nil, f) {
		c.log.Error("WAL has failed for good", "path", c.path, "error", err)
	}
	return c.failed.Load()
}

// read runs fn on the medium. Errors of fn come back as they are; a fault of the medium fails the store.
func (c *core) read(fn func(get getter) error) error {
	if err := c.Err(); err != nil {
		return err
	}
	err := c.backend.read(fn)
	var fault *faultError
	if errors.As(err, &fault) {
		return c.fail(err)
	}
	return err
}

// Err implements Store.
func (c *core) Err() error {
	if f := c.failed.Load(); f != nil {
		return f
	}
	if c.closed.Load() {
		return ErrClosed
	}
	return nil
}

// Groups implements Store.
func (c *core) Groups() []Group {
	c.mu.RLock()
	logs := make([]*Log, 0, len(c.logs))
	for _, l := range c.logs {
		logs = append(logs, l)
	}
	c.mu.RUnlock()
	sort.Slice(logs, func(i, j int) bool { return logs[i].number < logs[j].number })
	groups := make([]Group, len(logs))
	for i, l := range logs {
		groups[i] = l.group()
	}
	return groups
}

// Log implements Store.
func (c *core) Log(n ident.LocalNumber) *Log {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.logs[n]
}

// Meta implements Store.
func (c *core) Meta(key MetaKey) []byte {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.meta[key].value
}

// AllocateNumber implements Store.
func (c *core) AllocateNumber() ident.LocalNumber { return ident.LocalNumber(c.numbers.Add(1)) }

// LastTimestamp implements Store.
func (c *core) LastTimestamp() hybridtime.Timestamp { return c.stamp }

// Size implements Store.
func (c *core) Size() Size {
	return Size{
		FileBytes:    c.backend.fileBytes(),
		LiveEntries:  c.liveEntries.Load(),
		LiveBytes:    c.liveBytes.Load(),
		TrashRecords: c.trashRecords.Load(),
		TrashBytes:   c.trashBytes.Load(),
		CacheBytes:   c.cacheBytes.Load(),
	}
}

// publishCounts brings the counts that others read up to date; the writer's alone.
func (c *core) publishCounts() {
	c.trashRecords.Store(int64(c.trash.records))
	c.trashBytes.Store(c.trash.bytes)
	c.cacheBytes.Store(c.cache.bytes)
}

// Close implements Store.
func (c *core) Close() error {
	c.writer.Lock()
	defer c.writer.Unlock()
	if c.closed.Swap(true) {
		return nil
	}
	c.metrics.unregister()
	return c.backend.close()
}

// faultError is a panic or a page fault caught while the medium was read or written.
type faultError struct{ err error }

func (e *faultError) Error() string { return e.err.Error() }
func (e *faultError) Unwrap() error { return e.err }
