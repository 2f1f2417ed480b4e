package consensus

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/wal"
)

// Deps are what a host works with. All are needed; none is closed by the host.
type Deps struct {
	Log       wal.Store
	Clock     Clock
	Transport Transport
	Applier   Applier
	Observer  Observer
	// Blamed says whether most of the other servers heard, and more than one, say that this server's clock is off. It is asked
	// five times a heartbeat interval. nil: nobody says so ever; a clock that is known to be wrong still shows by its guard.
	Blamed func() bool
}

// Host runs every replica of a server. Its methods are safe for concurrent use; those that wait do so until Run works, so
// groups may be started before it.
type Host struct {
	cfg     Config
	deps    Deps
	log     *slog.Logger
	metrics *metrics
	coreCfg CoreConfig

	workers  []*worker
	writer   *logWriter
	applies  *applyPool
	notifier *notifier
	refusals refusalLog
	// heartbeats puts those of all groups to one server together.
	heartbeats *heartbeats
	servers    serversShell
	// stopped is closed when Run has ended: nothing that waits will be answered any more.
	stopped chan struct{}
	// strangers are told that what they send finds nobody here, once opened says that all there is has been started.
	strangers strangers
	opened    atomic.Bool

	mu     sync.RWMutex
	groups map[[16]byte]*handle
}

// handle is a group as the host's callers find it.
type handle struct {
	id      [16]byte
	tablet  ident.TabletID
	number  ident.LocalNumber
	replica ident.ReplicaID
	worker  *worker
	view    atomic.Pointer[View] // nil until the group has started
	ending  atomic.Bool
	leading bool // of the worker's goroutine: counted in the gauge
}

// NewHost returns a host that does nothing until Run.
func NewHost(cfg Config, deps Deps) (*Host, error) {
	cfg.Limits = cfg.Limits.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Log == nil || deps.Clock == nil || deps.Transport == nil || deps.Applier == nil || deps.Observer == nil {
		return nil, fmt.Errorf("consensus: log, clock, transport, applier and observer are all needed")
	}
	m, err := newMetrics(cfg.Registerer)
	if err != nil {
		return nil, err
	}
	h := &Host{
		cfg: cfg, deps: deps, log: cfg.Logger, metrics: m,
		stopped: make(chan struct{}), groups: make(map[[16]byte]*handle),
	}
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	h.refusals.log = h.log
	h.coreCfg = CoreConfig{
		HeartbeatTicks: ticksPerHeartbeat,
		ElectionTicks:  ticksPerHeartbeat * cfg.MaxMissedHeartbeats,
		PreElection:    cfg.PreElection,
		Quiesce:        cfg.Quiesce,
		ServerLiveness: cfg.ServerLiveness,
		Pairs:          NewQuietPairs(),
		PushCommit:     cfg.PushCommit,
		Limits:         cfg.Limits,
	}
	h.servers.s = NewServers(ServersConfig{Self: cfg.ServerID, HeartbeatTicks: h.coreCfg.HeartbeatTicks, SilentTicks: h.coreCfg.ElectionTicks})
	for range cfg.workers() {
		h.workers = append(h.workers, newWorker(h, h.coreCfg))
	}
	h.heartbeats = newHeartbeats(h)
	h.writer = newLogWriter(h, cfg.Limits)
	h.applies = newApplyPool(h, runtime.GOMAXPROCS(0))
	h.notifier = newNotifier(deps.Observer)
	return h, nil
}

// Run works until ctx ends and every goroutine has joined. It is called once.
func (h *Host) Run(ctx context.Context) error {
	defer h.metrics.close()
	defer close(h.stopped)
	eg, ctx := errgroup.WithContext(ctx)
	for _, w := range h.workers {
		eg.Go(func() error { return w.run(ctx) })
	}
	eg.Go(func() error { return h.writer.run(ctx) })
	eg.Go(func() error { return h.applies.run(ctx) })
	eg.Go(func() error { return h.notifier.run(ctx) })
	eg.Go(func() error { return h.heartbeats.run(ctx) })
	eg.Go(func() error { return h.tick(ctx) })
	return eg.Wait()
}

// tick moves the workers' time on. A worker that is behind gets one tick for all it missed: a server that was paused has
// its messages read before its election timers go on.
func (h *Host) tick(ctx context.Context) error {
	t := time.NewTicker(h.cfg.HeartbeatInterval / ticksPerHeartbeat)
	defer t.Stop()
	blamed, stalled := false, false
	retain := h.cfg.Limits.retention(0)
	ticks := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			if ticks++; ticks%ticksPerHeartbeat == 0 {
				h.strangers.pass()
			}
			now := h.deps.Blamed != nil && h.deps.Blamed()
			retention := h.cfg.Limits.retention(h.deps.Log.Size().LiveBytes)
			stalls := h.writer.stalls(h.cfg.electionTimeout())
			for _, w := range h.workers {
				if w.rests.Load() && now == blamed && stalls == stalled && retention == retain {
					continue
				}
				w.box.put(func(m *mail) {
					if stalls != stalled {
						m.commands = append(m.commands, func(c *Core) { c.SetLogStalled(stalls) })
					}
					if now != blamed {
						m.commands = append(m.commands, func(c *Core) { c.SetBlamed(now) })
					}
					if retention != retain {
						m.commands = append(m.commands, func(c *Core) { c.SetRetention(retention) })
					}
					m.tick = true
				})
			}
			blamed, stalled, retain = now, stalls, retention
			h.stepServers((*Servers).Tick)
		}
	}
}

// CreateGroup makes a group durable: its record, and an empty log that begins after start. It returns the number that names
// the replica on this server from now on. Groups created at the same time share a commit.
func (h *Host) CreateGroup(ctx context.Context, tablet ident.TabletID, record []byte, start ident.OpID) (ident.LocalNumber, error) {
	if _, err := ident.Bytes(string(tablet)); err != nil {
		return 0, status.Wrap(status.InvalidArgument, err, "create group")
	}
	c := &createItem{number: h.deps.Log.AllocateNumber(), tablet: tablet, record: record, start: start, done: make(chan error, 1)}
	h.writer.put(logItem{create: c})
	if err := wait(ctx, h, c.done); err != nil {
		return 0, fmt.Errorf("create tablet %s in the log: %w", tablet, err)
	}
	return c.number, nil
}

// StartGroup brings a group up on its log. It reads the log behind what is applied, in the caller's goroutine.
func (h *Host) StartGroup(ctx context.Context, cfg GroupConfig) error {
	id, err := ident.Bytes(string(cfg.Tablet))
	if err != nil {
		return status.Wrap(status.InvalidArgument, err, "start group")
	}
	log := h.deps.Log.Log(cfg.Number)
	if log == nil {
		return status.New(status.NotFound, "tablet %s: the log holds no group %d", cfg.Tablet, cfg.Number)
	}
	w := h.workers[uint64(cfg.Number)%uint64(len(h.workers))]
	n := &handle{id: id, tablet: cfg.Tablet, number: cfg.Number, replica: cfg.Replica, worker: w}
	h.mu.Lock()
	if h.groups[id] != nil {
		h.mu.Unlock()
		return status.New(status.TabletAlreadyExists, "tablet %s: its replica runs on this server already", cfg.Tablet)
	}
	h.groups[id] = n
	h.mu.Unlock()
	g, err := prepareGroup(h.coreCfg, h.deps.Clock, cfg, log)
	if err == nil {
		done := make(chan error, 1)
		w.box.put(func(m *mail) {
			m.commands = append(m.commands, func(c *Core) {
				var err error
				if n.ending.Load() { // stopped while its log was read
					err = errStopped(cfg.Tablet)
				} else if err = c.adopt(g); err == nil {
					n.view.Store(&g.view)
					h.metrics.groups.Inc()
				}
				done <- err
			})
		})
		if err = wait(ctx, h, done); err == nil {
			return nil
		}
		if ctx.Err() != nil { // it may still start
			_ = h.StopGroup(context.WithoutCancel(ctx), cfg.Tablet)
			return err
		}
	}
	h.forget(n)
	return err
}

func (h *Host) forget(n *handle) {
	h.mu.Lock()
	if h.groups[n.id] == n {
		delete(h.groups, n.id)
	}
	h.mu.Unlock()
}

// StopGroup ends a replica on this server; its log stays. When it returns nil nothing of it is under way: no append, no
// call of the applier. If ctx ends first the group is stopped all the same, and may be stopped again to wait for the rest.
func (h *Host) StopGroup(ctx context.Context, tablet ident.TabletID) error {
	n := h.find(tablet)
	if n == nil {
		return errNoGroup(tablet)
	}
	n.ending.Store(true)
	done := make(chan error, 1)
	n.worker.box.put(func(m *mail) {
		m.commands = append(m.commands, func(c *Core) {
			c.StopGroup(tablet)
			if n.view.Swap(nil) != nil {
				h.metrics.groups.Dec()
			}
			if n.leading {
				n.leading = false
				h.metrics.leading.Dec()
			}
			done <- nil
		})
	})
	if err := wait(ctx, h, done); err != nil {
		return err
	}
	// The worker has handed out everything it ever will for this group: what was handed out goes before the barrier.
	barrier := make(chan struct{})
	h.writer.put(logItem{barrier: barrier})
	select {
	case <-barrier:
	case <-ctx.Done():
		return ctx.Err()
	case <-h.stopped:
		return errHostStopped()
	}
	if err := h.applies.drain(ctx, tablet); err != nil {
		return err
	}
	h.forget(n)
	return nil
}

// DeleteGroup stops a replica if it runs and removes it from the log, durably.
func (h *Host) DeleteGroup(ctx context.Context, tablet ident.TabletID) error {
	var number ident.LocalNumber
	if n := h.find(tablet); n != nil {
		number = n.number
		if err := h.StopGroup(ctx, tablet); err != nil {
			return err
		}
	} else {
		for _, g := range h.deps.Log.Groups() {
			if g.TabletID == tablet {
				number = g.Number
			}
		}
	}
	if number == 0 {
		return errNoGroup(tablet)
	}
	r := &removeItem{number: number, done: make(chan error, 1)}
	h.writer.put(logItem{remove: r})
	if err := wait(ctx, h, r.done); err != nil {
		return fmt.Errorf("delete tablet %s from the log: %w", tablet, err)
	}
	return nil
}

// Status returns what a group looked like after its last step, without asking its worker; false: no such group runs.
func (h *Host) Status(tablet ident.TabletID) (GroupStatus, bool) {
	n := h.find(tablet)
	if n == nil {
		return GroupStatus{}, false
	}
	v := n.view.Load()
	if v == nil {
		return GroupStatus{}, false
	}
	return v.Status(), true
}

// Compact says that the state machine holds the log durably through index. The log is cut behind what every member holds.
func (h *Host) Compact(tablet ident.TabletID, durable ident.Index) {
	if n := h.find(tablet); n != nil {
		n.worker.box.put(func(m *mail) {
			m.commands = append(m.commands, func(c *Core) { c.Durable(tablet, durable) })
		})
	}
}

// Opened says that every replica that this server holds has been started or has failed to: from now on, a message for one that
// isn't here is answered so. Before that the replica may be on its way.
func (h *Host) Opened() { h.opened.Store(true) }

// SetFenced says whether this server's clock gives no timestamps out: whether its replicas are to lead nothing (see
// Core.SetFenced). It returns at once.
func (h *Host) SetFenced(fenced bool) {
	for _, w := range h.workers {
		w.box.put(func(m *mail) {
			m.commands = append(m.commands, func(c *Core) { c.SetFenced(fenced) })
		})
	}
}

// find returns the group's handle, nil if there is none.
func (h *Host) find(tablet ident.TabletID) *handle {
	id, err := ident.Bytes(string(tablet))
	if err != nil {
		return nil
	}
	return h.findID(id)
}

func (h *Host) findID(id [16]byte) *handle {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.groups[id]
}

func (h *Host) observeChange(s GroupStatus) {
	if n := h.find(s.Tablet); n != nil {
		if leads := s.Role == nyalav1.Role_ROLE_LEADER; leads != n.leading {
			n.leading = leads
			if leads {
				h.metrics.leading.Inc()
			} else {
				h.metrics.leading.Dec()
			}
		}
	}
	h.notifier.put(s.Tablet, func(w *news) { w.change = &s })
}

func (h *Host) observeFailure(f Failure) {
	h.log.Error("replica failed", slog.String("tablet_id", string(f.Tablet)), slog.Any("error", f.Err))
	h.notifier.put(f.Tablet, func(w *news) { w.err = f.Err })
}

// wait waits for one answer.
func wait(ctx context.Context, h *Host, done <-chan error) error {
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-h.stopped:
		return errHostStopped()
	}
}

// Propose puts an entry into the tablet's log, on its leader: the entry gets its timestamp in the step that gives it its
// index. It returns when the entry stands in the leader's log; whether it is committed shows when it is applied, or not.
// placed, unless nil, is told the entry's place before the entry can be applied: it is called from the group's worker, and
// must not block or call the host. The payload belongs to the host from now on. After an error of ctx the entry may have been
// appended all the same, and then placed is called too.
func (h *Host) Propose(ctx context.Context, tablet ident.TabletID, kind wal.Kind, payload []byte,
	placed func(ident.OpID, hybridtime.Timestamp),
) (ident.OpID, hybridtime.Timestamp, error) {
	switch {
	case kind != wal.KindWrite && kind != wal.KindNoop && kind != wal.KindAlter:
		return ident.OpID{}, 0, status.New(status.InvalidArgument, "tablet %s: entries of kind %s can't be proposed", tablet, kind)
	case len(payload) > h.cfg.Limits.MaxEntryBytes:
		return ident.OpID{}, 0, status.New(status.TooLarge, "tablet %s: an entry of %d bytes, of at most %d", tablet, len(payload), h.cfg.Limits.MaxEntryBytes)
	case h.writer.bytes.Load() > int64(h.cfg.Limits.MaxLogQueueBytes):
		return ident.OpID{}, 0, errTooBusy(tablet, "this server's log is behind")
	}
	d, err := h.call(ctx, request{kind: requestPropose, tablet: tablet, entry: kind, payload: payload, placed: placed})
	return d.OpID, d.Timestamp, err
}

// ReadIndex returns an index that is at or above every write acknowledged before the call, on the leader: who has applied
// through it may serve a linearizable read. Reads that wait share a round.
func (h *Host) ReadIndex(ctx context.Context, tablet ident.TabletID) (ident.Index, error) {
	d, err := h.call(ctx, request{kind: requestRead, tablet: tablet})
	return d.OpID.Index, err
}

// CloseTimestamp returns an index, known committed here, such that who has applied through it holds every write at or below
// ts, for ever. Any replica can be asked; it asks its leader where it must. It waits for a leader, as long as ctx allows.
func (h *Host) CloseTimestamp(ctx context.Context, tablet ident.TabletID, ts hybridtime.Timestamp) (ident.Index, error) {
	d, err := h.call(ctx, request{kind: requestClose, tablet: tablet, ts: ts})
	return d.OpID.Index, err
}

// TransferLeadership hands leadership to another voter; 0: to the one that is furthest on. It returns nil once this replica
// leads no more.
func (h *Host) TransferLeadership(ctx context.Context, tablet ident.TabletID, to ident.ReplicaID) error {
	_, err := h.call(ctx, request{kind: requestTransfer, tablet: tablet, to: to})
	return err
}

// call gives a worker a request and waits for its answer.
func (h *Host) call(ctx context.Context, r request) (Done, error) {
	n := h.find(r.tablet)
	switch {
	case n == nil:
		return Done{}, errNoGroup(r.tablet)
	case n.ending.Load():
		return Done{}, errStopped(r.tablet)
	}
	r.call = newCall(r.placed)
	if !n.worker.box.request(r) {
		return Done{}, errTooBusy(r.tablet, "too many requests wait on this server")
	}
	select {
	case d := <-r.call.done:
		return d, d.Err
	case <-ctx.Done():
		r.call.gone.Store(true)
		n.worker.box.request(request{kind: requestCancel, tablet: r.tablet, call: r.call})
		return Done{}, ctx.Err()
	case <-h.stopped:
		return Done{}, errHostStopped()
	}
}
