package cli

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/client"
)

const (
	// ksckTimeout bounds the question to one server.
	ksckTimeout = 5 * time.Second
	// ksckAtOnce bounds how many servers are asked at once.
	ksckAtOnce = 16
)

// ksckFacts are what the servers said; judging them is judge's business.
type ksckFacts struct {
	clusterID string
	masters   []masterFacts
	servers   []serverFacts
	tables    []tableFacts
}

type masterFacts struct {
	addr   string
	status *nyalav1.GetStatusResponse // nil: no answer
	clock  *nyalav1.GetClockResponse  // nil: no answer
	err    error
	leader bool // by the leading master's word
}

type serverFacts struct {
	known    client.TabletServer // what the master says
	status   *nyalav1.GetStatusResponse
	clock    *nyalav1.GetClockResponse // nil: no answer
	replicas []*nyalav1.ReplicaStatus
	err      error // why it gave no answer
}

type tableFacts struct {
	info    client.TableInfo
	tablets []client.Tablet
	err     error
}

// gatherKsck asks the master and all servers. Only a silent master is an error: everything else is part of the facts.
func gatherKsck(ctx context.Context, c *client.Client, masters []string, timeout time.Duration) (*ksckFacts, error) {
	f := &ksckFacts{clusterID: c.ClusterID()}
	list, err := c.ListMasters(ctx)
	if err != nil {
		return nil, err
	}
	servers, err := c.ListTabletServers(ctx)
	if err != nil {
		return nil, err
	}
	tables, err := c.ListTables(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, m := range list {
		f.masters = append(f.masters, masterFacts{addr: reachable(m.RPCAddresses, masters), leader: m.Leader})
	}
	f.servers = make([]serverFacts, len(servers))
	f.tables = make([]tableFacts, len(tables))
	slots := make(chan struct{}, ksckAtOnce)
	var wg sync.WaitGroup
	atOnce := func(do func()) {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			do()
		})
	}
	for i := range f.masters {
		atOnce(func() {
			m := &f.masters[i]
			if m.status, m.err = getStatus(ctx, m.addr, timeout); m.err == nil {
				m.clock, m.err = getClock(ctx, m.addr, timeout)
			}
		})
	}
	for i, s := range servers {
		atOnce(func() { f.servers[i] = askTabletServer(ctx, s, timeout) })
	}
	for i, t := range tables {
		atOnce(func() { f.tables[i] = askTablets(ctx, c, t) })
	}
	wg.Wait()
	return f, ctx.Err()
}

// reachable is the address to ask a master at: one that the command line names goes before those that it advertises.
func reachable(advertised, named []string) string {
	for _, a := range advertised {
		if slices.Contains(named, a) {
			return a
		}
	}
	if len(advertised) == 0 {
		return ""
	}
	if host, _, err := net.SplitHostPort(advertised[0]); len(named) == 1 && err == nil && net.ParseIP(host).IsUnspecified() {
		return named[0]
	}
	return advertised[0]
}

func askTabletServer(ctx context.Context, s client.TabletServer, timeout time.Duration) serverFacts {
	f := serverFacts{known: s}
	if len(s.RPCAddresses) == 0 {
		f.err = errNoAddress
		return f
	}
	addr := s.RPCAddresses[0]
	if f.status, f.err = getStatus(ctx, addr, timeout); f.err == nil {
		f.replicas, f.err = listTablets(ctx, addr, timeout)
	}
	if f.err == nil {
		f.clock, f.err = getClock(ctx, addr, timeout)
	}
	return f
}

func askTablets(ctx context.Context, c *client.Client, info client.TableInfo) tableFacts {
	f := tableFacts{info: info}
	t, err := c.OpenTable(ctx, info.Name)
	if err == nil {
		f.tablets, err = c.Tablets(ctx, t)
	}
	slices.SortFunc(f.tablets, func(a, b client.Tablet) int { return slices.Compare(a.PartitionKeyStart, b.PartitionKeyStart) })
	f.err = err
	return f
}
