package clock

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/nyaladb/nyala/internal/hybridtime"
)

// A mark is a durable floor: no timestamp at or below it is handed out again, or promised anew, after a restart. The
// format is in docs/clock.md; multi-byte numbers are little-endian.
//
//	byte  0     version, 1
//	byte  1     kind: 1 clock mark, 2 promise mark
//	bytes 2-9   timestamp
//	bytes 10-25 boot id of the kernel that it was written under, zero if unknown
//	bytes 26-33 CLOCK_BOOTTIME at the writing, nanoseconds
//	bytes 34-41 the time at the writing, nanoseconds since the epoch: the wall clock less its displacement
//	bytes 42-49 the displacement, nanoseconds: the steps that the threshold had let pass since the wall clock was last
//	            shown right. A restart forgives none of them
//	bytes 50-53 CRC-32C of bytes 0-49
const (
	markVersion = 1
	markSize    = 54
)

type markKind uint8

const (
	clockMark   markKind = 1
	promiseMark markKind = 2
)

func (k markKind) String() string {
	switch k {
	case clockMark:
		return "clock mark"
	case promiseMark:
		return "promise mark"
	}
	return fmt.Sprintf("mark of kind %d", uint8(k))
}

// Mark is a decoded mark, for those who show one.
type Mark struct {
	Kind      string
	Timestamp hybridtime.Timestamp
	BootID    [16]byte
	Boot      time.Duration // CLOCK_BOOTTIME at the writing
	Wall      time.Time     // the time at the writing: the wall clock less its displacement
	Displaced time.Duration
}

type mark struct {
	kind      markKind
	ts        hybridtime.Timestamp
	bootID    [16]byte
	boot      int64
	wall      int64
	displaced int64
}

var crcTable = crc32.MakeTable(crc32.Castagnoli)

func (m *mark) encode() []byte {
	b := make([]byte, markSize)
	b[0], b[1] = markVersion, byte(m.kind)
	binary.LittleEndian.PutUint64(b[2:], uint64(m.ts))
	copy(b[10:], m.bootID[:])
	binary.LittleEndian.PutUint64(b[26:], uint64(m.boot))
	binary.LittleEndian.PutUint64(b[34:], uint64(m.wall))
	binary.LittleEndian.PutUint64(b[42:], uint64(m.displaced))
	binary.LittleEndian.PutUint32(b[50:], crc32.Checksum(b[:50], crcTable))
	return b
}

func decodeMark(b []byte) (mark, error) {
	if len(b) != markSize {
		return mark{}, fmt.Errorf("mark has %d bytes, want %d", len(b), markSize)
	}
	if have, want := crc32.Checksum(b[:50], crcTable), binary.LittleEndian.Uint32(b[50:]); have != want {
		return mark{}, fmt.Errorf("mark is damaged: CRC %#08x, want %#08x", have, want)
	}
	if b[0] != markVersion {
		return mark{}, fmt.Errorf("mark has version %d, this program knows %d: start the version that wrote it", b[0], markVersion)
	}
	m := mark{
		kind:   markKind(b[1]),
		ts:     hybridtime.Timestamp(binary.LittleEndian.Uint64(b[2:])),
		bootID: [16]byte(b[10:26]),
		boot:   int64(binary.LittleEndian.Uint64(b[26:])),
		wall:   int64(binary.LittleEndian.Uint64(b[34:])),

		displaced: int64(binary.LittleEndian.Uint64(b[42:])),
	}
	if m.kind != clockMark && m.kind != promiseMark {
		return mark{}, fmt.Errorf("mark is of unknown kind %d", b[1])
	}
	return m, nil
}

// DecodeMark takes a mark of either kind apart.
func DecodeMark(b []byte) (Mark, error) {
	m, err := decodeMark(b)
	if err != nil {
		return Mark{}, err
	}
	return Mark{
		Kind: m.kind.String(), Timestamp: m.ts, BootID: m.bootID,
		Boot: time.Duration(m.boot), Wall: time.Unix(0, m.wall).UTC(), Displaced: time.Duration(m.displaced),
	}, nil
}
