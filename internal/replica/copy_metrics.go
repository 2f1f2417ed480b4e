package replica

import "github.com/prometheus/client_golang/prometheus"

// copyMetrics are a server's copies. Names that Kudu has are Kudu's.
type copyMetrics struct {
	fetched, sent, made, failed prometheus.Counter

	registerer prometheus.Registerer
	registered []prometheus.Collector
}

func newCopyMetrics(c *copier, reg prometheus.Registerer) (*copyMetrics, error) {
	x := &copyMetrics{registerer: reg}
	counter := func(name, help string, labels prometheus.Labels) prometheus.Counter {
		m := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels})
		x.registered = append(x.registered, m)
		return m
	}
	gauge := func(name, help string, count func() int) {
		x.registered = append(x.registered, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			c.mu.Lock()
			defer c.mu.Unlock()
			return float64(count())
		}))
	}
	x.fetched = counter("tablet_copy_bytes_fetched", "Bytes of tablets that were copied to this server.", nil)
	x.sent = counter("tablet_copy_bytes_sent", "Bytes of tablets that were copied from this server.", nil)
	const help = "Copies of tablets to this server, by how they ended."
	x.made = counter("tablet_copies_total", help, prometheus.Labels{"result": "ok"})
	x.failed = counter("tablet_copies_total", help, prometheus.Labels{"result": "failed"})
	gauge("tablet_copy_open_client_sessions", "Copies of tablets that are coming in.", func() int { return len(c.incoming) })
	gauge("tablet_copy_open_source_sessions", "Copies of tablets that are going out.", func() int { return c.outgoing })
	if reg == nil {
		return x, nil
	}
	for i, m := range x.registered {
		if err := reg.Register(m); err != nil {
			x.registered = x.registered[:i]
			x.unregister()
			return nil, err
		}
	}
	return x, nil
}

func (x *copyMetrics) unregister() {
	if x.registerer == nil {
		return
	}
	for _, m := range x.registered {
		x.registerer.Unregister(m)
	}
	x.registered = nil
}
