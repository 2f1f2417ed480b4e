package rpc

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
)

// TestBeatDelay shows what is said of beats that are on their way for given times, between servers whose clocks have nothing to do
// with one another.
func TestBeatDelay(t *testing.T) {
	const ms = time.Millisecond
	rest := make([]time.Duration, 3*beatWindow) // as fast as can be
	for name, c := range map[string]struct {
		delays, want []time.Duration
	}{
		"punctual":           {[]time.Duration{0, 0, 0}, []time.Duration{0, 0}},
		"one late":           {[]time.Duration{ms, 300 * ms, ms}, []time.Duration{299 * ms, 0}},
		"two late in a row":  {[]time.Duration{ms, 300 * ms, 300 * ms, ms}, []time.Duration{299 * ms, 299 * ms, 0}},
		"the first one late": {[]time.Duration{500 * ms, 100 * ms, 150 * ms}, []time.Duration{0, 50 * ms}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, lateness(t, c.delays, 0)) })
	}
	// A constant is forgotten: the sender's clock stood still for a minute.
	late := lateness(t, append([]time.Duration{0}, rest...), time.Minute)
	require.Equal(t, time.Minute, late[0])
	require.Zero(t, late[2*beatWindow])
	// A drift of 500 ppm looks like a few milliseconds, however long it lasts.
	drift := make([]time.Duration, 100_000)
	for i := range drift {
		drift[i] = time.Duration(i) * 250 * time.Microsecond
	}
	for _, l := range lateness(t, drift, 0) {
		require.LessOrEqual(t, l, 8*ms)
	}
	var d beatDelay
	_, ok := d.of(0, time.Now())
	require.False(t, ok, "a sender that doesn't say when its beats are due")
}

// lateness is what is said of beats with these delays, the first one left out. After the first one the sender's clock falls back.
func lateness(t *testing.T, delays []time.Duration, back time.Duration) (late []time.Duration) {
	t.Helper()
	var d beatDelay
	start := time.Now()
	for i, delay := range delays {
		at := time.Duration(i) * 500 * time.Millisecond
		due := int64(1e15) + int64(at)
		if i > 0 {
			due -= int64(back)
		}
		l, ok := d.of(due, start.Add(at+delay))
		require.Equal(t, i > 0, ok)
		if ok {
			late = append(late, l)
		}
	}
	return late
}

// TestBeatDelayMeasured shows that the time that a beat waits at its sender counts, also where another one takes its place.
func TestBeatDelayMeasured(t *testing.T) {
	low, high := startNode(t, lowID, nil), startNode(t, highID, nil)
	var sent atomic.Int64
	base := time.Now()
	send := func(due time.Time) {
		low.transport.SendBeat(highID, high.address, due, func() *nyalav1.Beat {
			sent.Add(1)
			return &nyalav1.Beat{Sent: int64(time.Hour + time.Since(base))}
		})
	}
	send(time.Now())
	high.rec.await(t, "the first beat", func() bool { return len(high.rec.beats) == 1 })
	require.Zero(t, series(t, high.reg, "peer_beat_delay_seconds"))

	l := low.transport.peer(highID).link(Control)
	l.mu.Lock()
	s := l.session
	l.session = nil // nothing is taken
	l.mu.Unlock()
	send(time.Now().Add(-time.Minute))
	send(time.Now())
	l.mu.Lock()
	l.session = s
	l.mu.Unlock()
	signal(s.wake)
	high.rec.await(t, "the second beat", func() bool { return len(high.rec.beats) == 2 })
	require.EqualValues(t, 2, sent.Load())
	families, err := high.reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == "peer_beat_delay_seconds" {
			h := f.GetMetric()[0].GetHistogram()
			require.EqualValues(t, 1, h.GetSampleCount())
			require.Greater(t, h.GetSampleSum(), 30.0)
			require.Less(t, h.GetSampleSum(), 90.0)
		}
	}
}
