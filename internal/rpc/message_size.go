package rpc

import (
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/nyaladb/nyala/internal/status"
)

// DefaultMaxMessageSize is --rpc_max_message_size where it isn't given: 50 MiB, as Kudu's.
const DefaultMaxMessageSize = 50 << 20

// errTooLarge names what was too large, by how much, and the flag that sets the limit. The flag must be raised at both
// ends, so both are named.
func errTooLarge(what string, size, limit int) error {
	return status.New(status.TooLarge, "%s of %d bytes is over the limit of %d bytes: send less at once, or raise --rpc_max_message_size on the servers and the client",
		what, size, limit)
}

// describeTooLarge turns gRPC's own error for a message over the limit, seen while receiving or sending what, into one
// that names the flag; any other error comes back as it is.
func describeTooLarge(what string, err error) error {
	if err == nil || grpcstatus.Code(err) != codes.ResourceExhausted {
		return err
	}
	msg := grpcstatus.Convert(err).Message()
	i := strings.Index(msg, "larger than max (")
	if i < 0 {
		return err
	}
	var size, limit int
	if _, serr := fmt.Sscanf(msg[i:], "larger than max (%d vs. %d)", &size, &limit); serr != nil {
		return err
	}
	return errTooLarge(what, size, limit)
}
