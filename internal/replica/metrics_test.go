package replica

import (
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

// kuduNames are metrics that are named as Kudu's are, against Prometheus' rules.
var kuduNames = []string{"leader_memory_pressure_rejections", "write_transactions_inflight"}

// TestMetrics: every series is there from the start, at 0, with a name that Prometheus' rules or Kudu give it; counting
// writes moves the right one; nothing is left registered.
func TestMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := &Manager{replicas: map[ident.TabletID]*Replica{}}
	x, err := newMetrics(m, reg)
	require.NoError(t, err)
	_, err = newMetrics(m, reg)
	require.Error(t, err, "twice in one registry")
	families, err := reg.Gather()
	require.NoError(t, err)
	series := 0
	for _, f := range families {
		series += len(f.GetMetric())
		for _, s := range f.GetMetric() {
			require.Zero(t, s.GetCounter().GetValue()+s.GetGauge().GetValue(), f.GetName())
		}
	}
	require.Equal(t, 4+3+3+1+1+1+1+5, series)
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	require.NoError(t, err)
	for _, p := range problems {
		if !slices.Contains(kuduNames, p.Metric) {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	for _, f := range families {
		require.False(t, strings.HasPrefix(f.GetName(), "nyala"), "no prefix of ours")
	}

	x.wrote(&nyalav1.WriteResponse{}, nil)
	x.wrote(&nyalav1.WriteResponse{RowErrors: []*nyalav1.RowError{{}}}, nil)
	x.wrote(nil, status.New(status.NotTheLeader, ""))
	x.wrote(nil, status.New(status.TimedOut, ""))
	for result, c := range x.writes {
		require.Equal(t, 1, value(t, c), result)
	}
	x.read(nyalav1.ReadMode_READ_MODE_UNSPECIFIED)
	require.Equal(t, 1, value(t, x.reads[latest]))
	x.unregister()
	families, err = reg.Gather()
	require.NoError(t, err)
	require.Empty(t, families)
}
