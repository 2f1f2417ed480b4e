package daemon

import (
	"cmp"
	"context"
	"errors"
	"maps"
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
	notes    map[string]func() string
	stopping bool
}

// AddLive adds a check to /healthz, or replaces the one of that name.
func (h *Health) AddLive(name string, c Check) { h.add(&h.live, name, c) }

// AddReady adds a check to /readyz, or replaces the one of that name.
func (h *Health) AddReady(name string, c Check) { h.add(&h.ready, name, c) }

// AddNote has /healthz say what isn't well without failing for it; note returns nothing while all is.
func (h *Health) AddNote(name string, note func() string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.notes == nil {
		h.notes = map[string]func() string{}
	}
	h.notes[name] = note
}

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
	Note  string `json:"note,omitempty"` // what isn't well, and is no reason to fail
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
	checks, notes := cloneChecks(h.live), maps.Clone(h.notes)
	h.mu.Unlock()
	r := runChecks(ctx, checks)
	for _, name := range slices.Sorted(maps.Keys(notes)) {
		r.Checks = append(r.Checks, CheckResult{Name: name, OK: true, Note: notes[name]()})
	}
	return r
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
