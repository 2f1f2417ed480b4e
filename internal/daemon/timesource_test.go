package daemon

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nyaladb/nyala/internal/clock"
	"github.com/nyaladb/nyala/internal/clock/ntp"
	"github.com/nyaladb/nyala/internal/clock/ntp/ntptest"
	"github.com/nyaladb/nyala/internal/replica"
)

// machineClock is a machine whose clock somebody steers, or nobody.
type machineClock struct {
	*clock.System
	synced bool
}

func (m machineClock) Discipline() clock.Discipline {
	return clock.Discipline{OK: true, Synced: m.synced}
}

// TestChooseTimeSource is a table of what is taken for the time.
func TestChooseTimeSource(t *testing.T) {
	honest, silent := ntptest.New(t), ntptest.New(t)
	silent.Does(ntptest.Behaviour{Silent: true})
	for _, c := range []struct {
		name           string
		source         string
		synced, loop   bool
		servers        []string
		want           string
		fails, unasked bool
	}{
		{name: "auto, steered", source: clock.SourceAuto, synced: true, servers: []string{honest.Address()}, want: clock.SourceAuto, unasked: true},
		{name: "auto, a server answers", source: clock.SourceAuto, servers: []string{honest.Address()}, want: clock.SourceBuiltin},
		{name: "auto, on loopback, one is named", source: clock.SourceAuto, loop: true, servers: []string{honest.Address()}, want: clock.SourceBuiltin},
		{name: "auto, on loopback, none is named", source: clock.SourceAuto, loop: true, servers: ntp.DefaultConfig().Servers, want: clock.SourceAuto},
		{name: "auto, none answers", source: clock.SourceAuto, servers: []string{silent.Address()}, want: clock.SourceAuto},
		{name: "builtin", source: clock.SourceBuiltin, synced: true, servers: []string{honest.Address()}, want: clock.SourceBuiltin},
		{name: "builtin, none answers", source: clock.SourceBuiltin, servers: []string{silent.Address()}, fails: true, want: clock.SourceBuiltin},
		{name: "system", source: clock.SourceSystem, servers: []string{honest.Address()}, want: clock.SourceSystem, unasked: true},
	} {
		honest.Does(ntptest.Behaviour{})
		common := DefaultCommon(TabletServerDefaults)
		common.NTP.Servers, common.NTP.RequestTimeout, common.NTPInitialSyncWait = c.servers, 50*time.Millisecond, 100*time.Millisecond
		node := replica.DefaultNodeConfig()
		node.Clock.TimeSource, node.Clock.LoopbackOnly = c.source, c.loop
		env := &Environment{Logger: slog.New(slog.DiscardHandler), Registry: NewRegistry()}
		err := common.chooseTimeSourceOver(t.Context(), env, &node, machineClock{clock.SystemSource(), c.synced})
		require.Equal(t, c.fails, err != nil, "%s: %v", c.name, err)
		require.Equal(t, c.want, node.Clock.TimeSource, c.name)
		require.Equal(t, c.want == clock.SourceBuiltin && !c.fails, node.Source != nil, c.name)
		if c.unasked {
			require.Empty(t, honest.Questions(), c.name)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	common := DefaultCommon(TabletServerDefaults)
	common.NTP.Servers = []string{silent.Address()}
	node := replica.DefaultNodeConfig()
	node.Clock.TimeSource = clock.SourceBuiltin
	env := &Environment{Logger: slog.New(slog.DiscardHandler), Registry: NewRegistry()}
	require.ErrorIs(t, common.chooseTimeSourceOver(ctx, env, &node, machineClock{clock.SystemSource(), false}), context.Canceled)
}
