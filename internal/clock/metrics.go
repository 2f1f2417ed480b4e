package clock

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the clock's. Gauges are read from the clock when they are asked for.
type metrics struct {
	refused prometheus.Counter
	ahead   prometheus.Counter
	jumps   *prometheus.CounterVec
	all     []prometheus.Collector
}

// directions and what each can be; every series exists from the start.
var jumpSeries = []struct {
	direction string
	verdicts  []Verdict
}{
	{"forward", []Verdict{OK, Slewed, Suspended, SteppedForward}},
	{"back", []Verdict{OK, Slewed, SteppedBack}},
	{"none", []Verdict{Unsynchronised}},
}

func newMetrics(c *Clock) *metrics {
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	truth := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	m := &metrics{
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "clock_readings_refused_total", Help: "Timestamps that were not given out because the clock could not be trusted.",
		}),
		ahead: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "clock_timestamps_ahead_refused_total", Help: "Timestamps from elsewhere that were refused for being too far ahead.",
		}),
		jumps: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "clock_jumps_total", Help: "What happened to the wall clock, by direction and verdict. Leap seconds count as ok.",
		}, []string{"direction", "verdict"}),
	}
	for _, s := range jumpSeries {
		for _, v := range s.verdicts {
			m.jumps.WithLabelValues(s.direction, v.String())
		}
	}
	m.all = []prometheus.Collector{
		m.refused, m.ahead, m.jumps,
		gauge("hybrid_clock_timestamp", "The hybrid clock, as a timestamp: microseconds since the epoch times 4096 plus the logical part.",
			func() float64 { return float64(c.Latest()) }),
		gauge("hybrid_clock_error", "The bound on the hybrid clock's error, in microseconds.",
			func() float64 { return float64(c.MaxError().Microseconds()) }),
		gauge("hybrid_clock_extrapolating", "1 while the time source fails and the clock goes on from the monotonic clock.",
			func() float64 { return truth(c.view.Load().bound.extrapolating) }),
		gauge("clock_fenced", "1 while this server's clock gives no timestamps out.",
			func() float64 { _, fenced := c.Fenced(); return truth(fenced) }),
		gauge("clock_wall_minus_monotonic_seconds", "The wall clock minus the monotonic clock; a step of the wall clock changes it.",
			func() float64 { return float64(c.src.Pair().Offset()) / 1e9 }),
		gauge("clock_displacement_seconds", "The sum of the wall clock's steps since it was last shown right, which the jump threshold is held against.",
			func() float64 { return c.view.Load().j.Displaced.Seconds() }),
		&sourceCollector{c}, &peerCollector{c},
	}
	return m
}

func (m *metrics) register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	for _, c := range m.all {
		if err := r.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// count counts what a look brought that the one before hadn't.
func (m *metrics) count(was, j *Judgement) {
	add := func(direction string, v Verdict) { m.jumps.WithLabelValues(direction, v.String()).Inc() }
	stepped := j.Step.Abs() > noise || j.Refused && !was.Refused
	switch {
	case stepped && j.Verdict == SteppedForward:
		add("forward", j.Verdict)
	case stepped && j.Verdict == SteppedBack:
		add("back", j.Verdict)
	case j.Verdict == Slewed && was.Verdict != Slewed && j.RatePPM > 0:
		add("forward", j.Verdict)
	case j.Verdict == Slewed && was.Verdict != Slewed:
		add("back", j.Verdict)
	case j.Verdict == Unsynchronised && was.Verdict != Unsynchronised:
		add("none", j.Verdict)
	}
	if j.Slept > 0 {
		add("forward", Suspended)
	}
	if j.Leap > 0 {
		add("back", OK) // a second inserted sets the wall clock back
	} else if j.Leap < 0 {
		add("forward", OK)
	}
}

var (
	sourceDesc = prometheus.NewDesc("clock_source_info", "1 for the time source in force.", []string{"source"}, nil)
	peerDesc   = prometheus.NewDesc("clock_peer_offset_seconds",
		"How far this server's wall clock is ahead of another server's.", []string{"peer"}, nil)
)

type sourceCollector struct{ c *Clock }

func (s *sourceCollector) Describe(ch chan<- *prometheus.Desc) { ch <- sourceDesc }

func (s *sourceCollector) Collect(ch chan<- prometheus.Metric) {
	in := s.c.source(&s.c.view.Load().bound)
	for _, name := range []string{SourceSystem, SourceBuiltin, SourceSystemUnsync, SourceMock} {
		value := 0.0
		if name == in {
			value = 1
		}
		ch <- prometheus.MustNewConstMetric(sourceDesc, prometheus.GaugeValue, value, name)
	}
}

type peerCollector struct{ c *Clock }

func (p *peerCollector) Describe(ch chan<- *prometheus.Desc) { ch <- peerDesc }

func (p *peerCollector) Collect(ch chan<- prometheus.Metric) {
	for _, row := range p.c.view.Load().table {
		ch <- prometheus.MustNewConstMetric(peerDesc, prometheus.GaugeValue, row.Ahead.Seconds(), string(row.Peer))
	}
}
