package wal

import (
	"cmp"
	"container/heap"
	"math"
	"slices"

	"github.com/nyaladb/nyala/internal/ident"
)

// trash holds the records that no log needs any more and that are still on disk. They are deleted a few at a time, always
// the one with the lowest sequence number first, for two reasons:
//
//   - Recovery goes by "what was written later supersedes what was written earlier". A record may only go when everything
//     that it supersedes is gone, or that would come back. What it supersedes has a lower number and was put in the trash no
//     later, so ascending order is a safe order, at every commit in between too.
//   - Records that lie side by side die on one page. Compactions of a thousand tablets after one flush leave a thousand
//     interleaved runs: in ascending order each leaf is rewritten once.
type trash struct {
	spans   spanHeap
	records uint64
	bytes   int64
}

// span is a run of one group's dead slots, ascending.
type span struct {
	number ident.LocalNumber
	slots  []slot
}

// doomed is a slot that a commit under way deletes.
type doomed struct {
	number ident.LocalNumber
	slot   slot
}

func (t *trash) add(n ident.LocalNumber, slots []slot) {
	if len(slots) == 0 {
		return
	}
	for i := range slots {
		slots[i].entry = nil
		t.records += pieces(slots[i].size)
		t.bytes += int64(slots[i].size)
	}
	heap.Push(&t.spans, span{number: n, slots: slots})
}

// take removes and returns slots of at least max records, all there are if there are fewer. An entry is never split: its
// pieces go in one commit.
func (t *trash) take(dst []doomed, max int) []doomed {
	for taken := uint64(0); len(t.spans) > 0 && taken < uint64(max); {
		top := &t.spans[0]
		// All of the top span up to the next span's first can go without looking at the heap again.
		limit := t.spans.second()
		for taken < uint64(max) && len(top.slots) > 0 && top.slots[0].seq < limit {
			s := top.slots[0]
			n := pieces(s.size)
			dst = append(dst, doomed{number: top.number, slot: s})
			top.slots = top.slots[1:]
			taken += n
			t.records -= n
			t.bytes -= int64(s.size)
		}
		if len(top.slots) == 0 {
			heap.Pop(&t.spans)
		} else {
			heap.Fix(&t.spans, 0)
		}
	}
	return dst
}

// putBack undoes a take.
func (t *trash) putBack(d []doomed) {
	for i := 0; i < len(d); {
		j := i + 1
		for j < len(d) && d[j].number == d[i].number {
			j++
		}
		slots := make([]slot, 0, j-i)
		for _, x := range d[i:j] {
			slots = append(slots, x.slot)
		}
		t.add(d[i].number, slots)
		i = j
	}
}

type spanHeap []span

func (h spanHeap) Len() int           { return len(h) }
func (h spanHeap) Less(i, j int) bool { return h[i].slots[0].seq < h[j].slots[0].seq }
func (h spanHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *spanHeap) Push(x any)        { *h = append(*h, x.(span)) }

func (h *spanHeap) Pop() any {
	old := *h
	n := len(old) - 1
	s := old[n]
	old[n] = span{}
	*h = old[:n]
	return s
}

// second is the lowest sequence number outside the top span.
func (h spanHeap) second() uint64 {
	lowest := uint64(math.MaxUint64)
	for _, i := range []int{1, 2} {
		if i < len(h) {
			lowest = min(lowest, h[i].slots[0].seq)
		}
	}
	return lowest
}

// sorted brings slots into the order in which they may be deleted.
func sorted(slots []slot) []slot {
	slices.SortFunc(slots, func(a, b slot) int { return cmp.Compare(a.seq, b.seq) })
	return slots
}
