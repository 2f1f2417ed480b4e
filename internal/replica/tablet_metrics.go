package replica

import (
	"github.com/prometheus/client_golang/prometheus"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
)

// tabletCollector shows each replica by itself. Its series are as many as the replicas, so it is asked only by who wants
// them: labels tablet_id and table_id say so to the daemon's registry.
type tabletCollector struct{ m *Manager }

var (
	tabletLabels = []string{"tablet_id", "table_id", "table_name"}

	raftTermDesc = prometheus.NewDesc("raft_term", "The replica's term.", tabletLabels, nil)
	leadsDesc    = prometheus.NewDesc("tablet_leads", "1 where this server's replica leads.", tabletLabels, nil)
	runningDesc  = prometheus.NewDesc("tablet_running", "1 where this server's replica works: it isn't opening, failed or going.", tabletLabels, nil)
	lastDesc     = prometheus.NewDesc("tablet_log_last_index", "Index of the last entry in the replica's log.", tabletLabels, nil)
	commitDesc   = prometheus.NewDesc("tablet_log_commit_index", "Index of the last entry that the replica knows to be committed.", tabletLabels, nil)
	appliedDesc  = prometheus.NewDesc("tablet_log_applied_index", "Index of the last entry that the replica has applied.", tabletLabels, nil)
)

// Describe implements prometheus.Collector.
func (c *tabletCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{raftTermDesc, leadsDesc, runningDesc, lastDesc, commitDesc, appliedDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *tabletCollector) Collect(ch chan<- prometheus.Metric) {
	for _, s := range c.m.Statuses() {
		labels := []string{s.GetTabletId(), s.GetTableId(), s.GetTableName()}
		gauge := func(d *prometheus.Desc, value float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
		}
		truth := func(d *prometheus.Desc, is bool) {
			value := 0.0
			if is {
				value = 1
			}
			gauge(d, value)
		}
		gauge(raftTermDesc, float64(s.GetTerm()))
		truth(leadsDesc, s.GetRole() == nyalav1.Role_ROLE_LEADER)
		truth(runningDesc, s.GetState() == nyalav1.TabletState_TABLET_STATE_RUNNING)
		gauge(lastDesc, float64(s.GetLastIndex()))
		gauge(commitDesc, float64(s.GetCommitIndex()))
		gauge(appliedDesc, float64(s.GetAppliedIndex()))
	}
}
