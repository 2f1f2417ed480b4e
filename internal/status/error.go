package status

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
)

// Error is an error with a code. The zero value is not an error.
type Error struct {
	Code Code
	Msg  string
	// Leader and Term come with NotTheLeader: who leads, as far as the server knows; nil: unknown.
	Leader *nyalav1.Peer
	Term   uint64
	// RetryAfter is the server's wish for when to try again; 0: the caller's own backoff.
	RetryAfter time.Duration
	// Err is the cause, inside one process; it doesn't travel.
	Err error
}

// New returns an error with a message in fmt's form.
func New(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Msg: fmt.Sprintf(format, args...)}
}

// Wrap returns an error whose message is the format's, then the cause's.
func Wrap(code Code, err error, format string, args ...any) *Error {
	return &Error{Code: code, Msg: fmt.Sprintf(format, args...) + ": " + err.Error(), Err: err}
}

// Error is the message; the code stands before it where the message alone would not tell.
func (e *Error) Error() string { return e.Msg }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// CodeOf returns the code of the first *Error in err's chain; without one, TimedOut for a deadline that passed, Aborted
// for a cancelled context, Unknown for anything else and OK for nil.
func CodeOf(err error) Code {
	var e *Error
	switch {
	case err == nil:
		return OK
	case errors.As(err, &e):
		return e.Code
	case errors.Is(err, context.DeadlineExceeded):
		return TimedOut
	case errors.Is(err, context.Canceled):
		return Aborted
	}
	return Unknown
}

// grpcCode is the nearest of gRPC's own codes, for callers that know no other.
func (c Code) grpcCode() codes.Code {
	switch c {
	case OK:
		return codes.OK
	case InvalidArgument, MismatchedSchema, InvalidSchema, InvalidScanSpec, InvalidSnapshot, InvalidScanCallSeqID,
		CellTooLarge, KeyTooLarge:
		return codes.InvalidArgument
	case NotFound, TableNotFound, TabletNotFound, ScannerExpired, RowNotInPartition:
		return codes.NotFound
	case AlreadyPresent, TableAlreadyPresent, TabletAlreadyExists:
		return codes.AlreadyExists
	case IllegalState, RequestStale, ClusterIDMismatch, WrongServerID, TooFewTabletServers:
		return codes.FailedPrecondition
	case NotSupported:
		return codes.Unimplemented
	case Corruption:
		return codes.DataLoss
	case TimedOut:
		return codes.DeadlineExceeded
	case Aborted:
		return codes.Aborted
	case ServiceUnavailable, TabletNotRunning, TabletFailed, NotTheLeader, Clock:
		return codes.Unavailable
	case TooBusy, OutOfSpace, TooLarge:
		return codes.ResourceExhausted
	default:
		return codes.Unknown
	}
}

// ToGRPC turns any error into one that travels: a gRPC status with an ErrorDetail. nil stays nil.
func ToGRPC(err error) error {
	if err == nil {
		return nil
	}
	var e *Error
	if !errors.As(err, &e) {
		e = &Error{Code: CodeOf(err)}
	}
	st, derr := grpcstatus.New(e.Code.grpcCode(), err.Error()).WithDetails(&nyalav1.ErrorDetail{
		Code:         nyalav1.ErrorCode(e.Code),
		Leader:       e.Leader,
		Term:         e.Term,
		RetryAfterMs: uint32(e.RetryAfter.Milliseconds()),
	})
	if derr != nil {
		return grpcstatus.Error(e.Code.grpcCode(), err.Error())
	}
	return st.Err()
}

// FromGRPC is the reverse of ToGRPC. An error of gRPC's own (no connection, a deadline, a message too large) gets the
// code that fits it; nil stays nil.
func FromGRPC(err error) error {
	if err == nil {
		return nil
	}
	st, ok := grpcstatus.FromError(err)
	if !ok {
		return err
	}
	for _, d := range st.Details() {
		if d, ok := d.(*nyalav1.ErrorDetail); ok {
			return &Error{
				Code:       Code(d.GetCode()),
				Msg:        st.Message(),
				Leader:     d.GetLeader(),
				Term:       d.GetTerm(),
				RetryAfter: time.Duration(d.GetRetryAfterMs()) * time.Millisecond,
			}
		}
	}
	return &Error{Code: fromGRPCCode(st.Code()), Msg: st.Message(), Err: err}
}

func fromGRPCCode(c codes.Code) Code {
	switch c {
	case codes.DeadlineExceeded:
		return TimedOut
	case codes.Canceled:
		return Aborted
	case codes.Unavailable:
		return ServiceUnavailable
	case codes.ResourceExhausted:
		return TooLarge
	case codes.InvalidArgument:
		return InvalidArgument
	case codes.Unimplemented:
		return NotSupported
	default:
		return Unknown
	}
}
