package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/client"
)

// statisticsJSON is `table statistics --format json`, in the words of kudu table statistics.
type statisticsJSON struct {
	Table string `json:"table"`
	// OnDiskSize is that of the leaders' replicas, OnDiskSizeAll that of all, both estimates without the log.
	OnDiskSize    uint64 `json:"on_disk_size"`
	OnDiskSizeAll uint64 `json:"on_disk_size_all_replicas"`
	LiveRowCount  uint64 `json:"live_row_count"`
	Tablets       int    `json:"tablets"`
	Replicas      int    `json:"replicas"`
	// Silent are replicas whose servers gave no answer: they are in neither size.
	Silent int `json:"replicas_without_answer"`
}

func (a *app) tableStatistics() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "statistics TABLE",
		Short: "show what a table takes on disk, and how many rows it has",
		Long: `Show what a table takes on disk, as its servers estimate it, and how many rows it has.

The sizes are estimates: the table's share of the stores' files, and what is in memory alone as it stands there, which takes less
once it is written out. The log, which a server keeps for all its tablets together, doesn't count. The number of rows is exact: they
are counted by a scan at one snapshot, on all tablets, which takes its time on a large table.`,
		Args: cobra.ExactArgs(1),
	}
	format := tableFormat(cmd, "how to print them", "json")
	cmd.RunE = a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		t, err := openTable(cmd.Context(), c, args[0])
		if err != nil {
			return err
		}
		s, err := a.statistics(cmd.Context(), c, t)
		if err != nil {
			return err
		}
		if format.value == "json" {
			return printJSON(a.Out, s)
		}
		return s.print(a.Out)
	})
	return cmd
}

func (a *app) statistics(ctx context.Context, c *client.Client, t *client.Table) (*statisticsJSON, error) {
	tablets, err := c.Tablets(ctx, t)
	if err != nil {
		return nil, err
	}
	s := &statisticsJSON{Table: t.Name(), Tablets: len(tablets)}
	byServer, leaders := map[string][]string{}, map[string]string{} // tablets by address, the leader's address by tablet
	for _, tb := range tablets {
		for _, r := range tb.Replicas {
			s.Replicas++
			byServer[r.Address] = append(byServer[r.Address], tb.ID)
			if r.Role == nyalav1.Role_ROLE_LEADER {
				leaders[tb.ID] = r.Address
			}
		}
	}
	for addr, ids := range byServer {
		replicas, err := listTabletsOf(ctx, addr, a.timeout.d, &nyalav1.ListTabletsRequest{TabletIds: ids, Sizes: true})
		if err != nil {
			a.note("server %s, with %s of the table, gave no answer: %v", addr, plural(len(ids), "replica"), err)
		}
		s.Silent += len(ids) - len(replicas)
		for _, r := range replicas {
			s.OnDiskSizeAll += r.GetOnDiskBytes()
			if leaders[r.GetTabletId()] == addr {
				s.OnDiskSize += r.GetOnDiskBytes()
			}
		}
	}
	s.LiveRowCount, err = t.Count(ctx, client.ScanOptions{ReadMode: client.ReadAtSnapshot})
	return s, err
}

func (s *statisticsJSON) print(w io.Writer) error {
	_, err := fmt.Fprintf(w, "TABLE %s\non disk size: %s bytes of the leaders, %s of all %d replicas\nlive row count: %s\n",
		printable(quoteName(s.Table)), thousands(s.OnDiskSize), thousands(s.OnDiskSizeAll), s.Replicas, thousands(s.LiveRowCount))
	return err
}
