package tablet

import (
	"math/bits"
	"sync"

	"github.com/nyaladb/nyala/internal/ident"
)

// recentKeys remembers, for one tablet, which keys may have versions in memtables. A key that it doesn't remember has all its
// versions in files, so whether its row exists is asked of the files alone, where bloom filters answer: a seek in a large
// memtable costs several times as much as all else that an insert does, and most inserts are of keys that nobody ever wrote.
//
// It remembers too much, never too little: a key may look remembered that isn't (that costs a seek), and keys are forgotten
// only once the store has said that the entries which wrote them are durable. Who asks takes the generations first and opens
// the iterator over the files afterwards: what was durable when it took them is in the files that the iterator sees.
type recentKeys struct {
	mu sync.Mutex
	// generations, the oldest first; the last takes what is added. The slice is replaced, never changed, since a batch may
	// hold it. The filters themselves are read and written by the tablet's batch alone.
	generations []*keyGeneration
}

// keyGeneration holds the keys of the entries between two flushes.
type keyGeneration struct {
	last     ident.Index // the highest entry with a key in it
	bytes    uint64      // of the row versions that its entries wrote
	segments []filterSegment
}

// filterSegment is a Bloom filter of 64-bit words, each key in one word: one cache line is looked at. With 16 bits and four
// hashes per key some 0.5 % of the keys look present that aren't.
type filterSegment struct {
	words []uint64
	room  int // keys that may still be added
}

const (
	keysPerWord       = 4
	firstSegmentWords = 64
	segmentGrowth     = 4
)

// add remembers the touched keys that entry index writes.
func (r *recentKeys) add(index ident.Index, o *overlay, touched []int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.generations) == 0 {
		r.generations = []*keyGeneration{{}}
	}
	g := r.generations[len(r.generations)-1]
	g.last = index
	for _, n := range touched {
		if e := &o.entries[n]; e.valLen > 0 {
			g.add(e.hash)
			g.bytes += uint64(rowKeyLen(o.entries[n].keyLen) + e.valLen)
		}
	}
}

// durable forgets what is in files by now: all that entries up to index wrote.
func (r *recentKeys) durable(index ident.Index) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := make([]*keyGeneration, 0, len(r.generations)+1)
	for _, g := range r.generations {
		if g.last > index {
			kept = append(kept, g)
		}
	}
	if len(kept) > 0 {
		// What comes next is forgotten by a later flush, which shouldn't have to wait for keys that this one held.
		kept = append(kept, &keyGeneration{})
	}
	r.generations = kept
}

// bytes is about what the row versions take that are in no file yet: a generation counts until the last of it is.
func (r *recentKeys) bytes() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	var n uint64
	for _, g := range r.generations {
		n += g.bytes
	}
	return n
}

// snapshot returns the generations at this moment.
func (r *recentKeys) snapshot() []*keyGeneration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.generations
}

func (g *keyGeneration) add(hash uint64) {
	n := len(g.segments)
	if n == 0 || g.segments[n-1].room == 0 {
		words := firstSegmentWords
		if n > 0 {
			words = segmentGrowth * len(g.segments[n-1].words)
		}
		g.segments = append(g.segments, filterSegment{words: make([]uint64, words), room: keysPerWord * words})
		n++
	}
	s := &g.segments[n-1]
	s.room--
	s.words[s.word(hash)] |= filterMask(hash)
}

func (g *keyGeneration) mayHold(hash uint64) bool {
	m := filterMask(hash)
	for i := range g.segments {
		if s := &g.segments[i]; s.words[s.word(hash)]&m == m {
			return true
		}
	}
	return false
}

// word picks a word by the hash's upper half, filterMask four bits by its lower.
func (s *filterSegment) word(hash uint64) uint64 {
	w, _ := bits.Mul64(hash&^(1<<32-1), uint64(len(s.words)))
	return w
}

func filterMask(h uint64) uint64 {
	return 1<<(h&63) | 1<<(h>>6&63) | 1<<(h>>12&63) | 1<<(h>>18&63)
}

func mayHold(generations []*keyGeneration, hash uint64) bool {
	for _, g := range generations {
		if g.mayHold(hash) {
			return true
		}
	}
	return false
}
