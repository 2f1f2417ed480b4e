package daemon

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// awkwardName has every byte that a table's name may hold and that means something to somebody on the way.
const awkwardName = "a \"name\" with \\ and \\n,\nlines\r\t{b=\"c\"} # HELP 'ü' 😀\x01\x7f\u2028"

// registerTestMetrics registers metrics of each level and entity.
func registerTestMetrics(r *Registry, tablets int) {
	warn := prometheus.NewCounter(prometheus.CounterOpts{Name: "clock_readings_refused_total", Help: "h"})
	info := prometheus.NewGauge(prometheus.GaugeOpts{Name: "raft_groups", Help: "h"})
	debug := prometheus.NewGauge(prometheus.GaugeOpts{Name: "wal_trash_bytes", Help: "h"})
	table := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "table_size", Help: "h"}, []string{tableIDLabel, "table_name"})
	tablet := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "tablet_size", Help: "h"}, []string{tabletIDLabel, "table_name"})
	table.WithLabelValues("feed", awkwardName)
	for i := range tablets {
		tablet.WithLabelValues(fmt.Sprintf("%032x", i+0xabc0), awkwardName)
	}
	r.MustRegister(warn, info, debug, table, tablet)
}

// TestSelection is a table of what each parameter of /metrics brings and leaves out.
func TestSelection(t *testing.T) {
	w := startWeb(t, func(c *WebConfig) { registerTestMetrics(c.Metrics, 2) })
	names := []string{"clock_readings_refused_total", "raft_groups", "wal_trash_bytes", "table_size", "abc0", "abc1"}
	for query, want := range map[string][]string{
		"":                            {"clock_readings_refused_total", "raft_groups"},
		"?level=debug":                names,
		"?level=info":                 {"clock_readings_refused_total", "raft_groups"},
		"?level=WARN":                 {"clock_readings_refused_total"},
		"?types=server":               {"clock_readings_refused_total", "raft_groups", "wal_trash_bytes"},
		"?types=server&level=warn":    {"clock_readings_refused_total"},
		"?types=tablet":               {"abc0", "abc1"},
		"?types=table,tablet":         {"table_size", "abc0", "abc1"},
		"?types=table&types=tablet":   {"table_size", "abc0", "abc1"},
		"?types=tablet&level=info":    {},
		"?ids=abc1":                   {"abc1"},
		"?ids=abc":                    {"abc0", "abc1"},
		"?ids=abc1,feed":              {"table_size", "abc1"},
		"?ids=tserver&level=warn":     {"clock_readings_refused_total"},
		"?ids=nothing":                {},
		"?metrics=raft_,trash":        {"raft_groups", "wal_trash_bytes"},
		"?metrics=abc1":               {"abc1"}, // as Kudu's: an entity's id
		"?metrics=_size":              {"table_size", "abc0", "abc1"},
		"?metrics=_size&ids=abc0":     {"abc0"},
		"?metrics=*":                  names,
		"?metrics=raft_&types=tablet": {},
	} {
		code, body, _ := get(t, w, "/metrics"+query)
		require.Equal(t, http.StatusOK, code, query)
		for _, name := range names {
			found := false
			for line := range strings.Lines(body) {
				found = found || !strings.HasPrefix(line, "#") && strings.Contains(line, name)
			}
			require.Equal(t, contain(name, want) && len(want) > 0, found, "%s: %s\n%s", query, name, body)
		}
		_, same, _ := get(t, w, "/metrics_prometheus"+query)
		require.Equal(t, strings.Count(body, "\n"), strings.Count(same, "\n"), query)
	}
	w.SetMetricsLevel(LevelWarn)
	_, body, _ := get(t, w, "/metrics")
	require.NotContains(t, body, "raft_groups")
	_, body, _ = get(t, w, "/metrics?level=info")
	require.Contains(t, body, "raft_groups")
	for _, query := range []string{"?level=loud", "?types=tablet,cell"} {
		code, body, _ := get(t, w, "/metrics"+query)
		require.Equal(t, http.StatusBadRequest, code)
		require.Contains(t, body, "want ")
	}
}

// TestAwkwardLabels shows a table's name in both formats with what means something there escaped, and the rest as it is.
func TestAwkwardLabels(t *testing.T) {
	w := startWeb(t, func(c *WebConfig) { registerTestMetrics(c.Metrics, 1) })
	_, body, _ := get(t, w, "/metrics?types=tablet")
	escaped := strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`).Replace(awkwardName)
	require.Contains(t, body, `table_name="`+escaped+`"`)
	_, open, _ := get(t, w, "/metrics?types=tablet", "Accept", "application/openmetrics-text; version=1.0.0")
	require.Contains(t, open, `table_name="`+escaped+`"`)
}

// TestUnits shows that OpenMetrics has the units, where its rules let it.
func TestUnits(t *testing.T) {
	w := startWeb(t, func(c *WebConfig) {
		c.Metrics.MustRegister(
			prometheus.NewCounter(prometheus.CounterOpts{Name: "waited_seconds_total", Help: "h"}),
			prometheus.NewGauge(prometheus.GaugeOpts{Name: "log_cache_size", Help: "Bytes."}),
		)
	})
	_, body, _ := get(t, w, "/metrics", "Accept", "application/openmetrics-text; version=1.0.0")
	require.Contains(t, body, "# UNIT waited_seconds seconds\n")
	require.NotContains(t, body, "# UNIT log_cache_size")
	_, body, _ = get(t, w, "/metrics/help")
	require.Contains(t, body, `<td class="name">log_cache_size</td><td>gauge</td><td>bytes</td><td>info</td><td>server</td>`)
}

// TestDescriptions shows that everything that is said of a metric is read from its description.
func TestDescriptions(t *testing.T) {
	r := NewRegistry()
	r.MustRegister(prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "waits", Help: "With \"quotes\", unit: \"x\", {braces} and, commas.", Unit: "seconds", ConstLabels: prometheus.Labels{"fixed": `a="b",c="d"`},
	}, []string{"kind", tabletIDLabel}))
	for _, m := range r.Metrics() {
		require.NotEmpty(t, m.Help, m.Name)
		if m.Name == "waits" {
			require.Equal(t, MetricInfo{
				Name: "waits", Type: "histogram", Unit: "seconds", Level: LevelDebug, Entity: entityTablet,
				Labels: []string{"kind", tabletIDLabel, "fixed"}, Help: "With \"quotes\", unit: \"x\", {braces} and, commas.",
			}, m)
			return
		}
	}
	require.Fail(t, "the metric isn't known")
}

// TestNotGathered shows that collectors of tables and tablets aren't asked by who doesn't want them; and that metrics of one
// name from several collectors come out as one, and twice the same is refused.
func TestNotGathered(t *testing.T) {
	asked := 0
	forgotten := func(reason string) prometheus.Collector {
		return prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tablet_requests_forgotten_total", Help: "h", ConstLabels: prometheus.Labels{"reason": reason},
		})
	}
	w := startWeb(t, func(c *WebConfig) {
		c.Metrics.MustRegister(&countingCollector{asked: &asked}, forgotten("old"), forgotten("many"))
		require.Error(t, c.Metrics.Register(forgotten("old")))
	})
	for query, want := range map[string]int{
		"": 0, "?level=info": 0, "?types=server": 0, "?types=table": 0, "?level=debug": 1, "?types=tablet": 1, "?ids=abc": 1, "?metrics=size": 1,
		"?metrics=go_": 1, // it may be in an id
	} {
		asked = 0
		get(t, w, "/metrics"+query)
		require.Equal(t, want, asked, query)
	}
	_, body, _ := get(t, w, "/metrics?level=debug")
	require.Equal(t, 1, strings.Count(body, "# TYPE tablet_requests_forgotten_total"))
	require.Equal(t, 2, strings.Count(body, "\ntablet_requests_forgotten_total{"))
}

// countingCollector counts how often it is asked.
type countingCollector struct{ asked *int }

var countedDesc = prometheus.NewDesc("tablet_size", "h", []string{tabletIDLabel}, nil)

func (c *countingCollector) Describe(ch chan<- *prometheus.Desc) { ch <- countedDesc }

func (c *countingCollector) Collect(ch chan<- prometheus.Metric) {
	*c.asked++
	ch <- prometheus.MustNewConstMetric(countedDesc, prometheus.GaugeValue, 1, "abc")
}

// TestListsAreOfMetrics shows that the lists of levels and units hold no name that isn't a metric's: docs/metrics.md, which
// another test holds to the code, has all.
func TestListsAreOfMetrics(t *testing.T) {
	docs, err := os.ReadFile(filepath.Join("..", "..", "docs", "metrics.md"))
	require.NoError(t, err)
	names := append(append([]string{}, warnings...), details...)
	for name := range units {
		names = append(names, name)
	}
	for _, name := range names {
		if !strings.Contains(string(docs), "| `"+name+"` |") { // not require, which would print all of it
			t.Errorf("%s is no metric", name)
		}
	}
}

// TestLargeScrape shows that the default output of a server with 2,000 tablets stays under 1 MiB and comes in under 50 ms,
// however many series its tablets have.
func TestLargeScrape(t *testing.T) {
	w := startWeb(t, func(c *WebConfig) { registerTestMetrics(c.Metrics, 2000) })
	fastest := time.Hour
	for range 5 { // the fastest: the machine may be busy with other tests
		start := time.Now()
		code, body, _ := get(t, w, "/metrics", "Accept-Encoding", "identity")
		fastest = min(fastest, time.Since(start))
		require.Equal(t, http.StatusOK, code)
		require.Less(t, len(body), 1<<20)
		require.NotContains(t, body, "tablet_size")
	}
	require.Less(t, fastest, 50*time.Millisecond)
	_, body, _ := get(t, w, "/metrics?level=debug")
	require.Equal(t, 2000, strings.Count(body, "\ntablet_size{"))
}
