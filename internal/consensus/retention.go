package consensus

import (
	"context"

	"go.etcd.io/raft/v3"

	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

// What a log is kept for beyond what its own store needs: members that lack entries, up to Limits.RetainBytes per group, and
// less once the server's logs together weigh more than half of Limits.RetainTotalBytes; and copies under way, up to
// Limits.HoldBytes and Limits.HoldHeartbeats. A member that lacks what has been cut is brought up by a copy.

// logHold keeps a log for a copy: the entries behind from.
type logHold struct {
	replica  ident.ReplicaID
	from     ident.Index
	released bool
	// age counts the ticks since it began, moved or was released.
	age int
}

// holdHeartbeatsReleased is for how many heartbeat intervals a log is still held for a replica that has been copied and makes no
// progress.
const holdHeartbeatsReleased = 60

// HoldLog keeps a group's log behind an entry for a replica that is copied. It fails if that has been cut already. release, an
// event as well, says that the copy has ended, one way or the other.
func (c *Core) HoldLog(tablet ident.TabletID, replica ident.ReplicaID, from ident.Index) (release func(), err error) {
	g := c.find(tablet)
	switch {
	case g == nil:
		return nil, errNoGroup(tablet)
	case g.err != nil:
		return nil, errFailed(tablet, g.err)
	case from < g.cutThrough():
		return nil, status.New(status.IllegalState, "tablet %s: entries behind %d have been cut from the log", tablet, from)
	}
	h := &logHold{replica: replica, from: from}
	g.membership.holds = append(g.membership.holds, h)
	return func() { h.released, h.age = true, 0 }, nil
}

// cutThrough is the last entry that has been cut from the log, or is about to be.
func (g *group) cutThrough() ident.Index {
	for i := range g.appends.pending {
		if cut := g.appends.pending[i].cut; cut != 0 {
			return cut
		}
	}
	return g.first - 1
}

// SetRetention says how many bytes of log each group keeps at most for members that lack them.
func (c *Core) SetRetention(bytes int64) { c.retain = bytes }

// holdTick moves holds on with their replicas, and ends those that have served or last too long.
func (g *group) holdTick() {
	m := &g.membership
	if len(m.holds) == 0 {
		return
	}
	match := map[ident.ReplicaID]ident.Index{}
	if g.role == raft.StateLeader {
		g.progress(func(id ident.ReplicaID, _ bool, pr progress) { match[id] = ident.Index(pr.Match) })
	}
	kept := m.holds[:0]
	for _, h := range m.holds {
		h.age++
		at, member := match[h.replica]
		if at > h.from {
			h.from, h.age = at, 0
		}
		most := g.core.cfg.Limits.HoldHeartbeats
		if h.released {
			most = min(most, holdHeartbeatsReleased)
		}
		if served := h.released && (h.from >= g.commit || g.role == raft.StateLeader && !member); !served && h.age < most*g.core.cfg.HeartbeatTicks {
			kept = append(kept, h)
		}
	}
	clear(m.holds[len(kept):])
	m.holds = kept
}

// mayCut is how far the log may be cut, of what the replica itself needs no more: not what copies under way or other members
// need, within their bounds.
func (g *group) mayCut(upTo ident.Index) ident.Index {
	l := &g.core.cfg.Limits
	held := upTo
	for _, h := range g.membership.holds {
		held = min(held, h.from)
	}
	if held < upTo {
		upTo = max(held, g.log.Behind(int64(l.HoldBytes), upTo))
	}
	if g.heldByAll < upTo {
		upTo = max(g.heldByAll, g.log.Behind(g.core.retain, upTo))
	}
	return upTo
}

// HoldLog keeps the tablet's log behind entry from for a copy to a replica, which is to be taken of a later state: so that the
// copy, once installed, can go on from there. It fails if that has been cut already. The hold moves on with the replica's
// progress. It ends when release has been called and the replica is level, or makes no progress for 60 heartbeat intervals;
// without release after Limits.HoldHeartbeats; and it holds Limits.HoldBytes at most. release may be called more than once.
func (h *Host) HoldLog(ctx context.Context, tablet ident.TabletID, replica ident.ReplicaID, from ident.Index) (release func(), err error) {
	var end func()
	if err := h.command(ctx, tablet, func(c *Core) (err error) {
		end, err = c.HoldLog(tablet, replica, from)
		return err
	}); err != nil {
		return nil, err
	}
	return func() {
		if n := h.find(tablet); n != nil {
			n.worker.box.put(func(m *mail) {
				m.commands = append(m.commands, func(*Core) { end() })
			})
		}
	}, nil
}

// retentionSteps is into how many steps the way from full retention to none is divided.
const retentionSteps = 8

// retention is how many bytes a group may keep for others when the server's logs weigh so much: all of RetainBytes up to half of
// RetainTotalBytes, then less and less, nothing from RetainTotalBytes on.
func (l Limits) retention(total int64) int64 {
	whole := int64(l.RetainTotalBytes)
	if total <= whole/2 {
		return int64(l.RetainBytes)
	}
	left := max(whole-total, 0) * retentionSteps / (whole - whole/2)
	return int64(l.RetainBytes) / retentionSteps * left
}
