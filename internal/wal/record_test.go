package wal

import (
	"bytes"
	"encoding/hex"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
)

// TestGolden holds the on-disk format to what it was when it was fixed: these bytes must be read and written for ever. The
// examples of docs/format/wal.md are these.
func TestGolden(t *testing.T) {
	key := entryKey(nil, 258, 300)
	e := &entryRecord{
		kind: recordEntry, typ: raftpb.EntryNormal, number: 300, term: 2, index: 7, size: 12,
		data: EncodePayload(KindWrite, 0x60a24181e4000001, []byte("row")),
	}
	value := appendEntryRecord(nil, e)
	seal(bucketEntries, key, value)
	piece := appendEntryRecord(nil, &entryRecord{kind: recordPiece, number: 300, term: 2, index: 8, piece: 1, data: []byte("xyz")})
	pieceKey := entryKey(nil, 260, 300)
	seal(bucketEntries, pieceKey, piece)
	cut := appendEntryRecord(nil, &entryRecord{kind: recordCut, number: 300, index: 8})
	cutKey := entryKey(nil, 261, 300)
	seal(bucketEntries, cutKey, cut)
	for _, c := range []struct {
		what string
		got  []byte
		want string
	}{
		{"entry key", key, "0000000000000102ac02"},
		{"entry", value, "0157dac49d10ac0202070c11010000e48141a260726f77"},
		{"piece", piece, "014a35e50e20ac0202080178797a"},
		{"cut", cut, "015487775330ac020008"},
		{"group key", numberKey(300), "000000000000012c"},
		{"group", encodeGroup(300, tabletA, []byte("rec")), "010d4f31b9ac02206161616161616161616161616161616161616161616161616161616161616161726563"},
		{"state", encodeState(300, groupState{hardState{5, 2, 70}, ident.OpID{Term: 4, Index: 60}}), "01cf7ec467ac02050246043c"},
		{"value", encodeMeta("clock_mark", []byte{1, 2}), "01d0d4efbb0102"},
		{"tally", (&tally{commit: 9, nextSeq: 262, last: 300, records: 6, sum: 0xfedcba98}).encode(), "013cbfb50a098602ac020698f5f2f60f"},
		{"format", encodeFormat(), "01275a2caa6e79616c612077616c"},
		{"write", EncodePayload(KindWrite, 0x60a24181e4000001, []byte("row")), "11010000e48141a260726f77"},
		{"noop", EncodePayload(KindNoop, 1, nil), "120100000000000000"},
	} {
		require.Equal(t, c.want, hex.EncodeToString(c.got), c.what)
	}
	r, err := decodeEntryRecord(key, value)
	require.NoError(t, err)
	require.Equal(t, *e, r)
}

// TestEnvelope takes entries of every kind apart, and refuses what isn't one.
func TestEnvelope(t *testing.T) {
	ts := hybridtime.FromMicros(1_357_016_400_000_000, 3)
	normal := func(data []byte) *raftpb.Entry { return &raftpb.Entry{Data: data} }
	config := func(cc *raftpb.ConfChangeV2) *raftpb.Entry {
		data, err := proto.Marshal(cc)
		require.NoError(t, err)
		return &raftpb.Entry{Type: raftpb.EntryConfChangeV2.Enum(), Data: data}
	}
	for name, c := range map[string]struct {
		e    *raftpb.Entry
		want EntryInfo
	}{
		"raft's own":        {normal(nil), EntryInfo{}},
		"write":             {normal(EncodePayload(KindWrite, ts, []byte("rows"))), EntryInfo{KindWrite, ts, []byte("rows")}},
		"noop":              {normal(EncodePayload(KindNoop, ts, nil)), EntryInfo{KindNoop, ts, []byte{}}},
		"alter":             {normal(EncodePayload(KindAlter, ts, []byte("x"))), EntryInfo{KindAlter, ts, []byte("x")}},
		"config":            {config(&raftpb.ConfChangeV2{Context: EncodePayload(KindConfig, ts, []byte("c"))}), EntryInfo{KindConfig, ts, []byte("c")}},
		"config without":    {config(&raftpb.ConfChangeV2{}), EntryInfo{Kind: KindConfig}},
		"config of nothing": {&raftpb.Entry{Type: raftpb.EntryConfChangeV2.Enum()}, EntryInfo{Kind: KindConfig}},
	} {
		got, err := DecodeEntry(c.e)
		require.NoError(t, err, name)
		require.Equal(t, c.want, got, name)
		require.Equal(t, c.want.Timestamp, stampOf(c.e), name)
	}
	for name, e := range map[string]*raftpb.Entry{
		"short":               normal([]byte{0x11, 0, 0}),
		"version":             normal(append([]byte{0x21}, make([]byte, 8)...)),
		"no kind":             normal(append([]byte{0x10}, make([]byte, 8)...)),
		"unknown kind":        normal(append([]byte{0x1f}, make([]byte, 8)...)),
		"config in a write":   normal(EncodePayload(KindConfig, ts, nil)),
		"write in a config":   config(&raftpb.ConfChangeV2{Context: EncodePayload(KindWrite, ts, nil)}),
		"broken config":       {Type: raftpb.EntryConfChangeV2.Enum(), Data: []byte{0xff}},
		"short in a config":   config(&raftpb.ConfChangeV2{Context: []byte{0x13}}),
		"one-by-one config":   {Type: raftpb.EntryConfChange.Enum()},
		"type from elsewhere": {Type: raftpb.EntryType(9).Enum()},
	} {
		_, err := DecodeEntry(e)
		require.Error(t, err, name)
		require.Zero(t, stampOf(e), name)
	}
	require.Equal(t, "write noop config alter none kind-9", KindWrite.String()+" "+KindNoop.String()+" "+
		KindConfig.String()+" "+KindAlter.String()+" "+KindNone.String()+" "+Kind(9).String())
}

// TestNewerVersion shows that a record of a newer version is told from damage, wherever it stands: such a file is refused
// and left alone.
func TestNewerVersion(t *testing.T) {
	for _, in := range []string{"e", "g", "s", "m", "t"} {
		s := NewMem()
		commit(t, s, func(x *Batch) {
			x.CreateGroup(1, tabletA, nil, ident.OpID{})
			x.Append(1, run(1, 1, 1, 1, 10))
			x.SetMeta("a", []byte("b"))
		})
		s.Corrupt(func(bucket string, k, v []byte) []byte {
			if bucket == in {
				v[0] = 2
				seal(bucketID(bucket[0]), k, v)
			}
			return v
		})
		_, err := s.Reopen()
		require.ErrorIs(t, err, ErrVersion, in)
		require.NotErrorIs(t, err, ErrDamaged, in)
	}
}

func FuzzDecodeEntry(f *testing.F) {
	f.Add(int32(0), EncodePayload(KindWrite, 77, []byte("rows")))
	f.Add(int32(0), []byte{})
	cc, _ := proto.Marshal(&raftpb.ConfChangeV2{Context: EncodePayload(KindConfig, 77, []byte("c"))})
	f.Add(int32(2), cc)
	f.Fuzz(func(t *testing.T, typ int32, data []byte) {
		e := &raftpb.Entry{Type: raftpb.EntryType(typ).Enum(), Data: data}
		info, err := DecodeEntry(e)
		if err != nil || info.Kind == KindNone || info.Kind == KindConfig {
			return
		}
		if again := EncodePayload(info.Kind, info.Timestamp, info.Payload); !bytes.Equal(again, data) {
			t.Fatalf("%x became %x", data, again)
		}
	})
}

func FuzzDecodeEntryRecord(f *testing.F) {
	for _, r := range []entryRecord{
		{kind: recordEntry, number: 3, term: 2, index: 9, size: 4, data: []byte("data")},
		{kind: recordPiece, number: 3, term: 2, index: 9, piece: 2, data: []byte("more")},
		{kind: recordCut, number: 3, index: 8},
	} {
		key := entryKey(nil, 77, r.number)
		value := appendEntryRecord(nil, &r)
		f.Add(key, value)
	}
	f.Fuzz(func(t *testing.T, key, value []byte) {
		// A record from outside never has the right CRC: give it one, so that what lies behind is reached.
		if len(value) >= recordHead {
			seal(bucketEntries, key, value)
		}
		r, err := decodeEntryRecord(key, value)
		if err != nil {
			return
		}
		again := appendEntryRecord(nil, &r)
		seal(bucketEntries, key, again)
		r2, err := decodeEntryRecord(key, again)
		if err != nil || !bytes.Equal(r2.data, r.data) || r2.index != r.index || r2.size != r.size || r2.kind != r.kind {
			t.Fatalf("%+v became %+v, %v", r, r2, err)
		}
	})
}

func FuzzDecodeSmallRecords(f *testing.F) {
	n := ident.LocalNumber(7)
	f.Add(numberKey(n), encodeGroup(n, tabletA, []byte("record")))
	f.Add(numberKey(n), encodeState(n, groupState{hardState{1, 2, 3}, ident.OpID{Term: 1, Index: 2}}))
	f.Add([]byte("clock"), encodeMeta("clock", []byte("mark")))
	f.Add(tallyKey, (&tally{commit: 1, nextSeq: 2, last: 3, records: 4, sum: 5}).encode())
	f.Add(formatKey, encodeFormat())
	f.Fuzz(func(t *testing.T, key, value []byte) {
		for _, b := range allBuckets {
			k := key
			if b == bucketTally {
				k = tallyKey
			}
			if len(value) >= recordHead {
				seal(b, k, value)
			}
			switch b {
			case bucketGroups:
				if tablet, record, err := decodeGroup(key, value); err == nil && len(key) == 8 {
					num, _ := decodeNumberKey(key)
					if tb, rec, err := decodeGroup(key, encodeGroup(num, tablet, record)); err != nil || tb != tablet || !bytes.Equal(rec, record) {
						t.Fatalf("group: %q %q, %v", tb, rec, err)
					}
				}
			case bucketStates:
				if s, err := decodeState(key, value); err == nil && len(key) == 8 {
					num, _ := decodeNumberKey(key)
					if again, err := decodeState(key, encodeState(num, s)); err != nil || again != s {
						t.Fatalf("state: %+v, %v", again, err)
					}
				}
			case bucketMeta:
				if v, err := decodeMeta(key, value); err == nil && len(value) != recordHead+len(v) {
					t.Fatalf("value: %q of %x", v, value)
				}
			case bucketTally:
				if x, err := decodeTally(value); err == nil {
					if again, err := decodeTally(x.encode()); err != nil || again != x {
						t.Fatalf("tally: %+v, %v", again, err)
					}
				}
				_ = checkFormat(value)
			case bucketEntries: // has a target of its own
			}
		}
	})
}

// FuzzOpenPages reads arbitrary bytes as a bbolt file. The meta pages' checksums are put right first, so that the tree
// behind them is reached.
func FuzzOpenPages(f *testing.F) {
	path := filepath.Join(f.TempDir(), FileName)
	s := mustOpen(f, smallConfig(path))
	commit(f, s, func(x *Batch) {
		x.CreateGroup(1, tabletA, []byte("record"), ident.OpID{})
		x.Append(1, run(1, 1, 1, 60, 100))
	})
	if err := s.Close(); err != nil {
		f.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(content[:image{bytes: content}.used()])
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, at := range []int{pageHeaderSize, testPage + pageHeaderSize} {
			if len(b) >= at+metaSize {
				sealMeta(b[at : at+metaSize])
			}
		}
		met, _ := newMetrics(nil, nil)
		c := newCore("fuzz", discard, met, 0)
		c.boot = "the next"
		r, p, _, err := readNewest(c, bytesFile(b))
		if err != nil {
			return
		}
		r.install()
		c = r.core
		c.backend = &pageBackend{pages: p}
		_ = c.Dump(t.Context(), "", func(DumpEntry) error { return nil })
	})
}

var discard = slog.New(slog.DiscardHandler)
