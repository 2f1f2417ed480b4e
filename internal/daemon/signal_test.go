package daemon

import (
	"context"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSignals shows the first signal ending the context of Run, which may take its time, and a second one not waiting for
// it. The process that gets the signals is the test's own.
func TestSignals(t *testing.T) {
	kill := func(sig syscall.Signal) {
		self, err := os.FindProcess(os.Getpid())
		require.NoError(t, err)
		require.NoError(t, self.Signal(sig))
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		p := newTestProgram()
		p.prog.Run = func(ctx context.Context, _ *Environment) error {
			kill(sig)
			<-ctx.Done()
			require.ErrorContains(t, context.Cause(ctx), "signal "+sig.String())
			return nil
		}
		require.Equal(t, ExitOK, p.prog.execute(t.Context(), needed, nil, &p.stdout, &p.stderr, true))
		require.Contains(t, p.stderr.String(), "stopping; a second signal stops at once")

		p = newTestProgram()
		p.prog.StopTimeout = time.Minute
		release := make(chan struct{})
		p.prog.Run = func(ctx context.Context, _ *Environment) error {
			kill(sig)
			<-ctx.Done()
			kill(sig)
			<-release
			return nil
		}
		require.Equal(t, ExitForced, p.prog.execute(t.Context(), needed, nil, &p.stdout, &p.stderr, true))
		require.Contains(t, p.stderr.String(), "stopped by force: second signal ("+sig.String()+")")
		close(release)
	}
}
