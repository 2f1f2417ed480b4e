package rpc

import (
	"context"
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/status"
)

// series returns the value of one series: a counter's or gauge's, or a histogram's count.
func series(t *testing.T, reg *prometheus.Registry, name string, labels ...string) float64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
	next:
		for _, m := range f.GetMetric() {
			if len(m.GetLabel()) != len(labels)/2 {
				continue
			}
			for _, l := range m.GetLabel() {
				found := false
				for i := 0; i < len(labels); i += 2 {
					found = found || labels[i] == l.GetName() && labels[i+1] == l.GetValue()
				}
				if !found {
					continue next
				}
			}
			switch {
			case m.GetHistogram() != nil:
				return float64(m.GetHistogram().GetSampleCount())
			case m.GetGauge() != nil:
				return m.GetGauge().GetValue()
			default:
				return m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("no series %s%v", name, labels)
	return 0
}

// TestServerMetrics shows that each method's series are there before its first call, what they count, and the lint's word.
func TestServerMetrics(t *testing.T) {
	ts := startServer(t, nil)
	const method = "nyala.v1.ServerService/GetStatus"
	for _, m := range []string{method, "nyala.v1.TabletService/Scan", "nyala.v1.ServerService/DumpWAL", "grpc.health.v1.Health/Check"} {
		require.Zero(t, series(t, ts.reg, "rpc_duration_seconds", "method", m))
		require.Zero(t, series(t, ts.reg, "rpc_in_flight", "method", m))
		require.Zero(t, series(t, ts.reg, "rpc_failures_total", "method", m))
	}
	var inFlight float64
	ts.service.status = func(context.Context) error {
		inFlight = series(t, ts.reg, "rpc_in_flight", "method", method)
		return nil
	}
	c := nyalav1.NewServerServiceClient(dial(t, ts.address, DialOptions{}))
	_, err := c.GetStatus(t.Context(), &nyalav1.GetStatusRequest{})
	require.NoError(t, err)
	require.EqualValues(t, 1, inFlight)
	ts.service.status = func(context.Context) error { return status.New(status.NotFound, "x") }
	_, err = c.GetStatus(t.Context(), &nyalav1.GetStatusRequest{})
	require.Error(t, err)
	ts.stop() // unregisters, so what follows looks at a registry of its own
	families, err := ts.reg.Gather()
	require.NoError(t, err)
	require.Empty(t, families)
}

// TestMetricsLint shows that all names and units pass Prometheus' lint.
func TestMetricsLint(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := newServerMetrics(reg)
	require.NoError(t, err)
	m.method("x").begin()
	_, err = newPeerMetrics(reg)
	require.NoError(t, err)
	acceptor, err := newAcceptorMetrics(reg)
	require.NoError(t, err)
	acceptor.socket("x", "0").queueSize.Observe(1)
	limits, err := newLimitMetrics(reg)
	require.NoError(t, err)
	limits.queue("x", 1, 1)
	_, err = newMuxMetrics(reg)
	require.NoError(t, err)
	a, err := listenAcceptors(acceptorConfig{addresses: []string{"127.0.0.1:0"}, backlog: 1, perAddress: 1, log: slog.New(slog.DiscardHandler), metrics: acceptor})
	require.NoError(t, err)
	defer a.close()
	families, err := reg.Gather()
	require.NoError(t, err)
	require.Len(t, families, 29)
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	require.NoError(t, err)
	for _, p := range problems {
		// Kudu's names, by which an operator of Kudu finds them.
		require.Contains(t, []string{"rpc_connections_accepted", "rpcs_queue_overflow", "rpcs_timed_out_in_queue"}, p.Metric, p.Text)
	}
}
