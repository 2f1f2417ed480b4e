package ntp

import (
	"slices"
	"time"
)

// sample is what one server said.
type sample struct {
	// offset is the true time less the clock that counts suspends (Source.now), in nanoseconds, as of at.
	offset int64
	err    time.Duration // the truth is within err of it
	at     int64         // by that clock
}

// heldPPM is how far off the machine's frequency may be: so much does a sample's error grow with its age.
const heldPPM = 200

// aged returns the sample's error at a moment.
func (s *sample) aged(now int64) time.Duration {
	return s.err + time.Duration(max(now-s.at, 0)/1_000_000*heldPPM)
}

// verdict is what most servers agree on.
type verdict struct {
	offset int64
	err    time.Duration
	votes  int
}

// elect finds the interval that the most samples' intervals have in common. ok is false unless they are more than half of
// all servers, heard or not (I1).
func elect(samples []sample, servers int, now int64) (v verdict, ok bool) {
	type edge struct {
		at    int64
		opens bool
	}
	edges := make([]edge, 0, 2*len(samples))
	for i := range samples {
		e := int64(samples[i].aged(now))
		edges = append(edges, edge{samples[i].offset - e, true}, edge{samples[i].offset + e, false})
	}
	slices.SortFunc(edges, func(a, b edge) int {
		switch {
		case a.at < b.at:
			return -1
		case a.at > b.at:
			return 1
		case a.opens == b.opens:
			return 0
		case a.opens: // intervals that touch agree
			return -1
		}
		return 1
	})
	inside := 0
	var low, high int64
	for i, e := range edges {
		if !e.opens {
			inside--
			continue
		}
		if inside++; inside > v.votes {
			v.votes, low, high = inside, e.at, edges[i+1].at
		}
	}
	if 2*v.votes <= servers {
		return v, false
	}
	v.offset = low + (high-low)/2
	// What they have in common may be narrower than any of them has a right to be.
	v.err = time.Duration(high-low) / 2
	least := time.Duration(-1)
	for i := range samples {
		if e := samples[i].aged(now); samples[i].agrees(v.offset, now) && (least < 0 || e < least) {
			least = e
		}
	}
	v.err = max(v.err, least)
	return v, true
}

// agrees says whether an offset is within what the sample allows.
func (s *sample) agrees(offset, now int64) bool {
	return time.Duration(max(offset-s.offset, s.offset-offset)) <= s.aged(now)
}
