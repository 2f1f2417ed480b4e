package tablet

import (
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/nyaladb/nyala/internal/schema"
)

// TestDiskBytes shows that each tablet's files count for it alone, and rows in memory for none.
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
	require.Equal(t, before, n)
	require.NoError(t, s.Flush())
	n, err = full.DiskBytes()
	require.NoError(t, err)
	require.Greater(t, n, before+1000)
	other, err := empty.DiskBytes()
	require.NoError(t, err)
	require.Less(t, other, n)
	require.NoError(t, s.Close())
	_, err = full.DiskBytes()
	require.ErrorContains(t, err, "closed")
}
