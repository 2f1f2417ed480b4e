package daemon

import (
	"errors"
	"net/netip"
	"strings"
	"time"

	"github.com/nyaladb/nyala/internal/rpc"
)

// Flags that may be changed while the daemon runs.
const (
	sampleEveryFlag  = "rpc_listen_socket_stats_every_log2"
	metricsLevelFlag = "metrics_default_level"
)

// RPCLimits are how connections are accepted, who may come, and how much at once.
type RPCLimits struct {
	Acceptors       int
	ReusePort       bool
	SampleEveryLog2 int

	TrustedSubnets           []string
	MaxConnections           int
	MaxConnectionsPerAddress int
	IdleTimeout              time.Duration

	ServiceThreads     int
	ServiceQueueLength int
}

func defaultRPCLimits() RPCLimits {
	s := rpc.DefaultServerConfig()
	return RPCLimits{
		Acceptors: s.Acceptors, ReusePort: s.ReusePort, SampleEveryLog2: s.SampleEveryLog2,
		TrustedSubnets: strings.Split(rpc.DefaultTrustedSubnets, ","),
		MaxConnections: s.MaxConnections, MaxConnectionsPerAddress: s.MaxConnectionsPerAddress, IdleTimeout: s.IdleTimeout,
		ServiceThreads: s.ServiceThreads, ServiceQueueLength: s.ServiceQueueLength,
	}
}

func (l *RPCLimits) register(g *FlagGroup) {
	g.Int(&l.Acceptors, "rpc_num_acceptors_per_address", "acceptors of each bound address", Tagged(Advanced), Between(1, 1024))
	g.Bool(&l.ReusePort, "rpc_reuseport", "give each acceptor a listening socket of its own (SO_REUSEPORT); each has its own backlog", Tagged(Experimental, Advanced))
	g.Int(&l.SampleEveryLog2, sampleEveryFlag, "each acceptor looks at the accept queue after every 2^n-th connection; -1: never",
		Tagged(Advanced, Runtime), Between(-1, rpc.MaxSampleEveryLog2),
		NotKudus("0 (every connection), not 3 (every eighth): Kudu asks through a sock_diag socket, which takes it 8.6 µs; `getsockopt(TCP_INFO)` on the "+
			"listening socket gives the same number in under 1 µs, so that every connection costs less here than every eighth does there"))
	g.Strings(&l.TrustedSubnets, "trusted_subnets", "subnets from which connections may come, since nobody has to show who they are; 0.0.0.0/0,::/0: from everywhere. A process on the same machine may always",
		Tagged(Advanced), Checked("address/bits,…", func(text string) error { _, err := rpc.ParseSubnets(text); return err }),
		NotKudus("it also has IPv6's loopback and private networks, and doesn't add the networks of the machine's interfaces; it holds for all "+
			"connections as long as there is no authentication, and for the web server's profiles"))
	g.Int(&l.MaxConnections, "rpc_max_connections", "open connections; -1: half of the files that the process may open", Tagged(Advanced), Between(-1, 1<<20), notZeroOf("-1, or 1 to 1048576"))
	g.Int(&l.MaxConnectionsPerAddress, "rpc_max_connections_per_address", "open connections of one client address; -1: half of rpc_max_connections",
		Tagged(Advanced), Between(-1, 1<<20), notZeroOf("-1, or 1 to 1048576"))
	g.Duration(&l.IdleTimeout, time.Millisecond, "rpc_default_keepalive_time_ms", "a connection that had no call for so long is closed; -1: never", Tagged(Advanced), AtLeast(-1))
	g.Int(&l.ServiceThreads, "rpc_num_service_threads", "calls of one service that are worked on at once", Tagged(Advanced), Between(1, 1<<20),
		NotKudus("512, not 10 or 20: Kudu's are threads, and a write gives its thread back while it waits for the log; here they are places that a call "+
			"keeps until it is answered, and cost nothing while they are free"))
	g.Int(&l.ServiceQueueLength, "rpc_service_queue_length", "calls of one service that may wait beyond those; the next are told to come back", Tagged(Advanced), Between(1, 1<<20))
}

// notZeroOf refuses 0 of a range that begins at -1.
func notZeroOf(accepted string) FlagOption {
	return func(f *flag) {
		f.Accepted = accepted
		f.check = func(text string) error {
			if text == "0" {
				return errors.New("out of range: want " + accepted)
			}
			return nil
		}
	}
}

// apply sets the limits in s.
func (l *RPCLimits) apply(s *rpc.ServerConfig) {
	s.Acceptors, s.ReusePort, s.SampleEveryLog2 = l.Acceptors, l.ReusePort, l.SampleEveryLog2
	s.MaxConnections, s.MaxConnectionsPerAddress, s.IdleTimeout = l.MaxConnections, l.MaxConnectionsPerAddress, l.IdleTimeout
	s.ServiceThreads, s.ServiceQueueLength = l.ServiceThreads, l.ServiceQueueLength
	s.TrustedSubnets = l.trustedSubnets()
}

// trustedSubnets are those of the flag, whose check let them pass. An empty list trusts nobody from another machine, which
// nil would not.
func (l *RPCLimits) trustedSubnets() []netip.Prefix {
	subnets, _ := rpc.ParseSubnets(strings.Join(l.TrustedSubnets, ","))
	if subnets == nil {
		return []netip.Prefix{}
	}
	return subnets
}
