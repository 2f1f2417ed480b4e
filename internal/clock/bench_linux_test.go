package clock

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var sink int64

// ratio runs both sides in turns, in slices of about 1.5 ms, the order swapped each time, and returns the median of the
// ratios of their times: separate runs of one and the same function differ by more than what is measured here.
func ratio(b *testing.B, goroutines int, side, over func(n int)) float64 {
	const slice = 1500 * time.Microsecond
	pairs := 200
	timed := func(f func(int), n int) time.Duration {
		if goroutines == 1 {
			start := time.Now()
			f(n)
			return time.Since(start)
		}
		var wg sync.WaitGroup
		start := time.Now()
		for range goroutines {
			wg.Go(func() { f(n) })
		}
		wg.Wait()
		return time.Since(start)
	}
	calls := func(f func(int)) int {
		const probe = 2000
		timed(f, probe)
		return max(1, int(float64(probe)*float64(slice)/float64(timed(f, probe))))
	}
	n, m := calls(side), calls(over)
	ratios := make([]float64, 0, pairs)
	for i := range pairs {
		var s, o time.Duration
		if i%2 == 0 {
			s, o = timed(side, n), timed(over, m)
		} else {
			o, s = timed(over, m), timed(side, n)
		}
		ratios = append(ratios, (float64(s)/float64(n))/(float64(o)/float64(m)))
	}
	slices.Sort(ratios)
	return ratios[len(ratios)/2]
}

func benchClock(b *testing.B, detection string) *Clock {
	cfg := DefaultConfig()
	cfg.WallClockJumpDetection = detection
	cfg.TimeSource, cfg.UnlockUnsafeFlags = SourceSystemUnsync, true
	c, err := New(cfg, SystemSource(), Marks{})
	if err != nil {
		b.Fatal(err)
	}
	return c
}

func callNow(c *Clock) func(int) {
	return func(n int) {
		for range n {
			_, _ = c.Now()
		}
	}
}

// kuduStyle is what Kudu's check does in each call, on top of the reading: adjtimex and CLOCK_MONOTONIC_RAW.
func kuduStyle(c *Clock) func(int) {
	return func(n int) {
		for range n {
			var tx unix.Timex
			var raw unix.Timespec
			_, _ = unix.Adjtimex(&tx)
			_ = unix.ClockGettime(unix.CLOCK_MONOTONIC_RAW, &raw)
			_, _ = c.Now()
		}
	}
}

func timeNow(n int) {
	for range n {
		sink += time.Now().UnixNano()
	}
}

// BenchmarkNowRatio compares what a timestamp costs with and without the check, with Kudu's way, and with a bare time.Now.
func BenchmarkNowRatio(b *testing.B) {
	on, off := benchClock(b, DetectionEnabled), benchClock(b, DetectionDisabled)
	for _, c := range []struct {
		name       string
		goroutines int
		side, over func(int)
	}{
		{"check=on_over_off/goroutines=1", 1, callNow(on), callNow(off)},
		{"check=on_over_off/goroutines=2", 2, callNow(on), callNow(off)},
		{"check=on_over_kudu_style", 1, callNow(on), kuduStyle(off)},
		{"check=off_over_timenow/goroutines=1", 1, callNow(off), timeNow},
	} {
		b.Run(c.name, func(b *testing.B) {
			var sum float64
			n := 0
			for b.Loop() {
				sum += ratio(b, c.goroutines, c.side, c.over)
				n++
			}
			b.ReportMetric(sum/float64(n), "ratio")
		})
	}
}

// BenchmarkNow is a timestamp by itself.
func BenchmarkNow(b *testing.B) {
	for _, check := range []string{"on", "off"} {
		for _, goroutines := range []int{1, 2} {
			b.Run(fmt.Sprintf("check=%s/goroutines=%d", check, goroutines), func(b *testing.B) {
				c := benchClock(b, map[string]string{"on": DetectionEnabled, "off": DetectionDisabled}[check])
				b.ReportAllocs()
				if goroutines == 1 {
					for b.Loop() {
						_, _ = c.Now()
					}
					return
				}
				b.SetParallelism(max(1, goroutines/runtime.GOMAXPROCS(0)))
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						_, _ = c.Now()
					}
				})
			})
		}
	}
}

// BenchmarkLook is one look at all clocks, as the sampler takes ten times a second.
func BenchmarkLook(b *testing.B) {
	c := benchClock(b, DetectionEnabled)
	b.ReportAllocs()
	for b.Loop() {
		c.sample()
	}
}

// BenchmarkUpdate is a timestamp taken over from elsewhere, which is past already or not yet.
func BenchmarkUpdate(b *testing.B) {
	b.Run("past", func(b *testing.B) {
		c := benchClock(b, DetectionEnabled)
		ts, _ := c.Now()
		b.ReportAllocs()
		for b.Loop() {
			_ = c.Update(ts)
		}
	})
	b.Run("ahead", func(b *testing.B) {
		c := benchClock(b, DetectionEnabled)
		ts, _ := c.Now()
		b.ReportAllocs()
		for b.Loop() {
			ts++
			_ = c.Update(ts)
		}
	})
}
