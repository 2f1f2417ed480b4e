package main

import (
	"context"
	"errors"
	"flag"
	"time"

	"github.com/nyaladb/nyala/bench/rig"
)

var (
	replicas = flag.Int("replicas", 1500, "replicas on the server")
	trials   = flag.Int("trials", 3, "kills and starts")
)

func main() { rig.Main(run) }

type result struct {
	Benchmark string      `json:"benchmark"`
	Replicas  int         `json:"replicas"`
	Ready     rig.Summary `json:"ready_s"`
	CPU       rig.Summary `json:"cpu_s"`
}

func run(ctx context.Context) (_ any, err error) {
	c, err := rig.Up(ctx, 3) // so each holds a replica of every tablet
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	tablets, _, err := c.CreateTablets(ctx, *replicas)
	if err != nil {
		return nil, err
	}
	if err := c.WriteEach(ctx, tablets); err != nil {
		return nil, err
	}
	var ready, cpu []float64
	for i := range *trials {
		servers, err := c.Tservers()
		if err != nil {
			return nil, err
		}
		s := servers[i%len(servers)]
		if err := c.Kill(s.Name); err != nil {
			return nil, err
		}
		if err := rig.Pause(ctx, 3*time.Second); err != nil { // the others have elected by then
			return nil, err
		}
		start := time.Now()
		if err := c.Start(ctx, s.Name); err != nil {
			return nil, err
		}
		took := time.Since(start).Seconds()
		if servers, err = c.Tservers(); err != nil {
			return nil, err
		}
		u, err := rig.UsageOf(servers[i%len(servers) : i%len(servers)+1])
		if err != nil {
			return nil, err
		}
		ready, cpu = append(ready, took), append(cpu, u.CPU())
		rig.Say("trial %d: %s was ready after %.3f s, %.2f s of CPU", i+1, s.Name, took, u.CPU())
		if err := rig.Pause(ctx, 5*time.Second); err != nil {
			return nil, err
		}
	}
	return result{Benchmark: "start", Replicas: *replicas, Ready: rig.Summarize(ready), CPU: rig.Summarize(cpu)}, nil
}
