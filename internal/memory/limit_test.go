package memory

import (
	"math"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"
)

// madeUp is a limit of 1000 MiB hard and 800 soft whose use, time and chance the test sets.
type madeUp struct {
	*Limit
	reg   *prometheus.Registry
	mib   int64
	reads int
	at    time.Duration
	dice  float64
}

func newMadeUp(t *testing.T) *madeUp {
	t.Helper()
	m := &madeUp{reg: prometheus.NewRegistry()}
	var err error
	m.Limit, err = New(Config{HardBytes: 1000 << 20, SoftPercentage: 80, Registerer: m.reg})
	require.NoError(t, err)
	m.read = func() int64 { m.reads++; return m.mib << 20 }
	m.now = func() time.Duration { return m.at }
	m.chance = func() float64 { return m.dice }
	m.sampled.Store(0)
	t.Cleanup(m.Close)
	return m
}

// is sets the use and lets enough time pass for it to be seen.
func (m *madeUp) is(mib int64) {
	m.mib = mib
	m.at += sampleEvery
}

// TestRefuse shows what is refused at, below and above the limits and by which chance (I2), what the refusal says, and what is
// counted.
func TestRefuse(t *testing.T) {
	m := newMadeUp(t)
	for _, c := range []struct {
		mib     int64
		dice    float64
		refused bool
	}{
		{0, 0, false},
		{800, 0, false},
		{850, 0.24, true},
		{850, 0.26, false},
		{900, 0.49, true},
		{900, 0.51, false},
		{1000, 0.999, true},
		{1001, math.Inf(1), true},
	} {
		m.is(c.mib)
		m.dice = c.dice
		why := m.Refuse(0)
		require.Equal(t, c.refused, why != "", "%d MiB, %v", c.mib, c.dice)
		require.Equal(t, c.mib > 1000, m.Full() != "")
		require.Equal(t, c.mib > 800, m.Note() != "")
		if c.refused {
			require.Contains(t, why, "--memory_limit_hard_bytes")
		}
	}
	require.Contains(t, m.Note(), "1001 MiB of memory are in use, 100 % of the hard limit; the soft limit is 800 MiB")
	families, err := m.reg.Gather()
	require.NoError(t, err)
	got := map[string]float64{}
	for _, f := range families {
		got[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
	}
	require.Equal(t, map[string]float64{
		"memory_limit_refusals_total": 5, "memory_used_bytes": 1001 << 20, "memory_limit_soft_bytes": 1000 << 20 / 100 * 80, "memory_limit_hard_bytes": 1000 << 20,
	}, got)
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)
}

// TestBetweenSamples shows that one sample serves for a while, and that what writes add meanwhile counts until the next.
func TestBetweenSamples(t *testing.T) {
	m := newMadeUp(t)
	m.is(700)
	require.Empty(t, m.Refuse(0))
	reads := m.reads
	for range 3 {
		require.Empty(t, m.Refuse(100<<20/3))
	}
	require.NotEmpty(t, m.Refuse(201<<20), "with what was added it is above the hard limit")
	require.Equal(t, reads, m.reads)
	m.is(700)
	require.Empty(t, m.Refuse(0), "what was added has gone, the sample says")
	require.Equal(t, reads+1, m.reads)
}

// TestNoLimit shows that -1 is no limit, and that no limit refuses nothing.
func TestNoLimit(t *testing.T) {
	l, err := New(Config{HardBytes: -1, SoftPercentage: 80})
	require.NoError(t, err)
	require.Nil(t, l)
	require.Empty(t, l.Refuse(math.MaxInt32))
	require.Empty(t, l.Full())
	require.Empty(t, l.Note())
	require.Zero(t, l.SetGoLimit())
	l.Close()
}

// TestDefault shows the default limit: a share of what there is, the collector's below the soft one (I1), and faults named.
func TestDefault(t *testing.T) {
	l, err := New(DefaultConfig())
	require.NoError(t, err)
	all, err := available()
	require.NoError(t, err)
	require.Equal(t, all/100*80, l.Hard())
	require.Equal(t, l.Hard()/100*80, l.Soft())
	t.Setenv("GOMEMLIMIT", "1GiB")
	require.Zero(t, l.SetGoLimit())
	t.Setenv("GOMEMLIMIT", "")
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	require.Equal(t, l.Soft()/20*19, l.SetGoLimit())
	require.Equal(t, l.Soft()/20*19, debug.SetMemoryLimit(-1))

	_, err = New(Config{HardBytes: 5, SoftPercentage: 101})
	require.ErrorContains(t, err, "--memory_limit_hard_bytes 5")
	require.ErrorContains(t, err, "--memory_limit_soft_percentage 101")
}

// TestInUse shows that the sample follows what is really held.
func TestInUse(t *testing.T) {
	runtime.GC()
	before := inUse()
	held := make([]byte, 64<<20)
	for i := 0; i < len(held); i += 4096 {
		held[i] = 1
	}
	during := inUse()
	require.InDelta(t, 64<<20, during-before, 8<<20)
	runtime.KeepAlive(held)
	runtime.GC()
	require.Less(t, inUse(), during-(48<<20))
}

// TestConcurrentUse has many goroutines ask at once, for the race detector.
func TestConcurrentUse(t *testing.T) {
	l, err := New(Config{HardBytes: 1 << 40, SoftPercentage: 50})
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				if l.Refuse(1<<10) != "" || l.Full() != "" {
					t.Error("refused")
				}
			}
		})
	}
	wg.Wait()
}

// BenchmarkRefuse is what one write pays, and what a sample costs.
func BenchmarkRefuse(b *testing.B) {
	l, err := New(Config{HardBytes: 1 << 40, SoftPercentage: 50})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("what=write", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			l.Refuse(1)
		}
	})
	b.Run("what=sample", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			l.sample()
		}
	})
}
