package ntp

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Config holds a source's settings. Fields carry the names of the flags that set them.
type Config struct {
	// Servers is --builtin_ntp_servers: host or host:port each.
	Servers []string
	// PollInterval is --builtin_ntp_poll_interval_ms, RequestTimeout --builtin_ntp_request_timeout_ms.
	PollInterval, RequestTimeout time.Duration

	Logger     *slog.Logger          // nil: nothing is logged
	Registerer prometheus.Registerer // nil: no metrics
}

// DefaultConfig returns Kudu's defaults.
func DefaultConfig() Config {
	return Config{
		Servers:        []string{"0.pool.ntp.org", "1.pool.ntp.org", "2.pool.ntp.org", "3.pool.ntp.org"},
		PollInterval:   16 * time.Second,
		RequestTimeout: 3 * time.Second,
	}
}

// maxServers bounds the servers that are asked.
const maxServers = 32

// Validate returns all that is wrong with the settings, as one error.
func (c *Config) Validate() error {
	var errs []error
	if len(c.Servers) == 0 || len(c.Servers) > maxServers {
		errs = append(errs, fmt.Errorf("builtin_ntp_servers names %d servers: want 1 to %d", len(c.Servers), maxServers))
	}
	seen := map[string]bool{}
	for _, s := range c.Servers {
		if err := checkAddress(s); err != nil {
			errs = append(errs, fmt.Errorf("builtin_ntp_servers: %w", err))
		}
		if seen[s] {
			errs = append(errs, fmt.Errorf("builtin_ntp_servers: %s is named twice, and would vote twice", s))
		}
		seen[s] = true
	}
	if c.PollInterval <= 0 || c.RequestTimeout <= 0 {
		errs = append(errs, errors.New("builtin_ntp_poll_interval_ms and builtin_ntp_request_timeout_ms must be above zero"))
	}
	return errors.Join(errs...)
}

func checkAddress(s string) error {
	host := s
	if h, port, err := net.SplitHostPort(s); err == nil {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return fmt.Errorf("%q has no port after the colon", s)
		}
		host = h
	}
	if host == "" || strings.ContainsAny(host, " /@") {
		return fmt.Errorf("%q: want host or host:port", s)
	}
	return nil
}
