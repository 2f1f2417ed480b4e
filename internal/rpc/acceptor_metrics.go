package rpc

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// acceptorMetrics are those of all acceptors of a server. Where Kudu has the metric it has Kudu's name and unit.
type acceptorMetrics struct {
	registration
	queueSize *prometheus.HistogramVec
	dispatch  *prometheus.HistogramVec
	accepted  *prometheus.CounterVec
	errors    *prometheus.CounterVec
	queues    *queueCollector
}

// socketMetrics are those of one listening socket.
type socketMetrics struct {
	queueSize observer
	dispatch  observer
	accepted  counter
}

// socketLabels say which socket: the address it is bound to, and, with --rpc_reuseport, which of that address's sockets.
var socketLabels = []string{"address", "socket"}

// queueBuckets are 0, 1, 2, 4 and so on to 65,536.
func queueBuckets() []float64 {
	return append([]float64{0}, prometheus.ExponentialBuckets(1, 2, 17)...)
}

func newAcceptorMetrics(reg prometheus.Registerer) (*acceptorMetrics, error) {
	m := &acceptorMetrics{
		queueSize: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "rpc_listened_socket_rx_queue_size",
			Help: "Connections that waited in a listening socket's accept queue after an accept, by socket. " +
				"Kudu 1.18 calls it rpc_listen_socket_rx_queue_size.",
			Buckets: queueBuckets(),
		}, socketLabels),
		dispatch: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "acceptor_dispatch_times",
			Help:    "Time from a connection's accept until it was handed over, in microseconds as Kudu's, by socket.",
			Buckets: []float64{1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100, 200, 500, 1e3, 1e4, 1e5, 1e6},
		}, socketLabels),
		accepted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rpc_connections_accepted",
			Help: "Connections that the acceptors took, those refused later among them, by socket.",
		}, socketLabels),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rpc_accept_errors_total",
			Help: "Failed accepts: EMFILE, ENFILE, ENOBUFS and ENOMEM (the acceptor waits and tries again), connection (gone before it was accepted), other.",
		}, []string{"error"}),
		queues: newQueueCollector(),
	}
	for _, kind := range []string{"EMFILE", "ENFILE", "ENOBUFS", "ENOMEM", "connection", "other"} {
		m.errors.WithLabelValues(kind)
	}
	var err error
	m.registration, err = register(reg, m.queueSize, m.dispatch, m.accepted, m.errors, m.queues)
	return m, err
}

// socket returns the series of one socket, which exist from now on.
func (m *acceptorMetrics) socket(address, label string) *socketMetrics {
	return &socketMetrics{
		queueSize: m.queueSize.WithLabelValues(address, label),
		dispatch:  m.dispatch.WithLabelValues(address, label),
		accepted:  m.accepted.WithLabelValues(address, label),
	}
}

func (m *acceptorMetrics) acceptError(kind string) { m.errors.WithLabelValues(kind).Inc() }

// watch has the queues of p shown from now on.
func (m *acceptorMetrics) watch(p *acceptors) { m.queues.of.Store(p) }

// queueCollector reads the accept queues when it is asked, so that it shows them as they are even if every goroutine that
// might have looked is stuck.
type queueCollector struct {
	of                                      atomic.Pointer[acceptors]
	pending, limit, fullSeconds, drops      *prometheus.Desc
	namespaceOverflows, namespaceListenDrop *prometheus.Desc
}

func newQueueCollector() *queueCollector {
	return &queueCollector{
		pending: prometheus.NewDesc("rpc_pending_connections", "Connections that wait in a listening socket's accept queue now, by socket.",
			socketLabels, nil),
		limit: prometheus.NewDesc("rpc_pending_connections_limit", "How many may wait (the backlog); one more, and the queue is full.",
			socketLabels, nil),
		fullSeconds: prometheus.NewDesc("rpc_accept_queue_full_seconds_total", "Time that the accept queue was full, seen four times a second, by socket.",
			socketLabels, nil),
		drops: prometheus.NewDesc("rpc_accept_queue_drops_total", "Connections and handshakes dropped by the listening socket, mostly because its queue was full, by socket.",
			socketLabels, nil),
		namespaceOverflows: prometheus.NewDesc("rpc_netns_listen_overflows_total",
			"ListenOverflows of /proc/net/netstat: times that an accept queue was full, of all sockets in this network namespace.", nil, nil),
		namespaceListenDrop: prometheus.NewDesc("rpc_netns_listen_drops_total",
			"ListenDrops of /proc/net/netstat: connections dropped while being accepted, of all sockets in this network namespace.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *queueCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.pending, c.limit, c.fullSeconds, c.drops, c.namespaceOverflows, c.namespaceListenDrop} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. What the system doesn't show is left out.
func (c *queueCollector) Collect(ch chan<- prometheus.Metric) {
	p := c.of.Load()
	if p == nil {
		return
	}
	for _, s := range p.sockets {
		q, err := s.queue()
		if err != nil {
			continue
		}
		labels := []string{s.addr.String(), s.label}
		ch <- prometheus.MustNewConstMetric(c.pending, prometheus.GaugeValue, float64(q.waiting), labels...)
		ch <- prometheus.MustNewConstMetric(c.limit, prometheus.GaugeValue, float64(q.limit), labels...)
		ch <- prometheus.MustNewConstMetric(c.drops, prometheus.CounterValue, float64(s.dropped()), labels...)
		s.mu.Lock()
		full := s.fullSeconds
		s.mu.Unlock()
		ch <- prometheus.MustNewConstMetric(c.fullSeconds, prometheus.CounterValue, full, labels...)
	}
	if overflows, drops, err := namespaceListenCounts(); err == nil {
		ch <- prometheus.MustNewConstMetric(c.namespaceOverflows, prometheus.CounterValue, float64(overflows))
		ch <- prometheus.MustNewConstMetric(c.namespaceListenDrop, prometheus.CounterValue, float64(drops))
	}
}
