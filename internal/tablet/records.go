package tablet

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
)

// Every record but the row versions begins with a byte that says its format: docs/format/store.md, "Records".
const recordFormat = 1

// ClientID names a client for exactly-once writes.
type ClientID [16]byte

// String is 32 hexadecimal digits.
func (c ClientID) String() string { return hex.EncodeToString(c[:]) }

// stateRecord is how far a replica has applied its log.
type stateRecord struct {
	applied   ident.Index
	timestamp hybridtime.Timestamp // of the last applied entry that had one
}

func appendState(dst []byte, s stateRecord) []byte {
	dst = binary.BigEndian.AppendUint64(append(dst, recordFormat), uint64(s.applied))
	return binary.BigEndian.AppendUint64(dst, uint64(s.timestamp))
}

func decodeState(v []byte) (stateRecord, error) {
	b, err := recordBody(v, "state")
	if err != nil {
		return stateRecord{}, err
	}
	if len(b) != 16 {
		return stateRecord{}, fmt.Errorf("state record: %d bytes, want 17", len(v))
	}
	return stateRecord{
		applied:   ident.Index(binary.BigEndian.Uint64(b)),
		timestamp: hybridtime.Timestamp(binary.BigEndian.Uint64(b[8:])),
	}, nil
}

// clientRecord is what is known of a client besides its requests.
type clientRecord struct {
	bound      uint64               // sequence numbers below it are stale
	lastActive hybridtime.Timestamp // of the last applied operation that named the client
}

func appendClient(dst []byte, c clientRecord) []byte {
	dst = binary.BigEndian.AppendUint64(append(dst, recordFormat), uint64(c.lastActive))
	return binary.AppendUvarint(dst, c.bound)
}

func decodeClient(v []byte) (clientRecord, error) {
	b, err := recordBody(v, "client")
	if err != nil {
		return clientRecord{}, err
	}
	if len(b) < 9 {
		return clientRecord{}, fmt.Errorf("client record: %d bytes, want at least 10", len(v))
	}
	bound, n := binary.Uvarint(b[8:])
	if n <= 0 || 8+n != len(b) {
		return clientRecord{}, fmt.Errorf("client record: the stale bound is cut off or followed by %d bytes", len(b)-8-max(n, 0))
	}
	return clientRecord{bound: bound, lastActive: hybridtime.Timestamp(binary.BigEndian.Uint64(b))}, nil
}

// appendRequest appends the answer to a request: its timestamp and, where there are any, the errors of its rows.
func appendRequest(dst []byte, ts hybridtime.Timestamp, rowErrors []*nyalav1.RowError) ([]byte, error) {
	dst = binary.BigEndian.AppendUint64(append(dst, recordFormat), uint64(ts))
	if len(rowErrors) == 0 {
		return dst, nil
	}
	return proto.MarshalOptions{}.MarshalAppend(dst, &nyalav1.WriteResponse{RowErrors: rowErrors})
}

func decodeRequestTimestamp(v []byte) (ts hybridtime.Timestamp, hasErrors bool, err error) {
	b, err := recordBody(v, "request")
	if err != nil {
		return 0, false, err
	}
	if len(b) < 8 {
		return 0, false, fmt.Errorf("request record: %d bytes, want at least 9", len(v))
	}
	return hybridtime.Timestamp(binary.BigEndian.Uint64(b)), len(b) > 8, nil
}

func decodeRequest(v []byte) (hybridtime.Timestamp, []*nyalav1.RowError, error) {
	ts, hasErrors, err := decodeRequestTimestamp(v)
	if err != nil || !hasErrors {
		return ts, nil, err
	}
	var resp nyalav1.WriteResponse
	if err := proto.Unmarshal(v[9:], &resp); err != nil {
		return 0, nil, fmt.Errorf("request record: %w", err)
	}
	return ts, resp.GetRowErrors(), nil
}

// appendMessage appends a record that is a protobuf message.
func appendMessage(dst []byte, m proto.Message) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.MarshalAppend(append(dst, recordFormat), m)
}

func decodeMessage(v []byte, what string, m proto.Message) error {
	b, err := recordBody(v, what)
	if err != nil {
		return err
	}
	if err := proto.Unmarshal(b, m); err != nil {
		return fmt.Errorf("%s record: %w", what, err)
	}
	return nil
}

func recordBody(v []byte, what string) ([]byte, error) {
	if len(v) == 0 || v[0] != recordFormat {
		return nil, fmt.Errorf("%s record: unknown format in %d bytes (this program knows %d)", what, len(v), recordFormat)
	}
	return v[1:], nil
}
