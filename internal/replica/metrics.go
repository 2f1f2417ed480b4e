package replica

import (
	"github.com/prometheus/client_golang/prometheus"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/status"
)

// metrics of a server's replicas. Names that Kudu has are Kudu's; the others follow Prometheus' rules.
type metrics struct {
	writes             map[string]prometheus.Counter
	inFlight           prometheus.Gauge
	pressureRejections prometheus.Counter
	reads              map[nyalav1.ReadMode]prometheus.Counter
	forwarded          map[string]prometheus.Counter
	forwarding         prometheus.Gauge
	forwardWait        prometheus.Histogram

	registerer prometheus.Registerer
	registered []prometheus.Collector
}

// What became of a write.
const (
	writeOK       = "ok"
	writeRowError = "row_errors" // applied, but for some rows
	writeRefused  = "refused"    // not applied: the request is at fault, or the caller has to try again or elsewhere
	writeUnknown  = "unknown"    // whether it was or will be applied isn't known here
)

// What a follower's answer to a write that it passed on rests on.
const (
	forwardApplied = "applied" // it has applied the write itself
	forwardTaken   = "taken"   // the leader's answer: it isn't applied here so far
	forwardFailed  = "failed"  // none: refused, or not known
)

var readModes = map[nyalav1.ReadMode]string{
	nyalav1.ReadMode_READ_MODE_READ_LATEST:      "read_latest",
	nyalav1.ReadMode_READ_MODE_READ_AT_SNAPSHOT: "read_at_snapshot",
	nyalav1.ReadMode_READ_MODE_READ_YOUR_WRITES: "read_your_writes",
}

// newMetrics makes the metrics and registers them; m is asked for its replicas' states.
func newMetrics(m *Manager, reg prometheus.Registerer) (*metrics, error) {
	x := &metrics{writes: map[string]prometheus.Counter{}, reads: map[nyalav1.ReadMode]prometheus.Counter{}, registerer: reg}
	add := func(c prometheus.Collector) { x.registered = append(x.registered, c) }

	writes := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "replica_writes_total", Help: "Write requests by what became of them.",
	}, []string{"result"})
	add(writes)
	for _, r := range []string{writeOK, writeRowError, writeRefused, writeUnknown} {
		x.writes[r] = writes.WithLabelValues(r)
	}
	reads := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "replica_read_points_total", Help: "Reads that were given a point in time, by read mode.",
	}, []string{"mode"})
	add(reads)
	for mode, name := range readModes {
		x.reads[mode] = reads.WithLabelValues(name)
	}
	forwarded := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "replica_forwarded_writes_total", Help: "Writes passed on to leaders elsewhere, by what their answers rest on.",
	}, []string{"answer"})
	add(forwarded)
	x.forwarded = map[string]prometheus.Counter{}
	for _, a := range []string{forwardApplied, forwardTaken, forwardFailed} {
		x.forwarded[a] = forwarded.WithLabelValues(a)
	}
	x.forwarding = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "replica_forwarded_writes_inflight", Help: "Writes passed on to leaders elsewhere that haven't answered.",
	})
	add(x.forwarding)
	x.forwardWait = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "replica_forwarded_write_wait_seconds",
		Help:    "Time from a leader's answer until the write was applied here, where the answer came first.",
		Buckets: []float64{50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 20e-3, 100e-3, 1, 10},
	})
	add(x.forwardWait)
	x.inFlight = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "write_transactions_inflight", Help: "Writes whose outcome is awaited here.",
	})
	add(x.inFlight)
	x.pressureRejections = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "leader_memory_pressure_rejections", Help: "Writes refused because memory is short, or flushes or compactions are behind.",
	})
	add(x.pressureRejections)
	for state, name := range map[nyalav1.TabletState]string{
		nyalav1.TabletState_TABLET_STATE_BOOTSTRAPPING: "bootstrapping",
		nyalav1.TabletState_TABLET_STATE_RUNNING:       "running",
		nyalav1.TabletState_TABLET_STATE_FAILED:        "failed",
		nyalav1.TabletState_TABLET_STATE_STOPPED:       "stopped",
		nyalav1.TabletState_TABLET_STATE_DELETING:      "deleting",
	} {
		add(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "tablets_num_" + name, Help: "Replicas on this server that are " + StateName(state) + ".",
		}, func() float64 { return float64(m.count(state)) }))
	}
	add(&tabletCollector{m})
	if reg == nil {
		return x, nil
	}
	for i, c := range x.registered {
		if err := reg.Register(c); err != nil {
			x.registered = x.registered[:i]
			x.unregister()
			return nil, err
		}
	}
	return x, nil
}

func (x *metrics) unregister() {
	if x.registerer == nil {
		return
	}
	for _, c := range x.registered {
		x.registerer.Unregister(c)
	}
	x.registered = nil
}

// wrote counts a write by its answer.
func (x *metrics) wrote(resp *nyalav1.WriteResponse, err error) {
	result := writeOK
	switch {
	case err == nil && len(resp.GetRowErrors()) > 0:
		result = writeRowError
	case err == nil:
	default:
		result = writeRefused
		switch status.CodeOf(err) {
		case status.TimedOut, status.ServiceUnavailable, status.TabletFailed, status.IO, status.Unknown:
			result = writeUnknown
		default:
		}
	}
	x.writes[result].Inc()
}

// forwardedWrite counts a write that was passed on by its answer.
func (x *metrics) forwardedWrite(p *proposal, err error) {
	answer := forwardTaken
	select {
	case <-p.done:
		if p.err == nil {
			answer = forwardApplied
		}
	default:
	}
	if err != nil {
		answer = forwardFailed
	}
	x.forwarded[answer].Inc()
}

// read counts a read point.
func (x *metrics) read(mode nyalav1.ReadMode) {
	if mode == nyalav1.ReadMode_READ_MODE_UNSPECIFIED {
		mode = nyalav1.ReadMode_READ_MODE_READ_LATEST
	}
	if c := x.reads[mode]; c != nil {
		c.Inc()
	}
}

// count returns how many replicas are in a state.
func (m *Manager) count(state nyalav1.TabletState) int {
	n := 0
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, r := range m.replicas {
		r.mu.Lock()
		if r.state == state {
			n++
		}
		r.mu.Unlock()
	}
	return n
}
