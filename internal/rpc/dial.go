package rpc

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

// ClusterIDKey is the metadata key that carries the caller's cluster id.
const ClusterIDKey = "nyala-cluster-id"

// A connection on which nothing comes for keepaliveTime is asked, and is dead keepaliveTimeout after that. Both ends do so.
const (
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 3 * time.Second
)

// DialOptions are what a connection may be told; the zero value is fine.
type DialOptions struct {
	// MaxMessageSize bounds messages in both directions; 0: DefaultMaxMessageSize.
	MaxMessageSize int
	// ClusterID is asked before each call; what it returns travels along unless it is empty. nil: none.
	ClusterID func() ident.ClusterID
	// ConnectTimeout bounds one attempt to connect; 0: 3 s.
	ConnectTimeout time.Duration
}

// Dial returns a connection to address (host:port), which connects at the first call and again by itself, waiting at most
// about a second between attempts. A call while there is no connection fails at once with status.ServiceUnavailable; all
// errors of calls are *status.Error (io.EOF of a stream stays). No proxy is asked. The caller closes it.
func Dial(address string, o DialOptions) (*grpc.ClientConn, error) {
	if o.MaxMessageSize == 0 {
		o.MaxMessageSize = DefaultMaxMessageSize
	}
	if o.ConnectTimeout == 0 {
		o.ConnectTimeout = 3 * time.Second
	}
	c := caller{address: address, clusterID: o.ClusterID}
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		}),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(connWindow),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(o.MaxMessageSize), grpc.MaxCallSendMsgSize(o.MaxMessageSize)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: o.ConnectTimeout,
		}),
		grpc.WithUnaryInterceptor(c.unary),
		grpc.WithStreamInterceptor(c.stream),
	)
	if err != nil {
		return nil, status.Wrap(status.InvalidArgument, err, "connect to %q", address)
	}
	return conn, nil
}

// caller is the client's side of each call on one connection.
type caller struct {
	address   string
	clusterID func() ident.ClusterID
}

func (c caller) outgoing(ctx context.Context) context.Context {
	if c.clusterID != nil {
		if id := c.clusterID(); id != "" {
			return metadata.AppendToOutgoingContext(ctx, ClusterIDKey, string(id))
		}
	}
	return ctx
}

func (c caller) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return c.describe(method, invoke(c.outgoing(ctx), method, req, reply, cc, opts...))
}

func (c caller) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := streamer(c.outgoing(ctx), desc, cc, method, opts...)
	if err != nil {
		return nil, c.describe(method, err)
	}
	return &callerStream{ClientStream: s, caller: c, method: method}, nil
}

// describe turns an error of a call into a *status.Error that a person can act on.
func (c caller) describe(method string, err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	err = describeTooLarge("a message of "+strings.TrimPrefix(method, "/"), err)
	var e *status.Error
	if errors.As(err, &e) {
		return e
	}
	st, ok := grpcstatus.FromError(err)
	if ok && st.Code() == codes.Unavailable && len(st.Details()) == 0 {
		return &status.Error{Code: status.ServiceUnavailable, Msg: "no answer from " + c.address + ": " + plainCause(st.Message()), Err: err}
	}
	if err = status.FromGRPC(err); errors.As(err, &e) {
		return e
	}
	return status.Wrap(status.CodeOf(err), err, "%s at %s", strings.TrimPrefix(method, "/"), c.address)
}

// plainCause takes gRPC's wrapping off the message of a failed connection.
func plainCause(msg string) string {
	for _, wrap := range []string{"connection error: ", "desc = ", "transport: Error while dialing: ", "transport: "} {
		if i := strings.LastIndex(msg, wrap); i >= 0 {
			msg = strings.Trim(msg[i+len(wrap):], `"`)
		}
	}
	// A server that closes a connection before it has said anything has refused it.
	if strings.Contains(msg, "reading server preface: ") && (strings.HasSuffix(msg, "EOF") || strings.HasSuffix(msg, "connection reset by peer")) {
		msg += " (it may have refused the connection: its log says so; see its --trusted_subnets and --rpc_max_connections)"
	}
	return msg
}

type callerStream struct {
	grpc.ClientStream
	caller caller
	method string
}

func (s *callerStream) Header() (metadata.MD, error) {
	md, err := s.ClientStream.Header()
	return md, s.caller.describe(s.method, err)
}

func (s *callerStream) CloseSend() error {
	return s.caller.describe(s.method, s.ClientStream.CloseSend())
}

func (s *callerStream) SendMsg(m any) error {
	return s.caller.describe(s.method, s.ClientStream.SendMsg(m))
}

func (s *callerStream) RecvMsg(m any) error {
	return s.caller.describe(s.method, s.ClientStream.RecvMsg(m))
}
