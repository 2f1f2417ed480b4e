package master

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// healthCollector shows what the leading master knows of its cluster. A master that doesn't lead shows that alone: what it
// could say of the rest would be out of date.
type healthCollector struct{ m *Master }

var (
	tableLabels = []string{"table_id", "table_name"}

	leadsDesc           = prometheus.NewDesc("master_leads", "1 on the master that leads.", nil, nil)
	aliveDesc           = prometheus.NewDesc("master_tablet_servers_alive", "Tablet servers heard within tserver_unresponsive_timeout_ms.", nil, nil)
	deadDesc            = prometheus.NewDesc("master_tablet_servers_dead", "Tablet servers that fell silent, or hold replicas by the catalog and weren't heard since this master leads.", nil, nil)
	tablesDesc          = prometheus.NewDesc("master_tables", "Tables.", nil, nil)
	tabletsDesc         = prometheus.NewDesc("master_tablets", "Tablets of all tables.", nil, nil)
	withoutLeaderDesc   = prometheus.NewDesc("master_tablets_without_leader", "Tablets that no living server is known to lead.", nil, nil)
	underReplicatedDesc = prometheus.NewDesc("master_tablets_under_replicated", "Tablets of which a replica isn't held by a living server.", nil, nil)
	unavailableDesc     = prometheus.NewDesc("master_tablets_unavailable", "Tablets of which no majority of the replicas is held by living servers.", nil, nil)

	tableTabletsDesc         = prometheus.NewDesc("table_tablets", "Tablets of the table.", tableLabels, nil)
	tableWithoutLeaderDesc   = prometheus.NewDesc("table_tablets_without_leader", "Tablets of the table that no living server is known to lead.", tableLabels, nil)
	tableUnderReplicatedDesc = prometheus.NewDesc("table_tablets_under_replicated", "Tablets of the table of which a replica isn't held by a living server.", tableLabels, nil)
	tableUnavailableDesc     = prometheus.NewDesc("table_tablets_unavailable", "Tablets of the table of which no majority of the replicas is held by living servers.", tableLabels, nil)
)

// tableCollector shows each table by itself. It stands apart because only who wants such series is to pay for them.
type tableCollector struct{ m *Master }

func sendDescs(ch chan<- *prometheus.Desc, all ...*prometheus.Desc) {
	for _, d := range all {
		ch <- d
	}
}

func sendGauge(ch chan<- prometheus.Metric, d *prometheus.Desc, value int, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), labels...)
}

// Describe implements prometheus.Collector.
func (c *healthCollector) Describe(ch chan<- *prometheus.Desc) {
	sendDescs(ch, leadsDesc, aliveDesc, deadDesc, tablesDesc, tabletsDesc, withoutLeaderDesc, underReplicatedDesc, unavailableDesc)
}

// Collect implements prometheus.Collector.
func (c *healthCollector) Collect(ch chan<- prometheus.Metric) {
	h := c.m.health(time.Now())
	if !h.leads {
		sendGauge(ch, leadsDesc, 0)
		return
	}
	var sum tableHealth
	for _, t := range h.tables {
		sum.tablets += t.tablets
		sum.withoutLeader += t.withoutLeader
		sum.underReplicated += t.underReplicated
		sum.unavailable += t.unavailable
	}
	sendGauge(ch, leadsDesc, 1)
	sendGauge(ch, aliveDesc, h.alive)
	sendGauge(ch, deadDesc, h.dead)
	sendGauge(ch, tablesDesc, len(h.tables))
	sendGauge(ch, tabletsDesc, sum.tablets)
	sendGauge(ch, withoutLeaderDesc, sum.withoutLeader)
	sendGauge(ch, underReplicatedDesc, sum.underReplicated)
	sendGauge(ch, unavailableDesc, sum.unavailable)
}

// Describe implements prometheus.Collector.
func (c *tableCollector) Describe(ch chan<- *prometheus.Desc) {
	sendDescs(ch, tableTabletsDesc, tableWithoutLeaderDesc, tableUnderReplicatedDesc, tableUnavailableDesc)
}

// Collect implements prometheus.Collector.
func (c *tableCollector) Collect(ch chan<- prometheus.Metric) {
	for _, t := range c.m.health(time.Now()).tables {
		labels := []string{string(t.id), t.name}
		sendGauge(ch, tableTabletsDesc, t.tablets, labels...)
		sendGauge(ch, tableWithoutLeaderDesc, t.withoutLeader, labels...)
		sendGauge(ch, tableUnderReplicatedDesc, t.underReplicated, labels...)
		sendGauge(ch, tableUnavailableDesc, t.unavailable, labels...)
	}
}

// register registers the metrics; r may be nil. They last as long as the process: a master isn't closed before it ends.
func (m *Master) register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	for _, c := range []prometheus.Collector{&healthCollector{m}, &tableCollector{m}} {
		if err := r.Register(c); err != nil {
			return err
		}
	}
	return nil
}
