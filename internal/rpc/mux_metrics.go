package rpc

import "github.com/prometheus/client_golang/prometheus"

// muxMetrics count the connections that were let in, and those that weren't.
type muxMetrics struct {
	registration
	sorting, grpc gauge              // open
	refused       map[string]counter // by reason; complete after newMuxMetrics
}

func newMuxMetrics(reg prometheus.Registerer) (*muxMetrics, error) {
	open := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "rpc_connections_open",
		Help: "Open connections by protocol; unknown: it hasn't said yet what it speaks.",
	}, []string{"protocol"})
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rpc_connections_refused_total",
		Help: "Connections closed by the server before any call: by a limit (untrusted_subnet, max_connections, max_connections_per_address), " +
			"for what they speak (tls, http1, kudu, garbage), or because they said too little (slow_preamble, broken_preamble, silent).",
	}, []string{"reason"})
	m := &muxMetrics{
		sorting: open.WithLabelValues("unknown"), grpc: open.WithLabelValues(protocolGRPC.String()),
		refused: map[string]counter{},
	}
	for _, reason := range []string{
		refusedUntrusted.String(), refusedTooMany.String(), refusedTooManyOfAddress.String(),
		protocolTLS.String(), protocolHTTP1.String(), protocolKudu.String(), protocolUnknown.String(),
		"slow_preamble", "broken_preamble", "silent",
	} {
		m.refused[reason] = refused.WithLabelValues(reason)
	}
	var err error
	m.registration, err = register(reg, open, refused)
	return m, err
}
