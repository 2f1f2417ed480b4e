package wal

import (
	"errors"
	"fmt"
	"sync"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
)

// Log is one group's log as raft sees it: a raft.Storage. It shows what is durable, and nothing else. Its methods may be
// called from any goroutine. After a DeleteGroup it is an empty log that ends where it ended.
//
// Entries that were written a short while ago come from memory, older ones from disk. An error of Entries that is neither
// raft.ErrCompacted nor raft.ErrUnavailable means that the disk doesn't hold what was written (*DamageError: this replica
// has failed) or that the whole file has failed (*FailedError). raft panics with it; who steps raft must recover the panic
// and fail the replica.
type Log struct {
	core   *core
	number ident.LocalNumber
	tablet ident.TabletID
	record []byte

	// Of the records on disk, for the tally; the writer's alone.
	recordCRC, stateCRC uint32
	wreck               []slot       // of a damaged group: what has to be deleted with it
	bad                 []*badRecord // records that damaged the group
	// wrecked: found damaged at open, so that the index knows nothing of it. Damage found later leaves the index in order, and
	// what was under way for the group then is still committed.
	wrecked bool

	mu      sync.RWMutex
	slots   []slot // slots[i] is the entry at index start.Index+1+i
	start   ident.OpID
	bytes   int64 // of data in slots
	hard    hardState
	conf    *raftpb.ConfState
	damaged *DamageError
}

// slot says where an entry lies. The element of a slots slice may change its entry field only, under the log's lock.
type slot struct {
	seq   uint64 // of its first record
	term  uint64
	stamp hybridtime.Timestamp
	entry *raftpb.Entry // nil: on disk only
	size  uint32        // bytes of data
	sum   uint32        // of its records' CRCs, modulo 2^32
}

// badRecord is a record of the entries bucket that can't be read. It is deleted when the last group that it damaged is.
type badRecord struct {
	key     []byte
	crc     uint32 // as it stands there
	holders int
}

var _ raft.Storage = (*Log)(nil)

// Number is the group's number.
func (l *Log) Number() ident.LocalNumber { return l.number }

// TabletID is the tablet of which the group is a replica.
func (l *Log) TabletID() ident.TabletID { return l.tablet }

// SetConfState sets the membership that InitialState returns. It is kept in memory only: the replica's applied state holds
// the durable one.
func (l *Log) SetConfState(cs *raftpb.ConfState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conf = cs
}

// InitialState implements raft.Storage.
func (l *Log) InitialState() (*raftpb.HardState, *raftpb.ConfState, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	conf := l.conf
	if conf == nil {
		conf = &raftpb.ConfState{}
	}
	if l.hard == (hardState{}) {
		return nil, conf, nil
	}
	return l.hard.proto(), conf, nil
}

func (h hardState) proto() *raftpb.HardState {
	return &raftpb.HardState{Term: &h.term, Vote: &h.vote, Commit: &h.commit}
}

// HardState is the durable term, vote and commit index.
func (l *Log) HardState() *raftpb.HardState {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.hard.proto()
}

// FirstIndex implements raft.Storage.
func (l *Log) FirstIndex() (uint64, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.firstLocked(), nil
}

// LastIndex implements raft.Storage.
func (l *Log) LastIndex() (uint64, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.lastLocked(), nil
}

func (l *Log) firstLocked() uint64 { return uint64(l.start.Index) + 1 }
func (l *Log) lastLocked() uint64  { return uint64(l.start.Index) + uint64(len(l.slots)) }

// Start is the position after which the log begins.
func (l *Log) Start() ident.OpID {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.start
}

// LastOpID is the position of the last entry; the log's start where it is empty.
func (l *Log) LastOpID() ident.OpID {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if len(l.slots) == 0 {
		return l.start
	}
	return ident.OpID{Term: ident.Term(l.slots[len(l.slots)-1].term), Index: ident.Index(l.lastLocked())}
}

// Bytes is the size of the data in the log.
func (l *Log) Bytes() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.bytes
}

// Behind is the lowest index, of those up to upTo, behind which at most so many bytes of data lie; upTo if there is none. It
// takes time for the entries before that index.
func (l *Log) Behind(bytes int64, upTo ident.Index) ident.Index {
	l.mu.RLock()
	defer l.mu.RUnlock()
	at, left := l.start.Index, l.bytes
	for i := 0; i < len(l.slots) && left > bytes && at < upTo; i++ {
		left -= int64(l.slots[i].size)
		at++
	}
	return at
}

// Term implements raft.Storage.
func (l *Log) Term(i uint64) (uint64, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	switch {
	case i == uint64(l.start.Index):
		return uint64(l.start.Term), nil
	case i < l.firstLocked():
		return 0, raft.ErrCompacted
	case i > l.lastLocked():
		return 0, raft.ErrUnavailable
	}
	return l.slots[i-l.firstLocked()].term, nil
}

// TermOf is Term in the product's own types.
func (l *Log) TermOf(i ident.Index) (ident.Term, error) {
	t, err := l.Term(uint64(i))
	return ident.Term(t), err
}

// Timestamp is the timestamp of the entry at index i: 0 where it has none.
func (l *Log) Timestamp(i ident.Index) (hybridtime.Timestamp, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	switch {
	case uint64(i) < l.firstLocked():
		return 0, raft.ErrCompacted
	case uint64(i) > l.lastLocked():
		return 0, raft.ErrUnavailable
	}
	return l.slots[uint64(i)-l.firstLocked()].stamp, nil
}

// Snapshot implements raft.Storage: a replica that the log can't bring up is copied from a peer by other means.
func (l *Log) Snapshot() (*raftpb.Snapshot, error) {
	return nil, raft.ErrSnapshotTemporarilyUnavailable
}

// entryOverhead is the most that an entry's fields take beside its data in protobuf's form.
const entryOverhead = 36

// errGone: a key that the log's index names isn't there.
var errGone = errors.New("record is missing")

// Entries implements raft.Storage.
func (l *Log) Entries(lo, hi, maxSize uint64) ([]*raftpb.Entry, error) {
	if lo >= hi {
		return nil, nil
	}
	// What is looked up in the index may be compacted away and deleted before it is read: then look again.
	for tries := 0; ; tries++ {
		if err := l.group().Damaged; err != nil {
			return nil, err
		}
		picked, err := l.pick(lo, hi, maxSize)
		if err != nil {
			return nil, err
		}
		entries := make([]*raftpb.Entry, len(picked))
		err = l.load(lo, picked, entries)
		switch {
		case err == nil:
			return entries, nil
		case errors.Is(err, ErrFailed), errors.Is(err, ErrClosed):
			return nil, err
		}
		if l.moved(lo, picked) && tries < 100 {
			continue
		}
		return nil, l.damage(err)
	}
}

// pick copies the slots of the entries that fit.
func (l *Log) pick(lo, hi, maxSize uint64) ([]slot, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	first := l.firstLocked()
	switch {
	case lo < first:
		return nil, raft.ErrCompacted
	case hi > l.lastLocked()+1:
		return nil, raft.ErrUnavailable
	}
	all := l.slots[lo-first : hi-first]
	size := uint64(0)
	n := 0
	for n < len(all) {
		size += uint64(all[n].size) + entryOverhead
		if size > maxSize && n > 0 {
			break
		}
		n++
	}
	return append([]slot(nil), all[:n]...), nil
}

// moved says whether the log no longer holds the picked entries under their indexes.
func (l *Log) moved(lo uint64, picked []slot) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	first := l.firstLocked()
	if lo < first || lo+uint64(len(picked)) > l.lastLocked()+1 {
		return true
	}
	for i := range picked {
		if l.slots[lo-first+uint64(i)].seq != picked[i].seq {
			return true
		}
	}
	return false
}

// load fills entries, the first of which has index lo, from memory and disk. No lock is held meanwhile.
func (l *Log) load(lo uint64, picked []slot, entries []*raftpb.Entry) error {
	missing := 0
	for i := range picked {
		if entries[i] = picked[i].entry; entries[i] == nil {
			missing++
		}
	}
	if missing == 0 {
		return nil
	}
	return l.core.read(func(get getter) error {
		for i := range picked {
			if entries[i] != nil {
				continue
			}
			e, err := loadEntry(get, l.number, lo+uint64(i), &picked[i])
			if err != nil {
				return fmt.Errorf("entry %d.%d: %w", picked[i].term, lo+uint64(i), err)
			}
			entries[i] = e
		}
		return nil
	})
}

// loadEntry reads one entry and checks that it is the one that the index names.
func loadEntry(get getter, n ident.LocalNumber, index uint64, s *slot) (*raftpb.Entry, error) {
	var (
		data []byte
		typ  raftpb.EntryType
		key  [24]byte
	)
	if s.size > 0 {
		data = make([]byte, 0, s.size)
	}
	for i := range pieces(s.size) {
		k := entryKey(key[:0], s.seq+i, n)
		v := get(bucketEntries, k)
		if v == nil {
			return nil, errGone
		}
		r, err := decodeEntryRecord(k, v)
		if err != nil {
			return nil, err
		}
		if r.term != s.term || r.index != index {
			return nil, fmt.Errorf("record %d holds entry %d.%d", s.seq+i, r.term, r.index)
		}
		if i == 0 {
			if r.kind != recordEntry || r.size != uint64(s.size) {
				return nil, fmt.Errorf("record %d isn't the start of an entry of %d bytes", s.seq, s.size)
			}
			typ = r.typ
		} else if r.kind != recordPiece || r.piece != i {
			return nil, fmt.Errorf("record %d isn't piece %d of its entry", s.seq+i, i)
		}
		data = append(data, r.data...)
	}
	if len(data) != int(s.size) {
		return nil, fmt.Errorf("%d bytes of data instead of %d", len(data), s.size)
	}
	return &raftpb.Entry{Term: new(s.term), Index: new(index), Type: typ.Enum(), Data: data}, nil
}

// damage marks the group damaged and returns the error that says so.
func (l *Log) damage(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.damaged == nil {
		l.damaged = &DamageError{Path: l.core.path, Group: uint64(l.number), What: "an entry can't be read back", Err: err}
		l.core.log.Error("log entry can't be read back: the replica has failed",
			"tablet_id", l.tablet, "replica_number", l.number, "error", err)
	}
	return l.damaged
}

func (l *Log) group() Group {
	l.mu.RLock()
	defer l.mu.RUnlock()
	g := Group{Number: l.number, TabletID: l.tablet, Record: l.record}
	if l.damaged != nil {
		g.Damaged = l.damaged
	}
	return g
}
