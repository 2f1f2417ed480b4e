package replica

import (
	"context"
	"time"
)

// A server whose clock gives no timestamps out leads nothing: it hands its leaderships over and asks for none until its
// clock is trusted again. It goes on following, and serves what needs no timestamp.

// fencer is a host that keeps its groups from asking for leadership while its server is fenced.
type fencer interface{ SetFenced(fenced bool) }

// stepDownSome bounds one attempt to hand leaderships over: one that is stuck must not keep the news that the clock is
// right again from being heard.
const stepDownSome = 2 * time.Second

// clockChanged wakes watchClock.
func (n *Node) clockChanged() {
	select {
	case n.clockNews <- struct{}{}:
	default:
	}
}

// watchClock keeps this server from leading while its clock is fenced, until ctx ends. Not all that fences a clock is told
// at once (an error bound that grows past its limit isn't), so it looks each heartbeat too.
func (n *Node) watchClock(ctx context.Context) error {
	t := time.NewTicker(n.cfg.Consensus.HeartbeatInterval)
	defer t.Stop()
	told := false
	for {
		_, fenced := n.Clock.Fenced()
		if h, ok := any(n.host).(fencer); ok && fenced != told {
			h.SetFenced(fenced)
		}
		told = fenced
		if fenced {
			sctx, cancel := context.WithTimeout(ctx, stepDownSome)
			err := n.host.StepDownAll(sctx)
			cancel()
			if err != nil && ctx.Err() == nil {
				n.cfg.Logger.Debug("the clock is fenced and not every leadership was handed over; trying on", "err", err)
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
