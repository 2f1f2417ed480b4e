package clock

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// syncBuffer is a log that may be read while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// TestRun jumps a mock clock under a running sampler: OnChange hears of the fence and of its end, the log has one line for
// each and one diagnosis, and Run leaves nothing behind.
func TestRun(t *testing.T) {
	var logged syncBuffer
	states := make(chan Status, 16)
	mock := NewMock(SystemSource())
	cfg := testConfig()
	cfg.TimeSource, cfg.UnlockUnsafeFlags, cfg.SamplePeriod = SourceMock, true, 5*time.Millisecond
	cfg.Logger = slog.New(slog.NewTextHandler(&logged, nil))
	cfg.OnChange = func(s Status) { states <- s }
	c, err := New(cfg, mock, Marks{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error)
	go func() { ran <- c.Run(ctx) }()

	mustNow(t, c)
	mock.Change(func(f *Faults) { f.Offset = 350_640 * time.Hour })
	if s := <-states; s.State != Fenced || !strings.Contains(s.Reason, "jumped") {
		t.Errorf("first change: %+v", s)
	}
	for range 100 {
		mustRefuse(t, c)
	}
	mock.Change(func(f *Faults) { f.Offset = 0 })
	if s := <-states; s.State != Open {
		t.Errorf("second change: %+v", s)
	}
	mustNow(t, c)
	cancel()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	for _, w := range []string{"clock gives no timestamps out", "clock diagnostics", "clock is trusted"} {
		if n := strings.Count(logged.String(), w); n != 1 {
			t.Errorf("%q stands %d times in the log:\n%s", w, n, logged.String())
		}
	}
}

// TestMock shows that each fault does to the readings what it is named for, on the real clocks.
func TestMock(t *testing.T) {
	mock := NewMock(SystemSource())
	cfg := testConfig()
	cfg.TimeSource, cfg.UnlockUnsafeFlags = SourceMock, true
	c, err := New(cfg, mock, Marks{})
	if err != nil {
		t.Fatal(err)
	}
	sampling(c)
	mustNow(t, c)
	mock.Change(func(f *Faults) { f.Suspended = 8 * time.Hour })
	ts := mustNow(t, c)
	if s := c.Status(); s.Verdict != Suspended || s.Source != SourceMock {
		t.Errorf("suspend: %+v", s)
	}
	if d := time.Until(ts.Time()); d < 8*time.Hour-time.Minute || d > 8*time.Hour {
		t.Errorf("after a suspend it is %v", d)
	}
	mock.Change(func(f *Faults) { f.Unsynced = true })
	c.sample()
	if s := c.Status(); !s.Extrapolating {
		t.Errorf("unsynced: %+v", s)
	}
	mock.Change(func(f *Faults) { f.Unsynced, f.MaxError = false, 11*time.Second })
	c.sample()
	mustRefuse(t, c, "uncertain")
	mock.Change(func(f *Faults) { f.MaxError = 0 })
	c.sample()
	mustNow(t, c)
	mock.Change(func(f *Faults) { f.LeaptAll = time.Hour })
	mustNow(t, c) // alone it can't be told from a stopped process
	if f := mock.Faults(); f.LeaptAll != time.Hour || f.Suspended != 8*time.Hour || f.MaxError != 0 {
		t.Errorf("faults %+v", f)
	}
}

// TestSystemSource shows that the machine's own readings make sense to the detector, under load of the test run.
func TestSystemSource(t *testing.T) {
	cfg := testConfig()
	cfg.TimeSource, cfg.UnlockUnsafeFlags, cfg.WallClockJumpThreshold = SourceSystemUnsync, true, 100*time.Millisecond
	c, err := New(cfg, SystemSource(), Marks{})
	if err != nil {
		t.Fatal(err)
	}
	sampling(c)
	for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); {
		ts := mustNow(t, c)
		if d := time.Until(ts.Time()); d.Abs() > time.Second {
			t.Fatalf("off by %v", d)
		}
		c.sample()
	}
	if d := c.Status().Displaced; d.Abs() > 10*time.Millisecond {
		t.Errorf("displaced by %v", d)
	}
}

// TestWait shows that waiting ends when the clock has passed, at once where it has, and with the context or the fence.
func TestWait(t *testing.T) {
	mock := NewMock(SystemSource())
	cfg := testConfig()
	cfg.TimeSource, cfg.UnlockUnsafeFlags = SourceMock, true
	c, err := New(cfg, mock, Marks{})
	if err != nil {
		t.Fatal(err)
	}
	ts := mustNow(t, c)
	if err := c.WaitPast(t.Context(), ts); err != nil {
		t.Fatal(err)
	}
	soon := ts.Add(30 * time.Millisecond)
	if err := c.WaitPast(t.Context(), soon); err != nil {
		t.Fatal(err)
	}
	if again := mustNow(t, c); again <= soon {
		t.Errorf("%v after the wait for %v", again, soon)
	}
	mock.Change(func(f *Faults) { f.MaxError = 20 * time.Millisecond })
	c.sample()
	ts = mustNow(t, c)
	begin := time.Now()
	if err := c.WaitPastEverywhere(t.Context(), ts); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took < 39*time.Millisecond {
		t.Errorf("past everywhere after %v, with an error of 20 ms", took)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := c.WaitPast(ctx, ts.Add(time.Hour)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("an hour ahead: %v", err)
	}
	mock.Change(func(f *Faults) { f.Offset = time.Hour })
	if err := c.WaitPast(t.Context(), ts.Add(time.Hour)); err == nil || !strings.Contains(err.Error(), "fenced") {
		t.Errorf("while fenced: %v", err)
	}
}

// TestDecideDetection is a table of what auto comes to.
func TestDecideDetection(t *testing.T) {
	azure := func() ([]byte, error) { return []byte(azureTag + "\n"), nil }
	other := func() ([]byte, error) { return []byte("Default string\n"), nil }
	hidden := func() ([]byte, error) { return nil, os.ErrPermission }
	for _, c := range []struct {
		setting string
		cheap   bool
		tag     func() ([]byte, error)
		on      bool
		ask     bool
		why     string
	}{
		{DetectionEnabled, false, other, true, false, "enabled"},
		{DetectionDisabled, true, azure, false, false, "disabled"},
		{DetectionAuto, false, azure, true, false, "Azure"},
		{DetectionAuto, true, other, true, false, "costs nothing"},
		{DetectionAuto, true, hidden, true, false, "costs nothing"},
		{DetectionAuto, false, other, false, false, "no Azure VM"},
		{DetectionAuto, false, hidden, false, true, "could not be read"},
	} {
		d := decide(c.setting, costing{newMachine(), c.cheap}, c.tag)
		if d.on != c.on || d.ask != c.ask || !strings.Contains(d.why, c.why) {
			t.Errorf("%s, cheap %v: %+v", c.setting, c.cheap, d)
		}
	}
	if d := decide(DetectionAuto, newMachine(), other); d.on || d.why == "" {
		t.Errorf("unknown cost: %+v", d)
	}
	if _, how := SystemSource().cheap(); !strings.Contains(how, "a pair takes") {
		t.Error(how)
	}
}

type costing struct {
	*machine
	yes bool
}

func (c costing) cheap() (bool, string) { return c.yes, "as the test says" }

// TestOnAzure asks made-up metadata services: one that answers as Azure's does, others, and one that never answers.
func TestOnAzure(t *testing.T) {
	for _, c := range []struct {
		name string
		say  http.HandlerFunc
		want bool
	}{
		{"azure", func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Metadata") != "true" {
				w.WriteHeader(http.StatusBadRequest)
			}
			_, _ = io.WriteString(w, "AzurePublicCloud")
		}, true},
		{"another cloud", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNotFound) }, false},
		{"something else", func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "<html>") }, false},
		{"elsewhere", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
		}, false},
		{"silence", func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, false},
	} {
		s := httptest.NewServer(c.say)
		if got := onAzure(t.Context(), s.URL); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
		s.Close()
	}
}

// TestDetectNow shows that detection can come on while the clock runs.
func TestDetectNow(t *testing.T) {
	m := newMachine()
	c := sampling(newClock(t, m, func(cfg *Config) { cfg.WallClockJumpDetection = DetectionDisabled }))
	mustNow(t, c)
	c.detectNow("says the test")
	m.stepBy(time.Hour)
	mustRefuse(t, c, "jumped")
}

// TestDiagnose shows that what the tools say is in the report, and that one that hangs, fails or says too much is cut.
func TestDiagnose(t *testing.T) {
	report := diagnose(t.Context(), newMachine(), func(_ context.Context, tool []string) (string, bool) {
		return "says " + tool[0], tool[0] == "chronyc"
	})
	for _, w := range []string{`clock source "test"`, "Synced:true", "chronyc -n tracking:\nsays chronyc"} {
		if !strings.Contains(report, w) {
			t.Errorf("report lacks %q:\n%s", w, report)
		}
	}
	if strings.Contains(report, "ntpq") {
		t.Errorf("a tool that isn't installed is in the report:\n%s", report)
	}
	if _, installed := runTool(t.Context(), []string{"nyala-no-such-tool"}); installed {
		t.Error("a tool that isn't there was run")
	}
	dir := t.TempDir()
	script := filepath.Join(dir, "tool")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nhead -c 100000 /dev/zero | tr '\\0' x\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	said, installed := runTool(t.Context(), []string{script})
	if !installed || len(said) > toolBytes+100 || !strings.Contains(said, "exit status 3") {
		t.Errorf("%v, %d bytes, ends %q", installed, len(said), said[max(0, len(said)-40):])
	}
}

// TestMetrics shows every series from the start, what the counters count, and the names against the linter.
func TestMetrics(t *testing.T) {
	m := newMachine()
	reg := prometheus.NewRegistry()
	c := sampling(newClock(t, m, func(cfg *Config) { cfg.Registerer = reg }))
	if got := series(t, reg); len(got) != 20 || got["clock_jumps_total back stepped_back"] != 0 {
		t.Errorf("series at the start: %v", got)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	if _, err := New(func() Config { cfg := testConfig(); cfg.Registerer = reg; return cfg }(), m, Marks{}); err == nil {
		t.Error("one registry took two clocks")
	}

	m.stepBy(time.Second)
	m.run(c, time.Second)
	m.stepBy(time.Hour)
	m.run(c, time.Second)
	mustRefuse(t, c)
	m.stepBy(-time.Hour)
	m.run(c, time.Second)
	m.suspend(time.Hour)
	m.run(c, time.Second)
	m.do(func() { m.ppm = 400 })
	m.run(c, 2*time.Minute)
	m.do(func() { m.kernel.Synced = false })
	m.run(c, time.Second)
	if err := c.Update(mustNow(t, c).Add(time.Hour)); err == nil {
		t.Error("an hour ahead was taken")
	}
	want := map[string]float64{
		"clock_jumps_total back ok": 0, "clock_jumps_total back slewed": 0, "clock_jumps_total back stepped_back": 1,
		"clock_jumps_total forward ok": 0, "clock_jumps_total forward slewed": 1, "clock_jumps_total forward suspended": 1,
		"clock_jumps_total forward stepped_forward": 2, "clock_jumps_total none unsynchronised": 1,
		"clock_readings_refused_total": 1, "clock_timestamps_ahead_refused_total": 1, "hybrid_clock_extrapolating": 1,
		"clock_source_info mock": 0, "clock_source_info system": 1, "clock_source_info system_unsync": 0, "clock_fenced": 0,
	}
	got := series(t, reg)
	for name, value := range want {
		if v, ok := got[name]; !ok || v != value {
			t.Errorf("%s is %v (there: %v), want %v", name, v, ok, value)
		}
	}
	if v := got["hybrid_clock_error"]; v < 1000 || v > 20_000 {
		t.Errorf("hybrid_clock_error %v", v)
	}
}

// series returns each series' value by its name and the values of its labels.
func series(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			all[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return all
}
