package ntp

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/nyaladb/nyala/internal/clock"
	"github.com/nyaladb/nyala/internal/clock/ntp/ntptest"
	"github.com/nyaladb/nyala/internal/status"
)

func testConfig(servers ...*ntptest.Server) Config {
	cfg := DefaultConfig()
	cfg.Servers = nil
	for _, s := range servers {
		cfg.Servers = append(cfg.Servers, s.Address())
	}
	cfg.PollInterval, cfg.RequestTimeout = 20*time.Millisecond, 300*time.Millisecond
	cfg.Logger = slog.New(slog.DiscardHandler)
	return cfg
}

func start(t *testing.T, cfg Config) *Source {
	t.Helper()
	s, err := Open(t.Context(), cfg, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

// off is how far a source's wall clock is from the machine's.
func off(s *Source) time.Duration { return time.Until(time.Unix(0, s.Pair().Wall)) }

func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.After(10 * time.Second); !cond(); {
		select {
		case <-time.After(2 * time.Millisecond):
		case <-deadline:
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// TestHonestServers shows a source that tells the time of three servers, 2 s from the machine's wall clock, within its bound,
// and a hybrid clock over it.
func TestHonestServers(t *testing.T) {
	var servers []*ntptest.Server
	for range 3 {
		s := ntptest.New(t)
		s.Does(ntptest.Behaviour{Lie: 2 * time.Second})
		servers = append(servers, s)
	}
	cfg := testConfig(servers...)
	reg := prometheus.NewPedanticRegistry()
	cfg.Registerer = reg
	s := start(t, cfg)
	d := s.Discipline()
	if e := (off(s) - 2*time.Second).Abs(); e > d.MaxError+time.Millisecond || !d.Synced || d.MaxError > time.Second {
		t.Fatalf("off by %v; %+v", e, d)
	}
	until(t, "it is asked again", func() bool { return len(servers[0].Questions()) > 3 })
	if families, err := reg.Gather(); err != nil || len(families) != 4 {
		t.Errorf("%d families, %v", len(families), err)
	} else if p, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(p) > 0 {
		t.Errorf("%v, %v", p, err)
	}

	k := clock.DefaultConfig()
	k.TimeSource, k.LoopbackOnly, k.WallClockJumpDetection = clock.SourceSystem, false, clock.DetectionEnabled
	c, err := clock.New(k, s, clock.Marks{})
	if err != nil {
		t.Fatal(err)
	}
	last := c.Latest()
	for range 200 {
		ts, err := c.Now()
		if err != nil || ts <= last {
			t.Fatalf("%v after %v: %v", ts, last, err)
		}
		last = ts
	}
	if e := (time.Until(last.Time()) - 2*time.Second).Abs(); e > time.Second {
		t.Errorf("the hybrid clock is off by %v", e)
	}
}

// TestOneLies shows that a server that lies, from the start or later, moves nothing, and that a lie of most moves much.
func TestOneLies(t *testing.T) {
	a, b, liar := ntptest.New(t), ntptest.New(t), ntptest.New(t)
	liar.Does(ntptest.Behaviour{Lie: time.Hour})
	s := start(t, testConfig(a, b, liar))
	for _, lie := range []time.Duration{time.Hour, -40 * 365 * 24 * time.Hour, 300 * time.Millisecond} {
		liar.Does(ntptest.Behaviour{Lie: lie})
		until(t, "the liar is heard", func() bool { return len(liar.Questions()) > 3 })
		if e := off(s).Abs(); e > 100*time.Millisecond {
			t.Errorf("a lie of %v: off by %v", lie, e)
		}
	}
	b.Does(ntptest.Behaviour{Lie: 5 * time.Second})
	liar.Does(ntptest.Behaviour{Lie: 5 * time.Second})
	until(t, "it is set", func() bool { return (off(s) - 5*time.Second).Abs() < 100*time.Millisecond })
}

// TestSilence shows that a source without a majority says that it is lost, goes on meanwhile, and comes back.
func TestSilence(t *testing.T) {
	a, b := ntptest.New(t), ntptest.New(t)
	s := start(t, testConfig(a, b))
	a.Does(ntptest.Behaviour{Silent: true})
	until(t, "it is lost", func() bool { return !s.Discipline().Synced })
	if e := off(s).Abs(); e > 100*time.Millisecond {
		t.Errorf("off by %v", e)
	}
	a.Does(ntptest.Behaviour{Garbage: true})
	b.Does(ntptest.Behaviour{Unsync: true})
	until(t, "it asks on", func() bool { return len(a.Questions()) > 2 })
	if s.Discipline().Synced {
		t.Error("it believes nonsense")
	}
	a.Does(ntptest.Behaviour{})
	b.Does(ntptest.Behaviour{})
	until(t, "it is back", func() bool { return s.Discipline().Synced })
}

// TestNobodyAnswers shows how a start ends that finds no majority: in its time, or with its context, with a line that names
// each server and what to do.
func TestNobodyAnswers(t *testing.T) {
	a, b := ntptest.New(t), ntptest.New(t)
	a.Does(ntptest.Behaviour{Silent: true})
	b.Does(ntptest.Behaviour{Lie: time.Hour})
	_, err := Open(t.Context(), testConfig(a, b), 50*time.Millisecond)
	if status.CodeOf(err) != status.Clock {
		t.Fatal(err)
	}
	for _, want := range []string{a.Address() + ": no answer", b.Address() + ": 20", "chrony", "--builtin_ntp_servers", "123"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	began := time.Now()
	if _, err := Open(ctx, testConfig(a, b), time.Minute); !errors.Is(err, context.Canceled) || time.Since(began) > 2*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

// TestAsksNoMoreThanItMay counts questions: a server that asks for fewer gets fewer, one that wants none gets none (I2).
func TestAsksNoMoreThanItMay(t *testing.T) {
	fine, rate, deny := ntptest.New(t), ntptest.New(t), ntptest.New(t)
	fine2 := ntptest.New(t)
	fine3 := ntptest.New(t)
	rate.Does(ntptest.Behaviour{Kiss: "RATE"})
	deny.Does(ntptest.Behaviour{Kiss: "DENY"})
	start(t, testConfig(fine, fine2, fine3, rate, deny))
	until(t, "questions", func() bool { return len(fine.Questions()) > 20 })
	if n := len(deny.Questions()); n != 1 {
		t.Errorf("the one that wants none was asked %d times", n)
	}
	if n := len(rate.Questions()); n > 8 {
		t.Errorf("the one that wants fewer was asked %d times", n)
	}
	q := fine.Questions()
	for i := burst + 1; i < len(q); i++ {
		if gap := q[i].Sub(q[i-1]); gap < 15*time.Millisecond {
			t.Errorf("asked again after %v", gap)
		}
	}
}

// TestConfig shows what is refused.
func TestConfig(t *testing.T) {
	for _, c := range []struct {
		servers []string
		want    string
	}{
		{nil, "1 to 32"},
		{[]string{"a", "a"}, "twice"},
		{[]string{""}, "want host"},
		{[]string{"a:"}, "no port"},
		{[]string{"http://a"}, "no port"},
		{[]string{"a b"}, "want host"},
	} {
		cfg := DefaultConfig()
		cfg.Servers = c.servers
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v", c.servers, err)
		}
	}
	if cfg := DefaultConfig(); cfg.Validate() != nil {
		t.Error("the defaults are refused")
	}
}

// BenchmarkPair says what a reading costs beside the machine's own.
func BenchmarkPair(b *testing.B) {
	s := &Source{System: clock.SystemSource()}
	l := begin(0, 1e18)
	s.line.Store(&l)
	b.ReportAllocs()
	for b.Loop() {
		s.Pair()
	}
}
