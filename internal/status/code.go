package status

import (
	"strings"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
)

// Code says what kind of error it is. The numbers are those of the wire (nyala.v1.ErrorCode).
type Code int32

// The codes. The first group are Kudu's categories; the second names one cause each, with Kudu's name where it has one.
const (
	OK                 = Code(0)
	Unknown            = Code(nyalav1.ErrorCode_ERROR_CODE_UNKNOWN)
	InvalidArgument    = Code(nyalav1.ErrorCode_ERROR_CODE_INVALID_ARGUMENT)
	NotFound           = Code(nyalav1.ErrorCode_ERROR_CODE_NOT_FOUND)
	AlreadyPresent     = Code(nyalav1.ErrorCode_ERROR_CODE_ALREADY_PRESENT)
	IllegalState       = Code(nyalav1.ErrorCode_ERROR_CODE_ILLEGAL_STATE)
	NotSupported       = Code(nyalav1.ErrorCode_ERROR_CODE_NOT_SUPPORTED)
	Corruption         = Code(nyalav1.ErrorCode_ERROR_CODE_CORRUPTION)
	IO                 = Code(nyalav1.ErrorCode_ERROR_CODE_IO)
	TimedOut           = Code(nyalav1.ErrorCode_ERROR_CODE_TIMED_OUT)
	Aborted            = Code(nyalav1.ErrorCode_ERROR_CODE_ABORTED)
	ServiceUnavailable = Code(nyalav1.ErrorCode_ERROR_CODE_SERVICE_UNAVAILABLE)
	TooBusy            = Code(nyalav1.ErrorCode_ERROR_CODE_TOO_BUSY)
	OutOfSpace         = Code(nyalav1.ErrorCode_ERROR_CODE_OUT_OF_SPACE)
	TooLarge           = Code(nyalav1.ErrorCode_ERROR_CODE_TOO_LARGE)

	TableNotFound        = Code(nyalav1.ErrorCode_ERROR_CODE_TABLE_NOT_FOUND)
	TableAlreadyPresent  = Code(nyalav1.ErrorCode_ERROR_CODE_TABLE_ALREADY_PRESENT)
	TabletNotFound       = Code(nyalav1.ErrorCode_ERROR_CODE_TABLET_NOT_FOUND)
	TabletAlreadyExists  = Code(nyalav1.ErrorCode_ERROR_CODE_TABLET_ALREADY_EXISTS)
	TabletNotRunning     = Code(nyalav1.ErrorCode_ERROR_CODE_TABLET_NOT_RUNNING)
	TabletFailed         = Code(nyalav1.ErrorCode_ERROR_CODE_TABLET_FAILED)
	NotTheLeader         = Code(nyalav1.ErrorCode_ERROR_CODE_NOT_THE_LEADER)
	MismatchedSchema     = Code(nyalav1.ErrorCode_ERROR_CODE_MISMATCHED_SCHEMA)
	InvalidSchema        = Code(nyalav1.ErrorCode_ERROR_CODE_INVALID_SCHEMA)
	InvalidScanSpec      = Code(nyalav1.ErrorCode_ERROR_CODE_INVALID_SCAN_SPEC)
	InvalidSnapshot      = Code(nyalav1.ErrorCode_ERROR_CODE_INVALID_SNAPSHOT)
	InvalidScanCallSeqID = Code(nyalav1.ErrorCode_ERROR_CODE_INVALID_SCAN_CALL_SEQ_ID)
	ScannerExpired       = Code(nyalav1.ErrorCode_ERROR_CODE_SCANNER_EXPIRED)
	RequestStale         = Code(nyalav1.ErrorCode_ERROR_CODE_REQUEST_STALE)
	ClusterIDMismatch    = Code(nyalav1.ErrorCode_ERROR_CODE_CLUSTER_ID_MISMATCH)
	WrongServerID        = Code(nyalav1.ErrorCode_ERROR_CODE_WRONG_SERVER_ID)
	Clock                = Code(nyalav1.ErrorCode_ERROR_CODE_CLOCK)
	TooFewTabletServers  = Code(nyalav1.ErrorCode_ERROR_CODE_TOO_FEW_TABLET_SERVERS)
	CellTooLarge         = Code(nyalav1.ErrorCode_ERROR_CODE_CELL_TOO_LARGE)
	KeyTooLarge          = Code(nyalav1.ErrorCode_ERROR_CODE_KEY_TOO_LARGE)
	RowNotInPartition    = Code(nyalav1.ErrorCode_ERROR_CODE_ROW_NOT_IN_PARTITION)
)

// String is the code's name on the wire without its prefix: NOT_THE_LEADER.
func (c Code) String() string {
	if c == OK {
		return "OK"
	}
	return strings.TrimPrefix(nyalav1.ErrorCode(c).String(), "ERROR_CODE_")
}

// Retriable says whether the same call may do better a moment later or at another server: the condition passes by itself.
func (c Code) Retriable() bool {
	switch c {
	case ServiceUnavailable, TooBusy, OutOfSpace, Aborted, TabletNotRunning, TabletFailed, NotTheLeader, Clock:
		return true
	default:
		return false
	}
}
