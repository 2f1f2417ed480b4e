package wal

// cache bounds the memory that recent entries take, over all logs: first in, first out, for what raft reads again is what
// was just written (to send it, to apply it). Entries live in the logs' slots; the cache only remembers which. It is the
// writer's alone.
type cache struct {
	limit int64
	bytes int64
	refs  []cacheRef
	head  int // refs before it are gone
}

type cacheRef struct {
	log   *Log
	index uint64
	seq   uint64
	bytes int64
}

// add remembers an entry that stands in its log's slot.
func (c *cache) add(r cacheRef) {
	c.refs = append(c.refs, r)
	c.bytes += r.bytes
}

// shrink drops the oldest entries until the limit is kept, and those among the oldest that are gone from their logs.
func (c *cache) shrink() {
	for c.head < len(c.refs) && (c.bytes > c.limit || !c.refs[c.head].held()) {
		r := c.refs[c.head]
		c.refs[c.head] = cacheRef{}
		c.head++
		c.bytes -= r.bytes
		r.log.forget(r.index, r.seq)
	}
	if c.head > len(c.refs)/2 {
		n := copy(c.refs, c.refs[c.head:])
		clear(c.refs[n:])
		c.refs, c.head = c.refs[:n], 0
	}
}

// held says whether the log still holds the entry.
func (r *cacheRef) held() bool {
	r.log.mu.RLock()
	defer r.log.mu.RUnlock()
	first := r.log.firstLocked()
	return r.index >= first && r.index <= r.log.lastLocked() && r.log.slots[r.index-first].seq == r.seq
}

// forget drops the entry at index from memory, if it is still the one written under seq.
func (l *Log) forget(index, seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if first := l.firstLocked(); index >= first && index <= l.lastLocked() {
		if s := &l.slots[index-first]; s.seq == seq {
			s.entry = nil
		}
	}
}
