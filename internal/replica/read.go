package replica

import (
	"context"
	"errors"

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
// READ_AT_SNAPSHOT at T shows the writes below T, where none is named those before this moment and what the caller knows of.
// It waits until T-1 is past on this server's clock, where T lies a little ahead, and closed: until no entry at or below it
// can come. A T further ahead than clocks may differ is refused at once, and moves no clock.
//
// READ_YOUR_WRITES reads at the lowest such T that shows what the caller knows of and what is applied here already. A caller
// that knows of nothing gets this moment: a replica that has just started may not have applied what others have seen.
func (r *Replica) ReadPoint(ctx context.Context, mode nyalav1.ReadMode, snapshot, propagated hybridtime.Timestamp) (*tablet.Tablet, hybridtime.Timestamp, error) {
	t, err := r.Tablet()
	if err != nil {
		return nil, 0, err
	}
	switch mode {
	case nyalav1.ReadMode_READ_MODE_UNSPECIFIED, nyalav1.ReadMode_READ_MODE_READ_LATEST:
		snapshot, err = r.latest(ctx, t)
	case nyalav1.ReadMode_READ_MODE_READ_AT_SNAPSHOT:
		if snapshot, err = r.chosenSnapshot(snapshot, propagated); err == nil {
			err = r.close(ctx, snapshot)
		}
	case nyalav1.ReadMode_READ_MODE_READ_YOUR_WRITES:
		if propagated == 0 {
			snapshot, err = r.chosenSnapshot(0, 0)
		} else if err = r.observe(propagated); err == nil {
			_, last := t.Applied()
			snapshot = max(propagated, last) + 1
		}
		if err == nil {
			err = r.close(ctx, snapshot)
		}
	default:
		err = status.New(status.InvalidScanSpec, "tablet %s: read mode %d is unknown to this version", r.id, mode)
	}
	if err != nil {
		return nil, 0, err
	}
	r.m.metrics.read(mode)
	return t, snapshot, nil
}

// latest returns the snapshot that shows everything acknowledged before the call, on the leader.
func (r *Replica) latest(ctx context.Context, t *tablet.Tablet) (hybridtime.Timestamp, error) {
	index, err := r.m.host.ReadIndex(ctx, r.id)
	if err != nil {
		return 0, r.readError(err, "asking a majority whether this replica leads")
	}
	if err := r.WaitApplied(ctx, index); err != nil {
		return 0, err
	}
	_, last := t.Applied()
	return last + 1, nil
}

// close waits until all writes below the snapshot are applied here and no other can come.
func (r *Replica) close(ctx context.Context, snapshot hybridtime.Timestamp) error {
	if err := r.m.clock.CheckAhead(snapshot); err != nil {
		return status.Wrap(status.InvalidSnapshot, err, "tablet %s: snapshot %s", r.id, snapshot)
	}
	if err := r.awaitPast(ctx, snapshot-1); err != nil {
		return err
	}
	index, err := r.m.host.CloseTimestamp(ctx, r.id, snapshot-1)
	if err != nil {
		return r.readError(err, "waiting until no write below the snapshot can come any more (the tablet may have no leader)")
	}
	return r.WaitApplied(ctx, index)
}

// awaitPast waits until a timestamp a little ahead is past: closing it sooner would move clocks ahead of the time. A fenced
// server goes by its last good reading: what is past by that can be read here still.
func (r *Replica) awaitPast(ctx context.Context, ts hybridtime.Timestamp) error {
	if ts <= r.m.clock.Latest() {
		return nil
	}
	err := r.m.clock.WaitPast(ctx, ts)
	switch {
	case err == nil, status.CodeOf(err) == status.Clock && ts <= r.m.clock.Status().Now:
		return nil
	case ctx.Err() != nil:
		return status.Wrap(status.TimedOut, err, "tablet %s: the snapshot lies in the future: waiting until %s is past", r.id, ts)
	default:
		return err
	}
}

func (r *Replica) readError(err error, doing string) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return status.Wrap(status.TimedOut, err, "tablet %s: %s", r.id, doing)
	}
	return r.hostError(err)
}

// observe takes over what the caller knows of.
func (r *Replica) observe(propagated hybridtime.Timestamp) error {
	if err := r.m.clock.Update(propagated); err != nil {
		return status.Wrap(status.InvalidArgument, err, "tablet %s: the request's propagated timestamp", r.id)
	}
	return nil
}

// chosenSnapshot is the caller's snapshot or, where none was named, this moment, which lies past what the caller knows of.
func (r *Replica) chosenSnapshot(snapshot, propagated hybridtime.Timestamp) (hybridtime.Timestamp, error) {
	if snapshot != 0 {
		if err := r.m.clock.CheckAhead(snapshot); err != nil {
			return 0, status.Wrap(status.InvalidSnapshot, err, "tablet %s: snapshot %s", r.id, snapshot)
		}
		return snapshot, r.observe(propagated)
	}
	if err := r.observe(propagated); err != nil {
		return 0, err
	}
	now, err := r.m.clock.Now()
	if err != nil {
		return 0, err
	}
	return now + 1, nil
}
