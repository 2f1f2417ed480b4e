package tablet

import "fmt"

// Pressure says how far flushes and compactions are behind. Whoever proposes a write looks at it first: once a write is
// committed in the log it must be applied, so this is the only place to refuse one.
type Pressure struct {
	// MemtableBytes is the memory of all memtables, those that wait for their flush included, and what was committed since.
	MemtableBytes int64
	Memtables     int
	L0Sublevels   int
	// CompactionDebt is about how many bytes compactions have to rewrite to be done.
	CompactionDebt int64
	// Refuse says that new writes should be refused for now, and Reason why.
	Refuse bool
	Reason string
}

// Pressure is cheap enough to be asked before every write.
func (s *Store) Pressure() Pressure {
	p := *s.watcher.pressure.Load()
	p.MemtableBytes += s.watcher.since.Load()
	switch {
	case p.MemtableBytes > s.opts.MaxMemtableBytes:
		p.Refuse = true
		p.Reason = fmt.Sprintf("%d MiB of writes wait to be flushed, the most is %d", p.MemtableBytes>>20, s.opts.MaxMemtableBytes>>20)
	case p.L0Sublevels > s.opts.MaxL0Sublevels:
		p.Refuse = true
		p.Reason = fmt.Sprintf("compactions are behind: %d sublevels, the most is %d", p.L0Sublevels, s.opts.MaxL0Sublevels)
	}
	return p
}

// updatePressure asks Pebble, which takes its locks and some 10 µs.
func (w *watcher) updatePressure() {
	since := w.since.Load()
	m := w.store.db.Metrics()
	w.pressure.Store(&Pressure{
		MemtableBytes: int64(m.MemTable.Size), Memtables: int(m.MemTable.Count),
		L0Sublevels: int(m.Levels[0].Sublevels), CompactionDebt: int64(m.Compact.EstimatedDebt),
	})
	// What was committed while Pebble was asked counts twice until the next time.
	w.since.Add(-since)
}

// committed takes note of a batch for the pressure and the metrics.
func (s *Store) committed(bytes int, c rowCounts) {
	s.watcher.since.Add(int64(bytes))
	s.metrics.rows(c)
}
