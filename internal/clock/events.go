package clock

import (
	"context"
	"sync"
	"time"
)

// eventLimit bounds the events that wait to be told; beyond it they are counted and dropped.
const eventLimit = 64

// jumpLogEvery is how often at most a jump is logged, so that a clock gone wild doesn't fill the disk.
const jumpLogEvery = time.Second

type eventKind uint8

const (
	eventJump     eventKind = iota // a step, a suspend, a leap second, a long lapse
	eventState                     // the fence closed or opened
	eventBound                     // the source failed or came back
	eventAccepted                  // an operator's word
)

type event struct {
	kind  eventKind
	state State
	why   string
	j     Judgement
	bound bound
}

// emit puts an event where Run's goroutine finds it. c.mu is held.
func (c *Clock) emit(e event) {
	if len(c.events) == eventLimit {
		c.lost++
		return
	}
	c.events = append(c.events, e)
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// report counts and emits what a look brought. c.mu is held.
func (c *Clock) report(before, now *view, changed bool) {
	j := &now.j
	var was view
	if before != nil {
		was = *before
	}
	c.metrics.count(&was.j, j)
	if j.Step.Abs() > noise || j.Slept > 0 || j.Leap != 0 || j.Lapsed > c.cfg.MaxClockSyncError {
		c.emit(event{kind: eventJump, state: now.state, j: *j})
	}
	if changed {
		c.emit(event{kind: eventState, state: now.state, why: now.why, j: *j})
	}
	if was.bound.extrapolating != now.bound.extrapolating {
		c.emit(event{kind: eventBound, bound: now.bound})
	}
}

// tell logs events and calls OnChange until ctx ends, and then once more for what is left.
func (c *Clock) tell(ctx context.Context) {
	var lastJump time.Time
	var diagnosing sync.WaitGroup
	defer diagnosing.Wait()
	diagnosis := make(chan struct{}, 1) // one at a time; the tools are slow, and OnChange must not wait for them
	for done := false; !done; {
		select {
		case <-ctx.Done():
			done = true
		case <-c.wake:
		}
		c.mu.Lock()
		events, lost := c.events, c.lost
		c.events, c.lost = nil, 0
		c.mu.Unlock()
		for _, e := range events {
			if e.kind == eventJump && time.Since(lastJump) < jumpLogEvery {
				lost++
				continue
			}
			if e.kind == eventJump {
				lastJump = time.Now()
			}
			c.tellOne(e)
			if e.kind != eventState || e.state == Open {
				continue
			}
			select {
			case diagnosis <- struct{}{}:
				diagnosing.Go(func() {
					c.log.Info("clock diagnostics", "report", diagnose(ctx, c.src, runTool))
					<-diagnosis
				})
			default:
			}
		}
		if lost > 0 {
			c.log.Warn("clock events were not logged, there were too many", "count", lost)
		}
	}
}

func (c *Clock) tellOne(e event) {
	switch e.kind {
	case eventJump:
		c.log.Warn("clock moved", "verdict", e.j.Verdict.String(), "step", e.j.Step, "displaced", e.j.Displaced,
			"suspended", e.j.Slept, "lapsed", e.j.Lapsed, "leap_second", e.j.Leap, "refused", e.j.Refused, "state", e.state.String())
	case eventAccepted:
		c.log.Warn("an operator accepted the wall clock as it is")
	case eventBound:
		if e.bound.extrapolating {
			c.log.Warn("the time source failed: going on from the monotonic clock with a growing error bound",
				"max_error", e.bound.error, "grows_ppm", driftPPM)
		} else {
			c.log.Info("the time source is back", "max_error", e.bound.error)
		}
	case eventState:
		if e.state == Open {
			c.log.Info("clock is trusted: it gives timestamps out")
		} else {
			c.log.Error("clock gives no timestamps out", "state", e.state.String(), "why", e.why)
		}
		if c.cfg.OnChange != nil {
			c.cfg.OnChange(c.Status())
		}
	}
}
