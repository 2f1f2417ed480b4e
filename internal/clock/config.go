package clock

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Config holds the clock's settings. Fields carry the names of the flags that set them.
type Config struct {
	// MaxClockSyncError is --max_clock_sync_error_usec: how far another clock, or a timestamp, may be ahead.
	MaxClockSyncError time.Duration
	Logger            *slog.Logger          // nil: nothing is logged
	Registerer        prometheus.Registerer // nil: no metrics
}

// DefaultConfig returns the settings of a daemon that was given no flags.
func DefaultConfig() Config { return Config{MaxClockSyncError: 10 * time.Second} }

// Validate returns all that is wrong with the settings, as one error.
func (c *Config) Validate() error {
	var errs []error
	if c.MaxClockSyncError < time.Millisecond {
		errs = append(errs, fmt.Errorf("max_clock_sync_error_usec: %d is too small, at least 1000 is needed",
			c.MaxClockSyncError.Microseconds()))
	}
	return errors.Join(errs...)
}
