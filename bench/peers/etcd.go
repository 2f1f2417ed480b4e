package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/nyaladb/nyala/bench/rig"
)

// etcd measures three nodes: one session of the Go client, then one etcdctl process per put.
func etcd(ctx context.Context, p *processes) (any, error) {
	p.env = []string{"ETCDCTL_API=3"}
	addresses, err := ports(6)
	if err != nil {
		return nil, err
	}
	clients, peers := addresses[:3], addresses[3:]
	var members []string
	for i, a := range peers {
		members = append(members, fmt.Sprintf("n%d=http://%s", i, a))
	}
	for i := range 3 {
		err := p.start(fmt.Sprintf("n%d", i), in("bin/etcd"), fmt.Sprintf("--name=n%d", i), "--data-dir="+filepath.Join(p.dir, fmt.Sprintf("n%d", i)),
			"--listen-client-urls=http://"+clients[i], "--advertise-client-urls=http://"+clients[i], "--listen-peer-urls=http://"+peers[i],
			"--initial-advertise-peer-urls=http://"+peers[i], "--initial-cluster="+strings.Join(members, ","), "--initial-cluster-state=new")
		if err != nil {
			return nil, err
		}
	}
	ctl := in("ovs/usr/bin/etcdctl")
	var leader, follower int
	err = until(ctx, "one of three nodes leads", func() bool {
		var leads []bool
		for _, a := range clients {
			out, err := p.output(ctx, ctl, "--endpoints="+a, "endpoint", "status", "-w", "json")
			var st []struct {
				Status struct {
					Header struct {
						MemberID uint64 `json:"member_id"`
					} `json:"header"`
					Leader uint64 `json:"leader"`
				} `json:"Status"`
			}
			if err != nil || json.Unmarshal([]byte(out), &st) != nil || len(st) != 1 || st[0].Status.Leader == 0 {
				return false
			}
			leads = append(leads, st[0].Status.Header.MemberID == st[0].Status.Leader)
		}
		var ok bool
		leader, follower, ok = oneLeader(leads)
		return ok
	})
	if err != nil {
		return nil, err
	}
	r := &throughBoth{WritesPerRound: *writes}
	var medians [2][]float64
	for range *rounds {
		for i, server := range []int{follower, leader} {
			out, err := p.output(ctx, in("bin/etcdbench"), clients[server], "seq", fmt.Sprint(*writes))
			if err != nil {
				return nil, err
			}
			var n int
			var seconds, p50, p99 float64
			if _, err := fmt.Sscan(out, &n, &seconds, &p50, &p99); err != nil {
				return nil, fmt.Errorf("etcdbench printed %q: %w", out, err)
			}
			medians[i] = append(medians[i], p50)
		}
	}
	r.Follower, r.Leader = rig.Summarize(medians[0]), rig.Summarize(medians[1])
	rig.Say("etcd: through the leader %.3f ms, through the follower %.3f ms", r.Leader.Median, r.Follower.Median)
	err = p.inTurns(ctx, r, follower, leader, func(server, n int) error {
		_, err := p.output(ctx, ctl, "--endpoints="+clients[server], "put", fmt.Sprintf("p%d-%d", server, n), "v")
		return err
	})
	return r, err
}
