package tablet

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// comparerName stands in the store's files: another name is another order, and a store under one can't be opened with the
// other.
const comparerName = "nyala.tablet.v1"

// comparer orders keys by prefix, bytewise, then by suffix, bytewise, none first: docs/format/store.md. Since the
// suffix is the complement of the timestamp, the latest version of a row is the first.
//
// Bytewise order of prefixes is the order of their bodies although each ends in 00: where one body isn't the beginning of
// the other they differ in a byte of both; where it is, the shorter one's 00 meets a byte of the longer that is larger, or
// a 00, and then the shorter prefix is the beginning of the longer one.
var comparer = &pebble.Comparer{
	Name:                 comparerName,
	Split:                splitPrefix,
	Compare:              compareKeys,
	Equal:                bytes.Equal,
	ComparePointSuffixes: bytes.Compare,
	CompareRangeSuffixes: bytes.Compare,
	AbbreviatedKey:       abbreviateKey,
	Separator:            appendSeparator,
	Successor:            appendSuccessor,
	ImmediateSuccessor:   func(dst, a []byte) []byte { return append(append(dst, a...), prefixEnd) },
	FormatKey:            func(key []byte) fmt.Formatter { return keyFormatter(key) },
}

// splitPrefix returns the length of the prefix. It never looks further than the key's end, whatever bytes it is given.
func splitPrefix(key []byte) int {
	if n := len(key); n >= tsSuffixLen && key[n-1] == tsSuffixLen {
		return n - tsSuffixLen
	}
	return len(key)
}

func compareKeys(a, b []byte) int {
	// All but the last bytes of a key are its prefix's, whether it has a suffix or not. Most keys differ there.
	if n := min(len(a), len(b)) - tsSuffixLen; n > 0 {
		if c := bytes.Compare(a[:n], b[:n]); c != 0 {
			return c
		}
	}
	an, bn := splitPrefix(a), splitPrefix(b)
	if c := bytes.Compare(a[:an], b[:bn]); c != 0 {
		return c
	}
	return bytes.Compare(a[an:], b[bn:])
}

func abbreviateKey(key []byte) uint64 {
	key = key[:splitPrefix(key)]
	if len(key) >= 8 {
		return binary.BigEndian.Uint64(key)
	}
	var b [8]byte
	copy(b[:], key)
	return binary.BigEndian.Uint64(b[:])
}

// appendSeparator appends a key k with a <= k < b, shorter than a where that is easy: the common beginning of the two
// prefixes and one byte more.
func appendSeparator(dst, a, b []byte) []byte {
	ap, bp := a[:splitPrefix(a)], b[:splitPrefix(b)]
	i, n := 0, min(len(ap), len(bp))
	for i < n && ap[i] == bp[i] {
		i++
	}
	// Without a byte in which both differ, or between two neighbouring values, a itself is short enough.
	if i == n || ap[i]+1 >= bp[i] || i+2 >= len(a) {
		return append(dst, a...)
	}
	dst = append(dst, ap[:i]...)
	return append(dst, ap[i]+1, prefixEnd)
}

// appendSuccessor appends a key that is at least a.
func appendSuccessor(dst, a []byte) []byte {
	ap := a[:splitPrefix(a)]
	for i, c := range ap {
		if c != 0xff && i+2 < len(a) {
			return append(append(dst, ap[:i]...), c+1, prefixEnd)
		}
	}
	return append(dst, a...)
}

// keyFormatter prints a key for Pebble's own messages: 7/row/8000000a@2013-01-01T00:00:00.000000Z.
type keyFormatter []byte

// Format implements fmt.Formatter.
func (k keyFormatter) Format(s fmt.State, _ rune) {
	if pk, ts, ok := splitRowKey(k); ok {
		fmt.Fprintf(s, "%d/row/%x@%s", binary.BigEndian.Uint64(k), pk, ts)
		return
	}
	if n, kind, body, ok := splitKey(k); ok {
		fmt.Fprintf(s, "%d/%02x/%x", n, kind, body)
		return
	}
	fmt.Fprintf(s, "%x", []byte(k))
}
