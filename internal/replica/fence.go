package replica

import (
	"context"
	"time"
)

// A server whose clock gives no timestamps out leads nothing: it hands its leaderships over and asks for none until its
// clock is trusted again. It goes on following, and serves what needs no timestamp.

// blamed is a host that is told when most of the other servers say that this server's clock is the one that is off.
type blamed interface{ SetBlamed(blamed bool) }

// clockChanged wakes watchClock.
func (n *Node) clockChanged() {
	select {
	case n.clockNews <- struct{}{}:
	default:
	}
}

// watchClock tells consensus how the clock stands until ctx ends. Not all that fences a clock is told at once (an error bound
// that grows past its limit isn't), so it looks each heartbeat too.
func (n *Node) watchClock(ctx context.Context) error {
	t := time.NewTicker(n.cfg.Consensus.HeartbeatInterval)
	defer t.Stop()
	var wasFenced, wasBlamed bool
	for {
		_, fenced := n.Clock.Fenced()
		if fenced != wasFenced {
			n.host.SetFenced(fenced)
			wasFenced = fenced
		}
		if h, ok := any(n.host).(blamed); ok {
			if blame := n.Clock.Status().Opinion.Blame; blame != wasBlamed {
				h.SetBlamed(blame)
				wasBlamed = blame
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-n.clockNews:
		case <-t.C:
		}
	}
}
