package rig

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestQuantile(t *testing.T) {
	m := Metrics{
		`x_bucket{le="0.1"}`: 90, `x_bucket{le="0.2"}`: 100, `x_bucket{le="1"}`: 100, `x_bucket{le="+Inf"}`: 101, "x_count": 101,
	}
	b := m.Buckets("x")
	require.Equal(t, []Bucket{{0.1, 90}, {0.2, 100}, {1, 100}, {math.Inf(1), 101}}, b)
	require.InDelta(t, 0.0561, Quantile(b, 0.5), 0.0001)
	require.InDelta(t, 0.1909, Quantile(b, 0.9811), 0.001)
	require.EqualValues(t, 1, Quantile(b, 1), "what is beyond the last bound")
	require.Zero(t, Quantile(m.Buckets("y"), 0.5))
}
