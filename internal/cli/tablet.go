package cli

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/status"
)

func (a *app) tabletCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "tablet", Short: "look at tablets, move their leaders and replicas"}
	cmd.AddCommand(a.tabletList(), a.tabletStepDown(), a.tabletChangeConfig())
	return cmd
}

// tabletJSON is one tablet in `tablet list --format json`.
type tabletJSON struct {
	ID          string        `json:"id"`
	Table       string        `json:"table"`
	HashBuckets []uint32      `json:"hash_buckets"`
	KeyStart    string        `json:"partition_key_start"` // hexadecimal
	KeyEnd      string        `json:"partition_key_end"`
	Leader      string        `json:"leader"` // uuid; empty: none known
	Replicas    []replicaJSON `json:"replicas"`
}

type replicaJSON struct {
	ReplicaID uint64 `json:"replica_id"`
	UUID      string `json:"uuid"`
	RPC       string `json:"rpc"`
	Role      string `json:"role"`
}

func (a *app) tabletList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list [TABLE]",
		Short: "list the tablets of a table, or of all tables, and where their replicas are",
		Args:  cobra.MaximumNArgs(1),
	}
	format := tableFormat(cmd, "how to print them", "json")
	cmd.RunE = a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		tablets, err := findTablets(cmd.Context(), c, args)
		if err != nil {
			return err
		}
		if format.value == "json" {
			return printJSON(a.Out, struct {
				Tablets []tabletJSON `json:"tablets"`
			}{tablets})
		}
		if len(tablets) == 0 {
			a.note("no tablets")
			return nil
		}
		g := newGrid("TABLE", "TABLET", "PARTITION", "LEADER", "FOLLOWERS")
		for _, t := range tablets {
			leader, others := "none", []string{}
			for _, r := range t.Replicas {
				switch r.Role {
				case "leader":
					leader = r.RPC
				case "follower":
					others = append(others, r.RPC)
				default:
					others = append(others, r.RPC+" ("+r.Role+")")
				}
			}
			g.add(t.Table, t.ID, partitionText(t), leader, strings.Join(others, " "))
		}
		return g.print(a.Out)
	})
	return cmd
}

// findTablets returns the tablets of the named tables, of all for none.
func findTablets(ctx context.Context, c *client.Client, names []string) ([]tabletJSON, error) {
	if len(names) == 0 {
		tables, err := c.ListTables(ctx, "")
		if err != nil {
			return nil, err
		}
		for _, t := range tables {
			names = append(names, t.Name)
		}
	}
	out := []tabletJSON{}
	for _, name := range names {
		t, err := openTable(ctx, c, name)
		if err != nil {
			return nil, err
		}
		tablets, err := c.Tablets(ctx, t)
		if err != nil {
			return nil, err
		}
		for _, tb := range tablets {
			j := tabletJSON{
				ID: tb.ID, Table: t.Name(), HashBuckets: append([]uint32{}, tb.HashBuckets...), Replicas: []replicaJSON{},
				KeyStart: hex.EncodeToString(tb.PartitionKeyStart), KeyEnd: hex.EncodeToString(tb.PartitionKeyEnd),
			}
			for _, r := range tb.Replicas {
				j.Replicas = append(j.Replicas, replicaJSON{r.ID, r.ServerID, r.Address, roleName(r.Role)})
				if r.Role == client.RoleLeader {
					j.Leader = r.ServerID
				}
			}
			out = append(out, j)
		}
	}
	return out, nil
}

func roleName(r nyalav1.Role) string {
	if r == nyalav1.Role_ROLE_UNSPECIFIED {
		return "unknown"
	}
	return strings.ToLower(strings.TrimPrefix(r.String(), "ROLE_"))
}

// partitionText is a tablet's share in a few letters: its hash buckets.
func partitionText(t tabletJSON) string {
	if len(t.HashBuckets) == 0 {
		return "all"
	}
	parts := make([]string, len(t.HashBuckets))
	for i, b := range t.HashBuckets {
		parts[i] = fmt.Sprintf("hash %d", b)
	}
	return strings.Join(parts, ", ")
}

func (a *app) tabletStepDown() *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use:   "leader_step_down TABLET",
		Short: "have a tablet's leader hand over to another replica",
		Long: `Have a tablet's leader hand over to another replica, and return when the new leader is known. Its uuid goes to standard
output.`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&to, "new_leader", "", "the uuid of the server that is to lead (default: any that is up to date)")
	cmd.RunE = a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		ctx, cancel := withTimeout(cmd.Context(), a.timeout.d)
		defer cancel()
		before, err := findTablet(ctx, c, args[0])
		if err != nil {
			return err
		}
		leader := before.leader()
		if leader == nil {
			return fmt.Errorf("tablet %s has no leader now: nothing to step down", before.ID)
		}
		_, err = askServer(ctx, leader.RPC, a.timeout.d, func(ctx context.Context, conn *grpc.ClientConn) (*nyalav1.LeaderStepDownResponse, error) {
			return nyalav1.NewTabletAdminServiceClient(conn).LeaderStepDown(ctx, &nyalav1.LeaderStepDownRequest{
				DestServerId: leader.UUID, TabletId: before.ID, NewLeaderServerId: to,
			})
		})
		if err != nil {
			return err
		}
		after, err := awaitNewLeader(ctx, c, before, leader.UUID)
		if err != nil {
			return err
		}
		a.note("tablet %s: %s led, %s leads now", before.ID, leader.RPC, after.RPC)
		_, err = fmt.Fprintln(a.Out, after.UUID)
		return err
	})
	return cmd
}

func (t tabletJSON) leader() *replicaJSON {
	for i := range t.Replicas {
		if t.Replicas[i].UUID == t.Leader && t.Leader != "" {
			return &t.Replicas[i]
		}
	}
	return nil
}

// findTablet looks for a tablet in all tables, by its id or a beginning of it that no other has.
func findTablet(ctx context.Context, c *client.Client, id string) (tabletJSON, error) {
	tablets, err := findTablets(ctx, c, nil)
	if err != nil {
		return tabletJSON{}, err
	}
	var found []tabletJSON
	for _, t := range tablets {
		if t.ID == id {
			return t, nil
		}
		if len(id) >= 4 && strings.HasPrefix(t.ID, id) {
			found = append(found, t)
		}
	}
	switch len(found) {
	case 0:
		return tabletJSON{}, status.New(status.TabletNotFound, "there is no tablet %q; nyala tablet list shows those there are", id)
	case 1:
		return found[0], nil
	}
	return tabletJSON{}, status.New(status.InvalidArgument, "%d tablets begin with %q; give more of its id", len(found), id)
}

// awaitNewLeader asks the master who leads until it is another one than before.
func awaitNewLeader(ctx context.Context, c *client.Client, t tabletJSON, before string) (*replicaJSON, error) {
	for delay := 20 * time.Millisecond; ; delay = min(2*delay, 300*time.Millisecond) {
		tablets, err := findTablets(ctx, c, []string{t.Table})
		if err == nil {
			for _, now := range tablets {
				if l := now.leader(); now.ID == t.ID && l != nil && l.UUID != before {
					return l, nil
				}
			}
		}
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("tablet %s: the leader was told to step down, but the master knows of no other yet: %w", t.ID, ctx.Err())
		}
	}
}
