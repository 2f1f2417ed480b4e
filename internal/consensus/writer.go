package consensus

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/wal"
)

const (
	// outOfSpaceRetry is how often an append that found no room is tried again.
	outOfSpaceRetry = 250 * time.Millisecond
	// trimPause is how long the writer waits for work before it deletes what no log needs any more.
	trimPause   = 20 * time.Millisecond
	trimRecords = 1024
)

// logWriter is the one goroutine of a server that commits to its log. While one commit is under way, what all groups have
// ready gathers, and shares the next.
//
// Without room nothing is said to be durable that isn't: the appends stay under way, in order, and are tried again. Raft
// bears that, as it bears a slow disk: a leader doesn't count itself, a follower doesn't answer, votes don't leave.
// Meanwhile proposals are refused, and what gives room (cuts, deletes) goes ahead of what needs it.
type logWriter struct {
	host  *Host
	store wal.Store
	clock Clock
	limit int

	signal chan struct{}
	bytes  atomic.Int64
	full   atomic.Bool
	// since is when the commit under way began, in nanoseconds of the host's time; 0: none is.
	since   atomic.Int64
	stalled bool // of the goroutine that asks

	mu     sync.Mutex
	queue  []logItem
	failed error
}

// logItem is one thing to be done in the log.
type logItem struct {
	worker  *worker // of an append
	append  Append
	create  *createItem
	install *installItem
	remove  *removeItem
	barrier chan struct{} // closed once everything before it is done
	// ahead: has been done ahead of its turn, to make room; skip: its group has been removed ahead of it.
	ahead, skip bool
}

type createItem struct {
	number ident.LocalNumber
	tablet ident.TabletID
	record []byte
	start  ident.OpID
	done   chan error // holds one
}

type installItem struct {
	commit *Commit
	tablet ident.TabletID
	done   chan error // holds one
}

type removeItem struct {
	number ident.LocalNumber
	done   chan error // holds one
}

func newLogWriter(h *Host, l Limits) *logWriter {
	return &logWriter{host: h, store: h.deps.Log, clock: h.deps.Clock, limit: l.MaxCommitBytes, signal: make(chan struct{}, 1)}
}

func (w *logWriter) add(from *worker, as []Append) {
	items := make([]logItem, len(as))
	for i, a := range as {
		items[i] = logItem{worker: from, append: a}
	}
	w.put(items...)
}

// put queues items; after a failure of the log they are answered at once.
func (w *logWriter) put(items ...logItem) {
	bytes := 0
	for i := range items {
		bytes += items[i].append.Bytes
	}
	w.bytes.Add(int64(bytes))
	w.mu.Lock()
	failed := w.failed
	if failed == nil {
		w.queue = append(w.queue, items...)
	}
	w.mu.Unlock()
	if failed != nil {
		for i := range items {
			items[i].fail(failed)
		}
		return
	}
	select {
	case w.signal <- struct{}{}:
	default:
	}
}

func (it *logItem) fail(err error) {
	switch {
	case it.create != nil:
		it.create.done <- err
	case it.install != nil:
		it.install.done <- err
	case it.remove != nil:
		it.remove.done <- err
	case it.barrier != nil:
		close(it.barrier)
	}
}

func (w *logWriter) run(ctx context.Context) error {
	trim := true // what an earlier run left
	for ctx.Err() == nil {
		items := w.take()
		if len(items) == 0 {
			trim = w.idle(ctx, trim)
			continue
		}
		err := w.commit(items)
		switch {
		case err == nil:
			w.outOfSpace(false)
			trim = w.finish(items) || trim
		case errors.Is(err, wal.ErrNoSpace):
			w.outOfSpace(true)
			w.putBack(items)
			w.makeRoom()
			pause(ctx, outOfSpaceRetry)
		default:
			w.fail(err, items)
			return nil
		}
	}
	return nil
}

// idle waits for work; if there is something to trim, not for long.
func (w *logWriter) idle(ctx context.Context, trim bool) bool {
	if !trim {
		select {
		case <-ctx.Done():
		case <-w.signal:
		}
		return false
	}
	t := time.NewTimer(trimPause)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-w.signal:
		return true
	case <-t.C:
	}
	more, err := w.store.Trim(trimRecords)
	if err != nil && !errors.Is(err, wal.ErrNoSpace) {
		w.fail(err, nil)
		return false
	}
	return more && err == nil
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// take returns the oldest items, up to about a commit's size.
func (w *logWriter) take() []logItem {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, bytes := 0, 0
	for n < len(w.queue) && (n == 0 || bytes+w.queue[n].append.Bytes <= w.limit) {
		bytes += w.queue[n].append.Bytes
		n++
	}
	items := w.queue[:n:n]
	if w.queue = w.queue[n:]; len(w.queue) == 0 {
		w.queue = nil
	}
	return items
}

// commit makes the items durable.
func (w *logWriter) commit(items []logItem) error {
	var c Commit
	for i := range items {
		it := &items[i]
		switch {
		case it.skip:
		case it.create != nil:
			c.CreateGroup(it.create.number, it.create.tablet, it.create.record, it.create.start)
		case it.install != nil:
			c.Join(it.install.commit)
		case it.remove != nil && !it.ahead:
			c.DeleteGroup(it.remove.number)
		case it.worker != nil:
			c.Add(&it.append, !it.ahead)
		}
	}
	c.Seal(w.clock)
	if c.Empty() {
		return nil
	}
	w.since.Store(int64(w.host.heartbeats.now()))
	err := w.store.Commit(&c.Batch)
	w.since.Store(0)
	if err != nil {
		return err
	}
	c.Durable(w.clock)
	if c.Appends > 0 {
		w.host.metrics.commitAppends.Observe(float64(c.Appends))
	}
	return nil
}

// finish tells everyone who waited; it says whether something may be left to trim.
func (w *logWriter) finish(items []logItem) (trim bool) {
	bytes := 0
	for i := 0; i < len(items); {
		it := &items[i]
		switch {
		case it.create != nil:
			it.create.done <- nil
		case it.install != nil:
			it.install.done <- nil
			trim = true
		case it.remove != nil:
			it.remove.done <- nil
			trim = true
		case it.barrier != nil:
			close(it.barrier)
		default:
			n := i
			for n < len(items) && items[n].worker == it.worker {
				bytes += items[n].append.Bytes
				trim = trim || items[n].append.CutBehind != (ident.OpID{})
				n++
			}
			it.worker.box.put(func(m *mail) {
				for _, done := range items[i:n] {
					m.appended = append(m.appended, appendedMail{done.append.Tablet, done.append.Seq})
				}
			})
			i = n
			continue
		}
		i++
	}
	w.host.metrics.logQueueBytes.Set(float64(w.bytes.Add(-int64(bytes))))
	return trim
}

// putBack puts items that found no room in front of the queue again. New groups aren't held: their callers are told.
func (w *logWriter) putBack(items []logItem) {
	kept := make([]logItem, 0, len(items))
	for _, it := range items {
		if it.create != nil {
			it.create.done <- status.New(status.OutOfSpace, "tablet %s: no space left for this server's log; make room in its folder", it.create.tablet)
			continue
		}
		if it.install != nil {
			it.install.done <- status.New(status.OutOfSpace, "tablet %s: no space left for this server's log; make room in its folder", it.install.tablet)
			continue
		}
		kept = append(kept, it)
	}
	w.mu.Lock()
	w.queue = append(kept, w.queue...)
	w.mu.Unlock()
}

// makeRoom commits what frees space ahead of what needs it: removals and cuts, which touch nothing that the items before
// them add. Their callers still hear of them in turn.
func (w *logWriter) makeRoom() {
	var b wal.Batch
	var freed []int
	w.mu.Lock()
	for i := range w.queue {
		it := &w.queue[i]
		switch {
		case it.ahead || it.skip:
		case it.remove != nil:
			b.DeleteGroup(it.remove.number)
			freed = append(freed, i)
		case it.append.CutBehind != (ident.OpID{}):
			b.Compact(it.append.Number, it.append.CutBehind)
			freed = append(freed, i)
		}
	}
	w.mu.Unlock()
	// What goes wrong here is tried again with the rest, which tells.
	if !b.Empty() && w.store.Commit(&b) != nil {
		return
	}
	_, _ = w.store.Trim(trimRecords)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, i := range freed { // others only add at the end: the places are the same
		w.queue[i].ahead = true
		if r := w.queue[i].remove; r != nil {
			for j := range w.queue[:i] {
				if w.queue[j].worker != nil && w.queue[j].append.Number == r.number {
					w.queue[j].skip = true
				}
			}
		}
	}
}

// outOfSpace tells the workers when the log runs out of room, and when it has some again.
func (w *logWriter) outOfSpace(full bool) {
	if w.full.Swap(full) == full {
		return
	}
	if full {
		w.host.metrics.outOfSpace.Set(1)
		w.host.log.Error("no space left for the log: writes are refused until there is room")
	} else {
		w.host.metrics.outOfSpace.Set(0)
		w.host.log.Info("the log has room again")
	}
	for _, wk := range w.host.workers {
		wk.box.put(func(m *mail) {
			m.commands = append(m.commands, func(c *Core) { c.SetOutOfSpace(full) })
		})
	}
}

// stalls says whether the commit under way has been so for longer than limit. It is asked again and again, by one goroutine.
func (w *logWriter) stalls(limit time.Duration) bool {
	since := time.Duration(w.since.Load())
	stalls := since != 0 && w.host.heartbeats.now()-since > limit
	if stalls == w.stalled {
		return stalls
	}
	if w.stalled = stalls; stalls {
		w.host.metrics.logStalled.Set(1)
		w.host.metrics.logStalls.Inc()
		w.host.log.Warn("a commit of the log doesn't end: leaderships are handed over until it does; look at the disk of --fs_wal_dir", slog.Duration("under_way", w.host.heartbeats.now()-since))
	} else {
		w.host.metrics.logStalled.Set(0)
		w.host.log.Info("the log goes on")
	}
	return stalls
}

// fail ends every replica of the server: whether the last commit will be there after a restart is unknown, so nothing that
// rests on it may be said, and nothing may be tried again.
func (w *logWriter) fail(err error, items []logItem) {
	w.host.log.Error("the log has failed: all replicas on this server stop", slog.Any("error", err))
	failed := status.Wrap(status.IO, err, "this server's log")
	w.mu.Lock()
	w.failed = failed
	items = append(items, w.queue...)
	w.queue = nil
	w.mu.Unlock()
	for i := range items {
		items[i].fail(failed)
	}
	for _, wk := range w.host.workers {
		wk.box.put(func(m *mail) {
			m.commands = append(m.commands, func(c *Core) { c.FailAll(failed) })
		})
	}
}
