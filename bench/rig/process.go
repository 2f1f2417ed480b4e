package rig

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nyaladb/nyala/internal/localcluster"
)

// clockTicks is how many of /proc's ticks a second has, on every Linux that Go runs on.
const clockTicks = 100

// Usage is what processes have used so far, or in a window.
type Usage struct {
	UserSeconds, SystemSeconds float64
	// Voluntary and Involuntary are context switches of the threads that are there; those that ended are lost.
	Voluntary, Involuntary float64
	// RSSBytes is what the processes hold now.
	RSSBytes float64
}

// Sub is what was used since o; RSSBytes stays what it is.
func (u Usage) Sub(o Usage) Usage {
	u.UserSeconds -= o.UserSeconds
	u.SystemSeconds -= o.SystemSeconds
	u.Voluntary -= o.Voluntary
	u.Involuntary -= o.Involuntary
	return u
}

// CPU is the processor time in seconds.
func (u Usage) CPU() float64 { return u.UserSeconds + u.SystemSeconds }

// UsageOf adds up what the servers' processes have used.
func UsageOf(servers []localcluster.Server) (Usage, error) {
	var u Usage
	for _, s := range servers {
		if err := u.add(s.Pid); err != nil {
			return u, fmt.Errorf("%s: %w", s.Name, err)
		}
	}
	return u, nil
}

func (u *Usage) add(pid int) error {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return err
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // from the third field, the state, on
	if len(fields) < 22 {
		return fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields)+2)
	}
	utime, uerr := strconv.ParseFloat(fields[11], 64)
	stime, serr := strconv.ParseFloat(fields[12], 64)
	pages, rerr := strconv.ParseFloat(fields[21], 64)
	if uerr != nil || serr != nil || rerr != nil {
		return fmt.Errorf("/proc/%d/stat: %q", pid, stat)
	}
	u.UserSeconds += utime / clockTicks
	u.SystemSeconds += stime / clockTicks
	u.RSSBytes += pages * float64(os.Getpagesize())
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil {
		return err
	}
	for _, t := range threads {
		b, err := os.ReadFile(t)
		if err != nil {
			continue // it has ended
		}
		for line := range strings.Lines(string(b)) {
			name, value, _ := strings.Cut(line, ":")
			n, _ := strconv.ParseFloat(strings.TrimSpace(value), 64)
			switch name {
			case "voluntary_ctxt_switches":
				u.Voluntary += n
			case "nonvoluntary_ctxt_switches":
				u.Involuntary += n
			}
		}
	}
	return nil
}

// Metrics are samples by name and labels, as /metrics writes them: raft_server_messages_total{kind="append"}.
type Metrics map[string]float64

// MetricsOf adds up what the servers' /metrics say.
func MetricsOf(ctx context.Context, servers []localcluster.Server) (Metrics, error) {
	m := Metrics{}
	for _, s := range servers {
		if err := m.add(ctx, s.Web); err != nil {
			return nil, fmt.Errorf("%s: %w", s.Name, err)
		}
	}
	return m, nil
}

func (m Metrics) add(ctx context.Context, web string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+web+"/metrics", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		line := lines.Text()
		i := strings.LastIndexByte(line, ' ')
		if i < 0 || line[0] == '#' {
			continue
		}
		if v, err := strconv.ParseFloat(line[i+1:], 64); err == nil {
			m[line[:i]] += v
		}
	}
	return lines.Err()
}

// Sub is what was counted since o.
func (m Metrics) Sub(o Metrics) Metrics {
	d := maps.Clone(m)
	for name, v := range o {
		d[name] -= v
	}
	return d
}

// ByLabel returns the samples of one metric that has one label, by its value.
func (m Metrics) ByLabel(name string) map[string]float64 {
	out := map[string]float64{}
	for series, v := range m {
		rest, ok := strings.CutPrefix(series, name+"{")
		if !ok {
			continue
		}
		_, label, _ := strings.Cut(strings.TrimSuffix(rest, "}"), "=")
		out[strings.Trim(label, `"`)] = v
	}
	return out
}

// Sum adds up all samples of a metric, whatever their labels.
func (m Metrics) Sum(name string) float64 {
	var sum float64
	for series, v := range m {
		if series == name || strings.HasPrefix(series, name+"{") {
			sum += v
		}
	}
	return sum
}
