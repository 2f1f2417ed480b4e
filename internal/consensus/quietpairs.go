package consensus

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"github.com/nyaladb/nyala/internal/ident"
)

// QuietPairs are the sums that go with beats: for each other server the groups that are led here in quiet with a follower there,
// and those that are followed here in quiet with the leader there. The Cores of a server share one and keep it up to date with
// each group that goes quiet or wakes, so that a beat costs the same whatever the number of groups. It is safe for concurrent use.
type QuietPairs struct {
	mu    sync.Mutex
	pairs map[ident.ServerID]*quietPair
}

// quietPair is what two servers share.
type quietPair struct{ leads, follows pairSum }

// pairSum may be read while it changes: then count and hash don't fit, which looks like a handshake under way.
type pairSum struct{ count, hash, changes atomic.Uint64 }

// NewQuietPairs returns one without groups.
func NewQuietPairs() *QuietPairs {
	return &QuietPairs{pairs: make(map[ident.ServerID]*quietPair)}
}

func (q *QuietPairs) pair(id ident.ServerID) *quietPair {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.pairs[id]
	if p == nil {
		p = &quietPair{}
		q.pairs[id] = p
	}
	return p
}

// Leads is the sum of the groups that are led here in quiet with a follower on the given server.
func (q *QuietPairs) Leads(id ident.ServerID) QuietSum { return q.pair(id).leads.sum() }

// Follows is the sum of the groups that are followed here in quiet with the leader on the given server.
func (q *QuietPairs) Follows(id ident.ServerID) QuietSum { return q.pair(id).follows.sum() }

func (s *pairSum) sum() QuietSum {
	return QuietSum{Count: s.count.Load(), Hash: s.hash.Load(), Changes: s.changes.Load()}
}

func (s *pairSum) add(hash uint64) {
	s.count.Add(1)
	s.hash.Add(hash)
	s.changes.Add(1)
}

func (s *pairSum) remove(hash uint64) {
	s.count.Add(^uint64(0))
	s.hash.Add(-hash)
	s.changes.Add(1)
}

// heldPair is a group's part in a sum, which it takes back when it wakes.
type heldPair struct {
	sum    *pairSum
	hash   uint64
	server ident.ServerID
}

// quietHash is a group's share of a sum: both ends compute it alike. Sums are of 64 bits and commutative, so they differ for
// different sets but for one chance in 2^64; a difference that doesn't show only leaves a group asleep until somebody needs it.
func quietHash(tablet [16]byte, term ident.Term, leader, follower ident.ReplicaID) uint64 {
	h := mix(binary.LittleEndian.Uint64(tablet[:8]))
	h = mix(h ^ binary.LittleEndian.Uint64(tablet[8:]))
	h = mix(h ^ uint64(term))
	h = mix(h ^ uint64(leader))
	return mix(h ^ uint64(follower))
}

// mix spreads a number's bits over all 64 (the finalizer of splitmix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
