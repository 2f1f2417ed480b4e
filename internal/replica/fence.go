package replica

import (
	"context"
	"time"
)

// A server whose clock gives no timestamps out leads nothing: it hands its leaderships over and asks for none until its
// clock is trusted again. It goes on following, and serves what needs no timestamp. Whether most of the other servers say
// that this clock is the one that is off, consensus asks by itself.

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
	wasFenced := false
	for {
		if _, fenced := n.Clock.Fenced(); fenced != wasFenced {
			n.host.SetFenced(fenced)
			wasFenced = fenced
		}
		select {
		case <-ctx.Done():
			return nil
		case <-n.clockNews:
		case <-t.C:
		}
	}
}
