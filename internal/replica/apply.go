package replica

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/consensus"
	"github.com/nyaladb/nyala/internal/tablet"
	"github.com/nyaladb/nyala/internal/wal"
)

var _ consensus.Applier = (*Manager)(nil)

// Apply puts the committed entries of several groups into the store in one batch, then answers those who wait for them.
// A group whose entries can't be applied gets an error and fails alone; what was applied of it before, and the others, are
// answered all the same. A batch that can't be committed fails them all.
func (m *Manager) Apply(groups []consensus.ApplyGroup) {
	b := m.store.NewBatch()
	defer b.Close()
	outcomes := make([][]outcome, len(groups))
	replicas := make([]*Replica, len(groups))
	for i := range groups {
		g := &groups[i]
		if replicas[i], g.Err = m.lookup(g.Tablet); g.Err == nil {
			outcomes[i], g.Err = applyGroup(b, replicas[i], g.Entries)
		}
	}
	if err := b.Commit(); err != nil {
		for i := range groups {
			groups[i].Err = fmt.Errorf("commit applied entries: %w", err)
		}
		return
	}
	for i := range groups {
		if len(outcomes[i]) > 0 {
			replicas[i].deliver(outcomes[i])
			if slices.ContainsFunc(outcomes[i], func(o outcome) bool { return o.altered }) {
				m.changed(replicas[i].id) // the master waits for it
			}
		}
	}
}

// applyGroup applies one group's entries and returns the outcomes of those that were applied, with the error of the first
// that wasn't.
func applyGroup(b *tablet.Batch, r *Replica, entries []consensus.CommittedEntry) ([]outcome, error) {
	t, err := r.applies()
	if err != nil {
		return nil, err
	}
	outcomes := make([]outcome, 0, len(entries))
	for i := range entries {
		e := &entries[i]
		op, err := storeOp(e)
		if err != nil {
			return outcomes, fmt.Errorf("entry %s: %w", e.OpID, err)
		}
		result, err := b.Apply(t, op)
		if err != nil {
			return outcomes, fmt.Errorf("apply entry %s: %w", e.OpID, err)
		}
		outcomes = append(outcomes, outcome{op: e.OpID, result: result, request: op.Write.GetRequestId(), altered: op.Schema != nil || op.Config != nil})
	}
	return outcomes, nil
}

// storeOp turns an entry into what the store applies. An entry that changes no row still moves the applied index.
func storeOp(e *consensus.CommittedEntry) (tablet.Op, error) {
	op := tablet.Op{Index: e.Index, Timestamp: e.Timestamp}
	switch e.Kind {
	case wal.KindWrite:
		op.Write = new(nyalav1.WriteOp)
		if err := proto.Unmarshal(e.Payload, op.Write); err != nil {
			return op, fmt.Errorf("decode the write: %w", err)
		}
	case wal.KindConfig:
		op.Config = e.Config
	case wal.KindAlter:
		alter := new(nyalav1.AlterOp)
		if err := proto.Unmarshal(e.Payload, alter); err != nil {
			return op, fmt.Errorf("decode the schema change: %w", err)
		}
		op.Schema, op.TableName = alter.GetSchema(), alter.GetTableName()
	case wal.KindNone, wal.KindNoop:
	default:
		return op, fmt.Errorf("entries of kind %d are unknown to this version", e.Kind)
	}
	return op, nil
}
