package client

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/nyaladb/nyala/internal/status"
)

// DefaultMasterPort is the port of a master's address that names none.
const DefaultMasterPort = "7051"

// DefaultMaxMessageSize is how large a request or an answer may be unless Options or the servers say otherwise.
const DefaultMaxMessageSize = 50 << 20

// requestOverhead is more than a write request holds beside its rows.
const requestOverhead = 4 << 10

// Options says how to reach a cluster. Fields left zero take the defaults named beside them.
type Options struct {
	// Masters are addresses, host or host:port, of all masters of the cluster or some. Default: localhost:7051.
	Masters []string
	// Logger gets what heals by itself, at debug level. Default: nothing is logged.
	Logger *slog.Logger
	// MaxMessageSize is the largest request or answer in bytes; the servers' --rpc_max_message_size should be no less.
	// Default: DefaultMaxMessageSize.
	MaxMessageSize int
	// Timeout bounds each operation whose context has no deadline: a call on a Client or Table, a batch of a Session, a
	// Scanner's Next. Default: 30 s.
	Timeout time.Duration
	// AttemptTimeout bounds one try of an operation at one server, so that a server that has gone silent costs no more
	// than this before another is asked. A write that only takes long is not hurt: sent again, it joins itself. Default: 5 s.
	AttemptTimeout time.Duration
	// MinBackoff and MaxBackoff bound the pauses between tries. They double from one to the other, with jitter, but stay
	// below 100 ms while a tablet has no leader. Default: 10 ms and 500 ms.
	MinBackoff, MaxBackoff time.Duration
	// DialOptions come after the package's own, such as TLS credentials. Default: none; connections are not encrypted.
	DialOptions []grpc.DialOption
}

// withDefaults returns o with its zero fields filled in.
func (o Options) withDefaults() Options {
	if len(o.Masters) == 0 {
		o.Masters = []string{"localhost"}
	}
	masters := make([]string, 0, len(o.Masters))
	for _, m := range o.Masters {
		m = strings.TrimSpace(m)
		if _, _, err := net.SplitHostPort(m); err != nil && m != "" {
			m = net.JoinHostPort(strings.Trim(m, "[]"), DefaultMasterPort)
		}
		masters = append(masters, m)
	}
	o.Masters = masters
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	setDefault(&o.MaxMessageSize, DefaultMaxMessageSize)
	setDefault(&o.Timeout, 30*time.Second)
	setDefault(&o.AttemptTimeout, 5*time.Second)
	setDefault(&o.MinBackoff, 10*time.Millisecond)
	setDefault(&o.MaxBackoff, 500*time.Millisecond)
	return o
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate names all that is wrong with o, at once.
func (o Options) Validate() error {
	o = o.withDefaults()
	var faults []error
	for _, m := range o.Masters {
		if host, port, err := net.SplitHostPort(m); err != nil || host == "" || port == "" {
			faults = append(faults, fmt.Errorf("master address %q: want host or host:port", m))
		}
	}
	if o.MaxMessageSize < 1<<20 {
		faults = append(faults, fmt.Errorf("MaxMessageSize %d: want at least 1 MiB", o.MaxMessageSize))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"Timeout", o.Timeout}, {"AttemptTimeout", o.AttemptTimeout}, {"MinBackoff", o.MinBackoff}, {"MaxBackoff", o.MaxBackoff},
	} {
		if d.value < 0 {
			faults = append(faults, fmt.Errorf("%s %v: want a positive duration", d.name, d.value))
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return status.Wrap(status.InvalidArgument, errors.Join(faults...), "client options")
}
