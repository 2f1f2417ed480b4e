package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nyaladb/nyala/client"
)

// connectTimeout is how long a command looks for a master unless --timeout says otherwise: a person who forgot to start one
// should know soon.
const connectTimeout = 3 * time.Second

// masterAddresses are those of --masters, else of NYALA_MASTERS, else the default.
func (a *app) masterAddresses() []string {
	if len(a.masters) > 0 {
		return a.masters
	}
	if env := strings.TrimSpace(a.getenv("NYALA_MASTERS")); env != "" {
		return strings.Split(env, ",")
	}
	return []string{"localhost:" + client.DefaultMasterPort}
}

// connect finds the cluster's master.
func (a *app) connect(cmd *cobra.Command) (*client.Client, error) {
	opts := client.Options{Masters: a.masterAddresses(), Timeout: a.timeout.d}
	if err := opts.Validate(); err != nil {
		return nil, &exitError{code: exitUsage, err: err}
	}
	wait := connectTimeout
	if cmd.Flags().Changed("timeout") {
		wait = a.timeout.d
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), wait)
	defer cancel()
	c, err := client.Connect(ctx, opts)
	switch {
	case err == nil:
		return c, nil
	case cmd.Context().Err() != nil:
		return nil, cmd.Context().Err()
	case client.CodeOf(err) == client.CodeServiceUnavailable, client.CodeOf(err) == client.CodeTimedOut:
		return nil, &exitError{code: exitNoCluster, err: err}
	}
	return nil, err
}

// withClient wraps a command that needs a client.
func (a *app) withClient(run func(cmd *cobra.Command, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := a.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		return run(cmd, c, args)
	}
}

// openTable opens a table, and suggests one where the name is a near miss.
func openTable(ctx context.Context, c *client.Client, name string) (*client.Table, error) {
	t, err := c.OpenTable(ctx, name)
	if client.CodeOf(err) != client.CodeTableNotFound {
		return t, err
	}
	tables, lerr := c.ListTables(ctx, "")
	if lerr != nil {
		return nil, err
	}
	names := make([]string, len(tables))
	for i, t := range tables {
		names[i] = t.Name
	}
	switch near := nearest(name, names); {
	case near != "":
		return nil, fmt.Errorf("there is no table %q; did you mean %q?", name, near)
	case len(names) == 0:
		return nil, fmt.Errorf("there is no table %q: the cluster has no tables yet (nyala table create)", name)
	}
	return nil, fmt.Errorf("there is no table %q; nyala table list shows those there are", name)
}

// explain is an error as a person is told it.
func explain(err error) string {
	if errors.Is(err, context.Canceled) && client.CodeOf(err) == client.CodeAborted {
		return "interrupted"
	}
	return err.Error()
}

// note tells a person something on standard error.
func (a *app) note(format string, args ...any) {
	fmt.Fprintf(a.Err, format+"\n", args...)
}
