package clock

import (
	"context"
	"sync"
	"time"

	"github.com/nyaladb/nyala/internal/invariant"
	"github.com/nyaladb/nyala/internal/status"
)

// Run looks at the clocks in the background, logs what happens to them and calls OnChange, until ctx ends. While it
// doesn't run, calls look for themselves when the last look is too old. It may run once at a time.
func (c *Clock) Run(ctx context.Context) error {
	invariant.Check(!c.running.Swap(true), "clock: two samplers run at once")
	defer c.running.Store(false)
	var beside sync.WaitGroup
	defer beside.Wait()
	beside.Go(func() { c.tell(ctx) })
	if c.askAzure {
		beside.Go(func() {
			if onAzure(ctx, azureMetadata) {
				c.detectNow("auto: this is an Azure VM, says its metadata service")
			}
		})
	}
	c.setPeriod(c.cfg.SamplePeriod)
	defer c.setPeriod(0)
	ticker := time.NewTicker(c.cfg.SamplePeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			c.sample()
		}
	}
}

func (c *Clock) sample() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lookLocked(true)
}

// setPeriod begins or ends the time in which looks come at a known pace.
func (c *Clock) setPeriod(p time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lookLocked(true)
	c.det.SetPeriod(p)
}

// detectNow turns jump detection on.
func (c *Clock) detectNow(why string) {
	c.mu.Lock()
	c.detect = true
	c.det.SetThreshold(c.threshold())
	c.lookLocked(true)
	c.mu.Unlock()
	c.log.Info("wall clock jump detection", "on", true, "why", why)
}

// steered decides, once, whether the wall clock must be one that somebody steers.
func (c *Clock) steered(kernel *Discipline) bool {
	switch c.cfg.TimeSource {
	case SourceSystem, SourceBuiltin, SourceMock:
		return true
	case SourceSystemUnsync:
		return false
	}
	if kernel.usable() || !c.cfg.LoopbackOnly {
		return true
	}
	c.log.Warn("nobody steers this machine's clock; it is taken as it is, since all servers are on this machine",
		"time_source", SourceSystemUnsync, "kernel", kernel.says())
	return false
}

// source names the time source in force.
func (c *Clock) source(b *bound) string {
	switch {
	case c.cfg.TimeSource == SourceMock, c.cfg.TimeSource == SourceBuiltin:
		return c.cfg.TimeSource
	case b.steered:
		return SourceSystem
	}
	return SourceSystemUnsync
}

// WaitSynchronized returns once somebody steers the clock, at once where nobody need. It gives up after
// NTPInitialSyncWait, with an error that says what to do.
func (c *Clock) WaitSynchronized(ctx context.Context) error {
	if c.view.Load().bound.synced {
		return nil
	}
	c.log.Info("waiting for the machine's clock to be synchronised: see that chrony or ntpd runs and reaches its servers",
		"limit", c.cfg.NTPInitialSyncWait, "kernel", c.kernelSays())
	wait, cancel := context.WithTimeout(ctx, c.cfg.NTPInitialSyncWait)
	defer cancel()
	ticker := time.NewTicker(c.cfg.SamplePeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if c.sample(); c.view.Load().bound.synced {
				return nil
			}
		case <-wait.Done():
			if err := ctx.Err(); err != nil {
				return err
			}
			return status.New(status.Clock,
				"nobody steers this machine's clock after %v (%s): start chrony or ntpd, or have NTP servers asked with --time_source=builtin, or wait longer with --ntp_initial_sync_wait_secs; --time_source=system_unsync takes the clock as it is, at your own risk",
				c.cfg.NTPInitialSyncWait, c.kernelSays())
		}
	}
}

func (c *Clock) kernelSays() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kernel.says()
}
