package ntp

import "github.com/prometheus/client_golang/prometheus"

// metrics are a source's. Names are Kudu's where it has them.
type metrics struct {
	answered, unanswered prometheus.Counter
	steps                prometheus.Counter
	all                  []prometheus.Collector
	reg                  prometheus.Registerer
}

func newMetrics(s *Source, reg prometheus.Registerer) (*metrics, error) {
	queries := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "builtin_ntp_queries_total", Help: "Questions to NTP servers.",
	}, []string{"outcome"})
	m := &metrics{
		answered: queries.WithLabelValues("answered"), unanswered: queries.WithLabelValues("failed"),
		steps: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "builtin_ntp_steps_total", Help: "Times that the clock was set at once, since it was too far off to be led.",
		}),
		reg: reg,
	}
	m.all = []prometheus.Collector{
		queries, m.steps,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "builtin_ntp_error", Help: "Bound on the error of the time told by NTP servers, microseconds; -1: there is none.",
		}, func() float64 {
			if d := s.Discipline(); d.Synced {
				return float64(d.MaxError.Microseconds())
			}
			return -1
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "builtin_ntp_local_clock_delta", Help: "The machine's wall clock less the time told by NTP servers, milliseconds.",
		}, func() float64 {
			p := s.System.Pair()
			return float64(p.Wall-s.line.Load().wall(p.Mono)) / 1e6
		}),
	}
	if reg == nil {
		return m, nil
	}
	for i, c := range m.all {
		if err := reg.Register(c); err != nil {
			for _, done := range m.all[:i] {
				reg.Unregister(done)
			}
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) unregister() {
	if m.reg == nil {
		return
	}
	for _, c := range m.all {
		m.reg.Unregister(c)
	}
}
