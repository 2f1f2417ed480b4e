package tablet

import (
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/schema"
)

// BenchmarkCopy exports a tablet of 200 MB, a million rows that don't compress, and imports it into another store on disk.
func BenchmarkCopy(b *testing.B) {
	const rows, size = 1_000_000, 190
	src := openStore(b, Options{Dir: b.TempDir(), FS: vfs.Default})
	tb := newTestTablet(b, src, 1, kvSchema(b))
	value := make([]byte, size)
	rng := rand.NewChaCha8([32]byte{})
	for k := 0; k < rows; {
		var ops []rowSpec
		for range 2000 {
			_, _ = rng.Read(value)
			ops = append(ops, kv(schema.Insert, int64(k), str(string(value))))
			k++
		}
		write(b, tb, ops...)
	}
	require.NoError(b, src.Flush())
	b.ReportAllocs()
	bytes := 0
	for n := ident.LocalNumber(1); b.Loop(); n++ {
		dst := openStore(b, Options{Dir: b.TempDir(), FS: vfs.Default})
		bytes = 0
		e, err := tb.NewExport()
		require.NoError(b, err)
		im, err := dst.NewImport(n, e.state1(1))
		require.NoError(b, err)
		var pairs []byte
		for more := true; more; {
			pairs, _, more, err = e.Next(b.Context(), pairs[:0], 256<<10)
			require.NoError(b, err)
			bytes += len(pairs)
			_, err = im.Add(pairs)
			require.NoError(b, err)
		}
		c, err := im.Finish(b.Context())
		require.NoError(b, err)
		require.NoError(b, e.Close())
		b.StopTimer()
		require.Equal(b, rows, countRows(b, c, hybridtime.Max))
		m := dst.db.Metrics()
		b.ReportMetric(float64(m.Total().TablesCompacted+0), "tables-compacted")
		b.ReportMetric(float64(m.Total().TableBytesFlushed+m.Total().TableBytesCompacted)/1e6, "MB-rewritten")
		b.ReportMetric(float64(m.Levels[0].Sublevels), "L0-sublevels")
		b.StartTimer()
	}
	b.SetBytes(int64(bytes))
}
