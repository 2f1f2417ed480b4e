package daemon

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nyaladb/nyala/internal/hybridtime"
)

// TestClockFlags shows what of the clock's flags stops a start, and what the clock is told.
func TestClockFlags(t *testing.T) {
	run := func(args ...string) *testProgram {
		p := newTestProgram()
		p.run(t, append(args, needed...)...)
		return p
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--time_source=mock"}, "unlock_unsafe_flags"},
		{[]string{"--time_source=system_unsync"}, "unlock_unsafe_flags"},
		{[]string{"--time_source=ntp"}, "want one of"},
		{[]string{"--time_source=mock", "--mock_clock_offset=1h"}, "--unlock_unsafe_flags"},
		{[]string{"--mock_clock_offset=1h", "--unlock_unsafe_flags"}, "only with --time_source=mock"},
		{[]string{"--mock_clock_offset=5", "--unlock_unsafe_flags", "--time_source=mock"}, "1h30m"},
		{[]string{"--ntp_initial_sync_wait_secs=-1"}, "out of range"},
		{[]string{"--wall_clock_jump_threshold_sec=nan"}, "want a number"},
	} {
		p := run(c.args...)
		require.False(t, p.ran, "%v", c.args)
		require.Contains(t, p.stderr.String(), c.want, "%v", c.args)
	}
	p := run("--time_source=mock", "--unlock_unsafe_flags", "--mock_clock_offset=40y", "--wall_clock_jump_threshold_sec=0.1", "--ntp_initial_sync_wait_secs=2.5")
	require.True(t, p.ran, p.stderr.String())
	require.Equal(t, 40*hybridtime.Year, p.cfg.MockClockOffset)
	k := p.cfg.ClockConfig(nil)
	require.Equal(t, 100*time.Millisecond, k.WallClockJumpThreshold)
	require.Equal(t, 2500*time.Millisecond, k.NTPInitialSyncWait)
	require.True(t, k.UnlockUnsafeFlags)
}

// TestLoopbackOnly shows when a clock that nobody steers may be taken as it is: when no other machine has a part.
func TestLoopbackOnly(t *testing.T) {
	for _, c := range []struct {
		bound, advertised, masters []string
		want                       bool
	}{
		{[]string{"127.0.0.1:7050"}, nil, nil, true},
		{[]string{"localhost:7050", "[::1]:7050"}, []string{"127.0.0.9:1"}, []string{"127.0.0.1:7051", "localhost:7051"}, true},
		{[]string{"[::ffff:127.0.0.1]:7050"}, nil, nil, true},
		{[]string{"0.0.0.0:7050"}, nil, nil, false},
		{[]string{"[::]:7050"}, nil, nil, false},
		{[]string{"127.0.0.1:7050"}, []string{"db1.example.com:7050"}, nil, false},
		{[]string{"127.0.0.1:7050"}, nil, []string{"127.0.0.1:7051", "10.0.0.7:7051"}, false},
	} {
		cfg := DefaultCommon(TabletServerDefaults)
		cfg.RPCBindAddresses, cfg.RPCAdvertisedAddresses = c.bound, c.advertised
		require.Equal(t, c.want, cfg.ClockConfig(c.masters).LoopbackOnly, "%+v", c)
	}
}
