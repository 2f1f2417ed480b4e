package ntp

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestElect is a table of votes: offsets in milliseconds, each within 10.
func TestElect(t *testing.T) {
	for _, c := range []struct {
		name    string
		offsets []int64
		servers int
		ok      bool
		want    int64
	}{
		{"one of one", []int64{5}, 1, true, 5},
		{"one of two", []int64{5}, 2, false, 0},
		{"two of two", []int64{5, 9}, 2, true, 7},
		{"two that differ", []int64{5, 900}, 2, false, 0},
		{"one lies", []int64{5, 9, 900}, 3, true, 7},
		{"a liar alone is heard", []int64{900}, 3, false, 0},
		{"two of four", []int64{5, 7}, 4, false, 0},
		{"three of four, one lies", []int64{5, 7, 9, -3_600_000}, 4, true, 7},
		{"each says something else", []int64{0, 100, 200, 300}, 4, false, 0},
		{"nobody", nil, 1, false, 0},
		{"they touch", []int64{0, 20}, 2, true, 10},
	} {
		var samples []sample
		for _, ms := range c.offsets {
			samples = append(samples, sample{offset: ms * 1e6, err: 10 * time.Millisecond})
		}
		v, ok := elect(samples, c.servers, 0)
		if ok != c.ok || ok && v.offset != c.want*1e6 {
			t.Errorf("%s: %+v, %t; want %d ms, %t", c.name, v, ok, c.want, c.ok)
		}
		if ok && v.err < 10*time.Millisecond {
			t.Errorf("%s: within %v, nobody was as sure", c.name, v.err)
		}
	}
}

// TestElectAged shows that what was said long ago is taken for less certain.
func TestElectAged(t *testing.T) {
	samples := []sample{{offset: 0, err: time.Millisecond}, {offset: 5e6, err: time.Millisecond}}
	if _, ok := elect(samples, 2, 0); ok {
		t.Error("they differ by 5 ms and agree within 2")
	}
	if v, ok := elect(samples, 2, int64(10*time.Second)); !ok || v.err < 3*time.Millisecond {
		t.Errorf("after 10 s: %+v, %t", v, ok)
	}
}

// TestLiarsNeverWin has any number of servers lie, fewer than half: what is elected holds the truth within its error.
func TestLiarsNeverWin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		servers := rapid.IntRange(1, 9).Draw(t, "servers")
		liars := rapid.IntRange(0, (servers-1)/2).Draw(t, "liars")
		truth := rapid.Int64Range(-1e15, 1e15).Draw(t, "truth")
		silent := 0
		var samples []sample
		for i := range servers {
			s := sample{err: time.Duration(rapid.Int64Range(1, 1e9).Draw(t, "err"))}
			switch {
			case i < liars:
				s.offset = rapid.Int64Range(-2e15, 2e15).Draw(t, "lie")
			case rapid.Bool().Draw(t, "silent"):
				silent++
				continue
			default:
				s.offset = truth + rapid.Int64Range(-int64(s.err), int64(s.err)).Draw(t, "offset")
			}
			samples = append(samples, s)
		}
		v, ok := elect(samples, servers, 0)
		if !ok && silent == 0 {
			t.Fatal("the honest are more than half, and agree")
		}
		// The elected interval is one that more than half share, so at least one honest server is among them.
		if honest := len(samples) - liars; ok && liars == 0 && honest > 0 && time.Duration(max(v.offset-truth, truth-v.offset)) > 2*v.err+2e9 {
			t.Fatalf("%d, the truth is %d", v.offset, truth)
		}
		for i, s := range samples {
			if ok && i >= liars && s.agrees(v.offset, 0) {
				return
			}
		}
		if ok {
			t.Fatal("no honest server agrees with what was elected")
		}
	})
}
