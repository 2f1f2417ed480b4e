package wal

import (
	"go.etcd.io/raft/v3/raftpb"

	"github.com/nyaladb/nyala/internal/ident"
)

type opKind uint8

const (
	opCreate opKind = iota
	opDelete
	opAppend
	opHardState
	opCut
	opCompact
	opMeta
)

// op is one change of a batch; which fields count depends on its kind.
type op struct {
	kind    opKind
	number  ident.LocalNumber
	tablet  ident.TabletID
	record  []byte // opCreate, opMeta: the value
	at      ident.OpID
	entries []*raftpb.Entry
	hard    hardState
	key     MetaKey
}

// Batch gathers what many groups have ready, for one commit. Its changes take effect in the order in which they were
// added. The zero Batch is ready for use; it is not safe for concurrent use. What is passed in (entries and their data,
// records, values) is kept and must not change afterwards: entries may stay in the store's cache.
type Batch struct {
	ops     []op
	entries int
	bytes   int
}

// opBytes is what an operation counts beside its payload: about what its record's header and key take.
const opBytes = 48

func (b *Batch) add(o op, size int) {
	b.ops = append(b.ops, o)
	b.bytes += opBytes + size
}

// CreateGroup makes a group under n, which must come from AllocateNumber. Its log begins after start: zero for an empty
// replica, the position of the copied state otherwise. record is opaque here and handed back by Groups.
func (b *Batch) CreateGroup(n ident.LocalNumber, tablet ident.TabletID, record []byte, start ident.OpID) {
	b.add(op{kind: opCreate, number: n, tablet: tablet, record: record, at: start}, len(record)+len(tablet))
}

// DeleteGroup removes the group: durably gone with this commit, its entries deleted in later ones. What comes for the group
// afterwards is dropped without a word. A group that doesn't exist is no error.
func (b *Batch) DeleteGroup(n ident.LocalNumber) {
	b.add(op{kind: opDelete, number: n}, 0)
}

// Append adds entries to the group's log. The first may lie anywhere from the log's start to just after its end: what the
// log holds at and after it is superseded. Entries that the log has compacted away already are skipped.
func (b *Batch) Append(n ident.LocalNumber, entries []*raftpb.Entry) {
	if len(entries) == 0 {
		return
	}
	size := 0
	for _, e := range entries {
		size += len(e.GetData()) + opBytes
	}
	b.entries += len(entries)
	b.add(op{kind: opAppend, number: n, entries: entries}, size)
}

// SetHardState replaces the group's term, vote and commit index. nil is no change.
func (b *Batch) SetHardState(n ident.LocalNumber, hs *raftpb.HardState) {
	if hs == nil {
		return
	}
	b.add(op{kind: opHardState, number: n, hard: hardState{
		term: hs.GetTerm(), vote: hs.GetVote(), commit: hs.GetCommit(),
	}}, 0)
}

// CutSuffix removes every entry from index from on, in this one commit. Nothing at or below the group's durable commit index
// may be cut.
func (b *Batch) CutSuffix(n ident.LocalNumber, from ident.Index) {
	b.add(op{kind: opCut, number: n, at: ident.OpID{Index: from}}, 0)
}

// Compact moves the log's start to upTo: entries at and below it are gone. Where the log ends before upTo, or holds an entry
// of another term there, nothing of it is left: that is how a copied state replaces a log. A start is never moved back: a
// Compact at or below it does nothing.
func (b *Batch) Compact(n ident.LocalNumber, upTo ident.OpID) {
	b.add(op{kind: opCompact, number: n, at: upTo}, 0)
}

// SetMeta sets a small durable value.
func (b *Batch) SetMeta(key MetaKey, value []byte) {
	b.add(op{kind: opMeta, key: key, record: value}, len(key)+len(value))
}

// Join adds the changes of another batch, which must not be used afterwards.
func (b *Batch) Join(o *Batch) {
	b.ops = append(b.ops, o.ops...)
	b.entries += o.entries
	b.bytes += o.bytes
}

// Empty says whether there is anything to commit.
func (b *Batch) Empty() bool { return len(b.ops) == 0 }

// Entries is the number of log entries in the batch.
func (b *Batch) Entries() int { return b.entries }

// Bytes is about what the batch will take on disk.
func (b *Batch) Bytes() int { return b.bytes }

// Reset empties the batch for reuse.
func (b *Batch) Reset() {
	clear(b.ops)
	b.ops, b.entries, b.bytes = b.ops[:0], 0, 0
}
