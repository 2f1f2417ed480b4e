package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"

	"github.com/nyaladb/nyala/internal/daemon/buildinfo"
	"github.com/nyaladb/nyala/internal/invariant"
)

// Registry holds a daemon's metrics and knows each one's meaning, so that a scrape gathers only what it asks for and the
// list of metrics can be written without a scrape. It is safe for concurrent use.
type Registry struct {
	// main holds the collectors that a scrape of the default level asks.
	main *prometheus.Registry

	mu      sync.Mutex
	details []*detail
	metrics map[string]MetricInfo
}

// detail holds a collector all of whose metrics are for debugging, so that only who wants one of them pays for it: series of
// single tablets are as many as there are tablets.
type detail struct {
	registry *prometheus.Registry
	metrics  []MetricInfo
}

var _ prometheus.Registerer = (*Registry)(nil)

// NewRegistry returns a registry with what is known of the process, the Go runtime and the build.
func NewRegistry() *Registry {
	r := &Registry{main: prometheus.NewRegistry(), metrics: map[string]MetricInfo{}}
	b := buildinfo.Get()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "build_info",
		Help:        "Always 1; the labels say which build this is.",
		ConstLabels: prometheus.Labels{"version": b.Version, "commit": b.Commit, "goversion": b.Go},
	})
	build.Set(1)
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), build)
	r.MustRegister(cpuCollectors()...)
	return r
}

// Register implements prometheus.Registerer.
func (r *Registry) Register(c prometheus.Collector) error {
	infos, err := describeCollector(c)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(infos) == 0 || slices.ContainsFunc(infos, func(m MetricInfo) bool { return m.Level != LevelDebug }) {
		if err := r.main.Register(c); err != nil {
			return err
		}
	} else {
		for _, d := range r.details {
			if slices.ContainsFunc(d.metrics, func(m MetricInfo) bool { return m.Name == infos[0].Name && slices.Equal(m.Labels, infos[0].Labels) }) {
				return d.registry.Register(c) // says that it is there, or takes what has other constant labels
			}
		}
		d := &detail{registry: prometheus.NewRegistry(), metrics: infos}
		if err := d.registry.Register(c); err != nil {
			return err
		}
		r.details = append(r.details, d)
	}
	for _, m := range infos {
		r.metrics[m.Name] = m
	}
	return nil
}

// MustRegister implements prometheus.Registerer.
func (r *Registry) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		err := r.Register(c)
		invariant.Check(err == nil, "register a metric: %v", err)
	}
}

// Unregister implements prometheus.Registerer. The metric's meaning stays known.
func (r *Registry) Unregister(c prometheus.Collector) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.main.Unregister(c) || slices.ContainsFunc(r.details, func(d *detail) bool { return d.registry.Unregister(c) })
}

// Metrics lists the metrics registered so far, by name.
func (r *Registry) Metrics() []MetricInfo {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.SortedFunc(maps.Values(r.metrics), func(a, b MetricInfo) int { return cmp.Compare(a.Name, b.Name) })
}

// Select gathers what s asks for. serverID stands for the server among the entities.
func (r *Registry) Select(s Selection, serverID string) ([]*dto.MetricFamily, error) {
	var families []*dto.MetricFamily
	var errs []error
	for _, g := range r.gatherers(s) {
		more, err := g.Gather()
		families, errs = append(families, more...), append(errs, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := families[:0]
	for _, f := range families {
		m, known := r.metrics[f.GetName()]
		if !known {
			m = describeMetric(f.GetName(), f.GetHelp(), "", nil)
		}
		if s.narrow(f, m, serverID) {
			f.Unit = openMetricsUnit(m)
			kept = append(kept, f)
		}
	}
	slices.SortFunc(kept, func(a, b *dto.MetricFamily) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return kept, errors.Join(errs...)
}

// gatherers returns what has to be asked for s.
func (r *Registry) gatherers(s Selection) []prometheus.Gatherer {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []prometheus.Gatherer
	if len(s.Types) == 0 || slices.Contains(s.Types, entityServer) {
		out = append(out, r.main)
	}
	for _, d := range r.details {
		if slices.ContainsFunc(d.metrics, s.mayWant) {
			out = append(out, d.registry)
		}
	}
	return out
}

// describeCollector says what a collector's metrics are.
func describeCollector(c prometheus.Collector) ([]MetricInfo, error) {
	var infos []MetricInfo
	var faults []error
	ch := make(chan *prometheus.Desc)
	go func() {
		c.Describe(ch)
		close(ch)
	}()
	for d := range ch {
		m, err := parseDesc(d.String())
		faults = append(faults, err)
		m.Type = metricType(c, m.Name)
		infos = append(infos, m)
	}
	return infos, errors.Join(faults...)
}

// constLabel finds the names of labels whose values never change.
var constLabel = regexp.MustCompile(`[{,]([a-z_]+)="`)

// parseDesc reads the only form in which the client library shows what a metric is.
func parseDesc(text string) (MetricInfo, error) {
	rest := text
	quoted := func(key string) string {
		_, after, found := strings.Cut(rest, key+": ")
		q, err := strconv.QuotedPrefix(after)
		if !found || err != nil {
			return ""
		}
		rest = after[len(q):]
		s, _ := strconv.Unquote(q) // it is one: QuotedPrefix says so
		return s
	}
	name, help, unit := quoted("fqName"), quoted("help"), quoted("unit")
	if name == "" {
		return MetricInfo{}, fmt.Errorf("a metric that can't be told: %s", text)
	}
	constant, variable, _ := strings.Cut(rest, "variableLabels: {")
	labels := strings.FieldsFunc(strings.TrimSuffix(variable, "}}"), func(c rune) bool { return c == ',' })
	for _, m := range constLabel.FindAllStringSubmatch(constant, -1) {
		labels = append(labels, m[1])
	}
	return describeMetric(name, help, unit, labels), nil
}

// metricType says what kind of metric a collector brings under a name. A collector of several kinds names its counters so
// that their names say it.
func metricType(c prometheus.Collector, name string) string {
	switch c.(type) {
	case prometheus.Histogram, *prometheus.HistogramVec:
		return "histogram"
	case prometheus.Gauge, *prometheus.GaugeVec:
		return "gauge"
	case prometheus.Counter, *prometheus.CounterVec: // after Gauge, which has all that a Counter has
		return "counter"
	}
	switch {
	case strings.HasSuffix(name, "_total"), name == "cpu_utime", name == "cpu_stime":
		return "counter"
	case name == "go_gc_duration_seconds":
		return "summary"
	}
	return "gauge"
}
