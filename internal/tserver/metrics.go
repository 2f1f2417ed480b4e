package tserver

import "github.com/prometheus/client_golang/prometheus"

// metrics of a tablet server's scans, named as Kudu's.
type metrics struct {
	scans   prometheus.Counter
	expired prometheus.Counter

	registerer prometheus.Registerer
	registered []prometheus.Collector
}

func newMetrics(s *scanners, reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		registerer: reg,
		scans:      prometheus.NewCounter(prometheus.CounterOpts{Name: "scans_started", Help: "Scans that were begun."}),
		expired:    prometheus.NewCounter(prometheus.CounterOpts{Name: "scanners_expired", Help: "Scanners dropped because nobody called them."}),
	}
	active := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "active_scanners", Help: "Scanners that clients have open.",
	}, func() float64 { return float64(s.open()) })
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.scans, m.expired, active} {
		if err := reg.Register(c); err != nil {
			m.unregister()
			return nil, err
		}
		m.registered = append(m.registered, c)
	}
	return m, nil
}

func (m *metrics) unregister() {
	for _, c := range m.registered {
		m.registerer.Unregister(c)
	}
	m.registered = nil
}
