package replica

import (
	"context"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/tablet"
)

// ReadPoint returns the tablet and the snapshot at which a read in the given mode is to be made; all writes below the
// snapshot are applied here, and none will be added below it. propagated is the highest timestamp that the caller knows of.
//
// READ_LATEST asks a majority whether this replica still leads, waits for what was committed when it asked, and then reads
// just past the last applied entry: whatever is applied later has a higher timestamp, so the snapshot never changes and
// the read can go on at another replica.
//
// READ_AT_SNAPSHOT at T shows the writes below T. It waits until T-1 is closed: until no entry at or below it can come.
func (r *Replica) ReadPoint(ctx context.Context, mode nyalav1.ReadMode, snapshot, propagated hybridtime.Timestamp) (*tablet.Tablet, hybridtime.Timestamp, error) {
	t, err := r.Tablet()
	if err != nil {
		return nil, 0, err
	}
	switch mode {
	case nyalav1.ReadMode_READ_MODE_UNSPECIFIED, nyalav1.ReadMode_READ_MODE_READ_LATEST:
		index, err := r.m.host.ReadIndex(ctx, r.id)
		if status.CodeOf(err) == status.NotTheLeader {
			return nil, 0, r.notTheLeader()
		}
		if err != nil {
			return nil, 0, err
		}
		if err := r.WaitApplied(ctx, index); err != nil {
			return nil, 0, err
		}
		_, last := t.Applied()
		return t, last + 1, nil
	case nyalav1.ReadMode_READ_MODE_READ_AT_SNAPSHOT:
		if snapshot, err = r.chosenSnapshot(snapshot); err != nil {
			return nil, 0, err
		}
	case nyalav1.ReadMode_READ_MODE_READ_YOUR_WRITES:
		_, last := t.Applied()
		snapshot = max(propagated, last) + 1
	}
	if err := r.m.clock.CheckAhead(snapshot); err != nil {
		return nil, 0, status.Wrap(status.InvalidSnapshot, err, "snapshot %s", snapshot)
	}
	index, err := r.m.host.CloseTimestamp(ctx, r.id, snapshot-1)
	if err != nil {
		return nil, 0, err
	}
	if err := r.WaitApplied(ctx, index); err != nil {
		return nil, 0, err
	}
	return t, snapshot, nil
}

// chosenSnapshot is the caller's snapshot or, where none was named, this moment.
func (r *Replica) chosenSnapshot(snapshot hybridtime.Timestamp) (hybridtime.Timestamp, error) {
	if snapshot != 0 {
		return snapshot, nil
	}
	now, err := r.m.clock.Now()
	if err != nil {
		return 0, err
	}
	return now + 1, nil
}
