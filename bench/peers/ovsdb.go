package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/nyaladb/nyala/bench/rig"
)

// nbSchema is the schema of OVN's northbound database.
const nbSchema = "ovs/usr/share/ovn/ovn-nb.ovsschema"

// ovsdb measures a cluster of three servers: one JSON-RPC session, then one ovn-nbctl process per insert.
func ovsdb(ctx context.Context, p *processes) (any, error) {
	p.env = []string{"LD_LIBRARY_PATH=" + in("ovs/usr/lib/x86_64-linux-gnu")}
	for _, v := range []string{"OVS_RUNDIR", "OVN_RUNDIR", "OVS_LOGDIR", "OVN_LOGDIR", "OVS_DBDIR", "OVN_DBDIR"} {
		p.env = append(p.env, v+"="+p.dir)
	}
	addresses, err := ports(6)
	if err != nil {
		return nil, err
	}
	clients, peers := addresses[:3], addresses[3:]
	tool := in("ovs/usr/bin/ovsdb-tool")
	for i := range 3 {
		db := filepath.Join(p.dir, fmt.Sprintf("s%d.db", i))
		args := []string{"create-cluster", db, in(nbSchema), "tcp:" + peers[0]}
		if i > 0 {
			args = []string{"join-cluster", db, "OVN_Northbound", "tcp:" + peers[i], "tcp:" + peers[0]}
		}
		if _, err := p.output(ctx, tool, args...); err != nil {
			return nil, err
		}
		host, port, _ := strings.Cut(clients[i], ":")
		if err := p.start(fmt.Sprintf("s%d", i), in("ovs/usr/sbin/ovsdb-server"), "--remote=ptcp:"+port+":"+host,
			"--unixctl="+p.control(i), db); err != nil {
			return nil, err
		}
	}
	var leader, follower int
	err = until(ctx, "one of three servers leads", func() bool {
		var leads []bool
		for i := range 3 {
			out, err := p.output(ctx, in("ovs/usr/bin/ovs-appctl"), "-t", p.control(i), "cluster/status", "OVN_Northbound")
			if err != nil || !strings.Contains(out, "Status: cluster member") {
				return false
			}
			leads = append(leads, strings.Contains(out, "Role: leader"))
		}
		var ok bool
		leader, follower, ok = oneLeader(leads)
		return ok
	})
	if err != nil {
		return nil, err
	}
	r := &throughBoth{WritesPerRound: *writes}
	if err := sessions(r, clients, follower, leader); err != nil {
		return nil, err
	}
	rig.Say("ovsdb: through the leader %.3f ms, through the follower %.3f ms", r.Leader.Median, r.Follower.Median)
	err = p.inTurns(ctx, r, follower, leader, func(server, n int) error {
		_, err := p.output(ctx, in("ovs/usr/bin/ovn-nbctl"), "--no-leader-only", "--db=tcp:"+clients[server], "ls-add", fmt.Sprintf("p%d-%d", server, n))
		return err
	})
	return r, err
}

func (p *processes) control(i int) string { return filepath.Join(p.dir, fmt.Sprintf("s%d.ctl", i)) }

// sessions times durable inserts of one session through each server, in turns.
func sessions(r *throughBoth, clients []string, follower, leader int) error {
	var times [2][]float64
	for round := range *rounds {
		for i, server := range []int{follower, leader} {
			conn, err := net.Dial("tcp", clients[server])
			if err != nil {
				return err
			}
			for n := range *writes {
				start := time.Now()
				if err := insert(conn, fmt.Sprintf("s%d-%d-%d", server, round, n)); err != nil {
					return errors.Join(err, conn.Close())
				}
				times[i] = append(times[i], rig.Ms(time.Since(start)))
			}
			if err := conn.Close(); err != nil {
				return err
			}
		}
	}
	r.Follower, r.Leader = rig.Summarize(times[0]), rig.Summarize(times[1])
	return nil
}

// insert adds a logical switch and waits until the server says that it is durable.
func insert(conn net.Conn, name string) error {
	request := map[string]any{
		"id": name, "method": "transact",
		"params": []any{
			"OVN_Northbound",
			map[string]any{"op": "insert", "table": "Logical_Switch", "row": map[string]any{"name": name}},
			map[string]any{"op": "commit", "durable": true},
		},
	}
	b, err := json.Marshal(request)
	if err != nil {
		return err
	}
	if _, err := conn.Write(b); err != nil {
		return err
	}
	for answers := json.NewDecoder(conn); ; {
		var a struct {
			ID     any    `json:"id"`
			Method string `json:"method"`
			Params any    `json:"params"`
			Error  any    `json:"error"`
			Result []any  `json:"result"`
		}
		if err := answers.Decode(&a); err != nil {
			return err
		}
		switch {
		case a.Method == "echo": // a question whether this end is alive
			b, err := json.Marshal(map[string]any{"id": a.ID, "result": a.Params, "error": nil})
			if err != nil {
				return err
			}
			if _, err := conn.Write(b); err != nil {
				return err
			}
		case a.ID == name && a.Error != nil:
			return fmt.Errorf("insert of %s: %v", name, a.Error)
		case a.ID == name:
			for _, r := range a.Result {
				if m, ok := r.(map[string]any); ok && m["error"] != nil {
					return fmt.Errorf("insert of %s: %v", name, m)
				}
			}
			return nil
		}
	}
}
