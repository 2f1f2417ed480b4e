package rig

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// Bucket is one of a histogram: how many values are at or below a bound.
type Bucket struct{ Le, Count float64 }

// Buckets returns those of a histogram without labels of its own, from the lowest bound to infinity.
func (m Metrics) Buckets(name string) []Bucket {
	var all []Bucket
	for bound, n := range m.ByLabel(name + "_bucket") {
		if le, err := strconv.ParseFloat(strings.Trim(bound, `"`), 64); err == nil {
			all = append(all, Bucket{le, n})
		}
	}
	slices.SortFunc(all, func(a, b Bucket) int { return cmp.Compare(a.Le, b.Le) })
	return all
}

// Quantile is the value below which the part q of all values lies, in a bucket as if they lay evenly in it: as Prometheus'
// histogram_quantile. What lies above the last bound counts as that.
func Quantile(buckets []Bucket, q float64) float64 {
	if len(buckets) < 2 || buckets[len(buckets)-1].Count == 0 {
		return 0
	}
	rank := q * buckets[len(buckets)-1].Count
	low, below := 0.0, 0.0
	for _, b := range buckets[:len(buckets)-1] {
		if b.Count >= rank {
			return low + (b.Le-low)*(rank-below)/max(b.Count-below, 1)
		}
		low, below = b.Le, b.Count
	}
	return low
}
