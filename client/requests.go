package client

import (
	"crypto/rand"
	"sync"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
)

// requests hands out the numbers under which servers know this client's writes, so that one sent twice is applied once.
//
// A number is complete once nobody waits for its answer any more, be it that the answer came or that the caller gave up.
// Servers forget, and from then on refuse, what lies below the lowest incomplete number.
type requests struct {
	clientID [16]byte

	mu        sync.Mutex
	next      uint64
	lowest    uint64              // the lowest incomplete number; next when there is none
	completed map[uint64]struct{} // complete numbers above lowest
}

func newRequests() *requests {
	r := &requests{next: 1, lowest: 1, completed: make(map[uint64]struct{})}
	rand.Read(r.clientID[:])
	return r
}

// begin gives out the next number. Whoever takes it calls complete once.
func (r *requests) begin() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next++
	return r.next - 1
}

// id is the request id of number seq as of now. Each try takes a new one: first_incomplete may have moved on.
func (r *requests) id(seq uint64) *nyalav1.RequestId {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &nyalav1.RequestId{ClientId: r.clientID[:], SeqNo: seq, FirstIncompleteSeqNo: r.lowest}
}

// complete says that seq's answer is no longer waited for.
func (r *requests) complete(seq uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.completed[seq] = struct{}{}
	for {
		if _, ok := r.completed[r.lowest]; !ok {
			return
		}
		delete(r.completed, r.lowest)
		r.lowest++
	}
}
