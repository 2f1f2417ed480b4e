package ntp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nyaladb/nyala/internal/clock"
	"github.com/nyaladb/nyala/internal/status"
)

const (
	// lostAfter is how many rounds without a majority make the source a lost one (I3).
	lostAfter = 5
	// burst is how many questions at the start come burstGap after each other.
	burst    = 4
	burstGap = 2 * time.Second
	// sleptNoise is what CLOCK_BOOTTIME and the monotonic clock may seem to part by without a suspend: they are read one after
	// the other.
	sleptNoise = 5 * time.Millisecond
)

// Source is a clock that is steered by NTP servers. It implements clock.Source.
type Source struct {
	*clock.System // the machine's clocks; only its monotonic one and the counters count

	cfg     Config
	log     *slog.Logger
	metrics *metrics

	line   atomic.Pointer[line]
	latest atomic.Pointer[measurement]

	slept atomic.Int64 // how long the machine slept since the source was made, as far as it was seen

	mu     sync.Mutex // held while the line or slept is changed
	parted int64      // CLOCK_BOOTTIME less the monotonic clock, as last seen; 0: not yet

	// What follows belongs to Open, and then to Run.
	servers    []*server
	discipline discipline
	rounds     int
}

var _ clock.Source = (*Source)(nil)

// measurement is what was last agreed on.
type measurement struct {
	at  int64         // by Source.now
	err time.Duration // of the line: what was unsure, and what isn't made good yet
}

// Open asks the servers until most of them agree, for wait at most, or until ctx ends.
func Open(ctx context.Context, cfg Config, wait time.Duration) (*Source, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Source{System: clock.SystemSource(), cfg: cfg, log: cfg.Logger}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	for _, a := range cfg.Servers {
		s.servers = append(s.servers, &server{address: a})
	}
	s.noteSlept()
	if err := s.first(ctx, wait); err != nil {
		return nil, err
	}
	m, err := newMetrics(s, cfg.Registerer)
	if err != nil {
		return nil, fmt.Errorf("NTP source: metrics: %w", err)
	}
	s.metrics = m
	return s, nil
}

// first waits for the first majority.
func (s *Source) first(ctx context.Context, wait time.Duration) error {
	limit := time.NewTimer(wait)
	defer limit.Stop()
	round, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for {
		s.askAll(round)
		now := s.now()
		if v, ok := elect(s.samples(now), len(s.servers), now); ok {
			p := s.System.Pair()
			l := s.discipline.start(v, p.Mono, p.Mono+s.slept.Load())
			s.line.Store(&l)
			s.latest.Store(&measurement{at: now, err: v.err})
			s.log.Info("NTP servers agree on the time", "agree", v.votes, "servers", len(s.servers), "max_error", v.err,
				"wall_clock_ahead", time.Duration(p.Wall-l.wall(p.Mono)))
			return nil
		}
		if s.rounds == 1 {
			s.log.Info("waiting for NTP servers to agree on the time", "limit", wait, "servers", s.says())
		}
		pause := time.NewTimer(burstGap)
		select {
		case <-pause.C:
		case <-limit.C:
			pause.Stop()
			return status.New(status.Clock,
				"no majority of --builtin_ntp_servers agreed on the time within %v (%s): see that they can be reached (UDP port 123), or start chrony or ntpd and use --time_source=system",
				wait, s.says())
		case <-ctx.Done():
			pause.Stop()
			return ctx.Err()
		}
	}
}

// says puts into words what each server said.
func (s *Source) says() string {
	parts := make([]string, 0, len(s.servers))
	for _, srv := range s.servers {
		switch {
		case srv.fault != nil:
			parts = append(parts, fmt.Sprintf("%s: %v", srv.address, srv.fault))
		case srv.sample != nil:
			now := s.now()
			parts = append(parts, fmt.Sprintf("%s: %s within %v", srv.address,
				time.Unix(0, srv.sample.offset+now).UTC().Format(time.RFC3339Nano), srv.sample.aged(now)))
		default:
			parts = append(parts, srv.address+": not asked")
		}
	}
	return strings.Join(parts, "; ")
}

// Run goes on asking and steering until ctx ends.
func (s *Source) Run(ctx context.Context) error {
	defer s.metrics.unregister()
	lost := false
	for {
		gap := s.cfg.PollInterval
		if s.rounds < burst {
			gap = min(gap, burstGap)
		}
		t := time.NewTimer(gap)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
		agreed := s.askAll(ctx) > 0 && s.steer()
		if !agreed {
			s.coast()
		}
		if agreed == lost {
			if lost = !agreed; lost {
				s.log.Warn("no majority of the NTP servers agrees any more", "servers", s.says())
			} else {
				s.log.Info("a majority of the NTP servers agrees again")
			}
		}
	}
}

// steer goes by what the servers say now, if most of them agree.
func (s *Source) steer() (agreed bool) {
	s.noteSlept()
	now := s.now()
	v, ok := elect(s.samples(now), len(s.servers), now)
	if !ok {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	mono := s.System.Pair().Mono
	next, stepped := s.discipline.measured(*s.line.Load(), v, mono, mono+s.slept.Load(), 4*s.cfg.PollInterval)
	s.line.Store(&next)
	s.latest.Store(&measurement{at: now, err: v.err + s.discipline.off.Abs()})
	if stepped {
		s.metrics.steps.Inc()
		s.log.Warn("the clock was set by what the NTP servers say", "agree", v.votes, "max_error", v.err)
	}
	return true
}

// coast goes on at the machine's own frequency, as far as it is known: what was being made good may be by now.
func (s *Source) coast() {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.line.Load().steered(s.System.Pair().Mono, s.discipline.freq)
	s.line.Store(&next)
}

// now is the machine's monotonic clock plus the time that it slept: what goes on whatever becomes of the wall clock.
func (s *Source) now() int64 { return s.System.Pair().Mono + s.slept.Load() }

// patience is how long what was heard counts.
func (s *Source) patience() time.Duration {
	return lostAfter * max(s.cfg.PollInterval, s.cfg.RequestTimeout)
}

// samples returns those that aren't too old.
func (s *Source) samples(now int64) []sample {
	var out []sample
	for _, srv := range s.servers {
		if srv.sample != nil && now-srv.sample.at > int64(max(s.patience(), 2*srv.gap)) {
			srv.sample = nil
		}
		if srv.sample != nil {
			out = append(out, *srv.sample)
		}
	}
	return out
}

// askAll puts a question to each server that may be asked (I2), side by side, and says how many answered.
func (s *Source) askAll(ctx context.Context) (answered int) {
	s.rounds++
	var wg sync.WaitGroup
	var n atomic.Int64
	now := s.now() + int64(s.cfg.PollInterval/8) // the timer's own unrest must not make a server lose its turn
	for _, srv := range s.servers {
		if now < srv.next && (s.rounds > burst || errors.Is(srv.fault, errPeace)) {
			continue
		}
		wg.Go(func() {
			timeout := s.cfg.RequestTimeout
			if deadline, ok := ctx.Deadline(); ok {
				timeout = min(timeout, max(time.Until(deadline), time.Millisecond))
			}
			sample, r, err := ask(srv.address, timeout, s.now)
			srv.asked(s.now(), s.cfg.PollInterval, sample, r, err)
			if err == nil {
				n.Add(1)
			}
			if s.metrics == nil {
				return
			}
			if err == nil {
				s.metrics.answered.Inc()
			} else {
				s.metrics.unanswered.Inc()
			}
		})
	}
	wg.Wait()
	return int(n.Load())
}

// Pair implements clock.Source: the steered clock, at the price of the machine's own reading.
func (s *Source) Pair() clock.Pair {
	now := s.System.Pair().Mono
	l := s.line.Load()
	mono := l.mono(now)
	return clock.Pair{Wall: mono + l.base, Mono: mono}
}

// Counters implements clock.Source. CLOCK_BOOTTIME runs as the steered monotonic clock does, so that what it is ahead by is
// what the machine slept, which the wall clock is set forward by here.
func (s *Source) Counters() clock.Counters {
	c := s.System.Counters()
	if !c.OK {
		return c
	}
	s.noteSlept()
	now := s.System.Pair().Mono
	c.Boot += s.line.Load().mono(now) - now
	return c
}

// noteSlept sets the wall clock forward by a suspend since it was last called: the monotonic clock stood still meanwhile.
func (s *Source) noteSlept() {
	s.mu.Lock()
	defer s.mu.Unlock()
	parted := int64(1 << 62) // the reading that a pause between the two disturbed least
	for range 3 {
		mono := s.System.Pair().Mono
		c := s.System.Counters()
		if !c.OK {
			return
		}
		if parted = min(parted, c.Boot-mono); parted-s.parted < int64(sleptNoise) {
			break
		}
	}
	d := parted - s.parted
	if first := s.parted == 0; first || d < int64(sleptNoise) {
		if first {
			s.parted = parted
		}
		return
	}
	s.parted = parted
	s.slept.Add(d)
	if l := s.line.Load(); l != nil {
		next := l.stepped(d)
		s.line.Store(&next)
	}
}

// Discipline implements clock.Source: how good the steered clock is.
func (s *Source) Discipline() clock.Discipline {
	m := s.latest.Load()
	age := max(s.now()-m.at, 0)
	return clock.Discipline{
		OK: true, Synced: age <= int64(s.patience()), Tick: 10000,
		MaxError: m.err + time.Duration(age/1_000_000*heldPPM), EstError: m.err, FreqPPM: s.line.Load().ppm,
	}
}

// ClockSource implements clock.Source.
func (s *Source) ClockSource() string { return "NTP over " + s.System.ClockSource() }
