package rpc

import (
	"github.com/prometheus/client_golang/prometheus"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
)

// channelName is a channel as a label has it.
func channelName(ch nyalav1.PeerChannel) string {
	if ch == Control {
		return "control"
	}
	return "data"
}

// trafficMetrics count one channel in one direction.
type trafficMetrics struct{ batches, messages, bytes counter }

func (m *trafficMetrics) count(messages, bytes int) {
	m.batches.Inc()
	m.messages.Add(float64(messages))
	m.bytes.Add(float64(bytes))
}

// peerMetrics are a PeerTransport's; every series exists from the start.
type peerMetrics struct {
	registration
	sent, received map[nyalav1.PeerChannel]*trafficMetrics
	queueBytes     map[nyalav1.PeerChannel]gauge
	connects       map[nyalav1.PeerChannel]counter
	failures       map[nyalav1.PeerChannel]counter
	dropped        map[nyalav1.PeerChannel]map[dropReason]counter
	unreported     counter
	beatsSent      counter
	beatsReceived  counter
	beatDelay      prometheus.Histogram
}

func newPeerMetrics(reg prometheus.Registerer) (*peerMetrics, error) {
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	batches := vec("peer_batches_total", "Batches of group messages swapped with other servers.", "channel", "direction")
	messages := vec("peer_messages_total", "Group messages swapped with other servers.", "channel", "direction")
	bytes := vec("peer_bytes_total", "About the bytes of group messages swapped with other servers.", "channel", "direction")
	connects := vec("peer_connects_total", "Streams to other servers that came up, from either side.", "channel")
	failures := vec("peer_connect_failures_total", "Attempts to reach another server that failed.", "channel")
	dropped := vec("peer_dropped_messages_total", "Group messages that weren't sent, or were on a stream that broke.", "channel", "reason")
	beats := vec("peer_beats_total", "Beats swapped with other servers.", "direction")
	queue := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "peer_queue_bytes",
		Help: "About the bytes of group messages that wait to be sent to other servers.",
	}, []string{"channel"})
	m := &peerMetrics{
		sent:       map[nyalav1.PeerChannel]*trafficMetrics{},
		received:   map[nyalav1.PeerChannel]*trafficMetrics{},
		queueBytes: map[nyalav1.PeerChannel]gauge{},
		connects:   map[nyalav1.PeerChannel]counter{},
		failures:   map[nyalav1.PeerChannel]counter{},
		dropped:    map[nyalav1.PeerChannel]map[dropReason]counter{},

		beatsSent:     beats.WithLabelValues("sent"),
		beatsReceived: beats.WithLabelValues("received"),
		beatDelay: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "peer_beat_delay_seconds",
			Help: "Time from when another server's beat was due to leave until it was taken in here, less what the fastest beat of the last seconds on the same stream took.",
			// 0.2 is the goal for 999 of 1,000, 1.5 the time after which a server counts as silent by default.
			Buckets: []float64{0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 1.5, 3, 6},
		}),
		unreported: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "peer_unreported_drops_total",
			Help: "Dropped group messages whose sender wasn't told, since it was slower than the losses.",
		}),
	}
	for _, ch := range channels {
		name := channelName(ch)
		traffic := func(direction string) *trafficMetrics {
			return &trafficMetrics{
				batches:  batches.WithLabelValues(name, direction),
				messages: messages.WithLabelValues(name, direction),
				bytes:    bytes.WithLabelValues(name, direction),
			}
		}
		m.sent[ch], m.received[ch] = traffic("sent"), traffic("received")
		m.queueBytes[ch] = queue.WithLabelValues(name)
		m.connects[ch] = connects.WithLabelValues(name)
		m.failures[ch] = failures.WithLabelValues(name)
		m.dropped[ch] = map[dropReason]counter{}
		for _, r := range dropReasons {
			m.dropped[ch][r] = dropped.WithLabelValues(name, string(r))
		}
	}
	var err error
	m.registration, err = register(reg, batches, messages, bytes, connects, failures, dropped, queue, beats, m.beatDelay, m.unreported)
	return m, err
}
