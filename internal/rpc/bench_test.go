package rpc

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
)

// BenchmarkUnary measures a small call on loopback: with this package's server and client, and with bare gRPC.
func BenchmarkUnary(b *testing.B) {
	write := func(context.Context, *nyalav1.WriteRequest) (*nyalav1.WriteResponse, error) {
		return &nyalav1.WriteResponse{}, nil
	}
	run := func(b *testing.B, conn *grpc.ClientConn) {
		c := nyalav1.NewTabletServiceClient(conn)
		req := &nyalav1.WriteRequest{RowOperations: &nyalav1.RowOperations{Rows: make([]byte, 256)}}
		b.ReportAllocs()
		for b.Loop() {
			if _, err := c.Write(b.Context(), req); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("server=nyala", func(b *testing.B) {
		cfg := DefaultServerConfig()
		cfg.BindAddresses, cfg.Logger = []string{"127.0.0.1:0"}, slog.New(slog.DiscardHandler)
		srv, err := NewServer(cfg)
		if err != nil {
			b.Fatal(err)
		}
		nyalav1.RegisterTabletServiceServer(srv, &service{write: write})
		if err := srv.Listen(); err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { _ = srv.Run(ctx) })
		defer wg.Wait()
		defer cancel()
		conn, err := Dial(srv.Addresses()[0], DialOptions{ClusterID: func() ident.ClusterID { return cluster }})
		if err != nil {
			b.Fatal(err)
		}
		defer conn.Close()
		run(b, conn)
	})
	b.Run("server=bare", func(b *testing.B) {
		ln, err := Listen("127.0.0.1:0", DefaultBacklog)
		if err != nil {
			b.Fatal(err)
		}
		srv := grpc.NewServer()
		nyalav1.RegisterTabletServiceServer(srv, &service{write: write})
		var wg sync.WaitGroup
		wg.Go(func() { _ = srv.Serve(ln) })
		defer wg.Wait()
		defer srv.Stop()
		conn, err := grpc.NewClient("passthrough:///"+ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			b.Fatal(err)
		}
		defer conn.Close()
		run(b, conn)
	})
}

// messageCounter is a PeerHandler that counts messages and says when as many as wanted have come.
type messageCounter struct {
	mu   sync.Mutex
	n    int
	want int
	done chan struct{}
}

func (c *messageCounter) Receive(_ ident.ServerID, b *nyalav1.PeerBatch) { c.add(len(b.GetMessages())) }

func (c *messageCounter) HearBeat(ident.ServerID, *nyalav1.Beat) {}

func (c *messageCounter) Unreachable(_ ident.ServerID, dropped []*nyalav1.GroupMessage) {
	c.add(len(dropped))
}

func (c *messageCounter) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n += n
	if c.n >= c.want && c.want > 0 {
		c.want = 0
		close(c.done)
	}
}

func (c *messageCounter) expect(n int) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n, c.want, c.done = 0, n, make(chan struct{})
	return c.done
}

// BenchmarkPeerTransport measures messages from one server to another over loopback, 512 at a time, until they have
// arrived. One call of Send has them all or each one.
func BenchmarkPeerTransport(b *testing.B) {
	const n = 512
	for _, size := range []int{64, 4096} {
		for _, perSend := range []int{1, n} {
			b.Run(fmt.Sprintf("size=%d/per_send=%d", size, perSend), func(b *testing.B) {
				low, high := &messageCounter{}, &messageCounter{}
				from, _ := benchNode(b, lowID, low)
				_, address := benchNode(b, highID, high)
				var msgs []*nyalav1.GroupMessage
				for range n {
					msgs = append(msgs, &nyalav1.GroupMessage{
						TabletId: make([]byte, 16), From: 1, To: 2, Kind: &nyalav1.GroupMessage_Raft{Raft: make([]byte, size)},
					})
				}
				b.SetBytes(int64(n * size))
				b.ReportAllocs()
				for b.Loop() {
					done := high.expect(n)
					for i := 0; i < n; i += perSend {
						from.Send(highID, address, Data, msgs[i:i+perSend])
					}
					<-done
				}
				b.ReportMetric(float64(b.N)*n/b.Elapsed().Seconds(), "messages/s")
			})
		}
	}
}

func benchNode(b *testing.B, id ident.ServerID, h PeerHandler) (*PeerTransport, string) {
	sc := DefaultServerConfig()
	sc.BindAddresses, sc.Logger = []string{"127.0.0.1:0"}, slog.New(slog.DiscardHandler)
	srv, err := NewServer(sc)
	if err != nil {
		b.Fatal(err)
	}
	if err := srv.Listen(); err != nil {
		b.Fatal(err)
	}
	pc := DefaultPeerConfig()
	pc.ServerID, pc.Logger = id, sc.Logger
	pc.Address = func() string { return srv.Addresses()[0] }
	pc.Stamp = func() (hybridtime.Timestamp, bool) { return 1, false }
	t, err := NewPeerTransport(pc)
	if err != nil {
		b.Fatal(err)
	}
	t.Handle(h)
	nyalav1.RegisterPeerServiceServer(srv, t)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = t.Run(ctx) })
	wg.Go(func() { _ = srv.Run(ctx) })
	b.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return t, srv.Addresses()[0]
}
