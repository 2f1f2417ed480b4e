package client

import (
	"encoding/binary"
	"errors"
)

// errFlatBuffer says that offsets of a FlatBuffer lead out of it.
var errFlatBuffer = errors.New("its metadata is damaged")

// flatTable is a table of a FlatBuffer that came over the wire. Every access is checked; the first that fails makes bad true
// and gives zero, so that a run of reads needs one check at its end. A field that isn't there is zero, too, and not bad.
type flatTable struct {
	buf []byte
	pos uint32
	bad *bool
}

// flatRoot returns the root table.
func flatRoot(buf []byte) flatTable {
	t := flatTable{buf: buf, bad: new(bool)}
	t.pos = t.follow(0)
	return t
}

func (t flatTable) err() error {
	if *t.bad {
		return errFlatBuffer
	}
	return nil
}

// bytes returns n bytes at an offset, nil if they aren't all there.
func (t flatTable) bytes(at, n uint32) []byte {
	if *t.bad || uint64(at)+uint64(n) > uint64(len(t.buf)) {
		*t.bad = true
		return nil
	}
	return t.buf[at : at+n]
}

func (t flatTable) uint16(at uint32) uint16 {
	if b := t.bytes(at, 2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

func (t flatTable) uint32(at uint32) uint32 {
	if b := t.bytes(at, 4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (t flatTable) uint64(at uint32) uint64 {
	if b := t.bytes(at, 8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// follow returns where the reference at an offset points.
func (t flatTable) follow(at uint32) uint32 {
	target := uint64(at) + uint64(t.uint32(at))
	if target > uint64(len(t.buf)) {
		*t.bad = true
		return 0
	}
	return uint32(target)
}

// field returns where field i of the table lies, 0 if it is absent.
func (t flatTable) field(i uint32) uint32 {
	vtable := int64(t.pos) - int64(int32(t.uint32(t.pos)))
	if *t.bad || vtable < 0 || vtable > int64(len(t.buf)) {
		*t.bad = true
		return 0
	}
	entry := 4 + 2*i
	if entry+2 > uint32(t.uint16(uint32(vtable))) {
		return 0
	}
	if offset := t.uint16(uint32(vtable) + entry); offset != 0 {
		return t.pos + uint32(offset)
	}
	return 0
}

func (t flatTable) fieldUint8(i uint32) uint8 {
	if at := t.field(i); at != 0 {
		if b := t.bytes(at, 1); b != nil {
			return b[0]
		}
	}
	return 0
}

func (t flatTable) fieldInt16(i uint32) int16 {
	if at := t.field(i); at != 0 {
		return int16(t.uint16(at))
	}
	return 0
}

func (t flatTable) fieldInt32(i uint32) int32 {
	if at := t.field(i); at != 0 {
		return int32(t.uint32(at))
	}
	return 0
}

func (t flatTable) fieldInt64(i uint32) int64 {
	if at := t.field(i); at != 0 {
		return int64(t.uint64(at))
	}
	return 0
}

// fieldTable returns the table that field i refers to, false if there is none.
func (t flatTable) fieldTable(i uint32) (flatTable, bool) {
	at := t.field(i)
	if at == 0 {
		return flatTable{}, false
	}
	sub := t
	sub.pos = t.follow(at)
	return sub, !*t.bad
}

// fieldVector returns where the elements of field i's vector begin, and how many of the given size there are.
func (t flatTable) fieldVector(i, size uint32) (at, n uint32) {
	ref := t.field(i)
	if ref == 0 {
		return 0, 0
	}
	start := t.follow(ref)
	n = t.uint32(start)
	if *t.bad || uint64(start)+4+uint64(n)*uint64(size) > uint64(len(t.buf)) {
		*t.bad = true
		return 0, 0
	}
	return start + 4, n
}

// fieldString returns field i as a string.
func (t flatTable) fieldString(i uint32) string {
	at, n := t.fieldVector(i, 1)
	return string(t.bytes(at, n))
}
