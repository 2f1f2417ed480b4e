package replica

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// TestAlter gives a tablet two later versions of its schema while it is written to in the first: every replica has them, in the
// same place of its log, also after all were killed, and no write is lost or refused.
func TestAlter(t *testing.T) {
	r := newRig(t, 3).startAll()
	id := r.create(r.servers...)
	c := newRequests()
	leader := r.leader(id)
	next := func(s *schema.Schema, steps func(*schema.Alteration) error) *schema.Schema {
		a := s.Alter()
		require.NoError(t, steps(a))
		s, err := a.Schema()
		require.NoError(t, err)
		return s
	}
	v1 := next(testSchema(t), func(a *schema.Alteration) error {
		return a.AddColumn(schema.Column{Name: "n", Type: schema.Int64, WriteDefault: []byte{7, 0, 0, 0, 0, 0, 0, 0}})
	})
	v2 := next(v1, func(a *schema.Alteration) error { return a.RenameColumn("n", "m") })

	altered := make(chan error, 1)
	go func() {
		var err error
		for _, s := range []*schema.Schema{v1, v2, v1, v2} {
			version, aerr := leader.replica(id).Alter(t.Context(), s.ToProto(), "")
			if err = errors.Join(err, aerr); aerr == nil && version < s.Version() {
				err = errors.Join(err, fmt.Errorf("version %d after an alter to %d", version, s.Version()))
			}
		}
		altered <- err
	}()
	rows, under := 0, true
	for ; under; rows++ {
		leader.write(c.insert(t, id, int64(rows)))
		select {
		case err := <-altered:
			require.NoError(t, err)
			under = false
		default:
		}
	}
	for _, f := range r.followers(id) {
		_, err := f.replica(id).Alter(t.Context(), v2.ToProto(), "")
		require.Equal(t, status.NotTheLeader, status.CodeOf(err))
	}
	bad := v2.ToProto()
	bad.Version, bad.Columns[0].Name = 3, ""
	_, err := leader.replica(id).Alter(t.Context(), bad, "")
	require.Equal(t, status.InvalidSchema, status.CodeOf(err))
	other, err := schema.New([]schema.Column{{ID: 9, Name: "k", Type: schema.Int8, Key: true}}, 3, 10)
	require.NoError(t, err)
	_, err = leader.replica(id).Alter(t.Context(), other.ToProto(), "")
	require.Equal(t, status.InvalidSchema, status.CodeOf(err), "%v", err)

	check := func() {
		for _, s := range r.servers {
			r.until("the replica has the schema and the rows", func() bool {
				rep := s.replica(id)
				tb, err := rep.Tablet()
				return err == nil && tb.Schema().Version() == 2 && rep.Status().GetSchemaVersion() == 2
			})
			tb, err := s.replica(id).Tablet()
			require.NoError(t, err)
			require.Equal(t, v2.ToProto().String(), tb.Schema().ToProto().String())
			require.NotNil(t, tb.SchemaAt(0))
			s.wantRows(id, atSnapshot, rows)
		}
	}
	check()
	for _, s := range r.servers {
		s.kill()
	}
	r.startAll()
	check()
	require.Empty(t, r.leader(id).write(&nyalav1.WriteRequest{TabletId: string(id), RowOperations: inserts(t, int64(rows))}).GetRowErrors())
}

// TestRetryAfterDrop sends a request again, to the leader and to a follower, after a column that it set was dropped: it gets its
// first answer, and another request like it is refused.
func TestRetryAfterDrop(t *testing.T) {
	r := newRig(t, 3).startAll()
	id := r.create(r.servers...)
	c := newRequests()
	req := c.insert(t, id, 1)
	leader := r.leader(id)
	first := leader.write(req)
	a := testSchema(t).Alter()
	require.NoError(t, a.DropColumn("v"))
	dropped, err := a.Schema()
	require.NoError(t, err)
	_, err = leader.replica(id).Alter(t.Context(), dropped.ToProto(), "")
	require.NoError(t, err)
	for _, s := range r.servers {
		r.level(id, s)
		again := s.write(req)
		require.Equal(t, first.GetTimestamp(), again.GetTimestamp())
	}
	_, err = leader.replica(id).Write(t.Context(), c.insert(t, id, 2))
	require.Equal(t, status.MismatchedSchema, status.CodeOf(err), "%v", err)
}
