package tablet

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of a store. Names that Kudu has are Kudu's; the others follow Prometheus' rules.
type metrics struct {
	inserted, upserted, updated, deleted prometheus.Counter
	duplicateKey, failed                 prometheus.Counter
	insertIgnored, updateIgnored         prometheus.Counter
	deleteIgnored                        prometheus.Counter
	scannedRows, returnedRows            prometheus.Counter
	requests                             [3]prometheus.Counter // by verdict
	forgotten                            [numForgetReasons]prometheus.Counter

	registerer prometheus.Registerer
	registered []prometheus.Collector
}

func newMetrics(s *Store, r prometheus.Registerer) (*metrics, error) {
	m := &metrics{registerer: r}
	counter := func(name, help string, labels prometheus.Labels) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels})
		m.registered = append(m.registered, c)
		return c
	}
	gauge := func(name, help string, value func() float64) {
		m.registered = append(m.registered, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
	}
	m.inserted = counter("rows_inserted", "Rows inserted by applied operations.", nil)
	m.upserted = counter("rows_upserted", "Rows upserted by applied operations.", nil)
	m.updated = counter("rows_updated", "Rows updated by applied operations.", nil)
	m.deleted = counter("rows_deleted", "Rows deleted by applied operations.", nil)
	m.duplicateKey = counter("insertions_failed_dup_key", "Inserts of a key that was present.", nil)
	m.insertIgnored = counter("insert_ignore_errors", "INSERT_IGNORE operations whose key was present.", nil)
	m.updateIgnored = counter("update_ignore_errors", "UPDATE_IGNORE operations whose key was not found.", nil)
	m.deleteIgnored = counter("delete_ignore_errors", "DELETE_IGNORE operations whose key was not found.", nil)
	m.failed = counter("tablet_row_errors_total", "Row operations that failed on their own, duplicate keys included.", nil)
	m.scannedRows = counter("scanner_rows_scanned", "Rows that scans read.", nil)
	m.returnedRows = counter("scanner_rows_returned", "Rows that scans returned.", nil)
	for v, name := range [...]string{verdictNew: "new", verdictDone: "duplicate", verdictStale: "stale"} {
		m.requests[v] = counter("tablet_requests_total", "Applied requests that carried a client's number, by what they were.",
			prometheus.Labels{"verdict": name})
	}
	for why := range numForgetReasons {
		m.forgotten[why] = counter("tablet_requests_forgotten_total", "Remembered answers that were forgotten, by the rule that did it.",
			prometheus.Labels{"reason": why.String()})
	}
	gauge("tablet_requests_remembered", "Answers that all tablets remember for exactly-once writes.", func() float64 {
		n, _ := s.remembered()
		return float64(n)
	})
	gauge("tablet_clients_remembered", "Clients that all tablets remember for exactly-once writes.", func() float64 {
		_, n := s.remembered()
		return float64(n)
	})
	gauge("tablet_store_memtable_bytes", "Memory of rows that wait to be flushed.", func() float64 {
		return float64(s.Pressure().MemtableBytes)
	})
	gauge("tablet_store_l0_sublevels", "How many layers of flushed files wait for compaction.", func() float64 {
		return float64(s.Pressure().L0Sublevels)
	})
	gauge("tablet_store_compaction_debt_bytes", "About how much compactions have to rewrite.", func() float64 {
		return float64(s.Pressure().CompactionDebt)
	})
	gauge("tablet_store_disk_bytes", "What the store's files take.", func() float64 {
		if s.enter() != nil {
			return 0
		}
		defer s.leave()
		return float64(s.db.Metrics().DiskSpaceUsage())
	})
	return m, m.register()
}

func (m *metrics) register() error {
	if m.registerer == nil {
		m.registered = nil
		return nil
	}
	for i, c := range m.registered {
		if err := m.registerer.Register(c); err != nil {
			m.registered = m.registered[:i]
			m.unregister()
			return fmt.Errorf("register a metric: %w", err)
		}
	}
	return nil
}

func (m *metrics) unregister() {
	for _, c := range m.registered {
		m.registerer.Unregister(c)
	}
	m.registered = nil
}

func (m *metrics) rows(c rowCounts) {
	m.inserted.Add(float64(c.inserted))
	m.upserted.Add(float64(c.upserted))
	m.updated.Add(float64(c.updated))
	m.deleted.Add(float64(c.deleted))
	m.duplicateKey.Add(float64(c.duplicateKey))
	m.failed.Add(float64(c.failed))
	m.insertIgnored.Add(float64(c.insertIgnored))
	m.updateIgnored.Add(float64(c.updateIgnored))
	m.deleteIgnored.Add(float64(c.deleteIgnored))
}

// remembered sums up over all tablets.
func (s *Store) remembered() (requests, clients int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tablets {
		t.mu.Lock()
		requests += t.requests.records
		clients += len(t.requests.clients)
		t.mu.Unlock()
	}
	return requests, clients
}
