package rpc

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	grpcstatus "google.golang.org/grpc/status"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/status"
)

// TestServiceQueue shows as many calls worked on as there are places, as many waiting as the queue is long, the next one
// turned away with a wish for when to come back, and other services untouched; those that wait are served in the end, but
// for the one whose caller went away, which never begins (T45).
func TestServiceQueue(t *testing.T) {
	root, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	const places, length = 2, 3
	ts := startServer(t, func(c *ServerConfig) { c.ServiceThreads, c.ServiceQueueLength = places, length })
	const service = "nyala.v1.TabletService"
	begun, release := make(chan struct{}, 100), make(chan struct{})
	ts.service.write = func(context.Context, *nyalav1.WriteRequest) (*nyalav1.WriteResponse, error) {
		begun <- struct{}{}
		<-release
		return &nyalav1.WriteResponse{}, nil
	}
	ts.service.status = func(context.Context) error { return nil }
	conn := dial(t, ts.address, DialOptions{})
	c := nyalav1.NewTabletServiceClient(conn)
	waiting := func() float64 { return series(t, ts.reg, "rpc_service_queue_length", "service", service) }
	var wg sync.WaitGroup
	answered := make(chan error, 100)
	call := func(ctx context.Context) {
		wg.Go(func() {
			_, err := c.Write(ctx, &nyalav1.WriteRequest{})
			answered <- err
		})
	}
	for range places {
		call(root)
		<-begun
	}
	gone, cancel := context.WithCancel(root)
	call(gone)
	require.Eventually(t, func() bool { return waiting() == 1 }, 5*time.Second, time.Millisecond)
	brief, cancelBrief := context.WithTimeout(root, 50*time.Millisecond)
	defer cancelBrief()
	call(brief)
	call(root)
	require.Equal(t, status.TimedOut, status.CodeOf(<-answered))
	require.Eventually(t, func() bool {
		return series(t, ts.reg, "rpcs_timed_out_in_queue", "service", service) == 1 && waiting() == length-1
	}, 5*time.Second, time.Millisecond)
	call(root)
	require.Eventually(t, func() bool { return waiting() == length }, 5*time.Second, time.Millisecond)

	_, err := c.Write(root, &nyalav1.WriteRequest{})
	e := requireCode(t, status.TooBusy, err)
	require.Positive(t, e.RetryAfter)
	require.True(t, e.Code.Retriable())
	require.Contains(t, e.Msg, "--rpc_service_queue_length")
	plain, err := grpc.NewClient("passthrough:///"+ts.address, plaintext())
	require.NoError(t, err)
	defer plain.Close()
	_, err = nyalav1.NewTabletServiceClient(plain).Write(root, &nyalav1.WriteRequest{})
	require.Equal(t, codes.ResourceExhausted, grpcstatus.Code(err))
	require.EqualValues(t, 2, series(t, ts.reg, "rpcs_queue_overflow", "service", service))

	_, err = nyalav1.NewServerServiceClient(conn).GetStatus(root, &nyalav1.GetStatusRequest{})
	require.NoError(t, err)
	_, err = healthpb.NewHealthClient(conn).Check(root, &healthpb.HealthCheckRequest{})
	require.NoError(t, err)

	cancel()
	require.Equal(t, status.Aborted, status.CodeOf(<-answered))
	require.Eventually(t, func() bool { return waiting() == length-1 }, 5*time.Second, time.Millisecond)
	require.EqualValues(t, 2, series(t, ts.reg, "rpcs_timed_out_in_queue", "service", service))
	close(release)
	wg.Wait()
	for range places + length - 1 {
		require.NoError(t, <-answered)
	}
	require.Len(t, begun, length-1, "calls that began after they had waited")
	require.Zero(t, waiting())
	require.EqualValues(t, length+1, series(t, ts.reg, "rpc_incoming_queue_time", "service", service))
}

// TestUnlimited shows what goes past the queues: what servers swap among themselves.
func TestUnlimited(t *testing.T) {
	m, err := newLimitMetrics(nil)
	require.NoError(t, err)
	require.Nil(t, m.queue("nyala.v1.PeerService", 1, 1))
	require.Nil(t, m.queue("grpc.health.v1.Health", 1, 1))
	full := m.queue("nyala.v1.MasterService", 1, 1)
	require.NoError(t, full.enter(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	require.Error(t, full.enter(ctx))

	cfg := DefaultServerConfig()
	cfg.BindAddresses = []string{"127.0.0.1:0"}
	s, err := NewServer(cfg)
	require.NoError(t, err)
	defer s.Close()
	handler := func(any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any, error) {
		return "done", nil
	}
	_, err = s.unaryHandler("nyala.v1.MasterService/TSHeartbeat", full, handler)(nil, ctx, nil, nil)
	require.NoError(t, err)
	_, err = s.unaryHandler("nyala.v1.MasterService/GetTable", full, handler)(nil, ctx, nil, nil)
	require.Equal(t, status.TimedOut, status.CodeOf(status.FromGRPC(err)))
}

// TestQueueGone shows a call dropped that got a place when its caller had just gone: the place isn't lost.
func TestQueueGone(t *testing.T) {
	m, err := newLimitMetrics(nil)
	require.NoError(t, err)
	q := m.queue("x", 1, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Equal(t, status.Aborted, status.CodeOf(q.enter(ctx)))
	require.NoError(t, q.enter(t.Context()))
	q.leave()
	require.Empty(t, q.places)
}

// TestQueueUnderLoad shows the bound held and no place lost with many callers that give up at any moment.
func TestQueueUnderLoad(t *testing.T) {
	m, err := newLimitMetrics(nil)
	require.NoError(t, err)
	const places, length = 3, 5
	q := m.queue("x", places, length)
	var running, most atomic.Int64
	var wg sync.WaitGroup
	for w := range 20 {
		wg.Go(func() {
			for i := range 500 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration((w*i)%7)*10*time.Microsecond)
				if q.enter(ctx) == nil {
					n := running.Add(1)
					for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
					}
					running.Add(-1)
					q.leave()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(t, most.Load(), int64(places))
	require.Empty(t, q.places)
	require.Zero(t, q.waiting.Load())
}

// TestMemoryFull shows a write turned away while memory is full, with a wish for when to come back and before its body is sent,
// and reads answered all the while.
func TestMemoryFull(t *testing.T) {
	var full atomic.Bool
	ts := startServer(t, func(c *ServerConfig) {
		c.MemoryFull = func() string {
			if full.Load() {
				return "a gigabyte too many"
			}
			return ""
		}
	})
	var written atomic.Int64
	ts.service.write = func(context.Context, *nyalav1.WriteRequest) (*nyalav1.WriteResponse, error) {
		written.Add(1)
		return &nyalav1.WriteResponse{}, nil
	}
	ts.service.scan = func(context.Context, *nyalav1.ScanRequest) (*nyalav1.ScanResponse, error) {
		return &nyalav1.ScanResponse{}, nil
	}
	c := nyalav1.NewTabletServiceClient(dial(t, ts.address, DialOptions{}))
	big := &nyalav1.WriteRequest{RowOperations: &nyalav1.RowOperations{Rows: make([]byte, 8<<20)}}
	_, err := c.Write(t.Context(), big)
	require.NoError(t, err)
	full.Store(true)
	_, err = c.Write(t.Context(), big)
	e := requireCode(t, status.TooBusy, err)
	require.Positive(t, e.RetryAfter)
	require.Contains(t, e.Msg, "a gigabyte too many")
	_, err = c.Scan(t.Context(), &nyalav1.ScanRequest{})
	require.NoError(t, err)

	// Headers alone get the answer: the body that would follow is not waited for.
	h := dialHTTP2(t, ts.address)
	require.NoError(t, h.frame(frameHeaders, flagEndHeaders, 1, callHeaders(writePath)))
	require.NoError(t, h.w.Flush())
	require.NoError(t, h.SetReadDeadline(time.Now().Add(5*time.Second)))
	for r, head := bufio.NewReader(h), [9]byte{}; head[3] != frameHeaders; {
		_, err := io.ReadFull(r, head[:])
		require.NoError(t, err)
		_, err = r.Discard(int(binary.BigEndian.Uint32(head[0:]) >> 8))
		require.NoError(t, err)
	}
	require.EqualValues(t, 1, written.Load())
	full.Store(false)
	_, err = c.Write(t.Context(), big)
	require.NoError(t, err)
}
