package wal

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/nyaladb/nyala/internal/ident"
)

// rebuild reads every record of a source and leaves the core as it was after the source's last commit. What is damaged in
// one group's records costs that group; what can't be put down to a group is returned as a *DamageError and costs the file.
//
// Records come in the order in which they were written. One rule says what they mean: an entry or cut at index i supersedes
// everything of its group that was written before it at index i or above. At the end a log must go without a gap from its
// start to its last entry, and reach the commit index. Dead records that were not deleted yet follow from the same rule: the
// trash deletes in ascending order, so whatever still stands there is superseded by something that still stands there too.
func rebuild(c *core, src source) error {
	r, err := replayAll(c, src)
	if err == nil {
		r.install()
	}
	return err
}

// replayAll is rebuild without the last step: what was read is in no log yet.
func replayAll(c *core, src source) (*rebuilder, error) {
	r := &rebuilder{core: c, logs: map[ident.LocalNumber]*replay{}}
	for _, step := range []func(source) error{r.readTally, r.readMeta, r.readGroups, r.readStates, r.readEntries, r.check} {
		err := step(src)
		if bad := (*pageError)(nil); errors.As(err, &bad) && !errors.Is(err, ErrDamaged) {
			return nil, r.damaged(err, "its pages can't be trusted")
		}
		if err != nil {
			return nil, err
		}
	}
	return r, nil
}

// faults counts what is wrong without costing the file: 0 where the last commit is there as it was made.
func (r *rebuilder) faults() int {
	n := r.bad
	if r.found.sum != r.want.sum {
		n++
	}
	for _, p := range r.logs {
		if p.why != nil {
			n++
		}
	}
	return n
}

type rebuilder struct {
	core  *core
	want  tally // as the last commit left it
	found tally // as counted
	bad   int   // records whose CRC or form is wrong
	logs  map[ident.LocalNumber]*replay
	gone  map[ident.LocalNumber][]slot // dead records of groups that were deleted
	open  *assembly
}

// replay is a group's log while it is read.
type replay struct {
	log   *Log
	slots []slot
	index []uint64 // of slots, ascending; gaps may close again
	dead  []slot
	why   *DamageError
	state bool // its state record was there
}

// assembly is an entry whose pieces are being read.
type assembly struct {
	replay *replay // nil: of a group that was deleted
	number ident.LocalNumber
	slot   slot
	index  uint64
	next   uint64 // the piece that must come next
	typ    raftpb.EntryType
	data   []byte // of config changes only, for their timestamp
}

func (r *rebuilder) damaged(err error, format string, args ...any) *DamageError {
	return &DamageError{Path: r.core.path, What: fmt.Sprintf(format, args...), Err: err}
}

// fail marks a group damaged; the first reason stays.
func (p *replay) fail(path string, err error, format string, args ...any) {
	if p.why == nil {
		p.why = &DamageError{Path: path, Group: uint64(p.log.number), What: fmt.Sprintf(format, args...), Err: err}
	}
}

func (r *rebuilder) readTally(src source) error {
	var format, sum bool
	err := src.records(bucketTally, func(key, value []byte) error {
		switch {
		case bytes.Equal(key, formatKey):
			format = true
			if err := checkFormat(value); err != nil {
				return r.whole(err, "the format record can't be read")
			}
		case bytes.Equal(key, tallyKey):
			sum = true
			t, err := decodeTally(value)
			if err != nil {
				return r.whole(err, "the tally can't be read")
			}
			r.want = t
		default:
			return r.damaged(nil, "unknown record %q beside the tally", key)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case !format || !sum:
		return r.damaged(nil, "the format record or the tally is missing")
	case r.want.commit != src.commit():
		return r.damaged(nil, "the tally is of commit %d, the file of commit %d: a page never reached the disk",
			r.want.commit, src.commit())
	}
	return nil
}

// whole wraps an error that costs the file; a newer version isn't damage.
func (r *rebuilder) whole(err error, what string) error {
	if errors.Is(err, ErrVersion) {
		return fmt.Errorf("WAL %s: %w", r.core.path, err)
	}
	return r.damaged(err, "%s", what)
}

func (r *rebuilder) readMeta(src source) error {
	return src.records(bucketMeta, func(key, value []byte) error {
		v, err := decodeMeta(key, value)
		if err != nil {
			return r.whole(err, fmt.Sprintf("value %q can't be read", key))
		}
		crc := storedCRC(value)
		r.found.add(crc)
		r.core.meta[MetaKey(key)] = metaValue{value: v, crc: crc}
		return nil
	})
}

func (r *rebuilder) readGroups(src source) error {
	return src.records(bucketGroups, func(key, value []byte) error {
		n, err := decodeNumberKey(key)
		if err != nil || n == 0 || n > r.want.last {
			return r.damaged(err, "a group's record has the impossible key %x", key)
		}
		r.found.add(storedCRC(value))
		l := &Log{core: r.core, number: n, recordCRC: storedCRC(value)}
		p := &replay{log: l}
		r.logs[n] = p
		l.tablet, l.record, err = decodeGroup(key, value)
		if errors.Is(err, ErrVersion) {
			return r.whole(err, "")
		}
		if err != nil {
			r.bad++
			l.tablet, l.record = "", nil
			p.fail(r.core.path, err, "its record can't be read")
		}
		return nil
	})
}

func (r *rebuilder) readStates(src source) error {
	return src.records(bucketStates, func(key, value []byte) error {
		n, err := decodeNumberKey(key)
		p := r.logs[n]
		if err != nil || p == nil {
			return r.damaged(err, "a term and vote stands under key %x, where no group is", key)
		}
		r.found.add(storedCRC(value))
		p.state = true
		p.log.stateCRC = storedCRC(value)
		s, err := decodeState(key, value)
		if errors.Is(err, ErrVersion) {
			return r.whole(err, "")
		}
		if err != nil {
			r.bad++
			p.fail(r.core.path, err, "its term and vote can't be read")
		}
		p.log.hard, p.log.start = s.hard, s.start
		return nil
	})
}

func (r *rebuilder) readEntries(src source) error {
	r.gone = map[ident.LocalNumber][]slot{}
	return src.records(bucketEntries, func(key, value []byte) error {
		seq, n, err := decodeEntryKey(key)
		if len(key) < 8 || seq >= r.want.nextSeq {
			return r.damaged(err, "a log record has the impossible key %x", key)
		}
		r.found.add(storedCRC(value))
		if err == nil && n > r.want.last {
			err = fmt.Errorf("the key names replica %d, the last one is %d", n, r.want.last)
		}
		var rec entryRecord
		if err == nil {
			rec, err = decodeEntryRecord(key, value)
		}
		if errors.Is(err, ErrVersion) {
			return r.whole(err, "")
		}
		if err != nil {
			return r.badEntry(err, seq, n, key, value)
		}
		r.entry(seq, &rec, storedCRC(value))
		return nil
	})
}

// badEntry puts a record that can't be trusted down to the groups that its key and its value name, whichever exist: one of
// the two names is right as long as only one place was hit. The record stays on disk until all groups that it damaged are
// deleted, so that the damage is seen again at the next start.
func (r *rebuilder) badEntry(err error, seq uint64, n ident.LocalNumber, key, value []byte) error {
	r.closeAssembly()
	r.bad++
	named := ident.LocalNumber(0)
	if len(value) > recordHead {
		rec, _ := parseEntryBody(value[recordHead:])
		named = rec.number
	}
	bad := &badRecord{key: bytes.Clone(key), crc: storedCRC(value)}
	for _, p := range []*replay{r.logs[n], r.logs[named]} {
		if p == nil || (bad.holders > 0 && n == named) {
			continue
		}
		p.fail(r.core.path, err, "log record %d can't be read", seq)
		p.log.bad = append(p.log.bad, bad)
		bad.holders++
	}
	if bad.holders > 0 {
		return nil
	}
	known := func(x ident.LocalNumber) bool { return x > 0 && x <= r.want.last }
	if !known(n) && !known(named) {
		return r.damaged(err, "log record %d can't be read and names no replica", seq)
	}
	// A dead record of a group that was deleted: nobody needs it.
	r.core.strays = append(r.core.strays, bad)
	return nil
}

// entry replays one good record.
func (r *rebuilder) entry(seq uint64, rec *entryRecord, crc uint32) {
	if rec.kind == recordPiece {
		r.piece(seq, rec, crc)
		return
	}
	r.closeAssembly()
	p := r.logs[rec.number]
	s := slot{seq: seq, term: rec.term, size: uint32(rec.size), sum: crc}
	if rec.kind == recordCut {
		if p == nil {
			r.gone[rec.number] = append(r.gone[rec.number], s)
			return
		}
		p.supersede(rec.index)
		p.dead = append(p.dead, s)
		return
	}
	a := assembly{replay: p, number: rec.number, slot: s, index: rec.index, next: 1, typ: rec.typ}
	switch {
	case rec.typ != raftpb.EntryNormal:
		a.data = append(a.data, rec.data...)
	case p != nil:
		a.slot.stamp = stampOf(&raftpb.Entry{Type: rec.typ.Enum(), Data: rec.data})
	}
	r.open = &a
	if pieces(s.size) == 1 {
		r.closeAssembly()
	}
}

func (r *rebuilder) piece(seq uint64, rec *entryRecord, crc uint32) {
	a := r.open
	if a == nil || a.number != rec.number || a.index != rec.index || a.slot.term != rec.term ||
		a.next != rec.piece || a.slot.seq+a.next != seq {
		r.closeAssembly()
		s := slot{seq: seq, sum: crc}
		if p := r.logs[rec.number]; p != nil {
			p.fail(r.core.path, nil, "log record %d is a piece of an entry that isn't there", seq)
			p.dead = append(p.dead, s)
		} else {
			r.gone[rec.number] = append(r.gone[rec.number], s)
		}
		return
	}
	a.slot.sum += crc
	a.next++
	if a.typ != raftpb.EntryNormal {
		a.data = append(a.data, rec.data...)
	}
	if a.next == pieces(a.slot.size) {
		r.closeAssembly()
	}
}

// closeAssembly takes the entry being put together into its log; one that lacks pieces is damage.
func (r *rebuilder) closeAssembly() {
	a := r.open
	if a == nil {
		return
	}
	r.open = nil
	if a.next < pieces(a.slot.size) {
		// Deleting it must not touch records that aren't its own: keep just the pieces that are there.
		if a.replay != nil {
			a.replay.fail(r.core.path, nil, "entry %d.%d has %d of %d pieces", a.slot.term, a.index, a.next, pieces(a.slot.size))
		}
		a.slot.size = uint32(a.next * pieceBytes)
		if a.next == 1 {
			a.slot.size = 0
		}
	}
	p := a.replay
	if p == nil {
		r.gone[a.number] = append(r.gone[a.number], a.slot)
		return
	}
	if a.typ != raftpb.EntryNormal {
		a.slot.stamp = stampOf(&raftpb.Entry{Type: a.typ.Enum(), Data: a.data})
	}
	p.supersede(a.index)
	if a.index <= uint64(p.log.start.Index) {
		p.dead = append(p.dead, a.slot)
		return
	}
	p.slots = append(p.slots, a.slot)
	p.index = append(p.index, a.index)
}

// supersede moves everything at index i and above to the dead.
func (p *replay) supersede(i uint64) {
	k := len(p.index)
	for k > 0 && p.index[k-1] >= i {
		k--
	}
	p.dead = append(p.dead, p.slots[k:]...)
	p.slots, p.index = p.slots[:k], p.index[:k]
}

// check compares what was found with what the last commit left.
func (r *rebuilder) check(source) error {
	r.closeAssembly()
	switch {
	case r.found.records != r.want.records:
		return r.damaged(nil, "%d records are there and %d should be", r.found.records, r.want.records)
	case r.found.sum != r.want.sum && r.bad == 0:
		return r.damaged(nil, "the records' sum is %#x and should be %#x: a page is of an older commit",
			r.found.sum, r.want.sum)
	}
	for _, p := range r.logs {
		p.checkLog(r.core.path)
	}
	return nil
}

func (p *replay) checkLog(path string) {
	if !p.state {
		p.fail(path, nil, "its term and vote are missing")
	}
	next := uint64(p.log.start.Index) + 1
	for _, i := range p.index {
		if i != next {
			p.fail(path, nil, "entries %d to %d are missing", next, i-1)
			break
		}
		next++
	}
	if c := p.log.hard.commit; p.why == nil && c >= next {
		p.fail(path, nil, "the log ends at %d, before the commit index %d", next-1, c)
	}
}

// install hands the finished logs to the core.
func (r *rebuilder) install() {
	c := r.core
	c.tally = r.want
	// With damaged records the sum is that of the CRCs that stand in them, right or wrong: deleting them takes just these off.
	c.tally.records, c.tally.sum = r.found.records, r.found.sum
	c.numbers.Store(uint64(r.want.last))
	for n, p := range r.logs {
		l := p.log
		if p.why != nil {
			l.damaged, l.wrecked = p.why, true
			l.wreck = sorted(append(p.slots, p.dead...))
			c.log.Error("replica's log is damaged", "tablet_id", l.tablet, "replica_number", n, "error", p.why)
		} else {
			l.slots = p.slots
			l.bytes = bytesOf(p.slots)
			c.liveEntries.Add(int64(len(p.slots)))
			c.liveBytes.Add(l.bytes)
			c.trash.add(n, sorted(p.dead))
			for i := range p.slots {
				c.stamp = max(c.stamp, p.slots[i].stamp)
			}
		}
		c.logs[n] = l
	}
	for n, slots := range r.gone {
		c.trash.add(n, sorted(slots))
	}
	c.publishCounts()
}

func newCore(path string, log *slog.Logger, m *metrics, cacheBytes int64) *core {
	return &core{
		path: path, log: log, metrics: m, cache: cache{limit: cacheBytes},
		logs: map[ident.LocalNumber]*Log{}, meta: map[MetaKey]metaValue{},
	}
}
