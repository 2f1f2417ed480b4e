package rpc

import (
	"github.com/prometheus/client_golang/prometheus"
)

type (
	observer = prometheus.Observer
	gauge    = prometheus.Gauge
	counter  = prometheus.Counter
)

// registration is a set of collectors that are registered and taken back together.
type registration struct {
	reg        prometheus.Registerer
	collectors []prometheus.Collector
}

// register registers all or none; a nil registerer takes none and is no error.
func register(reg prometheus.Registerer, cs ...prometheus.Collector) (registration, error) {
	r := registration{reg: reg}
	if reg == nil {
		return r, nil
	}
	for _, c := range cs {
		if err := reg.Register(c); err != nil {
			r.unregister()
			return registration{}, err
		}
		r.collectors = append(r.collectors, c)
	}
	return r, nil
}

func (r *registration) unregister() {
	for _, c := range r.collectors {
		r.reg.Unregister(c)
	}
	r.collectors = nil
}

// serverMetrics are a Server's.
type serverMetrics struct {
	registration
	duration *prometheus.HistogramVec
	inFlight *prometheus.GaugeVec
	failures *prometheus.CounterVec
}

func newServerMetrics(reg prometheus.Registerer) (*serverMetrics, error) {
	m := &serverMetrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "rpc_duration_seconds",
			Help:    "Time from a call's first bytes to its answer, by method; streams count when they end.",
			Buckets: []float64{.0001, .0003, .001, .003, .01, .03, .1, .3, 1, 3, 10, 30},
		}, []string{"method"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rpc_in_flight",
			Help: "Calls under way, by method.",
		}, []string{"method"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rpc_failures_total",
			Help: "Calls answered with an error, by method.",
		}, []string{"method"}),
	}
	var err error
	m.registration, err = register(reg, m.duration, m.inFlight, m.failures)
	return m, err
}

// method returns the series of one method, which exist from now on.
func (m *serverMetrics) method(name string) *methodMetrics {
	return &methodMetrics{
		duration: m.duration.WithLabelValues(name),
		inFlight: m.inFlight.WithLabelValues(name),
		failures: m.failures.WithLabelValues(name),
	}
}
