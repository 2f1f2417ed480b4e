package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/nyaladb/nyala/client"
)

// tserverJSON is one server in `tserver list --format json`.
type tserverJSON struct {
	UUID             string   `json:"uuid"`
	RPC              []string `json:"rpc"`
	Web              []string `json:"web"`
	Alive            bool     `json:"alive"`
	MSSinceHeartbeat int64    `json:"ms_since_heartbeat"`
	Replicas         int      `json:"replicas"`
	Leaders          int      `json:"leaders"`
	Version          string   `json:"version"`
}

func (a *app) tserverCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "tserver", Short: "look at tablet servers"}
	cmd.AddCommand(a.tserverList(), a.tserverScanners())
	return cmd
}

func (a *app) tserverList() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "list the tablet servers that the master knows", Args: cobra.NoArgs}
	format := tableFormat(cmd, "how to print them", "json")
	cmd.RunE = a.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		servers, err := c.ListTabletServers(cmd.Context())
		if err != nil {
			return err
		}
		if format.value == "json" {
			doc := struct {
				Servers []tserverJSON `json:"tablet_servers"`
			}{[]tserverJSON{}}
			for _, s := range servers {
				doc.Servers = append(doc.Servers, tserverJSON{
					s.ID, s.RPCAddresses, s.WebAddresses, s.Alive, s.SinceHeartbeat.Milliseconds(), s.Replicas, s.Leaders, s.Version,
				})
			}
			return printJSON(a.Out, doc)
		}
		if len(servers) == 0 {
			a.note("no tablet server has registered with the master")
			return nil
		}
		g := newGrid("UUID", "RPC", "WEB", "STATE", "HEARTBEAT", "REPLICAS", "LEADERS", "VERSION").numbers(4, 5, 6)
		for _, s := range servers {
			state := "dead"
			if s.Alive {
				state = "alive"
			}
			g.add(s.ID, strings.Join(s.RPCAddresses, ","), strings.Join(s.WebAddresses, ","), state, took(s.SinceHeartbeat)+" ago",
				s.Replicas, s.Leaders, shortVersion(s.Version))
		}
		return g.print(a.Out)
	})
	return cmd
}
