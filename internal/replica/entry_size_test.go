package replica

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// TestEntrySize shows a write refused whose log entry would fit into no message to the other replicas, and the largest that
// does fit committed on all of them.
func TestEntrySize(t *testing.T) {
	const limit = 1 << 20
	r := newRig(t, 3)
	for _, s := range r.servers {
		s.edit = func(c *NodeConfig) { c.Peers.MaxMessageSize = limit }
	}
	r.startAll()
	id := r.create(r.servers...)
	leader := r.leader(id)
	c := newRequests()
	// Blanks at the end of the last cell bring the entry to any size.
	write := func(entry int) error {
		req := c.insert(t, id, 1)
		enc := schema.NewOpsEncoder(testSchema(t))
		for k, left := int64(entry), entry; left > 0; k++ {
			n := min(left, 60_000)
			left -= n
			require.NoError(t, enc.Append(schema.Upsert, []schema.Value{schema.IntValue(k), schema.StringValue(strings.Repeat(" ", n))}, nil))
		}
		req.RowOperations.Rows, req.RowOperations.IndirectData = enc.Bytes()
		require.Greater(t, proto.Size(req), entry)
		_, err := leader.replica(id).Write(t.Context(), req)
		return err
	}
	err := write(limit - entryOverhead)
	require.Equal(t, status.TooLarge, status.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "--rpc_max_message_size")
	require.Zero(t, leader.inFlight())
	require.NoError(t, write(limit-entryOverhead-2000))
	for _, s := range r.servers {
		s.wantRows(id, atSnapshot, 18)
	}
}
