package daemon

import (
	"html/template"
	"log/slog"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

// maxScrapes bounds the scrapes under way.
const maxScrapes = 4

// addMetrics serves /metrics, and /metrics/help for people.
func (w *Web) addMetrics() {
	places := make(chan struct{}, maxScrapes)
	scrape := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		s, err := parseSelection(r.URL.Query(), Level(w.level.Load()))
		if err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
		default:
			http.Error(rw, "as many scrapes as are answered at once are under way: try again later", http.StatusServiceUnavailable)
			return
		}
		gatherer := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return w.cfg.Metrics.Select(s, w.cfg.Title) })
		promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{
			EnableOpenMetrics: true,
			ErrorLog:          slog.NewLogLogger(w.log.Handler(), slog.LevelWarn),
			ErrorHandling:     promhttp.ContinueOnError,
		}).ServeHTTP(rw, r)
	})
	counted := promhttp.InstrumentMetricHandler(w.cfg.Metrics, scrape)
	w.Handle("GET /metrics", counted)
	w.Handle("GET /metrics_prometheus", counted) // where Kudu has them
	w.Link("/metrics", "metrics for Prometheus: ?level=, ?types=, ?ids=, ?metrics= narrow them")
	w.mux.HandleFunc("GET /metrics/help", w.serveMetricsHelp)
	w.Link("/metrics/help", "what each metric is")
}

// SetMetricsLevel changes WebConfig.MetricsLevel of a server that may be running.
func (w *Web) SetMetricsLevel(l Level) { w.level.Store(int32(l)) }

func (w *Web) serveMetricsHelp(rw http.ResponseWriter, r *http.Request) {
	metrics := w.cfg.Metrics.Metrics()
	if wantsJSON(r) {
		serveJSON(rw, http.StatusOK, map[string]any{"metrics": metrics})
		return
	}
	servePage(rw, metricsTemplate, map[string]any{"Title": w.cfg.Title + ": metrics", "Metrics": metrics})
}

var metricsTemplate = template.Must(template.New("metrics").Funcs(template.FuncMap{"join": strings.Join}).Parse(pageHead + `
<table>
<thead><tr><th>Metric</th><th>Type</th><th>Unit</th><th>Level</th><th>Of a</th><th>Labels</th><th>What it is</th></tr></thead>
<tbody>
{{- range .Metrics}}
<tr><td class="name">{{.Name}}</td><td>{{.Type}}</td><td>{{.Unit}}</td><td>{{.Level}}</td><td>{{.Entity}}</td><td>{{join .Labels ", "}}</td><td>{{.Help}}</td></tr>
{{- end}}
</tbody>
</table>
` + pageFoot))
