package cli

import (
	"context"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/client"
)

// serverClock is one server and what it says of its clock.
type serverClock struct {
	id, addr, role string
	clock          *nyalav1.GetClockResponse // nil: no answer
	err            error
}

func getClock(ctx context.Context, addr string, timeout time.Duration) (*nyalav1.GetClockResponse, error) {
	return askServer(ctx, addr, timeout, func(ctx context.Context, conn *grpc.ClientConn) (*nyalav1.GetClockResponse, error) {
		return nyalav1.NewServerServiceClient(conn).GetClock(ctx, &nyalav1.GetClockRequest{})
	})
}

// questionTimeout bounds the question to one server.
func (a *app) questionTimeout(cmd *cobra.Command) time.Duration {
	if cmd.Flags().Changed("timeout") {
		return a.timeout.d
	}
	return ksckTimeout
}

// gatherClocks asks every server that the master knows, masters first.
func (a *app) gatherClocks(ctx context.Context, c *client.Client, timeout time.Duration) ([]serverClock, error) {
	masters, err := c.ListMasters(ctx)
	if err != nil {
		return nil, err
	}
	servers, err := c.ListTabletServers(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]serverClock, 0, len(masters)+len(servers))
	for _, m := range masters {
		all = append(all, serverClock{id: m.ID, addr: reachable(m.RPCAddresses, a.masterAddresses()), role: "master"})
	}
	for _, s := range servers {
		sc := serverClock{id: s.ID, role: "tserver", err: errNoAddress}
		if len(s.RPCAddresses) > 0 {
			sc.addr, sc.err = s.RPCAddresses[0], nil
		}
		all = append(all, sc)
	}
	slots := make(chan struct{}, ksckAtOnce)
	var wg sync.WaitGroup
	for i := range all {
		if all[i].err != nil {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			all[i].clock, all[i].err = getClock(ctx, all[i].addr, timeout)
		})
	}
	wg.Wait()
	return all, ctx.Err()
}
