package cli

import (
	"github.com/spf13/cobra"

	"github.com/nyaladb/nyala/client"
)

func (a *app) clusterCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "cluster", Short: "check a cluster"}
	cmd.AddCommand(a.ksck(), a.clusterClock())
	return cmd
}

func (a *app) ksck() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "ksck",
		Short: "check masters, tablet servers, tables, tablets and replicas",
		Long: `Check a cluster: ask the master what should be there, ask each tablet server what it has, and compare.

The verdict is OK, with exit code 0, only if every master and tablet server answers and every tablet is healthy: it has all
its replicas, they run, and they agree on who leads; and if all servers' clocks can be trusted and agree. Otherwise it is
FAILED, with exit code 5, and each fault is named.`,
		Args: cobra.NoArgs,
	}
	format := tableFormat(cmd, "how to print the report", "json")
	cmd.Flags().BoolVar(&all, "all_tablets", false, "show healthy tablets' replicas too")
	cmd.RunE = a.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		timeout := ksckTimeout
		if cmd.Flags().Changed("timeout") {
			timeout = a.timeout.d
		}
		facts, err := gatherKsck(cmd.Context(), c, a.masterAddresses(), timeout)
		if err != nil {
			return err
		}
		report := judge(facts)
		if format.value == "json" {
			err = printJSON(a.Out, report)
		} else {
			err = report.print(a.Out, all)
		}
		if err == nil && report.Verdict != verdictOK {
			err = &exitError{code: exitUnhealthy}
		}
		return err
	})
	return cmd
}
