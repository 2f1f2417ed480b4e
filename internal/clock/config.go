package clock

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The values of --wall_clock_jump_detection.
const (
	DetectionAuto     = "auto"     // on where it is needed (an Azure VM) or costs nothing (the reading is a vDSO call)
	DetectionEnabled  = "enabled"  // on
	DetectionDisabled = "disabled" // off
)

// The values of --time_source.
const (
	SourceAuto         = "auto"          // system if somebody steers the clock; system_unsync on loopback alone
	SourceSystem       = "system"        // the kernel must say that somebody steers its clock
	SourceBuiltin      = "builtin"       // a Source that asks NTP servers itself: package ntp
	SourceSystemUnsync = "system_unsync" // nobody need steer it: unsafe
	SourceMock         = "mock"          // a Mock source: unsafe
)

// Config holds the clock's settings. Fields carry the names of the flags that set them.
type Config struct {
	// WallClockJumpDetection is --wall_clock_jump_detection: auto, enabled or disabled.
	WallClockJumpDetection string
	// WallClockJumpThreshold is --wall_clock_jump_threshold_sec: the sum of steps that is taken for a fault.
	WallClockJumpThreshold time.Duration
	// MaxClockSyncError is --max_clock_sync_error_usec: how far clocks may differ, and so how far a timestamp may be ahead.
	MaxClockSyncError time.Duration
	// TimeSource is --time_source.
	TimeSource string
	// NTPInitialSyncWait is --ntp_initial_sync_wait_secs: how long WaitSynchronized waits for a steered clock.
	NTPInitialSyncWait time.Duration
	// UnlockUnsafeFlags is --unlock_unsafe_flags; system_unsync and mock need it.
	UnlockUnsafeFlags bool

	// LoopbackOnly says that all addresses served and all masters are loopback: then auto takes a clock that nobody
	// steers, for there is but one clock in the cluster. The daemon works it out from its addresses.
	LoopbackOnly bool
	// OtherServers is how many other servers will send beats, as far as it is known at the start; see SetPeers.
	OtherServers int
	// BeatInterval is --raft_heartbeat_interval_ms: the pace at which HearBeat is called per peer.
	BeatInterval time.Duration
	// SamplePeriod is how often the clocks are looked at in the background. A reading counts for three periods.
	SamplePeriod time.Duration

	// OnChange is called with the new status after the clock was fenced, held or opened, by a goroutine of Run's, one call
	// at a time. It may call the clock. nil: nobody is told.
	OnChange   func(Status)
	Logger     *slog.Logger          // nil: nothing is logged
	Registerer prometheus.Registerer // nil: no metrics
}

// DefaultConfig returns the settings of a daemon that was given no flags. Its addresses are loopback then.
func DefaultConfig() Config {
	return Config{
		WallClockJumpDetection: DetectionAuto,
		WallClockJumpThreshold: 900 * time.Second,
		MaxClockSyncError:      10 * time.Second,
		TimeSource:             SourceAuto,
		NTPInitialSyncWait:     60 * time.Second,
		LoopbackOnly:           true,
		BeatInterval:           500 * time.Millisecond,
		SamplePeriod:           100 * time.Millisecond,
	}
}

// Validate returns all that is wrong with the settings, as one error.
func (c *Config) Validate() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !slices.Contains([]string{DetectionAuto, DetectionEnabled, DetectionDisabled}, c.WallClockJumpDetection) {
		fail("wall_clock_jump_detection: %q is none of auto, enabled, disabled", c.WallClockJumpDetection)
	}
	if c.WallClockJumpThreshold < 100*time.Millisecond || c.WallClockJumpThreshold > math.MaxInt64/4 {
		fail("wall_clock_jump_threshold_sec: %v is out of range, at least 0.1 is needed", c.WallClockJumpThreshold.Seconds())
	}
	if c.MaxClockSyncError < time.Millisecond || c.MaxClockSyncError > time.Hour {
		fail("max_clock_sync_error_usec: %d is out of range, 1000 to 3600000000", c.MaxClockSyncError.Microseconds())
	}
	switch c.TimeSource {
	case SourceAuto, SourceSystem, SourceBuiltin:
	case SourceSystemUnsync, SourceMock:
		if !c.UnlockUnsafeFlags {
			fail("time_source: %s is unsafe (timestamps may be wrong): it needs unlock_unsafe_flags", c.TimeSource)
		}
	default:
		fail("time_source: %q is none of auto, system, builtin, system_unsync, mock", c.TimeSource)
	}
	if c.NTPInitialSyncWait < 0 {
		fail("ntp_initial_sync_wait_secs: %v is less than 0", c.NTPInitialSyncWait.Seconds())
	}
	if c.BeatInterval < time.Millisecond {
		fail("raft_heartbeat_interval_ms: %v is less than 1", c.BeatInterval.Milliseconds())
	}
	if c.SamplePeriod < time.Millisecond || c.SamplePeriod > time.Second {
		fail("clock sample period: %v is out of range, 1ms to 1s", c.SamplePeriod)
	}
	return errors.Join(errs...)
}
