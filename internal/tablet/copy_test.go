package tablet

import (
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// copy exports a tablet while entries are applied to it, imports it under another number, with a crash or an end at any
// point, and lets the copy apply what came after: it then takes the tablet's place.
func (m *machine) copy(t *rapid.T) {
	n := rapid.SampledFrom(m.numbers()).Draw(t, "tablet")
	model := m.models[n]
	e, err := m.tablet(t, n).NewExport()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close() }() // where the test fails: the store can't be closed before
	at := len(model.log)
	if i, _ := e.Applied(); int(i) != at {
		t.Fatalf("the export is at %d, the tablet at %d", i, at)
	}
	m.next = max(m.next, 3) + 1
	im, err := m.store.NewImport(m.next, e.state1(1))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = im.Abort() }()
	if rapid.Bool().Draw(t, "no time") {
		e.looks = 1
	}
	undo := func() {
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		if err := im.Abort(); err != nil {
			t.Fatal(err)
		}
	}
	for more := true; more; {
		var pairs []byte
		var sent int
		if pairs, sent, more, err = e.Next(t.Context(), nil, rapid.SampledFrom([]int{1, 50, 1 << 20}).Draw(t, "chunk")); err != nil {
			t.Fatal(err)
		}
		switch rapid.IntRange(0, 40).Draw(t, "between") {
		case 0:
			undo()
			m.wantNumbers(t)
			return
		case 1:
			m.crashDuring(t, undo)
			m.wantNumbers(t)
			return
		case 2, 3:
			m.write(t)
		case 4:
			m.flush(t)
		}
		if got, err := im.Add(pairs); err != nil || got != sent {
			t.Fatalf("%d pairs of %d: %v", got, sent, err)
		}
	}
	if _, err := im.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	// The copy is durable: a crash at once leaves it as it is.
	m.mu.Lock()
	m.durable[m.next] = ident.Index(at)
	m.mu.Unlock()
	if err := m.store.Delete(n); err != nil {
		t.Fatal(err)
	}
	delete(m.models, n)
	m.models[m.next] = model
	if rapid.Bool().Draw(t, "then crash") {
		m.crash(t)
		return
	}
	m.replay(t)
	m.checkAll(t)
}

func (m *machine) wantNumbers(t *rapid.T) {
	if got, err := m.store.ListNumbers(); err != nil || !slices.Equal(got, m.numbers()) {
		t.Fatalf("the store has %v, want %v: %v", got, m.numbers(), err)
	}
}

// state1 is what goes with the pairs of an export, for a replica id.
func (e *Export) state1(id ident.ReplicaID) ImportState {
	index, ts := e.Applied()
	return ImportState{Record: e.Record(id), Config: e.Config(), Applied: index, Timestamp: ts}
}

// allPairs reads an export to its end.
func allPairs(t testing.TB, e *Export) (pairs []byte, n int) {
	t.Helper()
	for more := true; more; {
		var k int
		var err error
		pairs, k, more, err = e.Next(t.Context(), pairs, 1<<20)
		require.NoError(t, err)
		n += k
	}
	return pairs, n
}

// copyTo copies a tablet to another store.
func copyTo(t testing.TB, tb *Tablet, to *Store, n ident.LocalNumber) *Tablet {
	t.Helper()
	e, err := tb.NewExport()
	require.NoError(t, err)
	defer func() { require.NoError(t, e.Close()) }()
	im, err := to.NewImport(n, e.state1(9))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, im.Abort()) })
	for more := true; more; {
		var pairs []byte
		pairs, _, more, err = e.Next(t.Context(), nil, 4<<10)
		require.NoError(t, err)
		_, err = im.Add(pairs)
		require.NoError(t, err)
	}
	c, err := im.Finish(t.Context())
	require.NoError(t, err)
	return c
}

// TestCopyIsTheSame: a copy in another store has the rows at every snapshot, the answers to requests, all schemas and the
// config; what it isn't told as pairs is its own.
func TestCopyIsTheSame(t *testing.T) {
	src := openStore(t, testOptions(vfs.NewMem()))
	dst := openStore(t, testOptions(vfs.NewMem()))
	sc := kvSchema(t)
	tb := newTestTablet(t, src, 7, sc)
	neighbour := newTestTablet(t, src, 8, sc)
	write(t, neighbour, kv(schema.Insert, 1))
	for i := range int64(500) {
		w := encodeRows(t, sc, kv(schema.Upsert, i%100, str("value")), kv(schema.Insert, 1000+i%3))
		w.RequestId = &nyalav1.StoredRequestId{ClientId: make([]byte, 16), SeqNo: uint64(i)}
		applyNext(t, tb, w)
	}
	config := &nyalav1.RaftConfig{Peers: []*nyalav1.Peer{{ReplicaId: 9, ServerId: "d"}}, NextReplicaId: 10, OpidIndex: 501}
	apply(t, tb, Op{Index: 501, Timestamp: 5010, Config: config})

	c := copyTo(t, tb, dst, 3)
	wi, wts := tb.Applied()
	i, ts := c.Applied()
	require.Equal(t, wi, i)
	require.Equal(t, wts, ts)
	require.EqualValues(t, 9, c.ReplicaID())
	require.EqualValues(t, 501, c.Config().GetOpidIndex())
	require.Equal(t, tb.TabletID(), c.TabletID())
	for at := hybridtime.Timestamp(1); at < 5100; at += 501 {
		wrows, wsum, err := tb.Checksum(t.Context(), at)
		require.NoError(t, err)
		rows, sum, err := c.Checksum(t.Context(), at)
		require.NoError(t, err)
		require.Equal(t, []uint64{wrows, wsum}, []uint64{rows, sum}, "at %d", at)
	}
	require.Equal(t, dumpTable(tb.requests), dumpTable(c.requests))
	id := &nyalav1.StoredRequestId{ClientId: make([]byte, 16), SeqNo: 400}
	want, state := tb.Lookup(id)
	require.Equal(t, LookupDone, state)
	require.Len(t, want.RowErrors, 1)
	got, state := c.Lookup(id)
	require.Equal(t, LookupDone, state)
	require.Equal(t, resultText(want), resultText(got))
	numbers, err := dst.ListNumbers()
	require.NoError(t, err)
	require.Equal(t, []ident.LocalNumber{3}, numbers)
	entries, err := dst.opts.FS.List(importDir(&dst.opts))
	require.NoError(t, err)
	require.Empty(t, entries)
}

// TestCopyOfManyFiles: a copy that takes more than one file is taken over at once.
func TestCopyOfManyFiles(t *testing.T) {
	src := openStore(t, testOptions(vfs.NewMem()))
	dst := openStore(t, testOptions(vfs.NewMem()))
	sc := kvSchema(t)
	tb := newTestTablet(t, src, 1, sc)
	for k := range int64(40) {
		write(t, tb, kv(schema.Insert, k, str(string(make([]byte, 60<<10)))))
	}
	e, err := tb.NewExport()
	require.NoError(t, err)
	defer e.Close()
	im, err := dst.NewImport(1, e.state1(1))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, im.Abort()) })
	pairs, _ := allPairs(t, e)
	for len(pairs) > 0 {
		key, value, rest, err := cutPair(pairs)
		require.NoError(t, err)
		_, err = im.Add(appendPair(nil, key, value))
		require.NoError(t, err)
		im.size += importFileBytes / 8
		pairs = rest
	}
	require.Greater(t, len(im.files), 4)
	c, err := im.Finish(t.Context())
	require.NoError(t, err)
	require.Equal(t, 40, countRows(t, c, hybridtime.Max))
	require.ElementsMatch(t, scanAll(t, tb, ScanSpec{Columns: []int{0, 1}}, 0), scanAll(t, c, ScanSpec{Columns: []int{0, 1}}, 0))
}

// TestExportOfADeletedTablet ends with the deletion, though the snapshot has the rows still.
func TestExportOfADeletedTablet(t *testing.T) {
	s := openStore(t, testOptions(vfs.NewMem()))
	tb := newTestTablet(t, s, 1, kvSchema(t))
	write(t, tb, kv(schema.Insert, 1))
	e, err := tb.NewExport()
	require.NoError(t, err)
	require.NoError(t, s.Delete(1))
	_, _, _, err = e.Next(t.Context(), nil, 1)
	require.Equal(t, status.TabletNotFound, status.CodeOf(err), "%v", err)
	require.NoError(t, e.Close())
	require.NoError(t, e.Close())
	_, err = tb.NewExport()
	require.Error(t, err)
}

// TestImportRefuses what no export gives, and leaves nothing.
func TestImportRefuses(t *testing.T) {
	s := openStore(t, testOptions(vfs.NewMem()))
	sc := kvSchema(t)
	tb := newTestTablet(t, s, 1, sc)
	write(t, tb, kv(schema.Insert, 1), kv(schema.Insert, 2))
	e, err := tb.NewExport()
	require.NoError(t, err)
	defer e.Close()
	good, n := allPairs(t, e)
	require.Equal(t, 3, n)
	row := appendRowKey(nil, 0, []byte("k"), 5)[keyNumberLen:]
	for name, pairs := range map[string][]byte{
		"cut off":            good[:len(good)-1],
		"order":              append(slices.Clone(good), good...),
		"the state":          appendPair(nil, []byte{kindState, 0}, appendState(nil, stateRecord{})),
		"another kind":       appendPair(nil, []byte{0x07, 0}, []byte{1}),
		"a key without end":  appendPair(nil, []byte{kindSchema, 1}, []byte{1}),
		"a short key":        appendPair(nil, []byte{kindRow}, nil),
		"a schema's key":     appendPair(nil, []byte{kindSchema, 0, 0, 0, 0, 0, 0}, []byte{1}),
		"a row's key":        appendPair(nil, row[:len(row)-1], []byte{0x13}),
		"a row's format":     appendPair(nil, row, []byte{0x23}),
		"a row's cells":      appendPair(nil, row, []byte{0x11, 0x1e, 0xff}),
		"a request's record": appendPair(nil, appendRequestKey(nil, 0, ClientID{}, 1)[keyNumberLen:], []byte{1}),
	} {
		im, err := s.NewImport(2, e.state1(1))
		require.NoError(t, err)
		_, err = im.Add(pairs)
		require.NoError(t, im.Abort())
		require.Equal(t, status.Corruption, status.CodeOf(err), "%s: %v", name, err)
	}
	// No schema came: the replica can't be opened, and goes again.
	im, err := s.NewImport(2, e.state1(1))
	require.NoError(t, err)
	_, err = im.Finish(t.Context())
	require.ErrorContains(t, err, "schema")
	numbers, err := s.ListNumbers()
	require.NoError(t, err)
	require.Equal(t, []ident.LocalNumber{1}, numbers)
	entries, err := s.opts.FS.List(importDir(&s.opts))
	require.NoError(t, err)
	require.Empty(t, entries)
}

// FuzzImportPairs: whatever comes, what is let through is read back as it came, and nothing panics.
func FuzzImportPairs(f *testing.F) {
	row := appendRowKey(nil, 0, []byte("key"), 5)[keyNumberLen:]
	f.Add(appendPair(nil, row, []byte{0x11, 0x14, 7, 0, 0, 0, 0x0f}))
	f.Add(appendPair(appendPair(nil, []byte{kindSchema, 0, 0, 0, 1, 0}, []byte{1}), row, []byte{0x13}))
	f.Add(appendPair(nil, appendClientKey(nil, 0, ClientID{1})[keyNumberLen:], appendClient(nil, clientRecord{bound: 3})))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		var again []byte
		for rest := b; len(rest) > 0; {
			key, value, next, err := cutPair(rest)
			if err != nil {
				return
			}
			if checkPair(storeKey(nil, 1, key), value) != nil {
				return
			}
			again = appendPair(again, key, value)
			rest = next
		}
		if len(again) > len(b) {
			t.Fatalf("%d bytes became %d", len(b), len(again))
		}
	})
}
