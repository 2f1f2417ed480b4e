package daemon

import (
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// cpuCollectors tell the CPU time of this process under Kudu's names, in milliseconds.
func cpuCollectors() []prometheus.Collector {
	counter := func(name, help string, of func(*syscall.Rusage) syscall.Timeval) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 {
			var u syscall.Rusage
			if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
				return 0 // it can't fail with these arguments
			}
			t := of(&u)
			return float64(time.Duration(t.Nano()) / time.Millisecond)
		})
	}
	return []prometheus.Collector{
		counter("cpu_utime", "CPU time that this process has spent in user mode, in milliseconds.", func(u *syscall.Rusage) syscall.Timeval { return u.Utime }),
		counter("cpu_stime", "CPU time that the system has spent for this process, in milliseconds.", func(u *syscall.Rusage) syscall.Timeval { return u.Stime }),
	}
}
