package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Streams are what a command reads and writes.
type Streams struct {
	In  io.Reader
	Out io.Writer // data alone (I1)
	Err io.Writer
}

// Main runs one command line, without the program's name, and returns its exit code. The first Ctrl-C (SIGINT) or SIGTERM
// ends the command in order, the second at once.
func Main(args []string, streams Streams) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // the second signal has its default effect again
	return Run(ctx, args, streams)
}

// surviveClosedPipe makes writes to a pipe that nobody reads any more fail instead of ending the program, until the function
// that it returns is called. Who only prints data may well end there; who has started servers has to look after them.
func surviveClosedPipe() func() {
	ignored := make(chan os.Signal, 1)
	signal.Notify(ignored, syscall.SIGPIPE)
	return func() { signal.Stop(ignored) }
}

// Run is Main without signals.
func Run(ctx context.Context, args []string, streams Streams) int {
	app := &app{Streams: streams, getenv: os.Getenv}
	root := app.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var exit *exitError
	if err != nil && (!errors.As(err, &exit) || exit.err != nil) {
		fmt.Fprintln(streams.Err, explain(err))
	}
	return exitCode(err)
}

// app is what all commands of one run share.
type app struct {
	Streams
	getenv  func(string) string
	masters []string
	timeout durationFlag
}

const rootHelp = `nyala works with a Nyala cluster: it runs one on this machine, keeps tables, loads and scans rows, and looks after servers.

A first hour:
  nyala local up                      start a cluster on this machine
  nyala table create t --columns "id int64, name string null" --primary_key id --hash id:4
  nyala table load t rows.csv
  nyala table scan t --where "id > 7" --limit 10
  nyala cluster ksck                  is all well?
  nyala demo                          see it all at work, with a server killed on the way

Standard output carries data alone; everything else goes to standard error.`

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "nyala",
		Short:         "work with a Nyala cluster",
		Long:          rootHelp + "\n\n" + exitCodesHelp,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetIn(a.In)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	root.SetHelpCommand(&cobra.Command{Use: "no-help", Hidden: true, Args: cobra.NoArgs})
	root.PersistentFlags().StringSliceVar(&a.masters, "masters", nil,
		"the masters' addresses, host or host:port, separated by commas (default $NYALA_MASTERS, else localhost:7051)")
	a.timeout = durationFlag{seconds(30)}
	root.PersistentFlags().Var(&a.timeout, "timeout", "how long to wait for the cluster")
	root.SetGlobalNormalizationFunc(underscores)
	root.AddGroup(
		&cobra.Group{ID: "start", Title: "To begin:"},
		&cobra.Group{ID: "data", Title: "Tables and rows:"},
		&cobra.Group{ID: "ops", Title: "Looking after a cluster:"},
	)
	root.AddCommand(
		inGroup("start", a.localCommand()), inGroup("start", a.demoCommand()),
		inGroup("data", a.tableCommand()), inGroup("data", a.perfCommand()),
		inGroup("ops", a.clusterCommand()), inGroup("ops", a.masterCommand()), inGroup("ops", a.tserverCommand()), inGroup("ops", a.tabletCommand()),
		inGroup("ops", a.clockCommand()), inGroup("ops", a.walCommand()),
		a.versionCommand(),
	)
	strict(root)
	a.addCompletion(root)
	return root
}

func inGroup(id string, cmd *cobra.Command) *cobra.Command {
	cmd.GroupID = id
	return cmd
}

// underscores takes --primary-key for --primary_key.
func underscores(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	return pflag.NormalizedName(strings.ReplaceAll(name, "-", "_"))
}

// strict makes every fault of a command line a usage error of one line, with a suggestion where one is near.
func strict(cmd *cobra.Command) {
	cmd.SetFlagErrorFunc(flagError)
	if args := cmd.Args; args != nil {
		cmd.Args = func(cmd *cobra.Command, given []string) error {
			if err := args(cmd, given); err != nil {
				return usageError("wrong number of arguments (%d): %s", len(given), strings.TrimSuffix(cmd.UseLine(), " [flags]"))
			}
			return nil
		}
	}
	if cmd.HasSubCommands() {
		cmd.Args = cobra.ArbitraryArgs
		cmd.RunE = func(cmd *cobra.Command, given []string) error {
			if len(given) == 0 {
				return cmd.Help()
			}
			return unknownCommand(cmd, given[0])
		}
	}
	for _, sub := range cmd.Commands() {
		strict(sub)
	}
}

func unknownCommand(cmd *cobra.Command, name string) error {
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	if near := nearest(name, names); near != "" {
		return usageError("unknown command %q; did you mean %s %s?", cmd.CommandPath()+" "+name, cmd.CommandPath(), near)
	}
	return usageError("unknown command %q; there are %s (%s --help)", cmd.CommandPath()+" "+name, strings.Join(names, ", "), cmd.CommandPath())
}

// flagError adds the nearest flag to pflag's error.
func flagError(cmd *cobra.Command, err error) error {
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				names = append(names, f.Name)
			}
		})
		given := "--" + unknown.GetSpecifiedName()
		if unknown.GetSpecifiedShortnames() != "" {
			given = "-" + unknown.GetSpecifiedName()
		}
		if near := nearest(strings.ReplaceAll(unknown.GetSpecifiedName(), "-", "_"), names); near != "" {
			return usageError("unknown flag %s; did you mean --%s?", given, near)
		}
		return usageError("unknown flag %s; %s --help lists the flags", given, cmd.CommandPath())
	}
	return usageError("%w; %s --help says what it takes", err, cmd.CommandPath())
}
