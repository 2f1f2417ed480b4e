package wal

import (
	"go.etcd.io/raft/v3/raftpb"

	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/invariant"
)

// plan is what one commit does: the records it puts and deletes, and how the logs will look after it. Building it changes
// nothing that anybody sees; publish makes it visible once it is durable. A plan that is not published leaves no trace.
type plan struct {
	core   *core
	tally  tally
	muts   []mutation
	puts   int // records put in the entries bucket
	arena  []byte
	logs   map[ident.LocalNumber]*staged
	order  []*staged
	meta   map[MetaKey]metaValue
	dead   []span // dead once the plan is durable
	doomed []doomed
	strays int // of core.strays, deleted by this plan
	// released counts, for a bad record, the groups that this plan deletes of those it damaged.
	released map[*badRecord]int
}

// staged is a log as it will be.
type staged struct {
	log      *Log
	slots    []slot
	bytes    int64 // of data in slots
	start    ident.OpID
	hard     hardState
	created  bool
	deleted  bool
	dirty    bool // the state record changes
	stateCRC uint32
	fresh    []cacheRef
}

func newPlan(c *core) *plan {
	return &plan{core: c, tally: c.tally, arena: c.arena, muts: c.muts, logs: map[ident.LocalNumber]*staged{}}
}

func (p *plan) apply(o *op) {
	switch o.kind {
	case opCreate:
		p.create(o)
	case opMeta:
		p.setMeta(o)
	default:
		if s := p.stage(o.number); s != nil {
			p.change(s, o)
		}
	}
}

// change applies an operation to a group that exists.
func (p *plan) change(s *staged, o *op) {
	invariant.Check(o.kind == opDelete || !s.log.wrecked,
		"wal: replica %d is damaged and takes no change but its deletion", o.number)
	switch o.kind {
	case opDelete:
		p.delete(s)
	case opAppend:
		p.append(s, o.entries)
	case opHardState:
		s.dirty = s.dirty || s.hard != o.hard
		s.hard = o.hard
	case opCut:
		p.cut(s, uint64(o.at.Index))
	case opCompact:
		p.compact(s, o.at)
	case opCreate, opMeta:
		invariant.Check(false, "wal: operation %d is none of one group's log", o.kind)
	}
}

// stage returns the staged form of a group's log; nil where the group is gone.
func (p *plan) stage(n ident.LocalNumber) *staged {
	if s := p.logs[n]; s != nil {
		if s.deleted {
			return nil
		}
		return s
	}
	l := p.core.logs[n] // the writer alone changes the map
	if l == nil {
		invariant.Check(n <= p.tally.last, "wal: replica %d was never created", n)
		return nil
	}
	s := &staged{log: l, slots: l.slots, bytes: l.bytes, start: l.start, hard: l.hard, stateCRC: l.stateCRC}
	p.logs[n] = s
	p.order = append(p.order, s)
	return s
}

func (p *plan) create(o *op) {
	n := o.number
	invariant.Check(n > 0 && p.core.logs[n] == nil && p.logs[n] == nil, "wal: replica number %d is used twice", n)
	value := encodeGroup(n, o.tablet, o.record)
	l := &Log{core: p.core, number: n, tablet: o.tablet, record: o.record, recordCRC: storedCRC(value)}
	s := &staged{log: l, start: o.at, created: true, dirty: true}
	p.logs[n] = s
	p.order = append(p.order, s)
	p.tally.last = max(p.tally.last, n)
	p.put(bucketGroups, numberKey(n), value)
}

func (p *plan) delete(s *staged) {
	n := s.log.number
	p.remove(bucketGroups, numberKey(n), s.log.recordCRC)
	if !s.created {
		p.remove(bucketStates, numberKey(n), s.log.stateCRC)
	}
	last := s.lastOpID()
	p.dropSuffix(s, 0)
	p.kill(s, s.log.wreck)
	for _, bad := range s.log.bad {
		if p.released == nil {
			p.released = map[*badRecord]int{}
		}
		if p.released[bad]++; p.released[bad] == bad.holders {
			p.remove(bucketEntries, bad.key, bad.crc)
		}
	}
	s.slots, s.start, s.deleted, s.dirty = nil, last, true, false
}

func (s *staged) lastOpID() ident.OpID {
	if len(s.slots) == 0 {
		return s.start
	}
	return ident.OpID{Term: ident.Term(s.slots[len(s.slots)-1].term), Index: s.start.Index + ident.Index(len(s.slots))}
}

// kill marks slots dead as of this commit. The log must not write their memory any more.
func (p *plan) kill(s *staged, slots []slot) {
	if len(slots) > 0 {
		p.dead = append(p.dead, span{number: s.log.number, slots: slots})
	}
}

// dropSuffix takes the entries from position k on out of the log. The full slice expression makes the next append copy:
// readers and the dead span keep the old memory.
func (p *plan) dropSuffix(s *staged, k int) {
	if k < len(s.slots) {
		p.kill(s, s.slots[k:len(s.slots):len(s.slots)])
		s.bytes -= bytesOf(s.slots[k:])
		s.slots = s.slots[:k:k]
	}
}

func bytesOf(slots []slot) int64 {
	n := int64(0)
	for i := range slots {
		n += int64(slots[i].size)
	}
	return n
}

func (p *plan) append(s *staged, entries []*raftpb.Entry) {
	n := s.log.number
	first := uint64(s.start.Index) + 1
	// What is compacted away is applied and can't change any more.
	for len(entries) > 0 && entries[0].GetIndex() < first {
		entries = entries[1:]
	}
	if len(entries) == 0 {
		return
	}
	next := entries[0].GetIndex()
	invariant.Check(next-first <= uint64(len(s.slots)), "wal: replica %d: an append at index %d leaves a gap after %d",
		n, next, first+uint64(len(s.slots))-1)
	p.dropSuffix(s, int(next-first))
	for _, e := range entries {
		invariant.Check(e.GetIndex() == next, "wal: replica %d: entry %d follows %d", n, e.GetIndex(), next-1)
		sl := p.putEntry(n, e)
		s.slots = append(s.slots, sl)
		s.bytes += int64(sl.size)
		s.fresh = append(s.fresh, cacheRef{log: s.log, index: next, seq: sl.seq, bytes: int64(sl.size) + slotBytes})
		next++
	}
}

// slotBytes is about what an entry takes in memory beside its data.
const slotBytes = 160

// putEntry puts the entry's records under the next sequence numbers.
func (p *plan) putEntry(n ident.LocalNumber, e *raftpb.Entry) slot {
	data := e.GetData()
	invariant.Check(len(data) <= maxEntryBytes, "wal: replica %d: an entry of %d bytes", n, len(data))
	s := slot{seq: p.tally.nextSeq, term: e.GetTerm(), stamp: stampOf(e), entry: e, size: uint32(len(data))}
	r := entryRecord{
		kind: recordEntry, typ: e.GetType(), number: n, term: e.GetTerm(), index: e.GetIndex(), size: uint64(len(data)),
	}
	for i := range pieces(s.size) {
		if i > 0 {
			r.kind, r.typ, r.piece = recordPiece, 0, i
		}
		k := min(len(data), pieceBytes)
		r.data, data = data[:k], data[k:]
		s.sum += p.putRecord(&r)
	}
	return s
}

// putRecord puts one record of the entries bucket and returns its CRC.
func (p *plan) putRecord(r *entryRecord) uint32 {
	at := len(p.arena)
	p.arena = entryKey(p.arena, p.tally.nextSeq, r.number)
	mid := len(p.arena)
	p.arena = appendEntryRecord(p.arena, r)
	key, value := p.arena[at:mid:mid], p.arena[mid:len(p.arena):len(p.arena)]
	seal(bucketEntries, key, value)
	p.tally.nextSeq++
	p.puts++
	return p.put(bucketEntries, key, value)
}

// cut removes the entries from index from on. They are superseded by a record that says so, which makes the cut durable
// at once whatever its length; the entries are then deleted like any others, and after them the record itself.
func (p *plan) cut(s *staged, from uint64) {
	n := s.log.number
	invariant.Check(from > s.hard.commit && from > uint64(s.start.Index),
		"wal: replica %d: a cut at %d would take committed entries (commit index %d, start %v)", n, from, s.hard.commit, s.start)
	k := from - uint64(s.start.Index) - 1
	if k >= uint64(len(s.slots)) {
		return
	}
	p.dropSuffix(s, int(k))
	p.putCut(s, from)
}

func (p *plan) putCut(s *staged, from uint64) {
	r := entryRecord{kind: recordCut, number: s.log.number, index: from}
	seq := p.tally.nextSeq
	crc := p.putRecord(&r)
	p.kill(s, []slot{{seq: seq, sum: crc}})
}

func (p *plan) compact(s *staged, upTo ident.OpID) {
	if upTo.Index <= s.start.Index {
		return
	}
	k := int(upTo.Index - s.start.Index) // position after upTo
	switch {
	case k <= len(s.slots) && s.slots[k-1].term == uint64(upTo.Term):
		p.kill(s, s.slots[:k:k])
		s.bytes -= bytesOf(s.slots[:k])
		s.slots = s.slots[k:]
	case k < len(s.slots):
		// Another history: what lies above upTo must not be taken for what follows it.
		invariant.Check(uint64(upTo.Index) > s.hard.commit, "wal: replica %d: %v isn't in the log, which is committed to %d",
			s.log.number, upTo, s.hard.commit)
		p.dropSuffix(s, 0)
		p.putCut(s, uint64(upTo.Index)+1)
	default:
		p.dropSuffix(s, 0)
	}
	s.start, s.dirty = upTo, true
}

func (p *plan) setMeta(o *op) {
	if p.meta == nil {
		p.meta = map[MetaKey]metaValue{}
	}
	old, ok := p.meta[o.key]
	if !ok {
		old, ok = p.core.meta[o.key]
	}
	if ok {
		p.tally.remove(old.crc)
	}
	value := encodeMeta(o.key, o.record)
	p.meta[o.key] = metaValue{value: o.record, crc: p.put(bucketMeta, []byte(o.key), value)}
}

func (p *plan) put(bucket bucketID, key, value []byte) uint32 {
	crc := storedCRC(value)
	p.tally.add(crc)
	p.muts = append(p.muts, mutation{bucket: bucket, key: key, value: value})
	return crc
}

func (p *plan) remove(bucket bucketID, key []byte, crc uint32) {
	p.tally.remove(crc)
	p.muts = append(p.muts, mutation{bucket: bucket, key: key})
}

// takeTrash adds the deletion of at least max dead records, as far as there are any. Only what was dead before this commit
// is taken: readers that looked a little earlier find it for one commit more.
func (p *plan) takeTrash(max int) {
	p.strays = min(len(p.core.strays), max)
	for _, bad := range p.core.strays[:p.strays] {
		p.remove(bucketEntries, bad.key, bad.crc)
	}
	p.doomed = p.core.trash.take(p.core.doomed[:0], max)
	for _, d := range p.doomed {
		p.tally.sum -= d.slot.sum
		for i := range pieces(d.slot.size) {
			at := len(p.arena)
			p.arena = entryKey(p.arena, d.slot.seq+i, d.number)
			p.tally.records--
			p.muts = append(p.muts, mutation{bucket: bucketEntries, key: p.arena[at:len(p.arena):len(p.arena)]})
		}
	}
}

// finish adds the state records: one for each group whose state changes, however often it did.
func (p *plan) finish() {
	for _, s := range p.order {
		if !s.dirty {
			continue
		}
		if !s.created {
			p.tally.remove(s.stateCRC)
		}
		s.stateCRC = p.put(bucketStates, numberKey(s.log.number), encodeState(s.log.number, groupState{s.hard, s.start}))
	}
}

// publish makes the durable plan visible.
func (p *plan) publish() {
	c := p.core
	c.tally = p.tally
	c.strays = c.strays[p.strays:]
	for bad, n := range p.released {
		bad.holders -= n
	}
	if p.meta != nil || len(p.order) > 0 {
		c.mu.Lock()
		for k, v := range p.meta {
			c.meta[k] = v
		}
		for _, s := range p.order {
			switch {
			case s.deleted:
				delete(c.logs, s.log.number)
			case s.created:
				c.logs[s.log.number] = s.log
			}
		}
		c.mu.Unlock()
	}
	for _, s := range p.order {
		s.publish(c)
	}
	for _, d := range p.dead {
		c.trash.add(d.number, d.slots)
	}
	c.cache.shrink()
	c.publishCounts()
}

func (s *staged) publish(c *core) {
	l := s.log
	l.mu.Lock()
	c.liveEntries.Add(int64(len(s.slots) - len(l.slots)))
	c.liveBytes.Add(s.bytes - l.bytes)
	l.slots, l.start, l.hard, l.bytes = s.slots, s.start, s.hard, s.bytes
	l.mu.Unlock()
	l.stateCRC = s.stateCRC
	if s.deleted {
		l.wreck, l.bad = nil, nil
	}
	for _, r := range s.fresh {
		c.cache.add(r)
	}
}
