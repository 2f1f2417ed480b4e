package rig

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// Summary is a set of measurements as it stands in a result.
type Summary struct {
	Min, Median, P90, P99, Max float64
	N                          int
}

// Summarize sums up measurements, rounded to the third digit after the point.
func Summarize(xs []float64) Summary {
	if len(xs) == 0 {
		return Summary{}
	}
	xs = slices.Sorted(slices.Values(xs))
	at := func(q float64) float64 { return Round(xs[min(len(xs)-1, int(q*float64(len(xs))))]) }
	return Summary{Min: Round(xs[0]), Median: Round(Median(xs)), P90: at(0.9), P99: at(0.99), Max: Round(xs[len(xs)-1]), N: len(xs)}
}

// MarshalJSON writes the summary in lower case.
func (s Summary) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, `{"min":%v,"median":%v,"p90":%v,"p99":%v,"max":%v,"n":%d}`, s.Min, s.Median, s.P90, s.P99, s.Max, s.N), nil
}

// Median is the middle value, or the mean of the two in the middle; xs need not be sorted.
func Median(xs []float64) float64 {
	if len(xs) == 0 {
		return 0
	}
	xs = slices.Sorted(slices.Values(xs))
	return (xs[(len(xs)-1)/2] + xs[len(xs)/2]) / 2
}

// Round keeps three digits after the point.
func Round(x float64) float64 { return math.Round(x*1000) / 1000 }

// Ms is a duration in milliseconds.
func Ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func printJSON(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", b)
	return err
}
