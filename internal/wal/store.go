package wal

import (
	"context"

	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
)

// MetaKey names a small durable value of the server, such as "clock_mark". Each package that keeps one names its own.
type MetaKey string

// Group is one replica's log as the store knows it.
type Group struct {
	Number   ident.LocalNumber
	TabletID ident.TabletID // empty where the record itself is damaged
	Record   []byte         // as given to CreateGroup; not to be changed
	// Damaged is not nil where the group's log or state can't be trusted: a *DamageError. It costs this replica only, and stays
	// so over restarts until DeleteGroup. A group found damaged at open must not be started: any other change to it panics.
	Damaged error
}

// Size says what the store holds.
type Size struct {
	FileBytes    int64 // of the file, room for growth included; 0 in memory
	LiveEntries  int64 // entries in logs
	LiveBytes    int64 // their data
	TrashRecords int64 // records that no log needs and that are still to be deleted
	TrashBytes   int64
	CacheBytes   int64 // entries kept in memory
}

// Store keeps the logs, terms and votes of all groups of a server, and a few small values. Bolt is the one that servers use,
// Mem its twin for tests.
//
// Commit and Trim are for one writer goroutine (calls of several wait for each other); everything else may be called from
// any goroutine at any time.
type Store interface {
	// Commit makes the batch durable as a whole, or not at all. Once it returns nil, and not before, the logs show it.
	// ErrNoSpace: nothing changed. ErrFailed (a *FailedError): the file is done for, and whether the batch will be there
	// after a restart is unknown. Any other error is ErrClosed.
	// A batch that breaks the rules (a gap in a log, an append to a group found damaged at open) is the caller's bug and panics.
	Commit(b *Batch) error
	// Trim deletes up to about max records that no log needs any more, in a commit of its own, and says whether more are
	// left. Commits delete as they add; Trim is for a writer that has nothing else to do.
	Trim(max int) (more bool, err error)
	// Groups returns the groups there are, by number.
	Groups() []Group
	// Log returns a group's log; nil where there is none.
	Log(n ident.LocalNumber) *Log
	// Meta returns a value set by SetMeta, nil where there is none; not to be changed.
	Meta(key MetaKey) []byte
	// AllocateNumber returns a number for a new group, one that no durable CreateGroup has ever used.
	AllocateNumber() ident.LocalNumber
	// LastTimestamp is the highest timestamp that stood in any log at open: the clock must begin above it.
	LastTimestamp() hybridtime.Timestamp
	// Dump calls fn with each entry, by group and index; of one tablet, or of all where it is empty. It reads the disk, not
	// the cache, a bounded piece at a time, and holds nothing while fn runs: fn may be as slow as it likes. Entries that are
	// compacted away meanwhile are left out.
	Dump(ctx context.Context, tablet ident.TabletID, fn func(DumpEntry) error) error
	// Size says how much there is.
	Size() Size
	// Err is not nil once the store has failed or was closed.
	Err() error
	// Close gives everything back. What was committed is durable already. Idempotent.
	Close() error
}

var (
	_ Store = (*Bolt)(nil)
	_ Store = (*Mem)(nil)
)
