package reference

import (
	"cmp"
	"slices"
	"strings"

	"github.com/nyaladb/nyala/internal/daemon"
)

// metricRow is one row of docs/metrics.md.
type metricRow struct {
	daemon.MetricInfo
	LabelText string
	Who       string // the daemons that have it
}

// mergeMetrics makes one list of the metrics of both daemons, by name. Those of the Go runtime and of the process are the
// client library's, differ from one version of Go to the next, and stand elsewhere.
func mergeMetrics(master, tserver []daemon.MetricInfo) []metricRow {
	rows := map[string]*metricRow{}
	add := func(list []daemon.MetricInfo, who string) {
		for _, m := range list {
			if strings.HasPrefix(m.Name, "go_") || strings.HasPrefix(m.Name, "process_") {
				continue
			}
			if r := rows[m.Name]; r != nil {
				r.Who = "both"
				continue
			}
			rows[m.Name] = &metricRow{MetricInfo: m, LabelText: strings.Join(m.Labels, ", "), Who: who}
		}
	}
	add(master, "master")
	add(tserver, "tserver")
	var out []metricRow
	for _, r := range rows {
		out = append(out, *r)
	}
	slices.SortFunc(out, func(a, b metricRow) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
