package consensus

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
)

// Config says how a host works. Start from DefaultConfig.
type Config struct {
	ServerID ident.ServerID
	Address  string
	// HeartbeatInterval is how often a leader is heard from at least (raft_heartbeat_interval_ms).
	HeartbeatInterval time.Duration
	// MaxMissedHeartbeats intervals without word make a follower campaign (leader_failure_max_missed_heartbeat_periods).
	MaxMissedHeartbeats int
	// PreElection asks whether an election could be won before a term is spent on it (raft_enable_pre_election).
	PreElection bool
	// PushCommit tells followers of a new commit index at once (raft_push_commit_index). Without it they learn of it with the next
	// entries or the next heartbeat.
	PushCommit bool
	// BatchHeartbeats puts the heartbeats of all groups to one server together (enable_multi_raft_heartbeat_batcher). Without it
	// each goes by itself.
	BatchHeartbeats bool
	// HeartbeatWindow is how long a heartbeat waits for others at most (multi_raft_heartbeat_window_ms): at most half the
	// interval. 0: a fifth of it.
	HeartbeatWindow time.Duration
	// HeartbeatBatch is how many heartbeats one batch holds at most (multi_raft_batch_size).
	HeartbeatBatch int
	// Incarnation rises with each start of the server: by it others see that it isn't the process any more that it was.
	Incarnation uint64
	// Quiesce lets groups with nothing to do rest (raft_quiesce_idle_tablets). ServerLiveness lets servers that fall silent, rather
	// than each group's timer, decide when groups elect (raft_server_liveness).
	Quiesce, ServerLiveness bool
	// Workers is how many goroutines step groups; 0: as many as GOMAXPROCS, at most four.
	Workers int
	Limits  Limits
	// Logger may be nil.
	Logger *slog.Logger
	// Registerer takes the metrics; nil: they are kept but not shown.
	Registerer prometheus.Registerer
}

// Limits bound the queues and messages of a host. Zero fields take their defaults.
type Limits struct {
	// MaxEntryBytes bounds one proposal.
	MaxEntryBytes int
	// MaxMessageBytes is the size after which an append message takes no further entry.
	MaxMessageBytes int
	// MaxInflightBytes and MaxInflightMessages bound what is under way to one follower of a group.
	MaxInflightBytes    int
	MaxInflightMessages int
	// MaxApplyingBytes bounds what is under way to the state machine in a group.
	MaxApplyingBytes int
	// MaxUncommittedBytes bounds a leader's entries that aren't applied yet; beyond it proposals are refused as TooBusy.
	MaxUncommittedBytes int
	// MaxQueuedMessages and MaxQueuedBytes bound what a worker has received and not stepped yet.
	MaxQueuedMessages int
	MaxQueuedBytes    int
	// MaxQueuedRequests bounds the proposals and reads that wait for a worker.
	MaxQueuedRequests int
	// MaxLogQueueBytes bounds what waits for the log writer; beyond it proposals are refused and appends dropped.
	MaxLogQueueBytes int
	// MaxCommitBytes is the size after which a log commit takes no further append.
	MaxCommitBytes int
	// MinCutEntries is how many entries the news of other members must free before the log is cut for them at once, and not
	// only in ten heartbeat intervals.
	MinCutEntries int
	// PromoteLag is how many committed entries a learner may lack when it becomes a voter.
	PromoteLag int
	// RetainBytes is how much of a log is kept for members that lack it, per group; RetainTotalBytes is from what weight of all
	// logs together on nothing is kept for them (from half of it on, less). HoldBytes bounds what is kept for a copy under way,
	// and HoldHeartbeats for how many heartbeat intervals without a word of it.
	RetainBytes      int
	RetainTotalBytes int
	HoldBytes        int
	HoldHeartbeats   int
	// MaxWaiting bounds the reads and the close requests that wait in one group, each.
	MaxWaiting int
}

// DefaultConfig returns Kudu's intervals and the default limits.
func DefaultConfig() Config {
	return Config{
		HeartbeatInterval:   500 * time.Millisecond,
		MaxMissedHeartbeats: 3,
		PreElection:         true,
		PushCommit:          true,
		BatchHeartbeats:     true,
		HeartbeatBatch:      30,
		Quiesce:             true,
		ServerLiveness:      true,
		Limits:              Limits{}.withDefaults(),
	}
}

func (l Limits) withDefaults() Limits {
	set := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	set(&l.MaxEntryBytes, 50<<20+64<<10)
	set(&l.MaxMessageBytes, 1<<20)
	set(&l.MaxInflightBytes, 8<<20)
	set(&l.MaxInflightMessages, 256)
	set(&l.MaxApplyingBytes, 4<<20)
	set(&l.MaxUncommittedBytes, 64<<20)
	set(&l.MaxQueuedMessages, 64<<10)
	set(&l.MaxQueuedBytes, 64<<20)
	set(&l.MaxQueuedRequests, 16<<10)
	set(&l.MaxLogQueueBytes, 256<<20)
	set(&l.MaxCommitBytes, 8<<20)
	set(&l.MinCutEntries, 256)
	set(&l.PromoteLag, 256)
	set(&l.RetainBytes, 64<<20)
	set(&l.RetainTotalBytes, 4<<30)
	set(&l.HoldBytes, 1<<30)
	set(&l.HoldHeartbeats, 7200) // an hour with the default interval
	set(&l.MaxWaiting, 10_000)
	return l
}

// Validate returns all faults in one error.
func (c Config) Validate() error {
	var errs []error
	if c.ServerID == "" {
		errs = append(errs, errors.New("consensus: no server id"))
	}
	if c.HeartbeatInterval < ticksPerHeartbeat*time.Millisecond {
		errs = append(errs, fmt.Errorf("consensus: heartbeat interval %s: must be at least %d ms", c.HeartbeatInterval, ticksPerHeartbeat))
	}
	if c.MaxMissedHeartbeats < 2 {
		errs = append(errs, fmt.Errorf("consensus: %d missed heartbeat periods: must be at least 2", c.MaxMissedHeartbeats))
	}
	if c.BatchHeartbeats && (c.HeartbeatWindow < 0 || c.HeartbeatWindow > c.HeartbeatInterval/2) {
		errs = append(errs, fmt.Errorf("consensus: heartbeats wait %s for others: at most half the interval of %s", c.HeartbeatWindow, c.HeartbeatInterval))
	}
	if c.BatchHeartbeats && c.HeartbeatBatch < 1 {
		errs = append(errs, fmt.Errorf("consensus: %d heartbeats in a batch: must be at least 1", c.HeartbeatBatch))
	}
	if c.Workers < 0 {
		errs = append(errs, fmt.Errorf("consensus: %d workers", c.Workers))
	}
	if l := c.Limits.withDefaults(); l.MaxInflightBytes < l.MaxMessageBytes {
		errs = append(errs, fmt.Errorf("consensus: %d bytes in flight hold no message of %d bytes", l.MaxInflightBytes, l.MaxMessageBytes))
	}
	return errors.Join(errs...)
}

func (c Config) electionTimeout() time.Duration {
	return c.HeartbeatInterval * time.Duration(c.MaxMissedHeartbeats)
}

func (c Config) heartbeatWindow() time.Duration {
	if c.HeartbeatWindow > 0 {
		return c.HeartbeatWindow
	}
	return c.HeartbeatInterval / ticksPerHeartbeat
}

func (c Config) workers() int {
	if c.Workers > 0 {
		return c.Workers
	}
	return min(runtime.GOMAXPROCS(0), 4)
}

// ticksPerHeartbeat divides the heartbeat interval into raft's ticks, so that election timeouts, which raft draws in whole
// ticks, fall apart well.
const ticksPerHeartbeat = 5

// GroupConfig says how a group starts.
type GroupConfig struct {
	Number  ident.LocalNumber
	Tablet  ident.TabletID
	Replica ident.ReplicaID
	// Applied and AppliedTimestamp are how far the state machine holds the log, and Config is the config at that index.
	Applied          ident.Index
	AppliedTimestamp hybridtime.Timestamp
	Config           *nyalav1.RaftConfig
	// CampaignNow asks for leadership at once instead of after an election timeout.
	CampaignNow bool
}

// GroupStatus is what a group looked like after its last step.
type GroupStatus struct {
	Tablet  ident.TabletID
	Number  ident.LocalNumber
	Replica ident.ReplicaID
	Role    nyalav1.Role
	Term    ident.Term
	// Leader is zero when none is known.
	Leader ident.ReplicaID
	// Ready: leads, and has committed an entry of its own term, so that it takes proposals and reads.
	Ready  bool
	Config *nyalav1.RaftConfig // shared: not to be changed
	// ConfigPending: its log holds a config entry that doesn't count yet; it may be overwritten.
	ConfigPending bool
	// ConfigProven: leads, and a majority of the config's voters know durably that it is committed.
	ConfigProven                           bool
	FirstIndex, LastIndex, Commit, Applied ident.Index
	// AppliedTimestamp is the timestamp of the last stamped entry that was applied.
	AppliedTimestamp hybridtime.Timestamp
	// Stalled says why a leader commits nothing though it is heard: "clocks: ..." where so many voters refuse an entry for its
	// timestamp that no majority can take it. Empty: nothing is in the way.
	Stalled string
	// Quarantined says why the replica counts as down though it follows: its log holds an entry further ahead than its server's
	// clock allows ("clocks: ..."). Empty: it doesn't.
	Quarantined string
	// Quiet: nothing is to be done in the group, and nothing is done.
	Quiet bool
	// Err is why the replica has failed; nil: it hasn't.
	Err error
}

// LeaderPeer is the leader's entry in the config; nil when none is known.
func (s *GroupStatus) LeaderPeer() *nyalav1.Peer {
	return memberOf(s.Config, s.Leader)
}
