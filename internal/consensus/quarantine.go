package consensus

import (
	"fmt"

	"go.etcd.io/raft/v3"

	"github.com/nyaladb/nyala/internal/hybridtime"
)

// quarantine keeps a replica from leading that could stamp nothing: its log holds an entry further ahead than this server's guard
// (it was taken while the clock was wrong, or while another's was, or it is committed), or it has promised to close such a
// timestamp. Until another's log overwrites the entry, or the clock is within its bound of it, the replica counts as down: it
// follows, answers and votes, but doesn't campaign and doesn't lead. A leader goes as well that was elected by those who had
// promised such a timestamp: the next may be elected by others.
type quarantine struct {
	// stamp is what was looked at last, and why is what came of it: empty if it is within the guard.
	stamp hybridtime.Timestamp
	why   string
	// age counts the ticks since.
	age int
}

// quarantined looks whether the replica is so: when what it is bound to has changed, and once per heartbeat interval, as clocks may
// step back.
func (g *group) quarantined() bool {
	last := max(g.stamps.last(), g.appliedTS, g.outran, g.promised)
	if g.role == raft.StateLeader {
		last = max(last, g.floor())
	}
	q := &g.quarantine
	if q.stamp == last && q.age < g.core.cfg.HeartbeatTicks {
		return q.why != ""
	}
	q.age = 0
	if last == 0 || g.core.clock.CheckAhead(last) == nil {
		q.stamp, q.why, g.outran = last, "", 0
		return false
	}
	if q.why == "" || q.stamp != last {
		q.stamp = last
		q.why = fmt.Sprintf("clocks: it may write nothing at or below %s, which stands in its log or was promised, and which is further ahead "+
			"than this server's clock allows: it leads nothing until another's log has replaced the entry or the clock is near", last)
	}
	return true
}
