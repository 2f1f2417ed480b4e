package replica

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nyaladb/nyala/internal/memory"
	"github.com/nyaladb/nyala/internal/status"
)

// TestMemoryPressure fills the process's memory beyond the hard limit: the leader refuses writes before they are proposed, with
// a time to come back, reads go on, a write that was applied before still gets its answer, and when the memory is given back
// the refused write is taken.
func TestMemoryPressure(t *testing.T) {
	const hard = 256 << 20
	limit, err := memory.New(memory.Config{HardBytes: hard, SoftPercentage: 80})
	require.NoError(t, err)
	r := newRig(t, 1)
	r.servers[0].edit = func(c *NodeConfig) { c.Memory = limit }
	r.startAll()
	id := r.create(r.servers...)
	s := r.leader(id)
	c := newRequests()
	before := c.insert(t, id, 1)
	first := s.write(before)

	ballast := make([]byte, hard) // never touched, so that only the runtime's numbers grow
	require.Eventually(t, func() bool { return limit.Used() > hard }, 5*time.Second, time.Millisecond)
	refused := c.insert(t, id, 2)
	index := s.replica(id).Status().GetCommitIndex()
	_, err = s.replica(id).Write(t.Context(), refused)
	var e *status.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, status.TooBusy, e.Code)
	require.GreaterOrEqual(t, e.RetryAfter, busyRetry/2)
	require.Less(t, e.RetryAfter, 3*busyRetry/2)
	require.Contains(t, e.Msg, "--memory_limit_hard_bytes")
	require.Equal(t, index, s.replica(id).Status().GetCommitIndex(), "it was proposed")
	require.Equal(t, 1, value(t, s.n.Replicas.metrics.pressureRejections))
	require.Zero(t, s.inFlight())
	s.wantRows(id, latest, 1)
	require.Equal(t, first.GetTimestamp(), s.write(before).GetTimestamp())
	runtime.KeepAlive(ballast)

	runtime.GC()
	require.Eventually(t, func() bool { return limit.Used() < limit.Soft() }, 5*time.Second, time.Millisecond)
	s.write(refused)
	s.wantRows(id, latest, 2)
}
