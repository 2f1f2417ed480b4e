package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nyaladb/nyala/bench/rig"
	"github.com/nyaladb/nyala/client"
)

var (
	trials     = flag.Int("trials", 20, "kills of the leader of one tablet")
	tablets    = flag.Int("tablets", 500, "tablets that the server leads which is killed in the second part; 0: leave that out")
	manyTrials = flag.Int("many_trials", 3, "kills of that server")
)

func main() { rig.Main(run) }

type result struct {
	Benchmark string      `json:"benchmark"`
	One       rig.Summary `json:"first_success_s"`
	Tablets   int         `json:"tablets"`
	Many      rig.Summary `json:"all_writable_s"`
	// ManyEach is when each tablet of all trials was writable.
	ManyEach rig.Summary `json:"each_writable_s"`
}

func run(ctx context.Context) (_ any, err error) {
	c, err := rig.Up(ctx, 3)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	r := result{Benchmark: "failover", Tablets: *tablets}
	one, err := oneTablet(ctx, c)
	if err != nil {
		return nil, err
	}
	r.One = rig.Summarize(one)
	if *tablets == 0 {
		return r, nil
	}
	all, each, err := manyTablets(ctx, c)
	if err != nil {
		return nil, err
	}
	r.Many, r.ManyEach = rig.Summarize(all), rig.Summarize(each)
	return r, nil
}

// inFlight is how long after a kill an answer may still come that left before it.
const inFlight = 50 * time.Millisecond

// oneTablet kills the leader of a tablet again and again while it is written to.
func oneTablet(ctx context.Context, c *rig.Cluster) ([]float64, error) {
	table, err := c.CreateTable(ctx, "one", 1)
	if err != nil {
		return nil, err
	}
	stop, cancel := context.WithCancel(ctx)
	successes := make(chan time.Time, 1<<16)
	failed := make(chan error, 1)
	var writer sync.WaitGroup
	writer.Go(func() {
		s := c.Client.NewSession(client.SessionOptions{})
		for key := int64(0); stop.Err() == nil; key++ {
			if err := s.Apply(stop, rig.Upsert(table, key)); err != nil {
				if stop.Err() == nil {
					failed <- err
				}
				return
			}
			select {
			case successes <- time.Now():
			default: // nobody has looked for a while
			}
			_ = rig.Pause(stop, 2*time.Millisecond)
		}
	})
	defer writer.Wait()
	defer cancel()
	var times []float64
	for trial := range *trials {
		leader, err := c.LeaderNow(ctx, table, "")
		if err != nil {
			return nil, err
		}
		name, err := c.NameOf(leader)
		if err != nil {
			return nil, err
		}
		for len(successes) > 0 {
			<-successes
		}
		killed := time.Now()
		if err := c.Kill(name); err != nil {
			return nil, err
		}
		var took time.Duration
		for took == 0 {
			select {
			case at := <-successes:
				if at.Sub(killed) > inFlight {
					took = at.Sub(killed)
				}
			case err := <-failed:
				return nil, err
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		times = append(times, took.Seconds())
		rig.Say("trial %d: %s was killed, first success after %.3f s", trial+1, name, took.Seconds())
		if err := c.Start(ctx, name); err != nil {
			return nil, err
		}
		if _, err := c.LeaderNow(ctx, table, leader); err != nil {
			return nil, err
		}
		if err := rig.Pause(ctx, time.Second+rand.N(time.Second)); err != nil { // not in step with anything
			return nil, err
		}
	}
	return times, nil
}

// manyTablets kills a server that leads all tablets.
func manyTablets(ctx context.Context, c *rig.Cluster) (all, each []float64, err error) {
	tablets, took, err := c.CreateTablets(ctx, *tablets)
	if err != nil {
		return nil, nil, err
	}
	rig.Say("created %d tablets in %v", len(tablets), took)
	if err := c.WriteEach(ctx, tablets); err != nil {
		return nil, nil, err
	}
	servers, err := c.Tservers()
	if err != nil {
		return nil, nil, err
	}
	for trial := range *manyTrials {
		victim := servers[trial%len(servers)]
		if err := c.Gather(ctx, tablets, victim.UUID); err != nil {
			return nil, nil, err
		}
		if err := rig.Pause(ctx, 3*time.Second); err != nil {
			return nil, nil, err
		}
		killed := time.Now()
		if err := c.Kill(victim.Name); err != nil {
			return nil, nil, err
		}
		times, err := writable(ctx, c, tablets, killed)
		if err != nil {
			return nil, nil, err
		}
		last := rig.Summarize(times).Max
		all, each = append(all, last), append(each, times...)
		rig.Say("trial %d: %s was killed, all %d tablets writable after %.3f s", trial+1, victim.Name, len(tablets), last)
		if err := c.Start(ctx, victim.Name); err != nil {
			return nil, nil, err
		}
	}
	return all, each, nil
}

// writable tries each tablet until it takes a write, and returns when each did. A tablet that takes none in a while waits while
// others are tried, so that the tries never are what the servers are busy with.
func writable(ctx context.Context, c *rig.Cluster, tablets []*rig.Tablet, since time.Time) ([]float64, error) {
	const try = 150 * time.Millisecond
	left := make(chan *rig.Tablet, len(tablets))
	for _, i := range rand.Perm(len(tablets)) {
		left <- tablets[i]
	}
	var mu sync.Mutex
	var times []float64
	done := make(chan struct{})
	var workers sync.WaitGroup
	for range 32 {
		workers.Go(func() {
			s := c.Client.NewSession(client.SessionOptions{})
			for {
				var t *rig.Tablet
				select {
				case t = <-left:
				case <-done:
					return
				case <-ctx.Done():
					return
				}
				tryCtx, cancel := context.WithTimeout(ctx, try)
				err := t.Write(tryCtx, s)
				cancel()
				if err != nil {
					left <- t
					continue
				}
				mu.Lock()
				if times = append(times, time.Since(since).Seconds()); len(times) == len(tablets) {
					close(done)
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	if len(times) < len(tablets) {
		return nil, fmt.Errorf("%d of %d tablets were writable when the benchmark was interrupted", len(times), len(tablets))
	}
	return times, nil
}
