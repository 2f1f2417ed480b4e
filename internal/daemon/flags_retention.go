package daemon

import (
	"fmt"
	"time"

	"github.com/nyaladb/nyala/internal/consensus"
)

// LogRetention says how much of the tablets' logs is kept for replicas elsewhere that lack it. A replica that lacks more is copied.
type LogRetention struct {
	// TabletBytes are kept of one tablet's log for a replica that is behind, or away.
	TabletBytes int
	// TotalBytes is the weight of all logs together from which on nothing is kept so; from half of it on it is less and less.
	TotalBytes int
	// CopyBytes are kept of a tablet's log while it is copied, for CopyTime at most.
	CopyBytes int
	CopyTime  time.Duration
}

func defaultLogRetention() LogRetention {
	c := consensus.DefaultConfig()
	l := &c.Limits
	return LogRetention{l.RetainBytes, l.RetainTotalBytes, l.HoldBytes, time.Duration(l.HoldHeartbeats) * c.HeartbeatInterval}
}

func (r *LogRetention) register(g *FlagGroup) {
	g.Int(&r.TabletBytes, "raft_log_retention_bytes_per_tablet", "most of a tablet's log that is kept for replicas that are behind or away; one that lacks more is copied",
		Tagged(Advanced), AtLeast(1<<20))
	g.Int(&r.TotalBytes, "raft_log_retention_bytes_total", "weight of all tablets' logs from which on nothing is kept for replicas that are behind; from half of it on less and less is",
		Tagged(Advanced), AtLeast(1<<20))
	g.Int(&r.CopyBytes, "raft_log_retention_bytes_during_copy", "most of a tablet's log that is kept for a replica that is being copied, so that it can go on from its copy",
		Tagged(Advanced), AtLeast(1<<20))
	g.Duration(&r.CopyTime, time.Second, "raft_log_retention_secs_during_copy", "for how long at most it is kept for a copy without progress",
		Tagged(Advanced), AtLeast(1))
}

func (r *LogRetention) validate() error {
	if r.TotalBytes < r.TabletBytes {
		return fmt.Errorf("--raft_log_retention_bytes_total: %d is less than --raft_log_retention_bytes_per_tablet, %d", r.TotalBytes, r.TabletBytes)
	}
	return nil
}

// configure puts it into the config of a server whose heartbeat interval is set.
func (r *LogRetention) configure(c *consensus.Config) {
	l := &c.Limits
	l.RetainBytes, l.RetainTotalBytes, l.HoldBytes = r.TabletBytes, r.TotalBytes, r.CopyBytes
	l.HoldHeartbeats = int(max(r.CopyTime/c.HeartbeatInterval, 1))
}
