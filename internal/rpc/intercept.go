package rpc

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/status"
)

// unaryHandler puts the server's checks around a method. It stands where gRPC calls the generated handler and not in an
// interceptor, which would begin only after the request was received: a request over the limit would get gRPC's own words.
func (s *Server) unaryHandler(method string, queue *serviceQueue, h grpc.MethodHandler) grpc.MethodHandler {
	m, calls := s.metrics.method(method), s.followCalls(method, false)
	if slices.Contains(unlimitedMethods, method) {
		queue = nil
	}
	bulky := slices.Contains(bulkyMethods, method)
	return func(srv any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (resp any, err error) {
		call := calls.begin(ctx, m.begin())
		defer func() { m.end(call.end(err), err) }()
		defer func() {
			if p := recover(); p != nil {
				err = s.panicked(method, p)
			}
			if err != nil {
				resp, err = nil, travelling(err)
			}
		}()
		if err := s.checkClusterID(ctx); err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, s.cfg.MaxDeadline)
		defer cancel()
		if bulky && s.cfg.MemoryFull != nil {
			if why := s.cfg.MemoryFull(); why != "" {
				return nil, &status.Error{Code: status.TooBusy, RetryAfter: spread(busyRetry), Msg: "the write wasn't begun: " + why}
			}
		}
		if err := queue.enter(ctx); err != nil {
			return nil, err
		}
		defer queue.leave()
		call.worked()
		resp, err = h(srv, ctx, func(v any) error {
			if err := dec(v); err != nil {
				return describeTooLarge("a request of "+method, err)
			}
			// Receiving may have taken as long as the caller was ready to wait.
			return ctx.Err()
		}, nil)
		if err != nil {
			return nil, err
		}
		if msg, ok := resp.(proto.Message); ok {
			if n := proto.Size(msg); n > s.cfg.MaxMessageSize {
				return nil, errTooLarge("an answer of "+method, n, s.cfg.MaxMessageSize)
			}
		}
		return resp, nil
	}
}

// streamHandler is unaryHandler for streams, which have no cap on their time: a scan may last, a peer's stream does.
func (s *Server) streamHandler(method string, queue *serviceQueue, h grpc.StreamHandler) grpc.StreamHandler {
	m, calls := s.metrics.method(method), s.followCalls(method, true)
	infrastructure := strings.HasPrefix(method, "grpc.")
	return func(srv any, stream grpc.ServerStream) (err error) {
		call := calls.begin(stream.Context(), m.begin())
		defer func() { m.end(call.end(err), err) }()
		defer func() {
			if p := recover(); p != nil {
				err = s.panicked(method, p)
			}
			err = travelling(err)
		}()
		if err := s.checkClusterID(stream.Context()); err != nil {
			return err
		}
		ctx := stream.Context()
		if infrastructure {
			// A health watch would hold up a graceful stop until its bound.
			var cancel context.CancelFunc
			ctx, cancel = context.WithCancel(ctx)
			defer cancel()
			go func() {
				select {
				case <-s.stopping:
					cancel()
				case <-ctx.Done():
				}
			}()
		}
		if err := queue.enter(ctx); err != nil {
			return err
		}
		defer queue.leave()
		call.worked()
		return h(srv, &serverStream{ServerStream: stream, ctx: ctx, method: method})
	}
}

type serverStream struct {
	grpc.ServerStream
	ctx    context.Context // the stream's own, as gRPC's interface wants it
	method string
}

func (s *serverStream) Context() context.Context { return s.ctx }

func (s *serverStream) RecvMsg(m any) error {
	return describeTooLarge("a message of "+s.method, s.ServerStream.RecvMsg(m))
}

func (s *serverStream) SendMsg(m any) error {
	return describeTooLarge("an answer of "+s.method, s.ServerStream.SendMsg(m))
}

// checkClusterID refuses a caller that says it belongs to another cluster. Who doesn't say is let in: a client that
// connects for the first time can't know.
func (s *Server) checkClusterID(ctx context.Context) error {
	if s.cfg.ClusterID == nil {
		return nil
	}
	theirs := metadata.ValueFromIncomingContext(ctx, ClusterIDKey)
	if len(theirs) == 0 || theirs[0] == "" {
		return nil
	}
	own := s.cfg.ClusterID()
	if own == "" || string(own) == theirs[0] {
		return nil
	}
	return status.New(status.ClusterIDMismatch, "%s belongs to cluster %s, the caller to cluster %.64q: one of them was given the wrong addresses; nothing was changed",
		serverName(string(s.cfg.ServerID)), own, theirs[0])
}

func serverName(id string) string {
	if id == "" {
		return "this server"
	}
	return "server " + id
}

// panicked logs a handler's panic with its stack and returns what the caller is told. The server goes on: one request
// that meets a bug must not take down the others.
func (s *Server) panicked(method string, p any) error {
	s.log.Error("handler panicked", "method", method, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	st := grpcstatus.New(codes.Internal, fmt.Sprintf("internal error in %s: %v: a bug in the server, whose log has the stack", method, p))
	if with, err := st.WithDetails(&nyalav1.ErrorDetail{Code: nyalav1.ErrorCode_ERROR_CODE_UNKNOWN}); err == nil {
		st = with
	}
	return st.Err()
}

// travelling turns a handler's error into one that keeps its code on the wire. gRPC's own errors stay as they are.
func travelling(err error) error {
	var e *status.Error
	if err == nil || errors.As(err, &e) {
		return status.ToGRPC(err)
	}
	if _, ok := grpcstatus.FromError(err); ok {
		return err
	}
	return status.ToGRPC(err)
}

// methodMetrics are the series of one method.
type methodMetrics struct {
	duration observer
	inFlight gauge
	failures counter
}

func (m *methodMetrics) begin() time.Time {
	m.inFlight.Inc()
	return time.Now()
}

func (m *methodMetrics) end(took time.Duration, err error) {
	m.inFlight.Dec()
	m.duration.Observe(took.Seconds())
	if err != nil {
		m.failures.Inc()
	}
}
