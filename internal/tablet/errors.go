package tablet

import (
	"fmt"

	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
)

// CorruptionError says that something in the store can't be what was written. It ends the replica.
type CorruptionError struct {
	Tablet ident.TabletID
	Key    []byte // as it stands in the store
	Err    error
}

// Error implements error.
func (e *CorruptionError) Error() string {
	return fmt.Sprintf("tablet %s: the store is damaged at %v: %v: rebuild the replica from a peer", e.Tablet, keyFormatter(e.Key), e.Err)
}

// Unwrap returns what was found.
func (e *CorruptionError) Unwrap() error { return e.Err }

// OrderError says that a log entry doesn't follow the one before it. It ends the replica: what was applied is sound, what
// comes next isn't known.
type OrderError struct {
	Tablet           ident.TabletID
	Applied          ident.Index
	Index            ident.Index
	AppliedTimestamp hybridtime.Timestamp
	Timestamp        hybridtime.Timestamp
}

// Error implements error.
func (e *OrderError) Error() string {
	if e.Index != e.Applied+1 {
		return fmt.Sprintf("tablet %s: entry %d comes after entry %d: entries are missing", e.Tablet, e.Index, e.Applied)
	}
	return fmt.Sprintf("tablet %s: entry %d has timestamp %s, not above %s of an entry before it", e.Tablet, e.Index, e.Timestamp,
		e.AppliedTimestamp)
}
