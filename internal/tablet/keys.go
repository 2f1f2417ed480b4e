package tablet

import (
	"encoding/binary"
	"errors"

	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
)

// The layout of keys is docs/format/store.md, "Keys". Every key is
//
//	replica number (8, big-endian)  record kind (1)  body  00  [suffix]
//
// The 00 ends the prefix, and the last byte of a whole key is the length of its suffix, itself counted: 00 where there is
// none, 09 for a row version. So a key can be split from its end whatever bytes the body holds.
const (
	// kindBoundary is in no stored key: it makes the first key of a number for bounds.
	kindBoundary = 0x00
	kindState    = 0x01
	kindReplica  = 0x02
	kindConfig   = 0x03
	kindSchema   = 0x04
	kindClient   = 0x05
	kindRequest  = 0x06
	// kindRow is the last, with room before it for records to come.
	kindRow = 0x80

	keyHeaderLen = 9
	prefixEnd    = 0x00
	// tsSuffixLen is the complement of a timestamp, 8 bytes, and the length byte.
	tsSuffixLen = 9
)

var errRowKey = errors.New("not the key of a row version")

func appendKeyHeader(dst []byte, n ident.LocalNumber, kind byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(n))
	return append(dst, kind)
}

// appendRecordKey appends the key of a record of which a replica has one.
func appendRecordKey(dst []byte, n ident.LocalNumber, kind byte) []byte {
	return append(appendKeyHeader(dst, n, kind), prefixEnd)
}

// appendSchemaKey appends the key of one version of a replica's schema.
func appendSchemaKey(dst []byte, n ident.LocalNumber, version uint32) []byte {
	dst = binary.BigEndian.AppendUint32(appendKeyHeader(dst, n, kindSchema), version)
	return append(dst, prefixEnd)
}

func appendClientKey(dst []byte, n ident.LocalNumber, id ClientID) []byte {
	dst = append(appendKeyHeader(dst, n, kindClient), id[:]...)
	return append(dst, prefixEnd)
}

func appendRequestKey(dst []byte, n ident.LocalNumber, id ClientID, seq uint64) []byte {
	dst = append(appendKeyHeader(dst, n, kindRequest), id[:]...)
	return append(binary.BigEndian.AppendUint64(dst, seq), prefixEnd)
}

// appendRowPrefix appends what all versions of a row begin with; as a key it sorts before them all.
func appendRowPrefix(dst []byte, n ident.LocalNumber, primaryKey []byte) []byte {
	dst = append(appendKeyHeader(dst, n, kindRow), primaryKey...)
	return append(dst, prefixEnd)
}

// appendRowKey appends the key of one version of a row. Later timestamps sort first.
func appendRowKey(dst []byte, n ident.LocalNumber, primaryKey []byte, ts hybridtime.Timestamp) []byte {
	return appendTimestamp(appendRowPrefix(dst, n, primaryKey), ts)
}

func appendTimestamp(dst []byte, ts hybridtime.Timestamp) []byte {
	return append(binary.BigEndian.AppendUint64(dst, ^uint64(ts)), tsSuffixLen)
}

// putRowKey fills dst, which has rowKeyLen(len(primaryKey)) bytes.
func putRowKey(dst []byte, n ident.LocalNumber, primaryKey []byte, ts hybridtime.Timestamp) {
	binary.BigEndian.PutUint64(dst, uint64(n))
	dst[8] = kindRow
	copy(dst[keyHeaderLen:], primaryKey)
	i := keyHeaderLen + len(primaryKey)
	dst[i] = prefixEnd
	binary.BigEndian.PutUint64(dst[i+1:], ^uint64(ts))
	dst[i+9] = tsSuffixLen
}

// rowKeyLen is the length of a row version's key, of the primary key's.
func rowKeyLen(primaryKey int) int { return keyHeaderLen + primaryKey + 1 + tsSuffixLen }

// rowBounds are the bounds of all of a replica's rows.
func rowBounds(n ident.LocalNumber) (lower, upper []byte) {
	return appendRecordKey(nil, n, kindRow), appendRecordKey(nil, n, kindRow+1)
}

// numberBounds are the bounds of all that a replica has in the store.
func numberBounds(n ident.LocalNumber) (lower, upper []byte) {
	return appendRecordKey(nil, n, kindBoundary), appendRecordKey(nil, n+1, kindBoundary)
}

// kindBounds are the bounds of all records of one kind.
func kindBounds(n ident.LocalNumber, kind byte) (lower, upper []byte) {
	return appendRecordKey(nil, n, kind), appendRecordKey(nil, n, kind+1)
}

// splitRowKey takes the key of a row version apart. The primary key stays the key's memory.
func splitRowKey(key []byte) (primaryKey []byte, ts hybridtime.Timestamp, ok bool) {
	i := len(key) - tsSuffixLen
	if i < keyHeaderLen+1 || key[len(key)-1] != tsSuffixLen || key[8] != kindRow || key[i-1] != prefixEnd {
		return nil, 0, false
	}
	return key[keyHeaderLen : i-1], hybridtime.Timestamp(^binary.BigEndian.Uint64(key[i:])), true
}

// splitKey takes the header off a key without suffix.
func splitKey(key []byte) (n ident.LocalNumber, kind byte, body []byte, ok bool) {
	if len(key) < keyHeaderLen+1 || key[len(key)-1] != prefixEnd {
		return 0, 0, nil, false
	}
	return ident.LocalNumber(binary.BigEndian.Uint64(key)), key[8], key[keyHeaderLen : len(key)-1], true
}
