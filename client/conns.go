package client

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
)

// clusterIDKey is the metadata key that carries the cluster id in each call.
const clusterIDKey = "nyala-cluster-id"

// conns holds one connection per server address, made when first needed and kept for the client's life.
type conns struct {
	options   []grpc.DialOption
	clusterID atomic.Pointer[string]

	mu     sync.Mutex
	byAddr map[string]*grpc.ClientConn
	closed bool
}

func newConns(o Options) *conns {
	p := &conns{byAddr: make(map[string]*grpc.ClientConn)}
	p.options = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(o.MaxMessageSize), grpc.MaxCallSendMsgSize(o.MaxMessageSize)),
		// A server that comes back should be found within half a second; a call meanwhile fails at once and goes elsewhere.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 20 * time.Millisecond, Multiplier: 2, Jitter: 0.2, MaxDelay: 400 * time.Millisecond,
			},
			MinConnectTimeout: 3 * time.Second,
		}),
		// A machine that vanished without a word is noticed while a call waits on it; an idle connection costs nothing.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 5 * time.Second}),
		// Fixed windows: else a ping goes out with each answer, to find out how large a window serves.
		grpc.WithStaticStreamWindowSize(1 << 20),
		grpc.WithStaticConnWindowSize(4 << 20),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithUnaryInterceptor(p.addClusterID),
	}, o.DialOptions...)
	return p
}

// addClusterID puts the cluster id, once it is known, on each call.
func (p *conns) addClusterID(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	if id := p.clusterID.Load(); id != nil {
		ctx = metadata.AppendToOutgoingContext(ctx, clusterIDKey, *id)
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

// get returns the connection to an address. It doesn't wait for it to be up.
func (p *conns) get(addr string) (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, closedError()
	}
	if cc := p.byAddr[addr]; cc != nil {
		return cc, nil
	}
	cc, err := grpc.NewClient("passthrough:///"+addr, p.options...)
	if err != nil {
		return nil, err
	}
	p.byAddr[addr] = cc
	return cc, nil
}

// close ends all connections; calls under way fail.
func (p *conns) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	var errs []error
	for _, cc := range p.byAddr {
		errs = append(errs, cc.Close())
	}
	p.byAddr = nil
	return errors.Join(errs...)
}
