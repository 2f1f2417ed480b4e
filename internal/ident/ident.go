package ident

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
)

// TableID, TabletID, ServerID and ClusterID are 32 lower-case hexadecimal digits, 16 random bytes.
type (
	TableID   string
	TabletID  string
	ServerID  string
	ClusterID string
)

// CatalogTablet is the tablet that holds the masters' catalog: 32 zeros, as Kudu's.
const CatalogTablet TabletID = "00000000000000000000000000000000"

// ReplicaID names a replica within its tablet, from 1 on. It is never used again, not even after the replica is gone.
type ReplicaID uint64

// LocalNumber names a replica within its server, from 1 on: given once at the replica's creation, never again. Keys in
// the WAL and in the store begin with it.
type LocalNumber uint64

// Term is a Raft term.
type Term uint64

// Index is a position in a tablet's log, from 1 on.
type Index uint64

// OpID names a log entry: the term in which a leader made it, and its index.
type OpID struct {
	Term  Term
	Index Index
}

// String is term.index.
func (o OpID) String() string { return fmt.Sprintf("%d.%d", o.Term, o.Index) }

// New returns 32 random hexadecimal digits.
func New() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// Bytes returns the 16 bytes that 32 hexadecimal digits stand for.
func Bytes(id string) ([16]byte, error) {
	var b [16]byte
	if len(id) != 32 {
		return b, fmt.Errorf("id %q: want 32 hexadecimal digits, have %d characters", id, len(id))
	}
	if _, err := hex.Decode(b[:], []byte(id)); err != nil {
		return b, fmt.Errorf("id %q: %w", id, err)
	}
	return b, nil
}

// FromBytes is the reverse of Bytes.
func FromBytes(b [16]byte) string { return hex.EncodeToString(b[:]) }
