package rpc

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
)

// callsOf returns what is said of one method.
func callsOf(t *testing.T, s *Server, method string) MethodCalls {
	t.Helper()
	for _, m := range s.Calls() {
		if m.Method == method {
			return m
		}
	}
	require.Fail(t, "no such method", method)
	return MethodCalls{}
}

// TestCalls shows a call that is worked on, another that waits for its place, and both among the slow ones afterwards, each
// with what it took and waited; and that nothing is left under way.
func TestCalls(t *testing.T) {
	const method = "nyala.v1.TabletService/Write"
	ts := startServer(t, func(c *ServerConfig) { c.ServiceThreads = 1 })
	release := make(chan struct{})
	ts.service.write = func(ctx context.Context, _ *nyalav1.WriteRequest) (*nyalav1.WriteResponse, error) {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return nil, ctx.Err()
	}
	client := nyalav1.NewTabletServiceClient(dial(t, ts.address, DialOptions{}))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	underWay := func(n int) func() bool {
		return func() bool { return len(callsOf(t, ts.Server, method).UnderWay) == n }
	}
	for i := range 2 {
		wg.Go(func() {
			_, err := client.Write(ctx, &nyalav1.WriteRequest{})
			require.NoError(t, err)
		})
		require.Eventually(t, underWay(i+1), 10*time.Second, time.Millisecond)
	}
	require.Eventually(t, func() bool { return !callsOf(t, ts.Server, method).UnderWay[0].Waits }, 10*time.Second, time.Millisecond)
	calls := callsOf(t, ts.Server, method)
	require.True(t, calls.UnderWay[1].Waits)
	require.False(t, calls.UnderWay[1].Since.Before(calls.UnderWay[0].Since))
	require.WithinDuration(t, time.Now().Add(time.Minute), calls.UnderWay[0].Expires, 30*time.Second)
	require.Contains(t, calls.UnderWay[0].From, "127.0.0.1:")
	require.Empty(t, calls.Slow)

	require.Eventually(t, func() bool { return time.Since(calls.UnderWay[1].Since) > slowKinds[0] }, 10*time.Second, time.Millisecond)
	close(release)
	wg.Wait()
	require.Eventually(t, underWay(0), 10*time.Second, time.Millisecond)
	calls = callsOf(t, ts.Server, method)
	n := uint64(0)
	for _, s := range calls.Slow {
		n += s.Count
		require.GreaterOrEqual(t, s.Last.Took, s.AtLeast)
		require.LessOrEqual(t, s.Last.Waited, s.Last.Took)
		require.Contains(t, s.Last.From, "127.0.0.1:")
		require.Empty(t, s.Last.Error)
	}
	require.EqualValues(t, 2, n)
}

// TestSlowKinds is a table of which calls are kept as slow, and as which kind.
func TestSlowKinds(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		0: 0, 20 * time.Millisecond: 10 * time.Millisecond, 200 * time.Millisecond: 100 * time.Millisecond, time.Hour: time.Second,
	} {
		m := &methodCalls{method: "m"}
		m.begin(t.Context(), time.Now().Add(-took)).end(context.DeadlineExceeded)
		d := m.describe()
		require.Empty(t, d.UnderWay)
		if want == 0 {
			require.Empty(t, d.Slow)
			continue
		}
		require.Len(t, d.Slow, 1)
		require.Equal(t, want, d.Slow[0].AtLeast)
		require.Equal(t, context.DeadlineExceeded.Error(), d.Slow[0].Last.Error)
		require.Equal(t, d.Slow[0].Last.Took, d.Slow[0].Last.Waited, "it never had its place")
	}
	m := &methodCalls{method: "m", stream: true}
	m.begin(t.Context(), time.Now().Add(-time.Hour)).end(nil)
	require.Empty(t, m.describe().Slow)
}

// BenchmarkCallFollowed is what following one call adds to it, over what its metrics took before.
func BenchmarkCallFollowed(b *testing.B) {
	m := &methodCalls{method: "m"}
	ctx := b.Context()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			c := m.begin(ctx, time.Now())
			c.worked()
			c.end(nil)
		}
	})
}
