package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/nyaladb/nyala/internal/daemon/buildinfo"
)

// The exit codes.
const (
	ExitOK     = 0
	ExitFailed = 1 // a part failed
	ExitUsage  = 2 // flags, config or surroundings were wrong; nothing was started
	ExitForced = 3 // the stop was forced by a second signal or took too long
)

// DefaultStopTimeout is how long a graceful stop may take before the process ends all the same.
const DefaultStopTimeout = 45 * time.Second

// Environment is what a Program's Run works with.
type Environment struct {
	Logger   *slog.Logger
	LogLevel *slog.LevelVar // may be changed while the program runs
	Registry *Registry
	Flags    *Flags
	Started  time.Time
}

// Program is one daemon.
type Program struct {
	Name    string // nyala-tserver
	Summary string // one line for --help
	// Example is one whole command that would work, shown when needed flags are missing.
	Example string
	Flags   *Flags
	// Log is read once the flags are; nil: standard error.
	Log *LogConfig
	// Check finds what is wrong between flags, each being good by itself; nil: nothing can be.
	Check func() error
	// Run runs the daemon until ctx ends. An error that wraps ErrUsage is about how it was started.
	Run func(ctx context.Context, env *Environment) error
	// StopTimeout bounds the graceful stop; 0: DefaultStopTimeout.
	StopTimeout time.Duration
}

// ErrUsage marks an error that lies in how a program was started: a port taken, a folder not writable. See CantStart.
var ErrUsage = errors.New("can't start")

// CantStart marks err with ErrUsage and leaves its words as they are; nil stays nil.
func CantStart(err error) error {
	if err == nil {
		return nil
	}
	return usageError{err}
}

type usageError struct{ error }

func (e usageError) Unwrap() error        { return e.error }
func (e usageError) Is(target error) bool { return target == ErrUsage }

// Main runs the program with the process's own arguments, environment and signals. It returns the exit code.
func (p Program) Main(ctx context.Context) int {
	return p.execute(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr, true)
}

// Execute is Main with everything given. It takes no signals: ctx ends the program.
func (p Program) Execute(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	return p.execute(ctx, args, environ, stdout, stderr, false)
}

// configError is a fault found before anything was started.
type configError struct{ error }

func (e configError) Unwrap() error { return e.error }

// forcedError says why a stop was forced.
type forcedError struct{ why string }

func (e forcedError) Error() string { return "stopped by force: " + e.why }

func (p Program) execute(ctx context.Context, args, environ []string, stdout, stderr io.Writer, signals bool) int {
	cmd := &cobra.Command{
		Use:               p.Name,
		Short:             p.Summary,
		Version:           buildinfo.Get().String(),
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return configError{fmt.Errorf("takes flags alone, and has %q: write --name=value", args[0])}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.run(cmd.Context(), environ, stderr, signals)
		},
	}
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	cmd.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	cmd.SetHelpFunc(func(*cobra.Command, []string) { p.writeHelp(stdout) })
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return configError{p.Flags.commandLineError(err)} })
	cmd.Flags().SetNormalizeFunc(normalize)
	cmd.Flags().AddFlagSet(p.Flags.set)
	if len(args) == 0 {
		cmd.SetArgs([]string{}) // nil would make cobra take the process's own
	}
	return p.exitCode(cmd.ExecuteContext(ctx), stderr)
}

// exitCode says on stderr what went wrong, each line beginning with the program's name.
func (p Program) exitCode(err error, stderr io.Writer) int {
	if err == nil {
		return ExitOK
	}
	var missing *MissingFlagsError
	var forced forcedError
	for line := range strings.SplitSeq(err.Error(), "\n") {
		fmt.Fprintf(stderr, "%s: %s\n", p.Name, line)
	}
	if errors.As(err, &missing) {
		p.writeMissing(stderr, missing)
	}
	switch {
	case errors.As(err, &forced):
		return ExitForced
	case errors.As(err, new(configError)), errors.Is(err, ErrUsage):
		return ExitUsage
	}
	return ExitFailed
}

func (p Program) writeMissing(w io.Writer, missing *MissingFlagsError) {
	width := 0
	for _, m := range missing.Missing {
		width = max(width, len(m.Name))
	}
	fmt.Fprintln(w)
	for _, m := range missing.Missing {
		fmt.Fprintf(w, "  --%-*s  %s\n", width, m.Name, m.Help)
	}
	if p.Example != "" {
		fmt.Fprintf(w, "\nFor example:\n  %s\n", strings.ReplaceAll(p.Example, "\n", "\n  "))
	}
	fmt.Fprintf(w, "\nThe same may stand in a file (--config) or in the environment (%s…). All flags: %s --help\n", EnvironmentPrefix, p.Name)
}

// run is what the command does once its flags are parsed.
func (p Program) run(ctx context.Context, environ []string, stderr io.Writer, signals bool) error {
	if err := p.Flags.resolve(environ); err != nil {
		return configError{err}
	}
	if p.Check != nil {
		if err := p.Check(); err != nil {
			return configError{err}
		}
	}
	logCfg := LogConfig{}
	if p.Log != nil {
		logCfg = *p.Log
	}
	log, err := OpenLog(p.Name, logCfg, stderr)
	if err != nil {
		return configError{err}
	}
	defer log.Close()
	env := &Environment{Logger: log.Logger, LogLevel: log.Level, Registry: NewRegistry(), Flags: p.Flags, Started: time.Now()}
	p.logStart(env)

	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	caught := make(chan os.Signal, 2)
	if signals {
		// A log line to a pipe whose reader has gone must not end the process.
		signal.Ignore(syscall.SIGPIPE)
		signal.Notify(caught, syscall.SIGTERM, syscall.SIGINT)
		defer signal.Stop(caught)
	}
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx, env) }()
	err = p.await(ctx, stop, done, caught, log.Logger)
	switch {
	case err == nil:
		log.Logger.Info("stopped")
	case log.Path != "": // on standard error the last line says it
		log.Logger.Error("stopped", "error", err)
	}
	return err
}

// await waits for the end of Run: by itself, by a signal, or by force.
func (p Program) await(ctx context.Context, stop context.CancelCauseFunc, done <-chan error, caught <-chan os.Signal, log *slog.Logger) error {
	select {
	case err := <-done:
		return err
	case sig := <-caught:
		log.Info("stopping; a second signal stops at once", "signal", sig.String())
		stop(fmt.Errorf("signal %v", sig))
	case <-ctx.Done():
	}
	limit := p.StopTimeout
	if limit == 0 {
		limit = DefaultStopTimeout
	}
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case err := <-done:
		if errors.Is(err, context.Canceled) {
			return nil
		}
		return err
	case sig := <-caught:
		return forcedError{fmt.Sprintf("second signal (%v)", sig)}
	case <-t.C:
		return forcedError{fmt.Sprintf("it took longer than %v", limit)}
	}
}

func (p Program) logStart(env *Environment) {
	b := buildinfo.Get()
	env.Logger.Info("starting", "program", p.Name, "version", b.Version, "commit", b.Commit, "go", b.Go, "pid", os.Getpid())
	for _, f := range env.Flags.Given() {
		env.Logger.Info("flag", "name", f.Name, "value", f.Value, "source", f.Source)
	}
	for _, w := range env.Flags.Warnings() {
		env.Logger.Warn("settings", "warning", w)
	}
}
