package tserver

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/replica"
	"github.com/nyaladb/nyala/internal/status"
)

// heartbeater keeps one master told of this server: that it is alive, where it is, and what changed in its tablets. Each
// master has one; only the leading master takes reports.
type heartbeater struct {
	node         *replica.Node
	master       string // address
	interval     time.Duration
	registration *nyalav1.TSRegistration
	logger       *slog.Logger
	heard        *atomic.Bool // the leading master answered since the start

	changes  *replica.Changes
	sequence uint32
	full     bool        // the next report is to be a full one
	follower bool        // the master said that it doesn't lead: it is only told that this server is alive
	said     status.Code // of the failure that was logged last; OK: the master answers
}

// retryPause is how soon a heartbeat that failed is tried again: a master that was only restarted is found at once.
const retryPause = 200 * time.Millisecond

// minHeartbeatGap keeps a storm of changes from becoming a storm of heartbeats.
const minHeartbeatGap = 20 * time.Millisecond

func (h *heartbeater) run(ctx context.Context) error {
	h.full = true
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wake := h.changes.Wake()
		if h.follower || h.said != status.OK {
			wake = nil // a change is no reason to call who doesn't take it
		}
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-wake:
		}
		pause := h.interval
		again, err := h.beat(ctx)
		switch {
		case err == nil && again:
			pause = 0
		case err != nil:
			pause = min(h.interval, retryPause)
		}
		h.say(ctx, err)
		timer.Reset(pause)
		if pause > 0 && !h.rest(ctx) {
			return nil
		}
	}
}

// say logs a failure once for each kind, and that it is over.
func (h *heartbeater) say(ctx context.Context, err error) {
	code := status.CodeOf(err)
	if code == h.said || ctx.Err() != nil {
		return
	}
	if err != nil {
		h.logger.Warn("heartbeat to master failed; trying on", "master", h.master, "err", err)
	} else {
		h.logger.Info("master answers again", "master", h.master)
	}
	h.said = code
}

// rest waits the least gap between two heartbeats.
func (h *heartbeater) rest(ctx context.Context) bool {
	t := time.NewTimer(minHeartbeatGap)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// beat sends one heartbeat and says whether another is due at once.
func (h *heartbeater) beat(ctx context.Context) (again bool, err error) {
	conn, err := h.node.Dial(h.master)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, max(h.interval, 5*time.Second))
	defer cancel()
	req := &nyalav1.TSHeartbeatRequest{
		ServerId: string(h.node.ServerID()), Incarnation: h.node.Incarnation(), Registration: h.registration,
		Clock: uint64(h.node.Clock.Latest()), ServersVersion: h.node.ServersVersion(),
	}
	taken := h.changes.Take()
	if !h.follower && (h.full || len(taken) > 0) {
		req.Report = h.report(taken)
	}
	resp, err := nyalav1.NewMasterServiceClient(conn).TSHeartbeat(ctx, req)
	if err != nil {
		h.changes.PutBack(taken)
		h.full = true // whether it arrived isn't known
		return false, status.FromGRPC(err)
	}
	if id := ident.ClusterID(resp.GetClusterId()); id != "" {
		if err := h.node.SetClusterID(id); err != nil {
			h.full = true
			return false, err
		}
	}
	if h.follower = !resp.GetLeader(); !h.follower {
		h.heard.Store(true) // the catalog knows this server now: tables can be placed on it
	}
	if servers := resp.GetServers(); len(servers) > 0 {
		h.node.SetServers(resp.GetServersVersion(), replica.ServersFromProto(servers))
	}
	// Whoever leads next starts with nothing, and what was taken for a report that isn't taken is in the next full one.
	h.full = h.follower || resp.GetNeedsFullReport()
	return !h.follower && h.full && !req.GetReport().GetFull(), nil
}

func (h *heartbeater) report(taken []ident.TabletID) *nyalav1.TabletReport {
	r := &nyalav1.TabletReport{Full: h.full, Sequence: h.sequence}
	h.sequence++
	if h.full {
		r.Updated = h.node.Replicas.Statuses()
		return r
	}
	for _, id := range taken {
		switch st, creating := h.node.Replicas.Status(id); {
		case creating: // it is told when that has ended
		case st != nil:
			r.Updated = append(r.Updated, st)
		default:
			r.RemovedTabletIds = append(r.RemovedTabletIds, string(id))
		}
	}
	return r
}
