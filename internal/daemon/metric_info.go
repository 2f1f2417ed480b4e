package daemon

import (
	"slices"
	"strings"
)

// Level says how much a metric matters, in Kudu's words. A level includes those above it.
type Level int

// The levels, from the one that includes all.
const (
	LevelDebug = Level(iota) // of help in a search for a fault; not watched otherwise
	LevelInfo                // of use at any time
	LevelWarn                // says that something isn't as it should be
)

var levelNames = [...]string{LevelDebug: "debug", LevelInfo: "info", LevelWarn: "warn"}

// String returns debug, info or warn.
func (l Level) String() string { return levelNames[l] }

// MarshalText implements encoding.TextMarshaler.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *Level) UnmarshalText(text []byte) error {
	level, err := parseLevel(string(text))
	*l = level
	return err
}

// MetricInfo is all that is known of a metric beside its values.
type MetricInfo struct {
	Name   string   `json:"name"`
	Type   string   `json:"type"` // counter, gauge, histogram
	Unit   string   `json:"unit"`
	Level  Level    `json:"level"`
	Entity string   `json:"entity"` // server, table or tablet: what a series is of
	Labels []string `json:"labels"`
	Help   string   `json:"help"`
}

// The entities, and the labels that say which one a series is of.
const (
	entityServer = "server"
	entityTable  = "table"
	entityTablet = "tablet"

	tableIDLabel  = "table_id"
	tabletIDLabel = "tablet_id"
)

// warnings are the metrics of level warn: who watches these alone learns when to look further.
var warnings = []string{
	"clock_fenced", "clock_jumps_total", "clock_readings_refused_total", "clock_timestamps_ahead_refused_total", "hybrid_clock_extrapolating",
	"leader_memory_pressure_rejections", "master_tablet_servers_dead", "master_tablets_unavailable", "master_tablets_under_replicated",
	"master_tablets_without_leader", "memory_limit_refusals_total", "peer_connect_failures_total", "peer_dropped_messages_total",
	"raft_entries_refused_total", "raft_failed_replicas_total", "raft_log_out_of_space", "raft_log_stalled", "rpc_accept_errors_total",
	"rpc_accept_queue_drops_total", "rpc_accept_queue_full_seconds_total", "rpc_connections_refused_total", "rpc_failures_total",
	"rpcs_queue_overflow", "rpcs_timed_out_in_queue", "tablets_num_failed", "wal_commit_failures_total",
}

// details are the metrics of level debug beside those of single tables and tablets.
var details = []string{
	"peer_unreported_drops_total", "raft_apply_groups", "raft_commit_appends", "rpc_netns_listen_drops_total",
	"rpc_netns_listen_overflows_total", "tablet_clients_remembered", "tablet_requests_forgotten_total", "tablet_requests_remembered",
	"wal_trash_bytes",
}

// units are those of metrics whose names don't end in it: Kudu's names, and what counts things.
var units = map[string]string{
	"acceptor_dispatch_times":       "microseconds",
	"builtin_ntp_error":             "microseconds",
	"builtin_ntp_local_clock_delta": "milliseconds",
	"cpu_stime":                     "milliseconds",
	"cpu_utime":                     "milliseconds",
	"hybrid_clock_error":            "microseconds",
	"hybrid_clock_timestamp":        "timestamp",
	"log_append_latency":            "microseconds",
	"tablet_running":                "boolean",
	"log_bytes_logged":              "bytes",
	"log_cache_size":                "bytes",
	"log_gc_duration":               "microseconds",
	"log_group_commit_latency":      "microseconds",
	"rpc_incoming_queue_time":       "microseconds",
}

// countUnits are what a metric counts, by a word of its name; the first that fits.
var countUnits = []struct{ word, unit string }{
	{"_info", "none"},
	{"_leads", "boolean"},
	{"_fenced", "boolean"},
	{"_extrapolating", "boolean"},
	{"_out_of_space", "boolean"},
	{"_log_stalled", "boolean"},
	{"_bytes", "bytes"},
	{"_seconds", "seconds"},
}

// describeMetric fills in what follows from a metric's name and labels. The level and unit of a metric stand in the lists
// above and not where it is made, since the packages that make metrics know nothing of levels.
func describeMetric(name, help, unit string, labels []string) MetricInfo {
	m := MetricInfo{Name: name, Help: help, Unit: unit, Level: LevelInfo, Entity: entityServer, Labels: slices.Clone(labels)}
	switch {
	case slices.Contains(labels, tabletIDLabel):
		m.Entity, m.Level = entityTablet, LevelDebug
	case slices.Contains(labels, tableIDLabel):
		m.Entity, m.Level = entityTable, LevelDebug
	case slices.Contains(warnings, name):
		m.Level = LevelWarn
	case slices.Contains(details, name):
		m.Level = LevelDebug
	}
	if u, ok := units[name]; ok {
		m.Unit = u
	}
	for _, u := range countUnits {
		if m.Unit == "" && strings.HasSuffix(strings.TrimSuffix(name, "_total"), u.word) {
			m.Unit = u.unit
		}
	}
	if m.Unit == "" {
		m.Unit = "count"
	}
	return m
}

// openMetricsUnit is the unit as OpenMetrics has it: only where the name ends in it.
func openMetricsUnit(m MetricInfo) *string {
	if strings.HasSuffix(strings.TrimSuffix(m.Name, "_total"), "_"+m.Unit) {
		return &m.Unit
	}
	return nil
}
