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
	// Where all metrics of a collector are for debugging, it is in debug, and a scrape of the default level doesn't ask it:
	// series of single tablets are as many as there are tablets.
	main, debug *prometheus.Registry

	mu      sync.Mutex
	metrics map[string]MetricInfo
}

var _ prometheus.Registerer = (*Registry)(nil)

// NewRegistry returns a registry with what is known of the process, the Go runtime and the build.
func NewRegistry() *Registry {
	r := &Registry{main: prometheus.NewRegistry(), debug: prometheus.NewRegistry(), metrics: map[string]MetricInfo{}}
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
	into := r.debug
	for _, m := range infos {
		if m.Level != LevelDebug {
			into = r.main
		}
	}
	if err := into.Register(c); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
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
	return r.main.Unregister(c) || r.debug.Unregister(c)
}

// Metrics lists the metrics registered so far, by name.
func (r *Registry) Metrics() []MetricInfo {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.SortedFunc(maps.Values(r.metrics), func(a, b MetricInfo) int { return cmp.Compare(a.Name, b.Name) })
}

// Select gathers what s asks for. serverID stands for the server among the entities.
func (r *Registry) Select(s Selection, serverID string) ([]*dto.MetricFamily, error) {
	families, err := r.main.Gather()
	if s.Level == LevelDebug {
		more, derr := r.debug.Gather()
		families, err = append(families, more...), errors.Join(err, derr)
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
	return kept, err
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
