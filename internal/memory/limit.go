package memory

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Config is what a Limit is told.
type Config struct {
	// HardBytes is the most that the process is to use; 0: DefaultShare of what the machine or the container has, -1: no limit.
	HardBytes int64
	// SoftPercentage of the hard limit is where writes begin to be refused.
	SoftPercentage int
	Registerer     prometheus.Registerer // nil: no metrics
}

// DefaultShare is the part of the machine's memory, in percent, that is the hard limit where none is given: Kudu's.
const DefaultShare = 80

// sampleEvery is how old a sample may be that a write is judged by.
const sampleEvery = 10 * time.Millisecond

// DefaultConfig returns Kudu's defaults.
func DefaultConfig() Config { return Config{SoftPercentage: 80} }

// Validate returns all faults of c in one error.
func (c Config) Validate() error {
	var errs []error
	if c.HardBytes != -1 && c.HardBytes != 0 && c.HardBytes < minHardBytes {
		errs = append(errs, fmt.Errorf("--memory_limit_hard_bytes %d: want %d (64 MiB) or more, 0 for %d %% of what there is, or -1 for no limit",
			c.HardBytes, minHardBytes, DefaultShare))
	}
	if c.SoftPercentage < 1 || c.SoftPercentage > 100 {
		errs = append(errs, fmt.Errorf("--memory_limit_soft_percentage %d: want 1 to 100", c.SoftPercentage))
	}
	return errors.Join(errs...)
}

// minHardBytes is less than any server can work with.
const minHardBytes = 64 << 20

// Limit is how much memory the process may use and uses.
type Limit struct {
	soft, hard int64

	used    atomic.Int64 // as sampled
	since   atomic.Int64 // what requests added after that
	sampled atomic.Int64 // when, in nanoseconds since start
	start   time.Time
	refused counter

	registerer prometheus.Registerer
	registered []prometheus.Collector

	// A test makes these up.
	read   func() int64
	now    func() time.Duration // since start
	chance func() float64
}

type counter interface {
	Inc()
	prometheus.Collector
}

// New returns the limit that c says, or nil where there is none.
func New(c Config) (*Limit, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	hard := c.HardBytes
	if hard == 0 {
		all, err := available()
		if err != nil {
			return nil, fmt.Errorf("how much memory there is can't be found out: %w; give --memory_limit_hard_bytes", err)
		}
		hard = max(all/100*DefaultShare, minHardBytes)
	}
	if hard < 0 {
		return nil, nil //nolint:nilnil // no limit is a nil Limit, which refuses nothing
	}
	l := &Limit{soft: hard / 100 * int64(c.SoftPercentage), hard: hard, start: time.Now(), read: inUse, chance: rand.Float64}
	l.now = func() time.Duration { return time.Since(l.start) }
	l.sample()
	return l, l.register(c.Registerer)
}

// SetGoLimit has the garbage collector keep a bit below the soft limit, unless the environment's GOMEMLIMIT says otherwise. It
// returns what the collector was told, 0: nothing.
func (l *Limit) SetGoLimit() int64 {
	if l == nil || os.Getenv("GOMEMLIMIT") != "" {
		return 0
	}
	debug.SetMemoryLimit(l.goLimit())
	return l.goLimit()
}

// goLimit leaves a twentieth of the soft limit to the collector's overshoot.
func (l *Limit) goLimit() int64 { return l.soft / 20 * 19 }

// Soft is the soft limit in bytes.
func (l *Limit) Soft() int64 { return l.soft }

// Hard is the hard limit in bytes.
func (l *Limit) Hard() int64 { return l.hard }

// Used is the use of memory, in bytes.
func (l *Limit) Used() int64 {
	now := int64(l.now())
	if last := l.sampled.Load(); now-last >= int64(sampleEvery) && l.sampled.CompareAndSwap(last, now) {
		l.sample()
	}
	return l.used.Load() + l.since.Load()
}

func (l *Limit) sample() {
	before := l.since.Load()
	l.used.Store(l.read())
	// What was added while it was read counts twice until the next time.
	l.since.Add(-before)
}

// Refuse says whether a write of so many bytes must wait, and if so why.
func (l *Limit) Refuse(bytes int) (why string) {
	if l == nil {
		return ""
	}
	l.since.Add(int64(bytes))
	used := l.Used()
	if used <= l.soft || used <= l.hard && l.chance() >= float64(used-l.soft)/float64(l.hard-l.soft) {
		return ""
	}
	return l.refuse(used)
}

// Full says whether the hard limit is passed, so that no write can be taken, and if so why.
func (l *Limit) Full() (why string) {
	if l == nil {
		return ""
	}
	if used := l.Used(); used > l.hard {
		return l.refuse(used)
	}
	return ""
}

func (l *Limit) refuse(used int64) string {
	l.refused.Inc()
	return l.describe(used)
}

// Note says what isn't well; nothing while the use is below the soft limit.
func (l *Limit) Note() string {
	if l == nil {
		return ""
	}
	if used := l.Used(); used > l.soft {
		return "writes are being refused: " + l.describe(used)
	}
	return ""
}

func (l *Limit) describe(used int64) string {
	return fmt.Sprintf("%d MiB of memory are in use, %d %% of the hard limit; the soft limit is %d MiB (--memory_limit_hard_bytes, --memory_limit_soft_percentage)",
		used>>20, used*100/l.hard, l.soft>>20)
}

// Close takes the metrics back.
func (l *Limit) Close() {
	if l == nil {
		return
	}
	for _, c := range l.registered {
		l.registerer.Unregister(c)
	}
	l.registered = nil
}

func (l *Limit) register(reg prometheus.Registerer) error {
	l.refused = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "memory_limit_refusals_total", Help: "Writes refused because the process uses more memory than --memory_limit_soft_percentage or --memory_limit_hard_bytes allow.",
	})
	l.registerer = reg
	gauge := func(name, help string, value func() int64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
	}
	if reg == nil {
		return nil
	}
	for _, c := range []prometheus.Collector{
		l.refused,
		gauge("memory_used_bytes", "Memory in use, as it is held against the limits: what Go's runtime has from the system and hasn't free.", l.Used),
		gauge("memory_limit_soft_bytes", "Above so much memory in use writes begin to be refused.", l.Soft),
		gauge("memory_limit_hard_bytes", "Above so much memory in use all writes are refused.", l.Hard),
	} {
		if err := reg.Register(c); err != nil {
			l.Close()
			return err
		}
		l.registered = append(l.registered, c)
	}
	return nil
}

// inUse is what Go's runtime has from the system and neither gave back nor has free.
func inUse() int64 {
	s := [3]metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}, {Name: "/memory/classes/heap/free:bytes"}}
	metrics.Read(s[:])
	return int64(s[0].Value.Uint64()) - int64(s[1].Value.Uint64()) - int64(s[2].Value.Uint64())
}
