package daemon

import (
	"context"
	"slices"
	"time"

	"github.com/nyaladb/nyala/internal/clock"
	"github.com/nyaladb/nyala/internal/clock/ntp"
	"github.com/nyaladb/nyala/internal/replica"
)

// autoNTPWait bounds how long a start with --time_source=auto looks for NTP servers where nobody steers the machine's clock.
const autoNTPWait = 5 * time.Second

// chooseTimeSource opens the NTP source where it is to be used. With auto that is where nobody steers the machine's clock and
// NTP servers answer. On a cluster that is all on loopback they are asked only if the operator named some: a cluster on a
// desk has but one clock, and no business in the network.
func (c *Common) chooseTimeSource(ctx context.Context, env *Environment, n *replica.NodeConfig) error {
	return c.chooseTimeSourceOver(ctx, env, n, clock.SystemSource())
}

func (c *Common) chooseTimeSourceOver(ctx context.Context, env *Environment, n *replica.NodeConfig, machine clock.Source) error {
	cfg := c.NTP
	cfg.Logger, cfg.Registerer = env.Logger, env.Registry
	use := func(wait time.Duration) error {
		s, err := ntp.Open(ctx, cfg, wait)
		if err == nil {
			n.Source, n.Clock.TimeSource = s, clock.SourceBuiltin
		}
		return err
	}
	switch n.Clock.TimeSource {
	case clock.SourceBuiltin:
		return use(c.NTPInitialSyncWait)
	case clock.SourceAuto:
		named := !slices.Equal(cfg.Servers, ntp.DefaultConfig().Servers)
		if d := machine.Discipline(); d.OK && d.Synced || n.Clock.LoopbackOnly && !named {
			return nil
		}
		if err := use(min(autoNTPWait, c.NTPInitialSyncWait)); err != nil {
			env.Logger.Info("nobody steers this machine's clock, and NTP servers can't be asked either", "err", err)
			return ctx.Err()
		}
	}
	return nil
}
