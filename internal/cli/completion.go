package cli

import (
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nyaladb/nyala/client"
)

// completionWait bounds how long a shell waits for the names of tables.
const completionWait = 2 * time.Second

// addCompletion tells shells what commands take: the words of flags that have a fixed set of them, and the tables that there are.
func (a *app) addCompletion(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if c, ok := f.Value.(*choice); ok {
			// It fails only for a flag that isn't there or was registered before.
			_ = cmd.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(c.words, cobra.ShellCompDirectiveNoFileComp))
		}
	})
	if words := strings.Fields(cmd.Use); len(words) > 1 && words[1] == "TABLE" {
		files := len(words) > 2 && words[2] == "FILE"
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, toComplete string) ([]cobra.Completion, cobra.ShellCompDirective) {
			switch {
			case len(args) == 0:
				return a.tableNames(cmd, toComplete), cobra.ShellCompDirectiveNoFileComp
			case len(args) == 1 && files:
				return nil, cobra.ShellCompDirectiveDefault
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
	}
	for _, sub := range cmd.Commands() {
		a.addCompletion(sub)
	}
}

// tableNames are the tables whose names begin with prefix; none where the cluster doesn't answer.
func (a *app) tableNames(cmd *cobra.Command, prefix string) []string {
	var names []string
	if !cmd.Flags().Changed("timeout") {
		_ = cmd.Flags().Set("timeout", completionWait.String())
	}
	_ = a.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		tables, err := c.ListTables(cmd.Context(), prefix)
		for _, t := range tables {
			if strings.HasPrefix(t.Name, prefix) {
				names = append(names, t.Name)
			}
		}
		return err
	})(cmd, nil)
	return names
}
