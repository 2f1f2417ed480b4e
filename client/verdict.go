package client

import (
	"time"

	"github.com/nyaladb/nyala/internal/status"
)

// verdict says what to do after a try at one of a tablet's replicas has failed.
type verdict int

const (
	giveUp      verdict = iota // the error is final
	nextReplica                // another one may do, at once
	nextRound                  // all have been tried: pause, then begin again with what has been learned meanwhile
	sameReplica                // it was the right one, but busy: pause
)

// judge learns from an error that a replica, or the way to it, gave, and says how to go on.
func (c *Client) judge(t *tablet, at replica, err *callError) verdict {
	c.logger.Debug("a replica failed a call", "tablet_id", t.id, "server_id", at.server, "code", err.code, "err", err.fault)
	switch err.code {
	case status.NotTheLeader:
		t.hint(at.server, err.fault.Leader, err.fault.Term)
		return nextReplica
	case status.TabletNotFound, status.TabletNotRunning, status.TabletFailed, status.WrongServerID, status.Clock:
		t.notLed(at.server)
		return nextReplica
	case status.TimedOut:
		// A leader that can't reach the others any more looks just so: they may have another one by now.
		t.notLed(at.server)
		return nextReplica
	case status.TooBusy, status.OutOfSpace:
		return sameReplica
	default:
	}
	switch {
	case c.isClosed():
		return giveUp
	case err.unreachable(), err.local && err.code == status.Aborted:
		t.notLed(at.server)
		return nextReplica
	case err.code == status.ServiceUnavailable:
		return nextReplica // it may be stopping; if it still leads, the others name it and it is asked again after a pause
	case err.retriable():
		return sameReplica
	}
	return giveUp
}

// pauseLimit caps the pause after a verdict.
func (v verdict) pauseLimit(c *Client) time.Duration {
	if v == sameReplica {
		return c.opts.MaxBackoff
	}
	return min(leaderlessBackoff, c.opts.MaxBackoff)
}
