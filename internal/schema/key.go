package schema

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/nyaladb/nyala/internal/invariant"
	"github.com/nyaladb/nyala/internal/status"
)

// EncodeKey appends the encoded primary key of a row to dst: docs/format/keys.md. Keys compare bytewise as their values do,
// column by column. cell returns the value bytes of key column i; they are read before cell is called again.
func (s *Schema) EncodeKey(dst []byte, cell func(i int) []byte) []byte {
	last := s.numKey - 1
	for i := range s.numKey {
		dst = appendKeyCell(dst, s.columns[i].Type, cell(i), i == last)
	}
	return dst
}

// EncodeKeyPrefix returns the least encoded primary key that begins with the given value bytes of the first key columns.
func (s *Schema) EncodeKeyPrefix(cells [][]byte) []byte {
	return s.EncodeKey(nil, func(i int) []byte {
		if i < len(cells) {
			return cells[i]
		}
		return s.columns[i].Type.minimum()
	})
}

// KeyOfOp appends the encoded primary key of a row operation to dst. The operation must have no RowError.
func (s *Schema) KeyOfOp(dst []byte, op *DecodedOp) []byte {
	last := s.numKey - 1
	for i := range s.numKey {
		dst = appendKeyCell(dst, s.columns[i].Type, op.cells[i], i == last)
	}
	return dst
}

// CellsOf returns a function that EncodeKey and PartitionKey take, for a row of values that are known to suit their columns.
// The values are one for each column of the schema, of which those the key or the partition doesn't use may be anything. A
// value that doesn't suit is an error of the caller's and panics; AppendValueBytes tells beforehand.
func (s *Schema) CellsOf(values []Value) func(i int) []byte {
	var buf []byte
	return func(i int) []byte {
		c := &s.columns[i]
		if c.Type.VarLen() && values[i].kind == kindBytes {
			return values[i].bytes
		}
		var err error
		if buf, err = c.AppendValueBytes(buf[:0], values[i]); err != nil {
			invariant.Check(false, "key of values that don't suit their columns: %v", err)
		}
		return buf
	}
}

// appendKeyCell appends one component of a key. Last says that nothing follows in the list that is being encoded.
func appendKeyCell(dst []byte, t Type, cell []byte, last bool) []byte {
	switch t.class() {
	case classInt:
		return appendKeyInt(dst, cell)
	case classInt128:
		dst = binary.BigEndian.AppendUint64(dst, binary.LittleEndian.Uint64(cell[8:])^1<<63)
		return binary.BigEndian.AppendUint64(dst, binary.LittleEndian.Uint64(cell))
	case classBytes:
		if last {
			return append(dst, cell...)
		}
		return appendKeyBytes(dst, cell)
	case classNone, classBool, classFloat:
	}
	invariant.Check(false, "I1: a column of type %v in a key", t)
	return dst
}

// appendKeyInt appends a little-endian signed integer as a big-endian one with its top bit flipped.
func appendKeyInt(dst, cell []byte) []byte {
	switch len(cell) {
	case 1:
		return append(dst, cell[0]^0x80)
	case 2:
		return binary.BigEndian.AppendUint16(dst, binary.LittleEndian.Uint16(cell)^1<<15)
	case 4:
		return binary.BigEndian.AppendUint32(dst, binary.LittleEndian.Uint32(cell)^1<<31)
	default:
		return binary.BigEndian.AppendUint64(dst, binary.LittleEndian.Uint64(cell)^1<<63)
	}
}

// appendKeyBytes appends a value of variable length that something follows: 00 becomes 00 01, and 00 00 ends it.
func appendKeyBytes(dst, cell []byte) []byte {
	for {
		i := bytes.IndexByte(cell, 0)
		if i < 0 {
			dst = append(dst, cell...)
			return append(dst, 0, 0)
		}
		dst = append(dst, cell[:i]...)
		dst = append(dst, 0, 1)
		cell = cell[i+1:]
	}
}

// encodedKeySize is the length of the key that EncodeKey makes from the cells.
func (s *Schema) encodedKeySize(cells [][]byte) int {
	n := s.fixedKeySize
	for _, i := range s.varKeys {
		n += len(cells[i])
		if i < s.numKey-1 {
			n += bytes.Count(cells[i], []byte{0})
		}
	}
	return n
}

// DecodeKey appends the values of an encoded primary key's columns to dst and returns it. A value of variable length shares
// the key's memory unless it was escaped. A key that EncodeKey can't have made is a Corruption; dst then comes back as it was.
func (s *Schema) DecodeKey(dst []Value, key []byte) ([]Value, error) {
	out, rest := dst, key
	var err error
	for i := range s.numKey {
		if out, rest, err = s.columns[i].decodeKeyCell(out, rest, i == s.numKey-1); err != nil {
			return dst, err
		}
	}
	if len(rest) > 0 {
		return dst, status.New(status.Corruption, "encoded key of %d bytes: %d bytes follow its last column", len(key), len(rest))
	}
	return out, nil
}

// decodeKeyCell appends the value of one component of a key to dst and returns what follows it. Last says that nothing may.
func (c *Column) decodeKeyCell(dst []Value, key []byte, last bool) (out []Value, rest []byte, err error) {
	size, varLen := c.Type.Size(), c.Type.VarLen()
	switch {
	case !varLen && len(key) < size:
		return dst, nil, c.fault(status.Corruption, "the encoded key has %d bytes left for it, want %d", len(key), size)
	case c.Type == Decimal128:
		v := int128{hi: int64(binary.BigEndian.Uint64(key) ^ 1<<63), lo: binary.BigEndian.Uint64(key[8:])}
		return append(dst, BytesValue(v.append(nil))), key[size:], nil
	case !varLen:
		return append(dst, IntValue(keyInt(key[:size]))), key[size:], nil
	case last:
		return append(dst, BytesValue(key[:len(key):len(key)])), nil, nil
	}
	value, behind, err := c.decodeKeyBytes(key)
	if err != nil {
		return dst, nil, err
	}
	return append(dst, BytesValue(value)), behind, nil
}

func keyInt(b []byte) int64 {
	switch len(b) {
	case 1:
		return int64(int8(b[0] ^ 0x80))
	case 2:
		return int64(int16(binary.BigEndian.Uint16(b) ^ 1<<15))
	case 4:
		return int64(int32(binary.BigEndian.Uint32(b) ^ 1<<31))
	default:
		return int64(binary.BigEndian.Uint64(b) ^ 1<<63)
	}
}

// decodeKeyBytes reads a value up to its terminator and returns what follows.
func (c *Column) decodeKeyBytes(key []byte) (value, behind []byte, err error) {
	from := 0 // what lies before is in value, unescaped
	for pos := 0; ; {
		i := bytes.IndexByte(key[pos:], 0)
		if i < 0 || pos+i+1 == len(key) {
			return nil, nil, c.fault(status.Corruption, "the encoded key ends within its value")
		}
		zero := pos + i
		pos = zero + 2
		switch key[zero+1] {
		case 0:
			if value == nil {
				return key[:zero:zero], key[pos:], nil
			}
			return append(value, key[from:zero]...), key[pos:], nil
		case 1:
			value = append(slices.Grow(value, len(key)-from), key[from:zero+1]...)
			from = pos
		default:
			return nil, nil, c.fault(status.Corruption, "the encoded key holds the bytes 00 %02x within its value", key[zero+1])
		}
	}
}
