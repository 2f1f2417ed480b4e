package tablet

import (
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/nyaladb/nyala/internal/schema"
)

// TestDiskBytes shows that each tablet's files and rows in memory count for it alone, and that what was flushed isn't counted twice.
func TestDiskBytes(t *testing.T) {
	s := openStore(t, testOptions(vfs.NewMem()))
	full, empty := newTestTablet(t, s, 1, kvSchema(t)), newTestTablet(t, s, 2, kvSchema(t))
	require.NoError(t, s.Flush())
	before, err := full.DiskBytes()
	require.NoError(t, err)
	for k := range 100 {
		write(t, full, kv(schema.Insert, int64(k), str(strings.Repeat(string(rune('a'+k%26)), 1000+k))))
	}
	n, err := full.DiskBytes()
	require.NoError(t, err)
	require.Greater(t, n, before+100*1000)
	require.Less(t, n, before+100*1200)
	other, err := empty.DiskBytes()
	require.NoError(t, err)
	require.LessOrEqual(t, other, before)
	inMemory := n
	require.NoError(t, s.Flush())
	require.Eventually(t, func() bool { // the store's goroutine finds out what is durable
		n, err = full.DiskBytes()
		require.NoError(t, err)
		return n < inMemory
	}, 30*time.Second, time.Millisecond)
	require.Greater(t, n, before+1000)
	other, err = empty.DiskBytes()
	require.NoError(t, err)
	require.Less(t, other, n)
	require.NoError(t, s.Close())
	_, err = full.DiskBytes()
	require.ErrorContains(t, err, "closed")
}
