package clock

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nyaladb/nyala/internal/status"
)

// TestSourceLost is T05 and fault 15: the time service goes for 120 s. The clock serves on from the monotonic clock, a step
// in the meantime doesn't show, the bound grows and is said to, and it ends with the source's return.
func TestSourceLost(t *testing.T) {
	m := newMachine()
	c := sampling(newClock(t, m, nil))
	m.run(c, time.Second)
	last := mustNow(t, c)
	m.do(func() { m.kernel.Synced, m.kernel.MaxError = false, 16*time.Second })
	m.run(c, time.Second)
	m.stepBy(3 * time.Second)
	for range 119 {
		m.run(c, time.Second)
		ts := mustNow(t, c)
		if ts <= last {
			t.Fatalf("%v after %v", ts, last)
		}
		last = ts
		if off := ts.Micros()*1000 - m.truth(); time.Duration(off).Abs() > time.Millisecond {
			t.Fatalf("off by %v while extrapolating", time.Duration(off))
		}
	}
	s := c.Status()
	if !s.Extrapolating || s.Verdict == OK || s.MaxError < 60*time.Millisecond || s.MaxError > 70*time.Millisecond {
		t.Errorf("after 120 s: extrapolating %v, verdict %v, error %v", s.Extrapolating, s.Verdict, s.MaxError)
	}
	if err := c.CheckAhead(last.Add(11 * time.Second)); err == nil {
		t.Error("the guard didn't go by the extrapolated clock")
	}
	m.do(func() { m.kernel.Synced, m.kernel.MaxError = true, time.Millisecond })
	m.stepBy(-3 * time.Second)
	m.run(c, time.Second)
	if s := c.Status(); s.Extrapolating || s.MaxError > 10*time.Millisecond {
		t.Errorf("after the return: extrapolating %v, error %v", s.Extrapolating, s.MaxError)
	}
	if ts := mustNow(t, c); ts <= last {
		t.Errorf("%v after %v", ts, last)
	}
}

// TestExtrapolatingThroughASuspend shows that the time asleep isn't lost.
func TestExtrapolatingThroughASuspend(t *testing.T) {
	m := newMachine()
	c := sampling(newClock(t, m, nil))
	m.do(func() { m.kernel.Synced = false })
	m.run(c, time.Second)
	m.suspend(8 * time.Hour)
	ts := mustNow(t, c)
	if off := ts.Micros()*1000 - m.truth(); time.Duration(off).Abs() > time.Millisecond {
		t.Errorf("off by %v", time.Duration(off))
	}
}

// TestNonsenseFromTheKernel shows what becomes of error bounds that are none, are too large, and of a unit that flips (T05).
func TestNonsenseFromTheKernel(t *testing.T) {
	m := newMachine()
	c := sampling(newClock(t, m, nil))
	m.do(func() { m.kernel.MaxError = -time.Microsecond })
	m.run(c, time.Second)
	mustNow(t, c)
	if s := c.Status(); !s.Extrapolating || s.MaxError < 0 || s.MaxError > time.Second {
		t.Errorf("-1: extrapolating %v, error %v", s.Extrapolating, s.MaxError)
	}
	m.do(func() { m.kernel.MaxError = 10_000_001 * time.Microsecond })
	m.run(c, time.Second)
	mustRefuse(t, c, "uncertain", "10.0")
	if _, fenced := c.Fenced(); !fenced {
		t.Error("a server that gives nothing out should lead nothing")
	}
	m.do(func() { m.kernel.MaxError = time.Millisecond })
	m.run(c, time.Second)
	const staNano = 0x2000
	for range 100 {
		m.do(func() { m.kernel.Status ^= staNano })
		m.run(c, 500*time.Millisecond)
		ts := mustNow(t, c)
		if off := ts.Micros()*1000 - m.truth(); time.Duration(off).Abs() > time.Millisecond {
			t.Fatalf("off by %v", time.Duration(off))
		}
	}
}

// TestWaitSynchronized waits on the real timer for a kernel that gets its time late, and gives up on one that never does.
func TestWaitSynchronized(t *testing.T) {
	m := newMachine()
	m.kernel.Synced = false
	fast := func(cfg *Config) {
		cfg.SamplePeriod, cfg.NTPInitialSyncWait, cfg.LoopbackOnly = 5*time.Millisecond, time.Minute, false
	}
	for _, source := range []string{SourceSystem, SourceAuto} {
		m.do(func() { m.kernel.Synced = false })
		c := newClock(t, m, func(cfg *Config) { fast(cfg); cfg.TimeSource = source })
		mustRefuse(t, c, "not synchronised yet", "adjtimex")
		done := make(chan error)
		go func() { done <- c.WaitSynchronized(t.Context()) }()
		m.do(func() { m.kernel.Synced = true })
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		mustNow(t, c)
	}
	m.do(func() { m.kernel.Synced = false })
	c := newClock(t, m, func(cfg *Config) { fast(cfg); cfg.NTPInitialSyncWait = 20 * time.Millisecond })
	err := c.WaitSynchronized(t.Context())
	if status.CodeOf(err) != status.Clock {
		t.Fatalf("gave up with %v", err)
	}
	for _, w := range []string{"chrony", "adjtimex says", "system_unsync"} {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q lacks %q", err, w)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.WaitSynchronized(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestAutoSource is a table of what auto decides.
func TestAutoSource(t *testing.T) {
	for _, c := range []struct {
		synced, loopback bool
		want             string
		refuses          bool
	}{
		{true, true, SourceSystem, false},
		{true, false, SourceSystem, false},
		{false, true, SourceSystemUnsync, false},
		{false, false, SourceSystem, true},
	} {
		m := newMachine()
		m.kernel.Synced = c.synced
		var logged strings.Builder
		clk := newClock(t, m, func(cfg *Config) {
			cfg.TimeSource, cfg.LoopbackOnly = SourceAuto, c.loopback
			cfg.Logger = slog.New(slog.NewTextHandler(&logged, nil))
		})
		_, err := clk.Now()
		if got := clk.Status().Source; got != c.want || (err != nil) != c.refuses {
			t.Errorf("%+v: source %v, Now: %v", c, got, err)
		}
		if warned := strings.Contains(logged.String(), "level=WARN"); warned != (c.want == SourceSystemUnsync) {
			t.Errorf("%+v: log\n%s", c, &logged)
		}
	}
}

// TestValidate shows that every setting out of range is named, all at once.
func TestValidate(t *testing.T) {
	bad := Config{
		WallClockJumpDetection: "maybe", WallClockJumpThreshold: time.Millisecond, TimeSource: "sundial",
		NTPInitialSyncWait: -1, MaxClockSyncError: 2 * time.Hour,
	}
	err := bad.Validate()
	for _, w := range []string{
		"wall_clock_jump_detection", "wall_clock_jump_threshold_sec", "max_clock_sync_error_usec", "time_source",
		"ntp_initial_sync_wait_secs", "raft_heartbeat_interval_ms", "sample period",
	} {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("%v lacks %q", err, w)
		}
	}
	cfg := DefaultConfig()
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
	for _, unsafe := range []string{SourceMock, SourceSystemUnsync} {
		cfg.TimeSource, cfg.UnlockUnsafeFlags = unsafe, false
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "unlock_unsafe_flags") {
			t.Errorf("%s without unlock: %v", unsafe, err)
		}
		cfg.UnlockUnsafeFlags = true
		if err := cfg.Validate(); err != nil {
			t.Error(err)
		}
	}
	cfg.TimeSource, cfg.UnlockUnsafeFlags = SourceMock, true
	if _, err := New(cfg, SystemSource(), Marks{}); err == nil {
		t.Error("mock without a Mock source was taken")
	}
	cfg.TimeSource = SourceSystem
	if _, err := New(cfg, NewMock(SystemSource()), Marks{}); err == nil {
		t.Error("a Mock source with another time source was taken")
	}
}
