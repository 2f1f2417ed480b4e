package tablet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
)

// Export is all that a tablet held at one moment, for a copy on another server. What is applied later doesn't show. It
// belongs to one goroutine, keeps the store open, and must be closed.
type Export struct {
	t      *Tablet
	snap   *pebble.Snapshot
	state  stateRecord
	record *nyalav1.ReplicaRecord
	config *nyalav1.RaftConfig
	upper  []byte
	next   []byte // the store key to go on from
	looks  int
}

// pairsPerLook is how many pairs are read between two looks at the clock, where long ones count more.
const pairsPerLook = 64

// NewExport takes the tablet as it is now: the rows, and what goes with them, after some entry of the log (I1).
func (t *Tablet) NewExport() (*Export, error) {
	if err := t.store.enter(); err != nil {
		return nil, err
	}
	e := &Export{t: t, snap: t.store.db.NewSnapshot(), looks: pairsPerLook}
	if err := e.begin(); err != nil {
		return nil, errors.Join(fmt.Errorf("tablet %s: export: %w", t.TabletID(), err), e.Close())
	}
	return e, nil
}

func (e *Export) begin() error {
	n := e.t.number
	v, err := e.get(appendRecordKey(nil, n, kindState))
	if err != nil {
		return err
	}
	if e.state, err = decodeState(v); err != nil {
		return err
	}
	if v, err = e.get(appendRecordKey(nil, n, kindConfig)); err != nil {
		return err
	}
	e.config = new(nyalav1.RaftConfig)
	if err := decodeMessage(v, "config", e.config); err != nil {
		return err
	}
	if v, err = e.get(appendRecordKey(nil, n, kindReplica)); err != nil {
		return err
	}
	e.record = new(nyalav1.ReplicaRecord)
	if err := decodeMessage(v, "replica", e.record); err != nil {
		return err
	}
	e.next = appendRecordKey(nil, n, kindSchema)
	_, e.upper = numberBounds(n)
	return e.gone()
}

func (e *Export) get(key []byte) ([]byte, error) {
	raw, closer, err := e.snap.Get(key)
	if err != nil {
		return nil, fmt.Errorf("read %v: %w", keyFormatter(key), err)
	}
	return slices.Clone(raw), closer.Close()
}

// gone says whether the tablet was deleted: its rows may have gone before the snapshot was taken.
func (e *Export) gone() error {
	if e.t.deleted.Load() {
		return e.t.errDeleted()
	}
	return nil
}

// Applied returns the index of the last entry in the export, and the timestamp of the last one that has one.
func (e *Export) Applied() (ident.Index, hybridtime.Timestamp) {
	return e.state.applied, e.state.timestamp
}

// Config is the Raft config at that entry. It isn't to be changed.
func (e *Export) Config() *nyalav1.RaftConfig { return e.config }

// Record is what the tablet was created from, as the replica with the given id at this moment would be.
func (e *Export) Record(id ident.ReplicaID) *nyalav1.ReplicaRecord {
	rec := proto.CloneOf(e.record)
	rec.ReplicaId, rec.Config = uint64(id), e.config
	return rec
}

// Next appends the next pairs to dst, about maxBytes of them or what one step has time for, and says how many they are and
// whether there are more.
func (e *Export) Next(ctx context.Context, dst []byte, maxBytes int) (pairs []byte, n int, more bool, err error) {
	deadline := time.Now().Add(stepBudget)
	if err := errors.Join(ctx.Err(), e.gone()); err != nil {
		return dst, 0, true, err
	}
	it, err := e.snap.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: e.next, UpperBound: e.upper})
	if err != nil {
		return dst, 0, true, fmt.Errorf("tablet %s: export: %w", e.t.TabletID(), err)
	}
	pairs, n, more, err = e.run(it, deadline, dst, maxBytes)
	if err = errors.Join(err, it.Close()); err != nil {
		return dst, 0, true, fmt.Errorf("tablet %s: export: %w", e.t.TabletID(), err)
	}
	return pairs, n, more, nil
}

func (e *Export) run(it *pebble.Iterator, deadline time.Time, dst []byte, maxBytes int) (pairs []byte, n int, more bool, err error) {
	full, look := len(dst)+maxBytes, e.looks
	for ok := it.First(); ok; ok = it.Next() {
		if n > 0 && (len(dst) >= full || look <= 0) {
			if len(dst) >= full || time.Now().After(deadline) {
				e.next = append(e.next[:0], it.Key()...)
				return dst, n, true, nil
			}
			look = e.looks
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return dst, n, true, err
		}
		look -= 1 + len(v)/bytesPerVersion
		dst = appendPair(dst, it.Key()[keyNumberLen:], v)
		n++
	}
	return dst, n, false, it.Error()
}

// Close gives the snapshot back. A second Close does nothing.
func (e *Export) Close() error {
	if e.snap == nil {
		return nil
	}
	err := e.snap.Close()
	e.snap = nil
	e.t.store.leave()
	return err
}
