package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
)

func (a *app) clockCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "clock", Short: "settle what servers can't about their clocks (cluster clock shows them)"}
	cmd.AddCommand(a.clockAccept(), a.clockMock())
	return cmd
}

func (a *app) clockAccept() *cobra.Command {
	var server, reason string
	var all, yes bool
	cmd := &cobra.Command{
		Use:   "accept --server ADDR | --all",
		Short: "take a server's wall clock, as it is, for right",
		Long: `Open the fence of a server whose clock gives no timestamps out, because you have looked and know that its wall clock is right
now. A server that agrees with most of the others again opens by itself: this is for a cluster whose servers all disagree,
and for a server alone. The servers write it to their logs.

A wrong clock that is accepted stamps rows with wrong times, which can't be undone.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&server, "server", "", "the server's RPC address")
	cmd.Flags().BoolVar(&all, "all", false, "all servers that the master knows")
	cmd.Flags().BoolVar(&yes, "yes", false, "don't ask")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the servers' logs")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if all == (server != "") {
			return usageError("give either --server or --all")
		}
		timeout := a.questionTimeout(cmd)
		clocks := []serverClock{{addr: server}}
		if all {
			c, err := a.connect(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			if clocks, err = a.gatherClocks(cmd.Context(), c, timeout); err != nil {
				return err
			}
		} else {
			clocks[0].clock, clocks[0].err = getClock(cmd.Context(), server, timeout)
		}
		if err := a.confirmAccept(clocks, yes); err != nil {
			return err
		}
		return a.acceptClocks(cmd.Context(), clocks, reason, timeout)
	}
	return cmd
}

// confirmAccept shows the clocks as they are and asks, unless yes was said already.
func (a *app) confirmAccept(clocks []serverClock, yes bool) error {
	answered := false
	for _, s := range clocks {
		if s.clock != nil {
			answered = true
			a.note("%s: %s, displaced by %s; %s", s.addr, s.clock.GetState(), span(s.clock.GetDisplacedUsec()), s.clock.GetOpinion())
		}
	}
	if yes || !answered {
		return nil
	}
	if in, ok := a.In.(*os.File); !ok || !isTerminal(in) {
		return usageError("it must be confirmed: add --yes")
	}
	fmt.Fprint(a.Err, "Take these wall clocks for right? [y/N] ")
	answer, _ := bufio.NewReader(a.In).ReadString('\n')
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return errors.New("nothing was changed")
	}
	return nil
}

// acceptClocks tells each server that answered; the others are part of the error.
func (a *app) acceptClocks(ctx context.Context, clocks []serverClock, reason string, timeout time.Duration) error {
	var errs []error
	for _, s := range clocks {
		if s.err == nil {
			_, s.err = askServer(ctx, s.addr, timeout, func(ctx context.Context, conn *grpc.ClientConn) (*nyalav1.AcceptClockResponse, error) {
				return nyalav1.NewServerServiceClient(conn).AcceptClock(ctx, &nyalav1.AcceptClockRequest{Reason: reason})
			})
		}
		if s.err != nil {
			errs = append(errs, s.err)
			continue
		}
		a.note("accepted: %s", s.addr)
	}
	return errors.Join(errs...)
}

// spanFlag is a duration on the command line, days and years included.
type spanFlag struct{ d time.Duration }

func (f *spanFlag) String() string { return f.d.String() }
func (f *spanFlag) Type() string   { return "duration" }

// Set implements pflag.Value.
func (f *spanFlag) Set(s string) (err error) {
	f.d, err = hybridtime.ParseDuration(s)
	return err
}

func (a *app) clockMock() *cobra.Command {
	var server string
	var offset, maxError, suspend, leapAll spanFlag
	var unsynced bool
	cmd := &cobra.Command{
		Use:   "mock --server ADDR --offset DURATION",
		Short: "make a test server's clock wrong, or right again",
		Long: `Lay faults over the clock of a server that was started with --time_source=mock --unlock_unsafe_flags. They are absolute: what
isn't given is no fault, so --offset 0 alone sets the clock right. Durations are as in 90s, -1h30m, 2d, 40y.`,
		Example: `  nyala clock mock --server localhost:7050 --offset 40y
  nyala clock mock --server localhost:7050 --offset 0`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&server, "server", "", "the server's RPC address")
	cmd.Flags().Var(&offset, "offset", "how far its wall clock is to be off")
	cmd.Flags().Var(&maxError, "max_error", "the error bound that the kernel is to name; below zero too")
	cmd.Flags().BoolVar(&unsynced, "unsynced", false, "the kernel is to say that nobody steers the clock")
	cmd.Flags().Var(&suspend, "suspend", "how long the machine is to seem to have slept")
	cmd.Flags().Var(&leapAll, "leap_all", "how far all clocks are to leap together")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if server == "" {
			return usageError("give the server: --server ADDR")
		}
		given := false
		for _, name := range []string{"offset", "max_error", "unsynced", "suspend", "leap_all"} {
			given = given || cmd.Flags().Changed(name)
		}
		if !given {
			return usageError("say what is to be wrong; --offset 0 sets the clock right")
		}
		_, err := askServer(cmd.Context(), server, a.questionTimeout(cmd), func(ctx context.Context, conn *grpc.ClientConn) (*nyalav1.MockClockResponse, error) {
			return nyalav1.NewServerServiceClient(conn).MockClock(ctx, &nyalav1.MockClockRequest{
				Offset: int64(offset.d), MaxError: int64(maxError.d), Suspended: int64(suspend.d), LeaptAll: int64(leapAll.d), Unsynced: unsynced,
			})
		})
		return err
	}
	return cmd
}
