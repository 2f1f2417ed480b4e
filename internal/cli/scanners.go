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
	"github.com/nyaladb/nyala/internal/hybridtime"
)

// scannerJSON is one open scan in `tserver scanners --format json`.
type scannerJSON struct {
	ID         string   `json:"id"`
	Server     string   `json:"server"`
	Tablet     string   `json:"tablet"`
	Table      string   `json:"table"`
	Caller     string   `json:"caller"`
	ReadMode   string   `json:"read_mode"`
	Snapshot   uint64   `json:"snapshot_timestamp"`
	Columns    []string `json:"columns"`
	CountOnly  bool     `json:"count_only"`
	Predicates []string `json:"predicate_columns"`
	OpenMS     int64    `json:"open_ms"`
	IdleMS     int64    `json:"idle_ms"`
	Calls      uint64   `json:"calls"`
	Rows       uint64   `json:"rows"`
	Bytes      uint64   `json:"bytes"`
}

func (a *app) tserverScanners() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "scanners [SERVER]",
		Short: "list the scans that clients have open, on all servers or on one",
		Long: `List the scans that clients have open on the tablet servers, or on the one named by its uuid or RPC address: those open longest
first. One that nobody calls for --scanner_ttl_ms (a flag of the server) is dropped.`,
		Args: cobra.MaximumNArgs(1),
	}
	format := tableFormat(cmd, "how to print them", "json")
	cmd.RunE = a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		ctx, cancel := withTimeout(cmd.Context(), a.timeout.d)
		defer cancel()
		only, err := tabletServer(ctx, c, strings.Join(args, ""))
		if err != nil {
			return err
		}
		scanners, err := a.openScanners(ctx, c, only)
		if err != nil {
			return err
		}
		if format.value == "json" {
			return printJSON(a.Out, struct {
				Scanners []scannerJSON `json:"scanners"`
			}{scanners})
		}
		if len(scanners) == 0 {
			a.note("no scans are open")
			return nil
		}
		g := newGrid("TABLE", "TABLET", "CALLER", "OPEN", "IDLE", "CALLS", "ROWS", "MODE", "SNAPSHOT", "SERVER").numbers(3, 4, 5, 6)
		for _, s := range scanners {
			g.add(s.Table, s.Tablet, s.Caller, took(time.Duration(s.OpenMS)*time.Millisecond), took(time.Duration(s.IdleMS)*time.Millisecond),
				s.Calls, s.Rows, s.ReadMode, hybridtime.Timestamp(s.Snapshot).String(), s.Server)
		}
		return g.print(a.Out)
	})
	return cmd
}

// openScanners asks the live servers, or the one given.
func (a *app) openScanners(ctx context.Context, c *client.Client, only string) ([]scannerJSON, error) {
	servers, err := c.ListTabletServers(ctx)
	if err != nil {
		return nil, err
	}
	scanners := []scannerJSON{}
	for _, s := range servers {
		if only == "" && !s.Alive || only != "" && s.ID != only || len(s.RPCAddresses) == 0 {
			continue
		}
		resp, err := askServer(ctx, s.RPCAddresses[0], a.timeout.d, func(ctx context.Context, conn *grpc.ClientConn) (*nyalav1.ListScannersResponse, error) {
			return nyalav1.NewTabletAdminServiceClient(conn).ListScanners(ctx, &nyalav1.ListScannersRequest{DestServerId: s.ID})
		})
		if err != nil {
			return nil, fmt.Errorf("server %s: %w", s.RPCAddresses[0], err)
		}
		for _, i := range resp.GetScanners() {
			j := scannerJSON{
				ID: hex.EncodeToString(i.GetScannerId()), Server: s.RPCAddresses[0], Tablet: i.GetTabletId(), Table: i.GetTableName(), Caller: i.GetCaller(),
				ReadMode: strings.TrimPrefix(i.GetReadMode().String(), "READ_MODE_"), Snapshot: i.GetSnapshotTimestamp(), CountOnly: i.GetCountOnly(),
				Columns: append([]string{}, i.GetColumns()...), Predicates: []string{}, OpenMS: i.GetOpenMs(), IdleMS: i.GetIdleMs(),
				Calls: i.GetCalls(), Rows: i.GetRows(), Bytes: i.GetBytes(),
			}
			for _, p := range i.GetPredicates() {
				j.Predicates = append(j.Predicates, p.GetColumn())
			}
			scanners = append(scanners, j)
		}
	}
	return scanners, nil
}
