package status

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
)

// TestRoundTrip sends every code of the wire through gRPC's form, wrapped as a handler would, and back.
func TestRoundTrip(t *testing.T) {
	for n := range nyalav1.ErrorCode_name {
		if n == 0 {
			continue
		}
		in := &Error{
			Code: Code(n), Msg: "no such thing", Term: 7, RetryAfter: 250 * time.Millisecond,
			Leader: &nyalav1.Peer{ReplicaId: 2, ServerId: "s", Address: "127.0.0.1:1"},
		}
		err := FromGRPC(ToGRPC(fmt.Errorf("tablet x: %w", in)))
		var out *Error
		if !errors.As(err, &out) {
			t.Fatalf("%v came back as %T", in.Code, err)
		}
		if out.Code != in.Code || out.Msg != "tablet x: no such thing" || out.Term != 7 || out.RetryAfter != in.RetryAfter ||
			!proto.Equal(out.Leader, in.Leader) {
			t.Errorf("%v came back as %+v", in.Code, out)
		}
		if grpcstatus.Code(ToGRPC(in)) == codes.Unknown && in.Code != Unknown && in.Code != IO {
			t.Errorf("%v has no gRPC code of its own", in.Code)
		}
	}
}

// TestCodeOf shows what becomes of errors that carry no code, and of gRPC's own.
func TestCodeOf(t *testing.T) {
	for _, c := range []struct {
		err  error
		want Code
	}{
		{nil, OK},
		{context.DeadlineExceeded, TimedOut},
		{context.Canceled, Aborted},
		{fmt.Errorf("else"), Unknown},
		{fmt.Errorf("a: %w", New(Clock, "b")), Clock},
		{FromGRPC(grpcstatus.Error(codes.Unavailable, "connection refused")), ServiceUnavailable},
		{FromGRPC(grpcstatus.Error(codes.ResourceExhausted, "message larger than max")), TooLarge},
	} {
		if got := CodeOf(c.err); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
	if got := NotTheLeader.String(); got != "NOT_THE_LEADER" {
		t.Errorf("name: %q", got)
	}
	if ToGRPC(nil) != nil || FromGRPC(nil) != nil {
		t.Error("nil became an error")
	}
}
