package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/localcluster"
)

// localFlags are what all local commands have in common.
type localFlags struct {
	dir    string
	binDir string
}

func (a *app) localCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "local",
		Short: "run a whole cluster on this machine",
		Long: `Run a whole cluster on this machine: masters and tablet servers as processes on loopback, all of it in one folder. The
servers stay when the command is done; the same folder names the cluster to the other commands.`,
	}
	var f localFlags
	cmd.PersistentFlags().StringVar(&f.dir, "dir", a.defaultLocalDir(), "the cluster's folder, also $NYALA_LOCAL_DIR")
	cmd.PersistentFlags().StringVar(&f.binDir, "bin_dir", "", "where nyala-master and nyala-tserver are (default: beside nyala, else in PATH)")
	cmd.AddCommand(a.localUp(&f), a.localStatus(&f), a.localStop(&f), a.localStart(&f), a.localKill(&f), a.localDown(&f))
	return cmd
}

// defaultLocalDir is where the local cluster lies unless --dir says otherwise.
func (a *app) defaultLocalDir() string {
	if dir := a.getenv("NYALA_LOCAL_DIR"); dir != "" {
		return dir
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "nyala-local"
	}
	return filepath.Join(home, ".nyala", "local")
}

// config is the cluster's configuration with what every local command sets.
func (a *app) localConfig(cmd *cobra.Command, f *localFlags) localcluster.Config {
	cfg := localcluster.Config{Dir: f.dir, BinDir: f.binDir, Notify: func(s string) { a.note("%s", s) }}
	if cmd.Flags().Changed("timeout") {
		cfg.ReadyTimeout, cfg.StopTimeout = a.timeout.d, a.timeout.d
	}
	return cfg
}

// openLocal takes up the cluster in the folder.
func (a *app) openLocal(cmd *cobra.Command, f *localFlags) (*localcluster.Cluster, error) {
	c, err := localcluster.Open(a.localConfig(cmd, f))
	if errors.Is(err, localcluster.ErrNoCluster) {
		return nil, &exitError{code: exitNoCluster, err: err}
	}
	return c, err
}

func (a *app) localUp(f *localFlags) *cobra.Command {
	var tservers int
	var masterFlags, tserverFlags []string
	var foreground bool
	cmd := &cobra.Command{
		Use:   "up",
		Short: "start a cluster, or what is missing of it",
		Long: `Start a cluster and return when every server is ready. On a folder whose servers were stopped or killed, in whole or in part,
start what is missing: with the same addresses, and with the same flags unless flags are given again ("" for none).`,
		Example: `  nyala local up
  nyala local up --tservers 5 --dir /tmp/five --tserver_flag=--raft_heartbeat_interval_ms=200`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().IntVar(&tservers, "tservers", 0, "number of tablet servers (default: as many as there are, 3 in a new cluster)")
	cmd.Flags().StringArrayVar(&masterFlags, "master_flag", nil, "a flag for the masters, as in --master_flag=--x=y; may be repeated")
	cmd.Flags().StringArrayVar(&tserverFlags, "tserver_flag", nil, "a flag for the tablet servers; may be repeated")
	cmd.Flags().BoolVar(&foreground, "foreground", false, "stay, and stop the cluster at Ctrl-C")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		defer surviveClosedPipe()()
		cfg := a.localConfig(cmd, f)
		if tservers < 0 || cmd.Flags().Changed("tservers") && tservers == 0 {
			return usageError("--tservers %d: a cluster needs at least 1", tservers)
		}
		cfg.TabletServers = tservers
		var err error
		if cfg.MasterFlags, err = serverFlags(masterFlags); err != nil {
			return err
		}
		if cfg.TserverFlags, err = serverFlags(tserverFlags); err != nil {
			return err
		}
		began := time.Now()
		c, err := localcluster.Up(cmd.Context(), cfg)
		if err != nil {
			return err
		}
		masters := strings.Join(c.MasterAddresses(), ",")
		a.note("the cluster in %s is up (%s)", c.Dir(), took(time.Since(began)))
		if masters != "127.0.0.1:"+client.DefaultMasterPort {
			a.note("its masters: export NYALA_MASTERS=%s", masters)
		}
		if !foreground {
			a.note("next: nyala table create …; nyala cluster ksck; stop it with nyala local down%s", a.dirHint(f))
			return nil
		}
		return a.stay(cmd.Context(), c)
	}
	return cmd
}

// serverFlags checks flags for servers. nil, for none given, leaves those remembered; a single empty one means none.
func serverFlags(given []string) ([]string, error) {
	if len(given) == 1 && given[0] == "" {
		return []string{}, nil
	}
	for _, flag := range given {
		if !strings.HasPrefix(flag, "--") {
			return nil, usageError("server flag %q doesn't begin with --, as in --tserver_flag=--x=y", flag)
		}
	}
	return given, nil
}

// dirHint is what must be added to a local command to mean the same folder.
func (a *app) dirHint(f *localFlags) string {
	if f.dir == a.defaultLocalDir() {
		return ""
	}
	return " --dir " + f.dir
}

// stay waits for Ctrl-C, says when a server dies meanwhile, and stops the cluster.
func (a *app) stay(ctx context.Context, c *localcluster.Cluster) error {
	a.note("running until Ctrl-C")
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	last := map[string]localcluster.State{}
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			a.note("stopping")
			return c.Down(context.WithoutCancel(ctx), false)
		}
		servers, err := c.Servers()
		if err != nil {
			return err
		}
		for _, s := range servers {
			if before, known := last[s.Name]; known && before != s.State {
				a.note("%s is %s now; its log is %s", s.Name, s.State, s.Log)
			}
			last[s.Name] = s.State
		}
	}
}

func (a *app) localStatus(f *localFlags) *cobra.Command {
	cmd := &cobra.Command{Use: "status", Short: "show the servers of the cluster", Args: cobra.NoArgs}
	format := tableFormat(cmd, "how to print them", "json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.openLocal(cmd, f)
		if err != nil {
			return err
		}
		servers, err := c.Status(cmd.Context())
		if err != nil {
			return err
		}
		return a.printServers(servers, format.value)
	}
	return cmd
}

func (a *app) printServers(servers []localcluster.Server, format string) error {
	if format == "json" {
		return printJSON(a.Out, struct {
			Servers []localcluster.Server `json:"servers"`
		}{servers})
	}
	g := newGrid("NAME", "STATE", "PID", "RPC", "WEB", "UUID", "LOG").numbers(2)
	for _, s := range servers {
		pid := "-"
		if s.Pid != 0 {
			pid = fmt.Sprint(s.Pid)
		}
		g.add(s.Name, s.State, pid, s.RPC, s.Web, orDash(s.UUID), s.Log)
	}
	return g.print(a.Out)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// eachServer makes a command that does something to servers by name.
func (a *app) eachServer(f *localFlags, use, short, done string,
	do func(ctx context.Context, c *localcluster.Cluster, name string) error,
) *cobra.Command {
	return &cobra.Command{
		Use:   use + " NAME…",
		Short: short,
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.openLocal(cmd, f)
			if err != nil {
				return err
			}
			for _, name := range args {
				err := do(cmd.Context(), c, name)
				var unknown *localcluster.UnknownServerError
				if errors.As(err, &unknown) {
					return &exitError{code: exitUsage, err: err}
				}
				if err != nil {
					return err
				}
				a.note("%s %s", name, done)
			}
			return nil
		},
	}
}

func (a *app) localStop(f *localFlags) *cobra.Command {
	return a.eachServer(f, "stop", "stop servers with SIGTERM", "is stopped",
		func(ctx context.Context, c *localcluster.Cluster, name string) error { return c.Stop(ctx, name) })
}

func (a *app) localKill(f *localFlags) *cobra.Command {
	return a.eachServer(f, "kill", "kill servers with SIGKILL, as a crash would", "is dead",
		func(_ context.Context, c *localcluster.Cluster, name string) error { return c.Kill(name) })
}

func (a *app) localStart(f *localFlags) *cobra.Command {
	return a.eachServer(f, "start", "start servers that don't run, and wait until they are ready", "is ready",
		func(ctx context.Context, c *localcluster.Cluster, name string) error { return c.Start(ctx, name) })
}

func (a *app) localDown(f *localFlags) *cobra.Command {
	var remove bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "stop all servers and keep their data",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.openLocal(cmd, f)
			if err != nil {
				return err
			}
			if err := c.Down(cmd.Context(), remove); err != nil {
				return err
			}
			if remove {
				a.note("all servers are stopped, their data is deleted")
			} else {
				a.note("all servers are stopped; nyala local up%s starts them again with their data", a.dirHint(f))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&remove, "delete", false, "delete the data too")
	return cmd
}
