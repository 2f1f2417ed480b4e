package daemon

import (
	"bytes"
	"log/slog"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nyaladb/nyala/internal/replica"
)

// TestLimitMemory shows the limits that flags make: the collector's from the soft one, caches and memtables made smaller to fit
// unless somebody gave their sizes, none with -1, and values out of range refused.
func TestLimitMemory(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "")
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	limit := func(args ...string) (replica.NodeConfig, string, error) {
		t.Helper()
		c, f, n := DefaultCommon(TabletServerDefaults), NewFlags(), replica.DefaultNodeConfig()
		c.Register(f)
		c.RegisterStorage(f, &n)
		require.NoError(t, f.set.Parse(append(args, "--fs_wal_dir=/x")))
		require.NoError(t, f.resolve(nil))
		require.NoError(t, c.Validate())
		var log bytes.Buffer
		l, err := c.limitMemory(&Environment{Logger: slog.New(slog.NewTextHandler(&log, nil)), Registry: NewRegistry(), Flags: f}, &n)
		l.Close()
		return n, log.String(), err
	}
	defaults := replica.DefaultNodeConfig()
	n, log, err := limit("--memory_limit_hard_bytes=10737418240")
	require.NoError(t, err)
	require.Equal(t, defaults.Tablet.CacheBytes, n.Tablet.CacheBytes)
	require.Equal(t, defaults.WAL.CacheBytes, n.WAL.CacheBytes)
	soft := int64(10737418240) / 100 * 80
	require.Equal(t, soft/20*19, debug.SetMemoryLimit(-1))
	require.Contains(t, log, "soft_bytes=8589934560")

	n, _, err = limit("--memory_limit_hard_bytes=268435456", "--memory_limit_soft_percentage=50")
	require.NoError(t, err)
	most := n.Tablet.MaxMemtableBytes
	require.LessOrEqual(t, n.Tablet.CacheBytes+most+n.WAL.CacheBytes, int64(64<<20))
	require.GreaterOrEqual(t, n.Tablet.CacheBytes+most+n.WAL.CacheBytes, int64(63<<20))
	require.Equal(t, most/4, n.Tablet.MemtableBytes)
	n.Tablet.Dir = "x"
	require.NoError(t, n.Tablet.Validate())

	_, _, err = limit("--memory_limit_hard_bytes=268435456", "--block_cache_capacity_bytes=134217728")
	require.ErrorContains(t, err, "lower --block_cache_capacity_bytes, or raise --memory_limit_hard_bytes")
	n, _, err = limit("--memory_limit_hard_bytes=-1", "--block_cache_capacity_bytes=1073741824")
	require.NoError(t, err)
	require.EqualValues(t, 1<<30, n.Tablet.CacheBytes)

	p := newTestProgram()
	require.Equal(t, ExitUsage, p.run(t, "--fs_wal_dir=/x", "--tserver_master_addrs=m", "--memory_limit_hard_bytes=1000"))
	require.Contains(t, p.stderr.String(), "--memory_limit_hard_bytes 1000: want 67108864")
	require.Equal(t, ExitUsage, p.run(t, "--fs_wal_dir=/x", "--tserver_master_addrs=m", "--memory_limit_soft_percentage=0"))
	require.Contains(t, p.stderr.String(), "--memory_limit_soft_percentage")
}
