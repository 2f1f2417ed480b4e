package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/nyaladb/nyala/client"
)

// masterJSON is one master in `master list --format json`.
type masterJSON struct {
	UUID   string   `json:"uuid"`
	RPC    []string `json:"rpc"`
	Web    []string `json:"web"`
	Leader bool     `json:"leader"`
}

func (a *app) masterCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "master", Short: "look at masters"}
	list := &cobra.Command{Use: "list", Short: "list the masters", Args: cobra.NoArgs}
	format := tableFormat(list, "how to print them", "json")
	list.RunE = a.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		masters, err := c.ListMasters(cmd.Context())
		if err != nil {
			return err
		}
		if format.value == "json" {
			doc := struct {
				Masters []masterJSON `json:"masters"`
			}{[]masterJSON{}}
			for _, m := range masters {
				doc.Masters = append(doc.Masters, masterJSON{m.ID, m.RPCAddresses, m.WebAddresses, m.Leader})
			}
			return printJSON(a.Out, doc)
		}
		g := newGrid("UUID", "RPC", "WEB", "ROLE")
		for _, m := range masters {
			role := "follower"
			if m.Leader {
				role = "leader"
			}
			g.add(m.ID, strings.Join(m.RPCAddresses, ","), strings.Join(m.WebAddresses, ","), role)
		}
		return g.print(a.Out)
	})
	cmd.AddCommand(list)
	return cmd
}
