package client

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/nyaladb/nyala/internal/status"
)

// Error is the type of every error that this package returns, found with errors.As. Its Code says what kind of error it is,
// its Msg what happened, where, and what to do.
type Error = status.Error

// Code is the kind of an Error, the same one that the server gave.
type Code = status.Code

// The codes that a caller may want to tell apart. CodeOf of an error without a code of its own is CodeUnknown.
const (
	CodeOK                 = status.OK
	CodeUnknown            = status.Unknown
	CodeInvalidArgument    = status.InvalidArgument
	CodeNotFound           = status.NotFound
	CodeAlreadyPresent     = status.AlreadyPresent
	CodeIllegalState       = status.IllegalState
	CodeNotSupported       = status.NotSupported
	CodeCorruption         = status.Corruption
	CodeIO                 = status.IO
	CodeTimedOut           = status.TimedOut
	CodeAborted            = status.Aborted
	CodeServiceUnavailable = status.ServiceUnavailable
	CodeTooBusy            = status.TooBusy
	CodeOutOfSpace         = status.OutOfSpace
	CodeTooLarge           = status.TooLarge

	CodeTableNotFound       = status.TableNotFound
	CodeTableAlreadyPresent = status.TableAlreadyPresent
	CodeTabletNotFound      = status.TabletNotFound
	CodeNotTheLeader        = status.NotTheLeader
	CodeMismatchedSchema    = status.MismatchedSchema
	CodeInvalidSchema       = status.InvalidSchema
	CodeInvalidScanSpec     = status.InvalidScanSpec
	CodeInvalidSnapshot     = status.InvalidSnapshot
	CodeRequestStale        = status.RequestStale
	CodeClusterIDMismatch   = status.ClusterIDMismatch
	CodeTooFewTabletServers = status.TooFewTabletServers
	CodeCellTooLarge        = status.CellTooLarge
	CodeKeyTooLarge         = status.KeyTooLarge
	CodeRowNotInPartition   = status.RowNotInPartition
)

// CodeOf returns the code of the first *Error in err's chain: CodeOK for nil, CodeTimedOut for a deadline that passed,
// CodeAborted for a cancelled context, CodeUnknown for anything else.
func CodeOf(err error) Code { return status.CodeOf(err) }

// ErrClosed is in the chain of every error that comes from using a Client after its Close.
var ErrClosed = errors.New("client is closed")

// ErrBufferFull is in the chain of the error that Session.Apply returns when the session's buffer has no room for the
// operation. The operation was not taken: call Flush, then Apply it again.
var ErrBufferFull = errors.New("session buffer is full")

func closedError() *Error {
	return &Error{Code: status.IllegalState, Msg: ErrClosed.Error(), Err: ErrClosed}
}

// callError is what one RPC came back with.
type callError struct {
	fault *Error
	code  Code
	// local is an error of gRPC's own: no server of ours answered.
	local bool
	// grpc is gRPC's code of a local error.
	grpc codes.Code
}

// asCallError classifies an error of an RPC; nil stays nil.
func asCallError(err error) *callError {
	if err == nil {
		return nil
	}
	var e *Error
	if !errors.As(status.FromGRPC(err), &e) {
		e = &Error{Code: status.CodeOf(err), Msg: err.Error(), Err: err}
	}
	ce := &callError{fault: e, code: e.Code, local: e.Err != nil}
	if ce.local {
		ce.grpc = grpcstatus.Code(err)
	}
	return ce
}

// unreachable says that the server at the other end can't be talked to at the moment, or stopped answering.
func (e *callError) unreachable() bool {
	return e.local && (e.grpc == codes.Unavailable || e.grpc == codes.DeadlineExceeded || e.grpc == codes.Internal ||
		e.grpc == codes.Unknown)
}

// retriable says whether the same call may do better a moment later or elsewhere.
func (e *callError) retriable() bool {
	return e.code.Retriable() || e.code == status.TimedOut || e.unreachable()
}

// executed says whether the server may have begun to carry the call out. It errs on the side of true: false only where
// the server refuses before it does anything, and where no connection was there to send the call over.
func (e *callError) executed() bool {
	if e.local {
		return !strings.Contains(e.fault.Msg, "Error while dialing")
	}
	switch e.code {
	case status.NotTheLeader, status.Aborted, status.ServiceUnavailable, status.TimedOut, status.Unknown, status.IO,
		status.RequestStale, status.IllegalState, status.TabletFailed, status.Corruption:
		return true
	default:
		return false
	}
}

// RowError is one row that was not written, or may not have been.
type RowError struct {
	// Op is the operation as it was applied, its Tag included. It is a copy.
	Op *Operation
	// Index is the operation's place in the order of Apply, from 0 on, since the session began.
	Index uint64
	// Code is the kind of Err.
	Code Code
	// Err is an *Error.
	Err error
	// OutcomeUnknown says that the row may have been written all the same: the answer was lost, or never came in time.
	OutcomeUnknown bool
}

// Error names the row's place and what became of it.
func (e *RowError) Error() string {
	if e.OutcomeUnknown {
		return fmt.Sprintf("row %d: outcome unknown: %v", e.Index, e.Err)
	}
	return fmt.Sprintf("row %d: %v", e.Index, e.Err)
}

// Unwrap returns Err.
func (e *RowError) Unwrap() error { return e.Err }

// OutcomeUnknown says whether err comes from a write that may have been carried out all the same.
func OutcomeUnknown(err error) bool {
	var row *RowError
	if errors.As(err, &row) {
		return row.OutcomeUnknown
	}
	var w *writeError
	return errors.As(err, &w) && w.unknown
}

// writeError is how a whole batch failed. (Its Unwrap can't be the embedded one's: the *Error itself is to be found.)
type writeError struct {
	fault   *Error
	unknown bool
}

func (e *writeError) Error() string { return e.fault.Error() }
func (e *writeError) Unwrap() error { return e.fault }
