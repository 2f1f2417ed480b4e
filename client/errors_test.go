package client

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/nyaladb/nyala/internal/status"
)

// TestCallErrors classifies errors: whether to try again, and whether the call may have been carried out.
func TestCallErrors(t *testing.T) {
	ours := func(c Code) error { return status.ToGRPC(status.New(c, "x")) }
	for _, f := range []struct {
		err                              error
		retriable, executed, unreachable bool
	}{
		{ours(status.NotTheLeader), true, true, false},
		{ours(status.TooBusy), true, false, false},
		{ours(status.OutOfSpace), true, false, false},
		{ours(status.TimedOut), true, true, false},
		{ours(status.Aborted), true, true, false},
		{ours(status.ServiceUnavailable), true, true, false},
		{ours(status.TabletNotFound), false, false, false},
		{ours(status.TabletNotRunning), true, false, false},
		{ours(status.InvalidArgument), false, false, false},
		{ours(status.ClusterIDMismatch), false, false, false},
		{ours(status.RequestStale), false, true, false},
		{grpcstatus.Error(codes.Unavailable, "connection error: desc = \"transport: Error while dialing: refused\""), true, false, true},
		{grpcstatus.Error(codes.Unavailable, "error reading from server: EOF"), true, true, true},
		{grpcstatus.Error(codes.DeadlineExceeded, "context deadline exceeded"), true, true, true},
		{grpcstatus.Error(codes.Canceled, "context canceled"), true, true, false},
		{grpcstatus.Error(codes.Internal, "stream terminated"), true, true, true},
		{grpcstatus.Error(codes.Unimplemented, "unknown service"), false, true, false},
		{grpcstatus.Error(codes.ResourceExhausted, "message larger than max"), false, true, false},
		{grpcstatus.Error(codes.Unauthenticated, "no"), false, true, false},
		{context.DeadlineExceeded, true, true, true},
	} {
		e := asCallError(f.err)
		if e.retriable() != f.retriable || e.executed() != f.executed || e.unreachable() != f.unreachable {
			t.Errorf("%v: retriable %v, executed %v, unreachable %v", f.err, e.retriable(), e.executed(), e.unreachable())
		}
	}
	if asCallError(nil) != nil {
		t.Error("nil became an error")
	}
}

// TestRowErrors finds codes and outcomes through any wrapping.
func TestRowErrors(t *testing.T) {
	cause := status.New(status.TimedOut, "no answer")
	row := error(&RowError{Index: 3, Code: CodeTimedOut, Err: cause, OutcomeUnknown: true})
	batch := error(&writeError{fault: cause, unknown: true})
	for _, err := range []error{row, batch, fmt.Errorf("load: %w", row), fmt.Errorf("load: %w", batch)} {
		var e *Error
		if CodeOf(err) != CodeTimedOut || !OutcomeUnknown(err) || !errors.As(err, &e) || e != cause {
			t.Errorf("%v: code %v, unknown %v", err, CodeOf(err), OutcomeUnknown(err))
		}
	}
	if row.Error() != "row 3: outcome unknown: no answer" || batch.Error() != "no answer" {
		t.Errorf("%v; %v", row, batch)
	}
	for _, err := range []error{nil, cause, &RowError{Err: cause}, &writeError{fault: cause}} {
		if OutcomeUnknown(err) {
			t.Errorf("%v: the outcome is known", err)
		}
	}
}
