package replica

import (
	"context"

	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/wal"
)

// Alter gives the tablet a later version of its table's schema, and the table's name with it, through its log, and returns the version that it has then, here.
// A version that is there already, or was overtaken by a later one, is no error. Only the leader takes it. An error leaves open
// whether the entry stands in the log: said again it does no harm.
func (r *Replica) Alter(ctx context.Context, s *nyalav1.Schema, tableName string) (uint32, error) {
	t, err := r.Tablet()
	if err != nil {
		return 0, err
	}
	if !r.leads() {
		return 0, r.notTheLeader()
	}
	if have := t.Schema().Version(); have >= s.GetVersion() {
		return have, nil
	}
	if _, err := schema.FromProto(s); err != nil {
		return 0, status.Wrap(status.CodeOf(err), err, "tablet %s: schema version %d", r.id, s.GetVersion())
	}
	payload, err := proto.Marshal(&nyalav1.AlterOp{Schema: s, TableName: tableName})
	if err != nil {
		return 0, status.Wrap(status.InvalidArgument, err, "tablet %s: encode schema version %d", r.id, s.GetVersion())
	}
	p, _, err := r.begin(t, nil, nil)
	if err != nil {
		return 0, err
	}
	r.proposeEntry(ctx, p, wal.KindAlter, payload)
	if _, err := r.outcomeOf(ctx, p); err != nil {
		return 0, err
	}
	return t.Schema().Version(), nil
}
