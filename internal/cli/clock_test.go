package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
)

// TestClockMockFlags shows what a server is told to lay over its clock, all of it at once.
func TestClockMockFlags(t *testing.T) {
	c := newFakeCluster(t, 1)
	s := c.servers[0]
	_, errs, code := runCLI(t.Context(), "", strings.NewReader(""), "clock", "mock", "--server", s.addr, "--offset", "-40y", "--max_error", "5s",
		"--suspend", "8h", "--leap_all", "1h", "--unsynced")
	require.Equal(t, exitOK, code, errs)
	require.True(t, proto.Equal(&nyalav1.MockClockRequest{
		Offset: -int64(40 * hybridtime.Year), MaxError: int64(5 * time.Second), Suspended: int64(8 * time.Hour), LeaptAll: int64(time.Hour), Unsynced: true,
	}, s.faults), s.faults)
	_, errs, code = runCLI(t.Context(), "", strings.NewReader(""), "clock", "mock", "--server", s.addr, "--offset", "0")
	require.Equal(t, exitOK, code, errs)
	require.True(t, proto.Equal(&nyalav1.MockClockRequest{}, s.faults), s.faults)
}

// TestClockAcceptReason shows that the operator's reason gets to the servers, and that nothing does without a yes.
func TestClockAcceptReason(t *testing.T) {
	c := newFakeCluster(t, 2)
	c.fence(c.servers[0])
	_, _, code := runCLI(t.Context(), c.master.addr, strings.NewReader("y\n"), "clock", "accept", "--all")
	require.Equal(t, exitUsage, code, "a pipe is no terminal to ask at")
	require.Empty(t, c.servers[0].accepted)
	_, errs, code := runCLI(t.Context(), c.master.addr, strings.NewReader(""), "clock", "accept", "--all", "--yes", "--reason", "NTP was down")
	require.Equal(t, exitOK, code, errs)
	for _, s := range append(c.servers, c.master) {
		require.Equal(t, []string{"NTP was down"}, s.accepted)
	}
}
