package rig

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/client"
)

// Gather moves the leadership of every tablet to one server, and returns when the servers say that it leads them all.
func (c *Cluster) Gather(ctx context.Context, tablets []*Tablet, server string) error {
	conns := map[string]*grpc.ClientConn{}
	defer func() {
		for _, conn := range conns {
			_ = conn.Close()
		}
	}()
	for {
		left := 0
		for _, t := range tablets {
			leader, address, err := c.ledBy(ctx, conns, t)
			if err != nil {
				return err
			}
			if leader == server {
				continue
			}
			left++
			if address != "" {
				// One that isn't ready for it, or has just lost it, is asked again in the next round.
				_, _ = nyalav1.NewTabletAdminServiceClient(conns[address]).LeaderStepDown(ctx,
					&nyalav1.LeaderStepDownRequest{TabletId: t.ID, NewLeaderServerId: server})
			}
		}
		if left == 0 {
			return nil
		}
		Say("%d leaderships moved", left)
		if err := Pause(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// ledBy asks the tablet's servers who leads it; "": nobody says so.
func (c *Cluster) ledBy(ctx context.Context, conns map[string]*grpc.ClientConn, t *Tablet) (server, address string, err error) {
	for _, r := range t.Replicas {
		conn := conns[r.Address]
		if conn == nil {
			if conn, err = grpc.NewClient("passthrough:///"+r.Address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy()); err != nil {
				return "", "", err
			}
			conns[r.Address] = conn
		}
		answer, err := nyalav1.NewTabletAdminServiceClient(conn).ListTablets(ctx, &nyalav1.ListTabletsRequest{TabletIds: []string{t.ID}})
		if err != nil {
			return "", "", fmt.Errorf("ask %s about tablet %s: %w", r.Address, t.ID, err)
		}
		for _, s := range answer.GetReplicas() {
			if s.GetRole() == nyalav1.Role_ROLE_LEADER {
				return r.ServerID, r.Address, nil
			}
		}
	}
	return "", "", nil
}

// NameOf returns the name of the process with a server id.
func (c *Cluster) NameOf(id string) (string, error) {
	servers, err := c.Servers()
	if err != nil {
		return "", err
	}
	for _, s := range servers {
		if s.UUID == id {
			return s.Name, nil
		}
	}
	return "", fmt.Errorf("no process has the id %s", id)
}

// LeaderNow waits until the master knows who leads a table's first tablet, other than the server named.
func (c *Cluster) LeaderNow(ctx context.Context, t *client.Table, not string) (string, error) {
	for {
		leader, _, err := c.Leader(ctx, t)
		if err == nil && leader != not {
			return leader, nil
		}
		if err := Pause(ctx, 50*time.Millisecond); err != nil {
			return "", err
		}
	}
}

// Pause waits for d, as part of what is measured or between two questions.
func Pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return errors.Join(errors.New("interrupted"), ctx.Err())
	}
}
