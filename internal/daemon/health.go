package daemon

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// Check says what is wrong, in words for people, or nil. It must be quick and heed its context.
type Check func(ctx context.Context) error

// Health holds the checks behind /healthz (is the process alive and doing its work: if not, restart it) and /readyz (may
// it be given work now). The zero value is alive and, with no check, ready.
type Health struct {
	mu       sync.Mutex
	live     map[string]Check
	ready    map[string]Check
	stopping bool
}

// AddLive adds a check to /healthz, or replaces the one of that name.
func (h *Health) AddLive(name string, c Check) { h.add(&h.live, name, c) }

// AddReady adds a check to /readyz, or replaces the one of that name.
func (h *Health) AddReady(name string, c Check) { h.add(&h.ready, name, c) }

func (h *Health) add(m *map[string]Check, name string, c Check) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if *m == nil {
		*m = map[string]Check{}
	}
	(*m)[name] = c
}

// SetStopping makes the daemon unready for the rest of its life.
func (h *Health) SetStopping() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopping = true
}

// CheckResult is what one check said.
type CheckResult struct {
	Name  string `json:"name"`
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
}

// HealthReport is what all checks of one kind said.
type HealthReport struct {
	OK     bool          `json:"ok"`
	Checks []CheckResult `json:"checks"`
}

// checkTimeout bounds all checks of one request together.
const checkTimeout = 5 * time.Second

var errStopping = errors.New("the server is stopping")

// Live runs the checks of /healthz.
func (h *Health) Live(ctx context.Context) HealthReport {
	h.mu.Lock()
	checks := cloneChecks(h.live)
	h.mu.Unlock()
	return runChecks(ctx, checks)
}

// Ready runs the checks of /readyz.
func (h *Health) Ready(ctx context.Context) HealthReport {
	h.mu.Lock()
	checks := cloneChecks(h.ready)
	if h.stopping {
		checks = append(checks, namedCheck{"running", func(context.Context) error { return errStopping }})
	}
	h.mu.Unlock()
	return runChecks(ctx, checks)
}

type namedCheck struct {
	name  string
	check Check
}

func cloneChecks(m map[string]Check) []namedCheck {
	out := make([]namedCheck, 0, len(m))
	for name, c := range m {
		out = append(out, namedCheck{name, c})
	}
	slices.SortFunc(out, func(a, b namedCheck) int { return cmp.Compare(a.name, b.name) })
	return out
}

func runChecks(ctx context.Context, checks []namedCheck) HealthReport {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	r := HealthReport{OK: true, Checks: []CheckResult{}}
	for _, c := range checks {
		res := CheckResult{Name: c.name, OK: true}
		if err := c.check(ctx); err != nil {
			res.OK, res.Error, r.OK = false, err.Error(), false
		}
		r.Checks = append(r.Checks, res)
	}
	return r
}
