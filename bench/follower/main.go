package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/bench/rig"
	"github.com/nyaladb/nyala/client"
)

var (
	rounds    = flag.Int("rounds", 10, "turns of each kind")
	writes    = flag.Int("writes", 100, "sequential writes in a turn")
	processes = flag.Int("processes", 100, "nyala table load processes in a row; 0: none")
	loadTurns = flag.Int("load_rounds", 3, "turns of each kind of the processes")
	tflags    = flag.String("tserver_flags", "", "flags for the tablet servers, separated by blanks")
)

func main() { rig.Main(run) }

type result struct {
	Benchmark string      `json:"benchmark"`
	Writes    int         `json:"writes"`
	RoundTrip rig.Summary `json:"round_trip_ms"`
	Leader    rig.Summary `json:"leader_ms"`
	Follower  rig.Summary `json:"follower_ms"`
	// Ratio is the follower's median over the leader's, Allowed what it may be at most: 1.2 and a round trip.
	Ratio         float64     `json:"ratio"`
	FollowerLimit float64     `json:"follower_limit_ms"`
	Processes     int         `json:"processes"`
	LoadLeader    rig.Summary `json:"load_leader_s"`
	LoadFollower  rig.Summary `json:"load_follower_s"`
	LoadRatio     float64     `json:"load_ratio"`
}

func run(ctx context.Context) (_ any, err error) {
	c, err := rig.Up(ctx, 3, strings.Fields(*tflags)...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	table, err := c.CreateTable(ctx, "t", 1)
	if err != nil {
		return nil, err
	}
	leader, follower, err := c.Leader(ctx, table)
	if err != nil {
		return nil, err
	}
	r := result{Benchmark: "follower", Writes: *writes, Processes: *processes}
	if r.RoundTrip, err = roundTrips(ctx, c, follower); err != nil {
		return nil, err
	}
	via := map[string][]float64{}
	key := int64(0)
	for turn := range *rounds + 1 {
		for _, server := range []string{follower, leader} {
			s := c.Client.NewSession(client.SessionOptions{Via: server})
			for range *writes {
				key++
				start := time.Now()
				if err := s.Apply(ctx, rig.Upsert(table, key)); err != nil {
					return nil, err
				}
				if turn > 0 { // the first warms up
					via[server] = append(via[server], rig.Ms(time.Since(start)))
				}
			}
		}
	}
	r.Leader, r.Follower = rig.Summarize(via[leader]), rig.Summarize(via[follower])
	r.Ratio = rig.Round(r.Follower.Median / r.Leader.Median)
	r.FollowerLimit = rig.Round(1.2*r.Leader.Median + r.RoundTrip.Median)
	rig.Say("through the leader %.3f ms, through the follower %.3f ms, a round trip %.3f ms", r.Leader.Median, r.Follower.Median, r.RoundTrip.Median)
	loads := map[string][]float64{}
	for range *loadTurns {
		for _, server := range []string{follower, leader} {
			start := time.Now()
			for range *processes {
				key++
				if err := load(ctx, c, server, key); err != nil {
					return nil, err
				}
			}
			loads[server] = append(loads[server], time.Since(start).Seconds())
		}
	}
	if *processes > 0 {
		r.LoadLeader, r.LoadFollower = rig.Summarize(loads[leader]), rig.Summarize(loads[follower])
		r.LoadRatio = rig.Round(r.LoadFollower.Median / r.LoadLeader.Median)
	}
	return r, nil
}

// roundTrips times calls that do nothing.
func roundTrips(ctx context.Context, c *rig.Cluster, server string) (rig.Summary, error) {
	servers, err := c.Client.ListTabletServers(ctx)
	if err != nil {
		return rig.Summary{}, err
	}
	address := ""
	for _, s := range servers {
		if s.ID == server {
			address = s.RPCAddresses[0]
		}
	}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		return rig.Summary{}, err
	}
	defer conn.Close()
	status := nyalav1.NewServerServiceClient(conn)
	var times []float64
	for i := range 1100 {
		start := time.Now()
		if _, err := status.GetStatus(ctx, &nyalav1.GetStatusRequest{}); err != nil {
			return rig.Summary{}, err
		}
		if i >= 100 {
			times = append(times, rig.Ms(time.Since(start)))
		}
	}
	return rig.Summarize(times), nil
}

// load runs a process that loads one row.
func load(ctx context.Context, c *rig.Cluster, server string, key int64) error {
	cmd := c.Command(ctx, "table", "load", "t", "-", "--input_format", "csv", "--via", server)
	cmd.Stderr = nil
	cmd.Stdin = strings.NewReader(fmt.Sprintf("k,v\n%d,one row\n", key))
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}
