package wal

import (
	"encoding/binary"
	"fmt"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/nyaladb/nyala/internal/hybridtime"
)

// Kind says what a log entry carries. The numbers stand on disk and on the wire: never change one.
type Kind uint8

const (
	// KindNone is raft's own empty entry at the start of a term: no envelope, no timestamp.
	KindNone Kind = 0
	// KindWrite is a write of rows.
	KindWrite Kind = 1
	// KindNoop is stamped and empty.
	KindNoop Kind = 2
	// KindConfig is a membership change; its envelope rides in ConfChangeV2.Context.
	KindConfig Kind = 3
	// KindAlter is a schema change.
	KindAlter Kind = 4

	lastKind = KindAlter
)

// String is the kind's name in dumps.
func (k Kind) String() string {
	switch k {
	case KindNone:
		return "none"
	case KindWrite:
		return "write"
	case KindNoop:
		return "noop"
	case KindConfig:
		return "config"
	case KindAlter:
		return "alter"
	}
	return fmt.Sprintf("kind-%d", uint8(k))
}

// The envelope: one byte with the version in its high half and the kind in its low half, the timestamp as eight bytes,
// little-endian, then the payload. docs/format/wal.md has the drawing.
const (
	envelopeVersion = 1
	envelopeSize    = 9
)

// EncodePayload returns the data of a log entry: the envelope around payload, which is copied. For KindConfig the result
// goes into ConfChangeV2.Context.
func EncodePayload(kind Kind, ts hybridtime.Timestamp, payload []byte) []byte {
	b := make([]byte, envelopeSize, envelopeSize+len(payload))
	b[0] = envelopeVersion<<4 | byte(kind)
	binary.LittleEndian.PutUint64(b[1:], uint64(ts))
	return append(b, payload...)
}

// EntryInfo is what an entry carries.
type EntryInfo struct {
	Kind      Kind
	Timestamp hybridtime.Timestamp // 0 where the entry has none (KindNone, a config change that raft made by itself)
	Payload   []byte               // shares the entry's memory, except in a config change
}

// DecodeEntry takes an entry of any type apart. An error means that no release of this program wrote the entry, or that
// a newer one did.
func DecodeEntry(e *raftpb.Entry) (EntryInfo, error) {
	data := e.GetData()
	switch t := e.GetType(); t {
	case raftpb.EntryNormal:
		if len(data) == 0 {
			return EntryInfo{Kind: KindNone}, nil
		}
		info, err := decodeEnvelope(data)
		if err == nil && info.Kind == KindConfig {
			err = fmt.Errorf("a config change in an entry of type %v", t)
		}
		return info, err
	case raftpb.EntryConfChangeV2:
		var cc raftpb.ConfChangeV2
		if err := proto.Unmarshal(data, &cc); err != nil {
			return EntryInfo{}, fmt.Errorf("config change: %w", err)
		}
		if len(cc.GetContext()) == 0 {
			return EntryInfo{Kind: KindConfig}, nil
		}
		info, err := decodeEnvelope(cc.GetContext())
		if err == nil && info.Kind != KindConfig {
			err = fmt.Errorf("kind %v in the context of a config change", info.Kind)
		}
		return info, err
	default:
		return EntryInfo{}, fmt.Errorf("entry type %v: only normal entries and ConfChangeV2 are written", t)
	}
}

func decodeEnvelope(b []byte) (EntryInfo, error) {
	if len(b) < envelopeSize {
		return EntryInfo{}, fmt.Errorf("envelope of %d bytes: want at least %d", len(b), envelopeSize)
	}
	if v := b[0] >> 4; v != envelopeVersion {
		return EntryInfo{}, fmt.Errorf("envelope version %d: this release knows %d", v, envelopeVersion)
	}
	kind := Kind(b[0] & 0xf)
	if kind == KindNone || kind > lastKind {
		return EntryInfo{}, fmt.Errorf("unknown kind %d in an envelope", uint8(kind))
	}
	return EntryInfo{
		Kind:      kind,
		Timestamp: hybridtime.Timestamp(binary.LittleEndian.Uint64(b[1:])),
		Payload:   b[envelopeSize:],
	}, nil
}

// stampOf returns an entry's timestamp, 0 where it has none or can't be read: what the log makes of such an entry is for
// those to say who apply it.
func stampOf(e *raftpb.Entry) hybridtime.Timestamp {
	info, err := DecodeEntry(e)
	if err != nil {
		return 0
	}
	return info.Timestamp
}
