package clock

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/status"
)

// Clock is a hybrid clock. All methods may be called by many goroutines at once.
type Clock struct {
	cfg     Config
	src     Source
	log     *slog.Logger
	metrics *metrics
	bootID  [16]byte
	begins  hybridtime.Timestamp // the clock mark at the start

	// last is the highest timestamp given out or taken over. Every call writes it, so it has a cache line of its own.
	_    [64]byte
	last atomic.Uint64
	_    [56]byte

	view           atomic.Pointer[view]
	durable        atomic.Uint64
	durablePromise atomic.Uint64
	running        atomic.Bool
	wake           chan struct{} // events are there; capacity 1
	askAzure       bool          // Run is to ask whether this is an Azure VM

	mu     sync.Mutex // guards what follows; no I/O but readings of the clocks is done under it
	detect bool
	det    *Detector
	fence  fence
	bound  bound
	kernel Discipline // what it said last
	asked  int64      // monotonic, when that was
	peers  peers
	events []event
	lost   int // events that found no room
}

// Marks are the two durable marks as the WAL returned them at the start; nil where there is none yet.
type Marks struct {
	Clock   []byte
	Promise []byte
}

// New returns a clock over the source, beginning at the clock mark. It starts nothing: Run does. Where the settings ask
// for a steered clock and nobody steers it yet, Now refuses until WaitSynchronized has seen it steered.
func New(cfg Config, src Source, marks Marks) (*Clock, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if _, mock := src.(*Mock); mock != (cfg.TimeSource == SourceMock) {
		return nil, errors.New("time_source: mock and a Mock source go together")
	}
	c := &Clock{cfg: cfg, src: src, log: cfg.Logger, bootID: src.BootID(), wake: make(chan struct{}, 1)}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.metrics = newMetrics(c)
	m, err := openMark(clockMark, marks.Clock, &c.durable)
	if err != nil {
		return nil, err
	}
	if _, err := openMark(promiseMark, marks.Promise, &c.durablePromise); err != nil {
		return nil, err
	}
	c.begins = m.ts
	c.last.Store(uint64(m.ts))
	c.begin(m)
	if err := c.metrics.register(cfg.Registerer); err != nil {
		return nil, err
	}
	return c, nil
}

// begin takes the first look and judges it against the mark.
func (c *Clock) begin(m mark) {
	decided := decideDetection(c.cfg.WallClockJumpDetection, c.src)
	c.log.Info("wall clock jump detection", "on", decided.on, "why", decided.why, "clock_source", c.src.ClockSource())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.detect, c.askAzure = decided.on, decided.ask
	first := takeLook(c.src, baseline(c.src), true)
	c.kernel = first.Kernel
	b := begin(start{
		mark: m, first: first, bootID: c.bootID, detect: c.detect, alone: c.cfg.OtherServers == 0,
		threshold: c.cfg.WallClockJumpThreshold, maxError: c.cfg.MaxClockSyncError,
	})
	c.det = NewDetector(c.threshold(), first, b.displaced)
	c.peers.others = c.cfg.OtherServers
	c.fence = fence{maxError: c.cfg.MaxClockSyncError}
	if b.cause != causeNone {
		c.fence.close(Fenced, b.cause, first.Mono, b.why)
		c.fence.next = b.next
		c.det.Distrust(b.ahead)
		c.emit(event{kind: eventState, why: b.why})
	} else if b.note != "" {
		c.log.Info("clock begins", "note", b.note, "mark", m.ts)
	}
	c.bound.steered = c.steered(&first.Kernel)
	c.lookLocked(true)
}

// threshold is what the detector holds displacements to.
func (c *Clock) threshold() time.Duration {
	if !c.detect {
		return math.MaxInt64 / 2
	}
	return c.cfg.WallClockJumpThreshold
}

// Now returns a timestamp above every one that this clock has given out or taken over. The error is a *status.Error with
// code Clock: the wall clock can't be trusted, or isn't yet. It is shared between calls and must not be changed.
func (c *Clock) Now() (hybridtime.Timestamp, error) {
	v := c.view.Load() // before the reading: so the look that counts is never later than it
	p := c.src.Pair()
	if !v.ok(p) {
		return c.slowNow()
	}
	return c.advance(p.Wall + v.shift), nil
}

// advance hands out the wall clock as a timestamp, or the next one above the last where that isn't above it.
func (c *Clock) advance(wall int64) hybridtime.Timestamp {
	now := uint64(wall) / 1000 << hybridtime.LogicalBits
	for {
		last := c.last.Load()
		next := max(now, last+1)
		if c.last.CompareAndSwap(last, next) {
			return hybridtime.Timestamp(next)
		}
	}
}

// slowNow is Now where the last look doesn't answer for the reading: it looks again before it hands anything out.
func (c *Clock) slowNow() (hybridtime.Timestamp, error) {
	p, v := c.relook()
	if v.err != nil {
		c.metrics.refused.Inc()
		return 0, v.err
	}
	return c.advance(p.Wall + v.shift), nil
}

// relook returns a reading and the look that answers for it, or the one that refuses it.
func (c *Clock) relook() (Pair, *view) {
	if v := c.view.Load(); v.err != nil {
		if p := c.src.Pair(); v.isFresh(p.Mono) {
			return p, v // refusing takes no new look: the next is at most three periods away
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.view.Load()
	p := c.src.Pair()
	if v.ok(p) || v.err != nil && v.isFresh(p.Mono) {
		return p, v // another caller has looked in the meantime
	}
	p = c.lookLocked(uint64(p.Mono-c.asked) > v.freshFor) // no sampler runs: the kernel must be asked as well
	return p, c.view.Load()
}

// reading returns the last good reading carried on to this moment, in nanoseconds since the epoch: the wall clock while it
// is good, never the wall clock while it isn't.
func (c *Clock) reading() int64 {
	v := c.view.Load()
	p := c.src.Pair()
	if v.ok(p) {
		return p.Wall + v.shift
	}
	if p, v = c.relook(); v.err == nil {
		return p.Wall + v.shift
	}
	return p.Mono + v.good
}

// Latest returns the highest timestamp given out or taken over. It neither checks nor advances.
func (c *Clock) Latest() hybridtime.Timestamp { return hybridtime.Timestamp(c.last.Load()) }

// Fenced says whether this server should lead nothing, and why: its clock is fenced, or gives nothing out for another
// reason. A clock that is merely held for a beat isn't.
func (c *Clock) Fenced() (reason string, fenced bool) {
	v := c.view.Load()
	if v.err == nil || v.state == Held {
		return "", false
	}
	return v.err.Msg, true
}

// lookLocked looks at all clocks, lets the cores judge, and publishes what follows. It returns the reading.
func (c *Clock) lookLocked(ask bool) Pair {
	l := takeLook(c.src, c.det.Expected(), ask)
	j := c.det.Judge(l)
	if j.Lapsed > c.cfg.MaxClockSyncError {
		c.det.Discount(j.Lapsed)
	}
	c.bound.carry(j.Slept)
	if ask || l.Kernel.OK {
		c.kernel, c.asked = l.Kernel, l.Mono
		c.bound.see(l.Mono, l.Kernel, c.det.Good())
	}
	wall := l.Offset() - c.det.Slept()
	maxAge := freshPeriods * c.cfg.BeatInterval
	table := c.peers.table(wall, l.Mono, math.MinInt64, maxAge)
	s := sighting{
		now: l.Mono, j: j,
		opinion:     Opine(table, c.peers.others, c.cfg.MaxClockSyncError),
		behind:      time.Duration(c.begins.Micros()-l.Wall/1000) * time.Microsecond,
		sourceRight: c.kernel.usable() && c.kernel.MaxError <= c.cfg.MaxClockSyncError,
	}
	s.later = s.opinion
	if c.fence.since != 0 {
		s.later = Opine(c.peers.table(wall, l.Mono, c.fence.since, maxAge), c.peers.others, c.cfg.MaxClockSyncError)
	}
	r := c.fence.step(s)
	if r.shownRight {
		c.det.ShownRight()
	}
	if r.trust {
		c.det.Trust()
	}
	if r.measured {
		c.det.Measured(r.ahead)
	}
	if r.doubted {
		c.det.Distrust(r.ahead)
	}
	j.Displaced = c.det.Displaced()
	before := c.view.Load()
	c.publish(&l, &j, table, &s.opinion)
	c.report(before, c.view.Load(), r.changed)
	return l.Pair
}

// publish makes a look the one that calls go by.
func (c *Clock) publish(l *Look, j *Judgement, table []PeerOffset, says *Opinion) {
	// What is still allowed ahead of this look; below noise where the threshold is near.
	room := min(max(c.threshold()-j.Displaced, 0), noise)
	v := &view{
		checked: c.detect, fresh: l.Before, freshFor: uint64(freshPeriods * c.cfg.SamplePeriod),
		low: l.Offset() - int64(noise), span: uint64(noise + room), latest: uint64(maxWall),
		good: c.det.Good(), ref: c.det.Reference(), slept: c.det.Slept(),
		j: *j, state: c.fence.state, why: c.fence.why, bound: c.bound, table: table, says: *says,
	}
	if (c.bound.extrapolating || !c.bound.synced) && (j.Verdict == OK || j.Verdict == Slewed) {
		v.j.Verdict = Unsynchronised
	}
	if c.bound.extrapolating && c.fence.state == Open {
		v.checked = true // what is added to the wall clock holds for this offset alone
		v.shift, v.good = c.bound.base-l.Offset(), c.bound.base
	}
	if v.err = c.refusal(l, v.shift); v.err != nil {
		v.shut()
	}
	c.view.Store(v)
}

// refusal returns why nothing may be given out, or nil.
func (c *Clock) refusal(l *Look, shift int64) *status.Error {
	is := c.bound.is(l.Mono)
	switch wall := l.Wall + shift; {
	case c.fence.state != Open:
		return status.New(status.Clock, "clock %v: %s", c.fence.state, c.fence.why)
	case !c.bound.synced:
		return status.New(status.Clock, "clock not synchronised yet: %s", c.kernel.says())
	case is > c.cfg.MaxClockSyncError:
		return status.New(status.Clock, "clock too uncertain: its error may be %v, more than max_clock_sync_error_usec (%v) allows: %s",
			is, c.cfg.MaxClockSyncError, c.kernel.says())
	case wall < 0 || wall > maxWall:
		return status.New(status.Clock, "clock out of range: it reads %v, which no timestamp can hold", time.Unix(0, wall).UTC())
	}
	return nil
}

// says puts the kernel's word on its clock into a message.
func (d *Discipline) says() string {
	if !d.OK {
		return "adjtimex is not available"
	}
	return fmt.Sprintf("adjtimex says synchronised=%t, maximum error %v, status %#x", d.Synced, d.MaxError, d.Status)
}
