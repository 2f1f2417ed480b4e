package tablet

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/nyaladb/nyala/internal/ident"
)

// What a copy of a tablet carries is pairs of keys and values as they stand in the store (docs/format/copy.md):
//
//	uvarint  length of the key
//	uvarint  length of the value
//	         the key, without the replica number that it begins with in the store
//	         the value
//
// State, replica and config aren't among them: the copy's receiver writes its own, of what it is told beside the pairs.

// keyNumberLen is how many bytes of a key in the store name the replica.
const keyNumberLen = 8

// maxCopyKey bounds a key in a copy: a row version with the longest primary key, well rounded up.
const maxCopyKey = 32 << 10

var errPairCut = errors.New("pair: it is cut off, or its lengths are wrong")

func appendPair(dst, key, value []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(key)))
	dst = binary.AppendUvarint(dst, uint64(len(value)))
	return append(append(dst, key...), value...)
}

// cutPair takes the first pair off b. Key and value stay b's memory.
func cutPair(b []byte) (key, value, rest []byte, err error) {
	k, n := binary.Uvarint(b)
	if n <= 0 || k > maxCopyKey {
		return nil, nil, nil, errPairCut
	}
	b = b[n:]
	v, n := binary.Uvarint(b)
	if n <= 0 {
		return nil, nil, nil, errPairCut
	}
	b = b[n:]
	if k > uint64(len(b)) || v > uint64(len(b))-k {
		return nil, nil, nil, errPairCut
	}
	return b[:k:k], b[k : k+v : k+v], b[k+v:], nil
}

// checkPair says why a pair, with its key as it is to stand in the store, can't be part of a copy. What it lets through is
// a record or a row version of a kind that this program knows, in a form that it can read.
func checkPair(key, value []byte) error {
	if len(key) < keyHeaderLen+1 {
		return fmt.Errorf("a key of %d bytes", len(key))
	}
	if key[8] == kindRow {
		if _, _, ok := splitRowKey(key); !ok {
			return errRowKey
		}
		return checkVersion(value)
	}
	_, kind, body, ok := splitKey(key)
	if !ok {
		return errors.New("a key without its end")
	}
	var err error
	var want int
	switch kind {
	case kindSchema:
		_, err = recordBody(value, "schema")
		want = 4
	case kindClient:
		_, err = decodeClient(value)
		want = len(ClientID{})
	case kindRequest:
		_, _, err = decodeRequest(value)
		want = len(ClientID{}) + 8
	default:
		return fmt.Errorf("records of kind %d aren't known to this program or no part of a copy: use the same version on both servers", kind)
	}
	if err == nil && len(body) != want {
		err = fmt.Errorf("record of kind %d: its key has %d bytes, want %d", kind, len(body), want)
	}
	return err
}

// checkVersion reads a row version to its end.
func checkVersion(v []byte) error {
	_, cells, err := parseVersion(v)
	r := cellReader{buf: cells}
	for more := err == nil; more; {
		more, err = r.more()
	}
	return err
}

// storeKey puts the replica's number before a key of a copy.
func storeKey(dst []byte, n ident.LocalNumber, key []byte) []byte {
	return append(binary.BigEndian.AppendUint64(dst, uint64(n)), key...)
}
