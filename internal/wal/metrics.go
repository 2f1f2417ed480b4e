package wal

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are a store's own; they are unregistered when it closes. Kudu's names stand where Kudu has the metric; its
// latencies are in microseconds.
type metrics struct {
	reg        prometheus.Registerer
	collectors []prometheus.Collector

	commitLatency prometheus.Histogram // log_group_commit_latency
	appendLatency prometheus.Histogram // log_append_latency
	gcDuration    prometheus.Histogram // log_gc_duration
	bytesLogged   prometheus.Counter   // log_bytes_logged
	groupEntries  prometheus.Histogram // log_entry_batches_per_group
	failures      *prometheus.CounterVec
}

// newMetrics registers a store's metrics; reg may be nil. size is asked at each scrape.
func newMetrics(reg prometheus.Registerer, size func() Size) (*metrics, error) {
	micros := prometheus.ExponentialBuckets(50, 2, 18) // 50 µs to 6.5 s
	m := &metrics{
		reg: reg,
		commitLatency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "log_group_commit_latency", Buckets: micros,
			Help: "Microseconds that a commit of the WAL took, over all groups in it, sync included.",
		}),
		appendLatency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "log_append_latency", Buckets: micros,
			Help: "Microseconds that putting a commit's records into the WAL's tree took, before anything was written.",
		}),
		gcDuration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "log_gc_duration", Buckets: micros,
			Help: "Microseconds that a commit which only deletes dead records took.",
		}),
		bytesLogged: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "log_bytes_logged", Help: "Bytes of records committed to the WAL.",
		}),
		groupEntries: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "log_entry_batches_per_group", Buckets: prometheus.ExponentialBuckets(1, 2, 14),
			Help: "Log entries in one commit.",
		}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wal_commit_failures_total",
			Help: "Commits that changed nothing for want of space (no_space), or failed the file for good (failed).",
		}, []string{"reason"}),
	}
	m.failures.WithLabelValues("no_space")
	m.failures.WithLabelValues("failed")
	gauge := func(name, help string, f func(Size) int64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help},
			func() float64 { return float64(f(size())) })
	}
	all := []prometheus.Collector{
		m.commitLatency, m.appendLatency, m.gcDuration, m.bytesLogged, m.groupEntries, m.failures,
		gauge("wal_file_bytes", "Size of the WAL's file, room for growth included.", func(s Size) int64 { return s.FileBytes }),
		gauge("wal_live_entries", "Log entries that replicas need.", func(s Size) int64 { return s.LiveEntries }),
		gauge("wal_live_bytes", "Data of the log entries that replicas need.", func(s Size) int64 { return s.LiveBytes }),
		gauge("wal_trash_bytes", "Data of dead records still to be deleted.", func(s Size) int64 { return s.TrashBytes }),
		gauge("log_cache_size", "Bytes of log entries kept in memory.", func(s Size) int64 { return s.CacheBytes }),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range all {
		if err := reg.Register(c); err != nil {
			m.unregister()
			return nil, err
		}
		m.collectors = append(m.collectors, c)
	}
	return m, nil
}

func (m *metrics) committed(b *Batch, took time.Duration) {
	m.commitLatency.Observe(float64(took.Microseconds()))
	m.bytesLogged.Add(float64(b.bytes))
	if b.entries > 0 {
		m.groupEntries.Observe(float64(b.entries))
	}
}

func (m *metrics) trimmed(took time.Duration) { m.gcDuration.Observe(float64(took.Microseconds())) }

func (m *metrics) unregister() {
	for _, c := range m.collectors {
		m.reg.Unregister(c)
	}
	m.collectors = nil
}
