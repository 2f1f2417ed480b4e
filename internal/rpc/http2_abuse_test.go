package rpc

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
)

func plaintext() grpc.DialOption { return grpc.WithTransportCredentials(insecure.NewCredentials()) }

// HTTP/2's frames, as far as the tests send them.
const (
	frameData         = 0
	frameHeaders      = 1
	frameReset        = 3
	frameSettings     = 4
	framePing         = 6
	frameGoAway       = 7
	frameContinuation = 9

	flagEndStream  = 1
	flagEndHeaders = 4
)

// rawHTTP2 is a client that may send what no library would.
type rawHTTP2 struct {
	t *testing.T
	net.Conn
	w *bufio.Writer
}

func dialHTTP2(t *testing.T, address string, settings ...byte) *rawHTTP2 {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	h := &rawHTTP2{t: t, Conn: conn, w: bufio.NewWriterSize(conn, 64<<10)}
	_, _ = h.w.WriteString("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	_ = h.frame(frameSettings, 0, 0, settings)
	require.NoError(t, h.w.Flush())
	return h
}

// frame writes a frame; an error is that of the connection.
func (h *rawHTTP2) frame(kind, flags byte, stream uint32, payload []byte) error {
	var head [9]byte
	binary.BigEndian.PutUint32(head[0:], uint32(len(payload))<<8)
	head[3], head[4] = kind, flags
	binary.BigEndian.PutUint32(head[5:], stream)
	_, _ = h.w.Write(head[:])
	_, err := h.w.Write(payload)
	return err
}

// callHeaders are the headers of a call, each spelt out.
func callHeaders(path string) []byte {
	var out []byte
	for _, kv := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", path},
		{":authority", "x"},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
	} {
		out = append(out, 0, byte(len(kv[0])))
		out = append(out, kv[0]...)
		out = append(out, byte(len(kv[1])))
		out = append(out, kv[1]...)
	}
	return out
}

// goneWithin shows that the server closes the connection, and returns whether it said GOAWAY first.
func (h *rawHTTP2) goneWithin(limit time.Duration) (goAway bool) {
	h.t.Helper()
	require.NoError(h.t, h.SetReadDeadline(time.Now().Add(limit)))
	r := bufio.NewReader(h)
	for {
		var head [9]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			require.NotErrorIs(h.t, err, os.ErrDeadlineExceeded, "the server still listens")
			return goAway
		}
		goAway = goAway || head[3] == frameGoAway
		if _, err := r.Discard(int(binary.BigEndian.Uint32(head[0:]) >> 8)); err != nil {
			return goAway
		}
	}
}

const (
	writePath = "/nyala.v1.TabletService/Write"
	emptyCall = "\x00\x00\x00\x00\x00" // a message of no bytes
)

// TestHTTP2Abuse shows floods on one connection bounded, and a good client served beside each.
func TestHTTP2Abuse(t *testing.T) {
	const streams = 20
	ts := startServer(t, func(c *ServerConfig) { c.MaxConcurrentStreams = streams })
	var running, most atomic.Int64
	ts.service.write = func(ctx context.Context, _ *nyalav1.WriteRequest) (*nyalav1.WriteResponse, error) {
		n := running.Add(1)
		defer running.Add(-1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	ts.service.status = func(context.Context) error { return nil }
	good := nyalav1.NewServerServiceClient(dial(t, ts.address, DialOptions{}))
	serves := func(t *testing.T) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := good.GetStatus(ctx, &nyalav1.GetStatusRequest{})
		require.NoError(t, err)
	}

	t.Run("streams reset in floods", func(t *testing.T) {
		h := dialHTTP2(t, ts.address)
		headers, stream := callHeaders(writePath), uint32(1)
		go func() { _, _ = io.Copy(io.Discard, h) }()
		for range 20_000 {
			_ = h.frame(frameHeaders, flagEndHeaders, stream, headers)
			_ = h.frame(frameData, flagEndStream, stream, []byte(emptyCall))
			if h.frame(frameReset, 0, stream, []byte{0, 0, 0, 8}) != nil {
				break // it was cut off, which is as good
			}
			stream += 2
		}
		_ = h.w.Flush()
		serves(t)
		h.Close()
		require.Eventually(t, func() bool { return running.Load() == 0 }, 10*time.Second, 10*time.Millisecond)
		require.LessOrEqual(t, most.Load(), int64(streams))
	})

	t.Run("more streams than are allowed", func(t *testing.T) {
		h := dialHTTP2(t, ts.address)
		go func() { _, _ = io.Copy(io.Discard, h) }()
		for i := range uint32(10 * streams) {
			_ = h.frame(frameHeaders, flagEndHeaders, 2*i+1, callHeaders(writePath))
			_ = h.frame(frameData, flagEndStream, 2*i+1, []byte(emptyCall))
		}
		require.NoError(t, h.w.Flush())
		require.Eventually(t, func() bool { return running.Load() == streams }, 5*time.Second, time.Millisecond)
		serves(t)
		require.EqualValues(t, streams, running.Load())
		h.Close()
		require.Eventually(t, func() bool { return running.Load() == 0 }, 5*time.Second, time.Millisecond)
	})

	t.Run("pings", func(t *testing.T) {
		h := dialHTTP2(t, ts.address)
		for range 100 {
			_ = h.frame(framePing, 0, 0, make([]byte, 8))
		}
		require.NoError(t, h.w.Flush())
		require.True(t, h.goneWithin(5*time.Second))
		serves(t)
	})

	t.Run("endless headers", func(t *testing.T) {
		h := dialHTTP2(t, ts.address)
		_ = h.frame(frameHeaders, 0, 1, callHeaders(writePath))
		more := append([]byte{0, 1, 'x', 0x7f, 0x81, 0x7d}, make([]byte, 16_000)...)
		for range 2_000 {
			if h.frame(frameContinuation, 0, 1, more) != nil {
				break
			}
		}
		_ = h.w.Flush()
		h.goneWithin(5 * time.Second)
		serves(t)
	})

	t.Run("settings", func(t *testing.T) {
		h := dialHTTP2(t, ts.address)
		// It never reads the acknowledgements: once the server can't write them it must stop to read.
		require.NoError(t, h.SetWriteDeadline(time.Now().Add(500*time.Millisecond)))
		for range 2_000_000 {
			if h.frame(frameSettings, 0, 0, nil) != nil {
				break
			}
		}
		serves(t)
	})

	t.Run("no window", func(t *testing.T) {
		ts.service.scan = func(context.Context, *nyalav1.ScanRequest) (*nyalav1.ScanResponse, error) {
			return &nyalav1.ScanResponse{ArrowIpc: make([]byte, 1<<20)}, nil
		}
		// SETTINGS_INITIAL_WINDOW_SIZE 0: what is answered can't leave.
		h := dialHTTP2(t, ts.address, 0, 4, 0, 0, 0, 0)
		go func() { _, _ = io.Copy(io.Discard, h) }()
		for i := range uint32(streams) {
			_ = h.frame(frameHeaders, flagEndHeaders, 2*i+1, callHeaders("/nyala.v1.TabletService/Scan"))
			_ = h.frame(frameData, flagEndStream, 2*i+1, []byte(emptyCall))
		}
		require.NoError(t, h.w.Flush())
		serves(t)
		_, err := nyalav1.NewTabletServiceClient(dial(t, ts.address, DialOptions{})).Scan(t.Context(), &nyalav1.ScanRequest{})
		require.NoError(t, err)
		h.Close()
		// The connection before this one may have a flood of frames left to read.
		require.Eventually(t, func() bool { return series(t, ts.reg, "rpc_connections_open", "protocol", "grpc") <= 2 }, time.Minute, 10*time.Millisecond)
	})
}
