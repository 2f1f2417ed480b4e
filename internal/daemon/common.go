package daemon

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/nyaladb/nyala/internal/clock"
	"github.com/nyaladb/nyala/internal/clock/ntp"
	"github.com/nyaladb/nyala/internal/memory"
	"github.com/nyaladb/nyala/internal/rpc"
)

// Defaults are the ports of one kind of daemon, Kudu's.
type Defaults struct{ RPCPort, WebPort int }

// The two kinds of daemon.
var (
	MasterDefaults       = Defaults{RPCPort: 7051, WebPort: 8051}
	TabletServerDefaults = Defaults{RPCPort: 7050, WebPort: 8050}
)

// Common is the config that every daemon has.
type Common struct {
	RPCBindAddresses       []string
	RPCAdvertisedAddresses []string
	RPCMaxMessageSize      int
	RPCBacklog             int
	RPCLimits              RPCLimits
	Memory                 memory.Config
	InjectLogLatency       time.Duration

	WebInterface           string
	WebPort                int
	WebAdvertisedAddresses []string
	MetricsDefaultLevel    string

	WALDir   string
	DataDirs []string // WALDir, when none were given

	Log LogConfig

	HeartbeatInterval   time.Duration
	MaxMissedHeartbeats float64
	PreElection         bool
	// PushCommitIndex tells followers of a new commit index at once.
	PushCommitIndex bool
	// HeartbeatBatcher, HeartbeatWindow and HeartbeatBatch say how heartbeats to one server are put together.
	HeartbeatBatcher   bool
	HeartbeatWindow    time.Duration
	HeartbeatBatch     int
	QuiesceIdleTablets bool
	ServerLiveness     bool
	LogRetention       LogRetention

	MaxClockSyncError      time.Duration
	WallClockJumpThreshold time.Duration
	WallClockJumpDetection string
	TimeSource             string
	NTPInitialSyncWait     time.Duration
	NTP                    ntp.Config // of the time source builtin
	MockClockOffset        time.Duration

	defaults Defaults
	flags    *Flags // set by Register
}

// DefaultCommon returns the defaults of one kind of daemon.
func DefaultCommon(d Defaults) Common {
	clk := clock.DefaultConfig()
	return Common{
		RPCBindAddresses:       []string{fmt.Sprintf("0.0.0.0:%d", d.RPCPort)},
		RPCMaxMessageSize:      rpc.DefaultMaxMessageSize,
		RPCBacklog:             rpc.DefaultBacklog,
		RPCLimits:              defaultRPCLimits(),
		Memory:                 memory.DefaultConfig(),
		WebInterface:           "0.0.0.0",
		WebPort:                d.WebPort,
		MetricsDefaultLevel:    LevelInfo.String(),
		Log:                    DefaultLogConfig(),
		HeartbeatInterval:      500 * time.Millisecond,
		MaxMissedHeartbeats:    3,
		PreElection:            true,
		PushCommitIndex:        true,
		HeartbeatBatcher:       true,
		HeartbeatWindow:        100 * time.Millisecond,
		HeartbeatBatch:         30,
		QuiesceIdleTablets:     true,
		ServerLiveness:         true,
		LogRetention:           defaultLogRetention(),
		MaxClockSyncError:      clk.MaxClockSyncError,
		WallClockJumpThreshold: clk.WallClockJumpThreshold,
		WallClockJumpDetection: clk.WallClockJumpDetection,
		TimeSource:             clk.TimeSource,
		NTPInitialSyncWait:     clk.NTPInitialSyncWait,
		NTP:                    ntp.DefaultConfig(),
		defaults:               d,
	}
}

// Register declares the flags of c; what it holds is the defaults.
func (c *Common) Register(f *Flags) {
	c.flags = f
	port := c.defaults.RPCPort
	addresses := Checked("host:port,…", func(text string) error {
		_, err := rpc.ParseAddresses(text, port)
		return err
	})
	g := f.Group("Addresses")
	g.Strings(&c.RPCBindAddresses, "rpc_bind_addresses", "where RPCs are answered; a port that isn't given is the default's", addresses)
	g.Strings(&c.RPCAdvertisedAddresses, "rpc_advertised_addresses", "where others reach this server, if not at the bound addresses", addresses)
	g.String(&c.WebInterface, "webserver_interface", "host name or address of the web server; empty: all")
	g.Int(&c.WebPort, "webserver_port", "port of the web server; 0: any free one", Between(0, 65535))
	g.Strings(&c.WebAdvertisedAddresses, "webserver_advertised_addresses", "where others reach the web server, as Prometheus is told; not set: the bound address, or the host of rpc_advertised_addresses where all are bound",
		Tagged(Advanced), Checked("host:port,…", func(text string) error { _, err := rpc.ParseAddresses(text, c.defaults.WebPort); return err }))

	g.String(&c.MetricsDefaultLevel, metricsLevelFlag, "the level of what /metrics shows to who asks for nothing in particular; a level includes those above it",
		Tagged(Advanced, Evolving, Runtime), OneOf(levelNames[:]...),
		NotKudus("info, not debug: series of single tables and tablets, which are as many as those, are for who asks for them"))

	g = f.Group("Folders")
	g.String(&c.WALDir, "fs_wal_dir", "folder of the write-ahead log and of the server's identity", Required(),
		NotKudus("it also holds the server's identity, so it is the one folder that must be given"))
	g.Strings(&c.DataDirs, "fs_data_dirs", "folders of the data; not set: fs_wal_dir")

	c.Log.Register(f)

	g = f.Group("RPC")
	g.Int(&c.RPCMaxMessageSize, "rpc_max_message_size", "largest request or answer in bytes; the same on all servers and clients", Between(1<<20, 1<<30))
	g.Int(&c.RPCBacklog, "rpc_acceptor_listen_backlog", "connections that may wait to be accepted, per address; -1: the system's limit (somaxconn), which caps any other value",
		Tagged(Advanced), Between(-1, 65535), notZeroOf("-1, or 1 to 65535"),
		NotKudus("4096, not 512: one client that connects as fast as it can fills 512 places in 12 ms, which is less than a thread may have to wait "+
			"for a processor, and who finds them full tries again after a second. 4096 last 100 ms, and are what Linux allows by itself"))
	c.RPCLimits.register(g)
	registerMemory(&c.Memory, f)

	g = f.Group("Raft")
	g.Duration(&c.HeartbeatInterval, time.Millisecond, "raft_heartbeat_interval_ms", "time between the heartbeats of a leader, and between the ticks of elections; the same on all servers",
		Tagged(Advanced), Between(10, 60_000))
	g.Float(&c.MaxMissedHeartbeats, "leader_failure_max_missed_heartbeat_periods", "heartbeat intervals without word from the leader after which an election begins",
		Tagged(Advanced), Between(2, 1000))
	g.Bool(&c.PreElection, "raft_enable_pre_election", "ask whether an election could be won before one is begun, so that a server that was cut off unseats nobody",
		Tagged(Advanced))

	g.Bool(&c.PushCommitIndex, "raft_push_commit_index", "tell followers of a new commit index at once; without it they learn of it with the next entries or heartbeat",
		Tagged(Advanced))
	g.Bool(&c.HeartbeatBatcher, "enable_multi_raft_heartbeat_batcher", "send the heartbeats of all tablets to one server in batches; without it each goes by itself",
		Tagged(Advanced))
	g.Duration(&c.HeartbeatWindow, time.Millisecond, "multi_raft_heartbeat_window_ms", "how long a heartbeat waits for others to the same server; at most half of raft_heartbeat_interval_ms, to which the default is lowered",
		Tagged(Advanced), AtLeast(1))
	g.Int(&c.HeartbeatBatch, "multi_raft_batch_size", "heartbeats in one batch: with so many it leaves at once; answers ride along and don't count",
		Tagged(Advanced), Between(1, 10_000))
	g.Bool(&c.QuiesceIdleTablets, "raft_quiesce_idle_tablets", "let tablets with nothing to do rest: without heartbeats, timers or any other cost; the same on all servers",
		Tagged(Advanced))
	g.Bool(&c.ServerLiveness, "raft_server_liveness", "let a tablet server that falls silent, rather than a timer of each tablet, decide when tablets elect; the same on all servers",
		Tagged(Advanced))
	c.LogRetention.register(g)

	g = f.Group("Clock")
	g.Duration(&c.MaxClockSyncError, time.Microsecond, "max_clock_sync_error_usec", "how far another server's clock, or a timestamp, may be ahead of this one's clock",
		Tagged(Advanced), Between(1000, 3_600_000_000))
	g.Duration(&c.WallClockJumpThreshold, time.Second, "wall_clock_jump_threshold_sec", "a wall clock that moves by more than this against the monotonic clock has jumped: this server is fenced until it agrees with the others again",
		Tagged(Advanced), Checked("0.1 or more", atLeastTenth), NotKudus("it takes fractions"))
	g.String(&c.WallClockJumpDetection, "wall_clock_jump_detection", "whether jumps of the wall clock are looked for; auto: where it is needed or costs nothing",
		Tagged(Advanced), OneOf(clock.DetectionAuto, clock.DetectionEnabled, clock.DetectionDisabled))
	g.String(&c.TimeSource, "time_source", "system: the system's clock, which someone (NTP) must keep in step; builtin: NTP servers are asked; system_unsync: the system's clock as it is (unsafe); mock: with faults, for tests (unsafe); auto: system where someone keeps it in step, else builtin where NTP servers answer, else system_unsync on loopback alone",
		Tagged(Advanced), OneOf(clock.SourceAuto, clock.SourceSystem, clock.SourceBuiltin, clock.SourceSystemUnsync, clock.SourceMock),
		NotKudus("auto, not system: on one machine there is but one clock, and nobody need keep it in step. With auto NTP servers are asked where nobody "+
			"keeps the clock in step; on a cluster that is all on loopback only those that `builtin_ntp_servers` names"))
	g.Duration(&c.NTPInitialSyncWait, time.Second, "ntp_initial_sync_wait_secs", "how long the start waits for the system's clock to be kept in step, or for NTP servers, where it must",
		Tagged(Advanced), AtLeast(0))
	g.Strings(&c.NTP.Servers, "builtin_ntp_servers", "NTP servers for time_source=builtin, host or host:port; more than half of them must agree", Tagged(Advanced))
	g.Duration(&c.NTP.PollInterval, time.Millisecond, "builtin_ntp_poll_interval_ms", "time between two questions to an NTP server", Tagged(Advanced), AtLeast(10))
	g.Duration(&c.NTP.RequestTimeout, time.Millisecond, "builtin_ntp_request_timeout_ms", "how long an NTP server may take to answer", Tagged(Advanced), AtLeast(1))
	g.Span(&c.MockClockOffset, "mock_clock_offset", "how far a mock wall clock is off at the start, as 901s, -1h or 40y; goes with time_source=mock",
		Tagged(Unsafe, Advanced))
}

func atLeastTenth(text string) error {
	if n, err := strconv.ParseFloat(text, 64); err != nil || n < 0.1 {
		return errors.New("out of range: want 0.1 or more")
	}
	return nil
}

// Validate fills in what follows from the rest, and returns all faults as one error.
func (c *Common) Validate() error {
	var errs []error
	list := func(name string, p *[]string, port int) {
		var out []string
		for _, s := range *p {
			a, err := rpc.ParseAddresses(s, port)
			if err != nil {
				errs = append(errs, fmt.Errorf("--%s: %w", name, err))
			}
			out = append(out, a...)
		}
		*p = out
	}
	list("rpc_bind_addresses", &c.RPCBindAddresses, c.defaults.RPCPort)
	list("rpc_advertised_addresses", &c.RPCAdvertisedAddresses, c.defaults.RPCPort)
	list("webserver_advertised_addresses", &c.WebAdvertisedAddresses, c.defaults.WebPort)
	if len(c.RPCBindAddresses) == 0 {
		errs = append(errs, errors.New("--rpc_bind_addresses: at least one address is needed"))
	}
	if c.WALDir == "" {
		errs = append(errs, errors.New("--fs_wal_dir: a folder is needed"))
	}
	if len(c.DataDirs) == 0 {
		c.DataDirs = []string{c.WALDir}
	}
	seen := map[string]bool{}
	for _, d := range c.DataDirs {
		if d = filepath.Clean(d); seen[d] {
			errs = append(errs, fmt.Errorf("--fs_data_dirs: %s is given twice", d))
		}
		seen[d] = true
	}
	if err := c.Memory.Validate(); err != nil {
		errs = append(errs, err)
	}
	if err := c.LogRetention.validate(); err != nil {
		errs = append(errs, err)
	}
	if half := c.HeartbeatInterval / 2; c.HeartbeatWindow > half {
		if c.flags != nil && slices.ContainsFunc(c.flags.Given(), func(i FlagInfo) bool { return i.Name == "multi_raft_heartbeat_window_ms" }) {
			errs = append(errs, fmt.Errorf("--multi_raft_heartbeat_window_ms: %d is more than half of --raft_heartbeat_interval_ms, %d: heartbeats would come too late",
				c.HeartbeatWindow.Milliseconds(), c.HeartbeatInterval.Milliseconds()))
		}
		c.HeartbeatWindow = half
	}
	clk := c.ClockConfig(nil)
	if err := clk.Validate(); err != nil {
		errs = append(errs, err)
	}
	if err := c.NTP.Validate(); err != nil {
		errs = append(errs, err)
	}
	if c.MockClockOffset != 0 && c.TimeSource != clock.SourceMock {
		errs = append(errs, errors.New("--mock_clock_offset: only with --time_source=mock"))
	}
	return errors.Join(errs...)
}

// ServerConfig is the RPC server's part of c.
func (c *Common) ServerConfig() rpc.ServerConfig {
	s := rpc.DefaultServerConfig()
	s.BindAddresses, s.Backlog, s.MaxMessageSize = slices.Clone(c.RPCBindAddresses), c.RPCBacklog, c.RPCMaxMessageSize
	c.RPCLimits.apply(&s)
	return s
}

// ClockConfig is the clock's part of c, in a cluster with these masters.
func (c *Common) ClockConfig(masters []string) clock.Config {
	k := clock.DefaultConfig()
	k.WallClockJumpDetection, k.WallClockJumpThreshold = c.WallClockJumpDetection, c.WallClockJumpThreshold
	k.MaxClockSyncError, k.TimeSource = c.MaxClockSyncError, c.TimeSource
	k.BeatInterval, k.NTPInitialSyncWait = c.HeartbeatInterval, c.NTPInitialSyncWait
	k.LoopbackOnly = onLoopback(c.RPCBindAddresses) && onLoopback(c.RPCAdvertisedAddresses) && onLoopback(masters)
	k.UnlockUnsafeFlags = c.flags != nil && c.flags.unlockUnsafe
	return k
}

// onLoopback says whether all addresses, host:port each, are ones that no other machine reaches.
func onLoopback(addresses []string) bool {
	for _, a := range addresses {
		host, _, err := net.SplitHostPort(a)
		if err != nil {
			host = a
		}
		if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.Unmap().IsLoopback()) {
			return false
		}
	}
	return true
}

// PeerConfig is the peer transport's part of c.
func (c *Common) PeerConfig() rpc.PeerConfig {
	p := rpc.DefaultPeerConfig()
	p.MaxMessageSize = c.RPCMaxMessageSize
	p.ControlSingly = !c.HeartbeatBatcher
	return p
}

// WebConfig is the web server's part of c.
func (c *Common) WebConfig() WebConfig {
	return WebConfig{
		Interface: c.WebInterface, Port: c.WebPort, Advertised: c.WebAdvertisedAddresses, TrustedSubnets: c.RPCLimits.trustedSubnets(),
		MetricsLevel: c.metricsLevel(),
	}
}

// metricsLevel is the flag's, whose check let it pass.
func (c *Common) metricsLevel() Level {
	level, _ := parseLevel(c.MetricsDefaultLevel)
	return level
}

// folders are those of the log and the data, each once.
func (c *Common) folders() []string {
	var out []string
	for _, f := range append([]string{c.WALDir}, c.DataDirs...) {
		if f = filepath.Clean(f); !slices.Contains(out, f) {
			out = append(out, f)
		}
	}
	return out
}
