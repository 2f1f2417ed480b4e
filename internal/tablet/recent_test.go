package tablet

import (
	"hash/maphash"
	"strconv"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/schema"
)

// TestRecentKeys adds keys under rising indexes and forgets some: what isn't durable is always remembered, and of the keys
// that aren't remembered few look as if they were.
func TestRecentKeys(t *testing.T) {
	seed := maphash.MakeSeed()
	o := newOverlay(seed)
	var r recentKeys
	const perEntry, entries = 700, 30
	var hashes []uint64
	for i := range ident.Index(entries) {
		o.reset()
		var touched []int32
		for k := range perEntry {
			off := len(o.arena)
			o.arena = strconv.AppendInt(o.arena, int64(int(i)*perEntry+k), 10)
			n := o.entry(off)
			o.entries[n].valLen = 1
			touched = append(touched, n)
			hashes = append(hashes, o.entries[n].hash)
		}
		r.add(i+1, o, touched)
		if i == 9 || i == 19 {
			r.durable(i - 4)
			require.Len(t, r.snapshot(), 2, "one with what isn't durable, one for what comes")
		}
	}
	for i, h := range hashes {
		if i/perEntry+1 > 15 {
			require.True(t, mayHold(r.snapshot(), h), i)
		}
	}
	wrong := 0
	const asked = 20_000
	for i := range asked {
		if mayHold(r.snapshot(), maphash.String(seed, "other"+strconv.Itoa(i))) {
			wrong++
		}
	}
	require.Less(t, wrong, asked/20)
	r.durable(entries - 1)
	require.True(t, mayHold(r.snapshot(), hashes[len(hashes)-1]), "the last entry isn't durable yet")
	r.durable(entries)
	require.Empty(t, r.snapshot())
}

// TestInsertFindsRow inserts a key again with its row in memory, in files, deleted in memory above files, and in files that
// came while a batch was under way.
func TestInsertFindsRow(t *testing.T) {
	s := openStore(t, testOptions(vfs.NewMem()))
	tb := newTestTablet(t, s, 1, kvSchema(t))
	insert := func(want int) {
		t.Helper()
		require.Len(t, write(t, tb, kv(schema.Insert, 1, str("a"))).RowErrors, want)
	}
	forgotten := func() {
		t.Helper()
		require.NoError(t, s.Flush())
		require.Eventually(t, func() bool { return len(tb.recent.snapshot()) == 0 }, 10*time.Second, time.Millisecond)
	}
	insert(0)
	require.Len(t, tb.recent.snapshot(), 1)
	insert(1)
	forgotten()
	insert(1)
	require.Empty(t, write(t, tb, kv(schema.Delete, 1)).RowErrors)
	insert(0)
	require.Empty(t, write(t, tb, kv(schema.Delete, 1)).RowErrors)
	forgotten()
	insert(0)

	insert(1)
	require.NotEmpty(t, tb.recent.snapshot())
	i, _ := tb.Applied()
	op := func(add ident.Index) Op {
		return Op{Index: i + add, Timestamp: hybridtime.Timestamp(1000 * add), Write: encodeRows(t, tb.Schema(), kv(schema.Insert, 1, str("b")), kv(schema.Insert, 2, str("b")))}
	}
	b := s.NewBatch()
	defer b.Close()
	res, err := b.Apply(tb, op(1))
	require.NoError(t, err)
	require.Equal(t, []uint32{0}, rowIndexes(res))
	require.NoError(t, s.Flush())
	res, err = b.Apply(tb, op(2))
	require.NoError(t, err)
	require.Equal(t, []uint32{0, 1}, rowIndexes(res))
	require.NoError(t, b.Commit())
	require.Equal(t, []uint32{0, 1}, rowIndexes(apply(t, tb, op(3))))
}
