package daemon

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nyaladb/nyala/internal/consensus"
)

// TestLogRetention shows that the flags' defaults are consensus's own, that what is given arrives there, a time as heartbeat
// intervals, and that a total below what one tablet may keep is refused.
func TestLogRetention(t *testing.T) {
	of := func(args ...string) (consensus.Config, error) {
		c := DefaultCommon(TabletServerDefaults)
		f := NewFlags()
		c.Register(f)
		require.NoError(t, f.set.Parse(append(args, "--fs_wal_dir=/x")))
		require.NoError(t, f.resolve(nil))
		cfg := consensus.DefaultConfig()
		cfg.HeartbeatInterval = c.HeartbeatInterval
		c.LogRetention.configure(&cfg)
		return cfg, c.Validate()
	}
	cfg, err := of()
	require.NoError(t, err)
	require.Equal(t, consensus.DefaultConfig().Limits, cfg.Limits)
	cfg, err = of("--raft_heartbeat_interval_ms=100", "--raft_log_retention_bytes_per_tablet=1048576", "--raft_log_retention_bytes_total=2097152",
		"--raft_log_retention_bytes_during_copy=3145728", "--raft_log_retention_secs_during_copy=60")
	require.NoError(t, err)
	require.Equal(t, 1<<20, cfg.Limits.RetainBytes)
	require.Equal(t, 2<<20, cfg.Limits.RetainTotalBytes)
	require.Equal(t, 3<<20, cfg.Limits.HoldBytes)
	require.Equal(t, int(time.Minute/(100*time.Millisecond)), cfg.Limits.HoldHeartbeats)
	_, err = of("--raft_log_retention_bytes_total=1048576")
	require.ErrorContains(t, err, "is less than --raft_log_retention_bytes_per_tablet")
}
