package tablet

import (
	"bytes"
	"encoding/hex"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/schema"
)

func unhex(t testing.TB, s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	require.NoError(t, err)
	return b
}

// TestKeyVectors holds the layout of keys to the examples of docs/format/store.md.
func TestKeyVectors(t *testing.T) {
	id := ClientID(unhex(t, "000102030405060708090a0b0c0d0e0f"))
	for want, got := range map[string][]byte{
		"0000000000000007 01 00":                                                   appendRecordKey(nil, 7, kindState),
		"0000000000000007 02 00":                                                   appendRecordKey(nil, 7, kindReplica),
		"0000000000000007 03 00":                                                   appendRecordKey(nil, 7, kindConfig),
		"0000000000000007 04 00000002 00":                                          appendSchemaKey(nil, 7, 2),
		"0000000000000007 05 000102030405060708090a0b0c0d0e0f 00":                  appendClientKey(nil, 7, id),
		"0000000000000007 06 000102030405060708090a0b0c0d0e0f 0000000000000103 00": appendRequestKey(nil, 7, id, 0x103),
		"0000000000000007 80 00":                                                   appendRowPrefix(nil, 7, nil),
		"0000000000000007 80 80000014 00 fffffffffffffffe 09":                      appendRowKey(nil, 7, []byte{0x80, 0, 0, 0x14}, 1),
		"0000000000000007 80 61 00 9f5dbe7e1bffffff 09":                            appendRowKey(nil, 7, []byte("a"), 0x60a24181e4000000),
	} {
		require.Equal(t, unhex(t, want), got)
	}
}

// TestRecordVectors holds the values to the examples of docs/format/store.md.
func TestRecordVectors(t *testing.T) {
	require.Equal(t, unhex(t, "01 0000000000000005 60a24181e4000000"), appendState(nil, stateRecord{5, 0x60a24181e4000000}))
	require.Equal(t, unhex(t, "01 60a24181e4000000 ac02"), appendClient(nil, clientRecord{300, 0x60a24181e4000000}))
	v, err := appendRequest(nil, 0x60a24181e4000000, nil)
	require.NoError(t, err)
	require.Equal(t, unhex(t, "01 60a24181e4000000"), v)
	v, err = appendRequest(nil, 1, []*nyalav1.RowError{{RowIndex: 2, Code: nyalav1.ErrorCode_ERROR_CODE_NOT_FOUND, Message: "m"}})
	require.NoError(t, err)
	require.Equal(t, unhex(t, "01 0000000000000001 1207 0802 1003 1a016d"), v)

	w := cellWriter{buf: appendVersionHeader(nil, wholeRow)}
	w.add(1, []byte{7, 0, 0, 0}, false)
	w.add(2, nil, true)
	w.add(3, []byte{}, false)
	w.add(20, bytes.Repeat([]byte{1}, 16), false)
	w.add(21, []byte("thirteen byte"), false)
	require.Equal(t, unhex(t, "11 14 07000000 0f 00 8d02 01010101010101010101010101010101 0e 0d "+hex.EncodeToString([]byte("thirteen byte"))), w.buf)
	require.Equal(t, unhex(t, "13"), appendVersionHeader(nil, deletedRow))
}

var someKeys = []string{
	"", "\x00", "\x00\x00", "\x00\x01", "\x09", "\x00\x09", "a", "a\x00", "a\x00\x00", "a\x09", "ab", "a\xff", "\xff", "\xff\xff",
	"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x09", "\xff\xff\xff\xff\xff\xff\xff\xff\x09",
}

// TestRowKeyRoundTrip shows that a row key comes apart into what it was made of, whatever bytes the primary key has: bytes
// that look like a suffix included.
func TestRowKeyRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pk := []byte(rapid.OneOf(rapid.SampledFrom(someKeys), rapid.String()).Draw(t, "pk"))
		n := ident.LocalNumber(rapid.Uint64Range(1, 1<<40).Draw(t, "n"))
		ts := hybridtime.Timestamp(rapid.Uint64().Draw(t, "ts"))
		key := appendRowKey(nil, n, pk, ts)
		gotPK, gotTS, ok := splitRowKey(key)
		if !ok || !bytes.Equal(gotPK, pk) || gotTS != ts {
			t.Fatalf("%x came back as %x at %d", pk, gotPK, gotTS)
		}
		put := make([]byte, rowKeyLen(len(pk)))
		putRowKey(put, n, pk, ts)
		if !bytes.Equal(put, key) || !bytes.Equal(key[:splitPrefix(key)], appendRowPrefix(nil, n, pk)) {
			t.Fatalf("%x", put)
		}
	})
}

// TestComparer checks what Pebble asks of a comparer, over pairs of keys of all kinds: prefixes order before suffixes, a bare
// prefix sorts before its versions, later timestamps first, separators and successors lie where they must and can be split,
// and primary keys order bytewise.
func TestComparer(t *testing.T) {
	anyKey := rapid.Custom(func(t *rapid.T) []byte {
		n := ident.LocalNumber(rapid.SampledFrom([]uint64{1, 2, 255, 256, 1 << 33}).Draw(t, "n"))
		pk := []byte(rapid.OneOf(rapid.SampledFrom(someKeys), rapid.String()).Draw(t, "pk"))
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			return appendRecordKey(nil, n, rapid.SampledFrom([]byte{0, 1, 3, 0x80, 0x81}).Draw(t, "record"))
		case 1:
			return appendRowPrefix(nil, n, pk)
		case 2:
			return appendRequestKey(nil, n, ClientID{1}, rapid.Uint64().Draw(t, "seq"))
		default:
			return appendRowKey(nil, n, pk, hybridtime.Timestamp(rapid.SampledFrom([]uint64{0, 1, 2, 1 << 60, 1<<64 - 1}).Draw(t, "ts")))
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyKey.Draw(t, "a"), anyKey.Draw(t, "b")
		ap, bp := a[:splitPrefix(a)], b[:splitPrefix(b)]
		if splitPrefix(ap) != len(ap) {
			t.Fatalf("the prefix %x isn't one", ap)
		}
		c := compareKeys(a, b)
		if (c == 0) != bytes.Equal(a, b) || compareKeys(b, a) != -c {
			t.Fatal("not an order")
		}
		if pc := bytes.Compare(ap, bp); pc != 0 && pc != c || pc == 0 && bytes.Compare(a[len(ap):], b[len(bp):]) != c {
			t.Fatal("prefixes don't order before suffixes")
		}
		if aa, ab := abbreviateKey(a), abbreviateKey(b); aa < ab && c >= 0 || aa > ab && c <= 0 {
			t.Fatal("abbreviated keys order otherwise")
		}
		if len(ap) < len(a) && compareKeys(ap, a) >= 0 {
			t.Fatal("a prefix doesn't sort before its versions")
		}
		apk, ats, aok := splitRowKey(a)
		bpk, bts, bok := splitRowKey(b)
		if aok && bok && bytes.Equal(a[:8], b[:8]) {
			want := bytes.Compare(apk, bpk)
			if want == 0 && ats != bts {
				want = 1
				if ats > bts {
					want = -1
				}
			}
			if c != want {
				t.Fatalf("order %d, want %d", c, want)
			}
		}
		if c < 0 {
			k := appendSeparator([]byte("dst"), a, b)[3:]
			if compareKeys(a, k) > 0 || compareKeys(k, b) >= 0 {
				t.Fatalf("separator %x of %x and %x", k, a, b)
			}
		}
		if k := appendSuccessor(nil, a); compareKeys(a, k) > 0 || splitPrefix(k) > len(k) {
			t.Fatalf("successor %x of %x", k, a)
		}
		next := comparer.ImmediateSuccessor(nil, ap)
		if splitPrefix(next) != len(next) || bytes.Compare(ap, next) >= 0 ||
			bytes.Compare(bp, ap) > 0 && bytes.Compare(bp, next) < 0 {
			t.Fatalf("immediate successor %x of %x, but there is %x", next, ap, bp)
		}
	})
}

// TestMergeCells compares merging with maps.
func TestMergeCells(t *testing.T) {
	cells := rapid.Custom(func(t *rapid.T) map[schema.ColumnID]string {
		return rapid.MapOfN(rapid.Map(rapid.Uint32Range(0, 40), func(v uint32) schema.ColumnID { return schema.ColumnID(v * v) }),
			rapid.SampledFrom([]string{"NULL", "", "a", "0123456789ab", "0123456789abc", "0123456789abcdef", strings.Repeat("x", 300)}), 0, 12).
			Draw(t, "cells")
	})
	rapid.Check(t, func(t *rapid.T) {
		base, over := cells.Draw(t, "base"), cells.Draw(t, "over")
		got, err := mergeCells([]byte("dst"), encodeCells(base), encodeCells(over))
		if err != nil {
			t.Fatal(err)
		}
		for id, v := range over {
			base[id] = v
		}
		if want := encodeCells(base); !bytes.Equal(got[3:], want) {
			t.Fatalf("%x, want %x", got[3:], want)
		}
	})
}

func encodeCells(m map[schema.ColumnID]string) []byte {
	var ids []schema.ColumnID
	for id := range m {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	var w cellWriter
	for _, id := range ids {
		w.add(id, []byte(m[id]), m[id] == "NULL")
	}
	return w.buf
}

// TestOverlay puts many keys in, some of them twice, and finds each again.
func TestOverlay(t *testing.T) {
	o := newOverlay(maphash.MakeSeed())
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 3 {
		seen := map[string]int32{}
		for range 3000 {
			key := []byte{byte(rng.IntN(40)), byte(rng.IntN(40))}[:rng.IntN(3)]
			off := len(o.arena)
			o.arena = append(o.arena, key...)
			n := o.entry(off)
			if want, ok := seen[string(key)]; ok {
				require.Equal(t, want, n, round)
				require.Len(t, o.arena, off)
			}
			seen[string(key)] = n
			require.Equal(t, key, append([]byte{}, o.key(&o.entries[n])...))
		}
		require.Len(t, o.entries, len(seen))
		o.reset()
	}
}

// FuzzDecodeVersion holds that any bytes decode to an error or to cells whose encoding decodes to the same.
func FuzzDecodeVersion(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0x11, 0x14, 7, 0, 0, 0, 0x0f, 0x00})
	f.Add([]byte{0x12, 0x8d, 0x02, 1, 2, 3})
	f.Add([]byte{0x13})
	f.Add([]byte{0x11, 0x0e, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Add([]byte{0x11, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, v []byte) {
		kind, cells, err := parseVersion(v)
		if err != nil {
			return
		}
		w := cellWriter{buf: appendVersionHeader(nil, kind)}
		r := cellReader{buf: cells}
		n := 0
		for {
			more, err := r.more()
			if err != nil {
				return
			}
			if !more {
				break
			}
			w.add(r.id, r.cell, r.null)
			n++
		}
		again := cellReader{buf: w.buf[1:]}
		for range n {
			if more, err := again.more(); !more || err != nil {
				t.Fatalf("%x decodes to %d cells, encoded as %x to fewer: %v", v, n, w.buf, err)
			}
		}
		merged, err := mergeCells(nil, w.buf[1:], w.buf[1:])
		if err != nil || !bytes.Equal(merged, w.buf[1:]) {
			t.Fatalf("merged with itself %x becomes %x: %v", w.buf, merged, err)
		}
		f := folder{columns: []foldColumn{{id: 1, size: 4}, {id: 2, size: varLen}, {id: 300, size: 1}}}
		f.begin()
		if _, err := f.add(v); err == nil {
			f.keep()
		}
	})
}

// FuzzDecodeRecord holds that any bytes decode to an error or to a record that encodes to the same bytes.
func FuzzDecodeRecord(f *testing.F) {
	f.Add(appendState(nil, stateRecord{5, 6}))
	f.Add(appendClient(nil, clientRecord{300, 7}))
	v, _ := appendRequest(nil, 9, []*nyalav1.RowError{{RowIndex: 2, Message: "m"}})
	f.Add(v)
	f.Fuzz(func(t *testing.T, v []byte) {
		if s, err := decodeState(v); err == nil && !bytes.Equal(appendState(nil, s), v) {
			t.Fatalf("state %x", v)
		}
		if c, err := decodeClient(v); err == nil {
			again, err := decodeClient(appendClient(nil, c))
			if err != nil || again != c {
				t.Fatalf("client %x", v)
			}
		}
		if ts, errs, err := decodeRequest(v); err == nil {
			enc, err := appendRequest(nil, ts, errs)
			if err != nil {
				t.Fatal(err)
			}
			ts2, errs2, err := decodeRequest(enc)
			if err != nil || ts2 != ts || len(errs2) != len(errs) {
				t.Fatalf("request %x", v)
			}
		}
		_ = decodeMessage(v, "config", new(nyalav1.RaftConfig))
	})
}

// FuzzSplitKey holds that keys of any bytes come apart without a panic, and what comes apart as a row key is one.
func FuzzSplitKey(f *testing.F) {
	f.Add([]byte{})
	f.Add(appendRowKey(nil, 7, []byte("a"), 9))
	f.Add(appendClientKey(nil, 7, ClientID{1}))
	f.Add([]byte{0xff})
	f.Fuzz(func(t *testing.T, key []byte) {
		if n := splitPrefix(key); n < 0 || n > len(key) {
			t.Fatalf("%x splits at %d", key, n)
		}
		if pk, ts, ok := splitRowKey(key); ok {
			n, _, _, _ := splitKey(append(bytes.Clone(key[:keyHeaderLen]), 0))
			if !bytes.Equal(appendRowKey(nil, n, pk, ts), key) {
				t.Fatalf("%x isn't the key of %x at %d", key, pk, ts)
			}
		}
		splitKey(key)
		_ = keyFormatter(key)
		abbreviateKey(key)
	})
}
