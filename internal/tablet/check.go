package tablet

import (
	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// CheckWrite says why a write must not be proposed: an unknown schema version, row operations that can't be read or that set a
// column that was dropped, a client id of the wrong length, or a row outside the tablet's partition, any of which fails the
// whole request. nil: it may be;
// rows may still fail one by one when it is applied. The error is a *status.Error.
func (t *Tablet) CheckWrite(op *nyalav1.WriteOp) error {
	if id := op.GetRequestId(); id != nil {
		if _, ok := clientIDOf(id); !ok {
			return errClientID(id)
		}
	}
	meta := t.meta.Load()
	plan := meta.plans[op.GetSchemaVersion()]
	if plan == nil {
		return errUnknownSchema(op.GetSchemaVersion(), meta.current.Version())
	}
	sc := plan.from
	dec := schema.NewOpsDecoder(sc, op.GetRowOperations().GetRows(), op.GetRowOperations().GetIndirectData())
	var key []byte
	for {
		row, err := dec.Next()
		if err != nil {
			return asStatus(err)
		}
		if row == nil {
			return nil
		}
		if row.RowError != nil {
			continue
		}
		if err := plan.refuses(row); err != nil {
			return err
		}
		if t.wholeSpace {
			continue
		}
		key = t.partSpec.PartitionKey(sc, row.Cell, key[:0])
		if !t.partition.Contains(key) {
			return status.New(status.RowNotInPartition, "row operation %d: the row isn't in tablet %s, partition %s",
				row.Index, t.TabletID(), t.partition)
		}
	}
}

func errClientID(id *nyalav1.StoredRequestId) *status.Error {
	return status.New(status.InvalidArgument, "the request's client id has %d bytes, want %d", len(id.GetClientId()), len(ClientID{}))
}
