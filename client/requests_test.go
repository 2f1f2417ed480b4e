package client

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestRequests begins and completes requests in any order, against a list: numbers rise by one, and first_incomplete is the
// lowest that is not complete (I2).
func TestRequests(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRequests()
		var open []uint64
		next := uint64(1)
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			if len(open) == 0 || rapid.Bool().Draw(t, "begin") {
				seq := r.begin()
				if seq != next {
					t.Fatalf("number %d, want %d", seq, next)
				}
				next++
				open = append(open, seq)
			} else {
				i := rapid.IntRange(0, len(open)-1).Draw(t, "which")
				r.complete(open[i])
				open = slices.Delete(open, i, i+1)
			}
			want := next
			if len(open) > 0 {
				want = slices.Min(open)
			}
			id := r.id(next)
			if id.GetFirstIncompleteSeqNo() != want {
				t.Fatalf("first incomplete %d, want %d of %v", id.GetFirstIncompleteSeqNo(), want, open)
			}
		}
		if len(r.completed) > int(next) {
			t.Fatalf("%d numbers remembered", len(r.completed))
		}
	})
	if a, b := newRequests(), newRequests(); a.clientID == b.clientID || a.clientID == [16]byte{} {
		t.Error("client ids repeat")
	}
}
