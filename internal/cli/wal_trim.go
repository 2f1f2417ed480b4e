package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nyaladb/nyala/internal/clock"
	"github.com/nyaladb/nyala/internal/fs"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/wal"
)

// trimFlags are what `wal trim` is told.
type trimFlags struct {
	dir, tablet, after, backup string
	force, yes                 bool
}

func (a *app) walTrim() *cobra.Command {
	var f trimFlags
	cmd := &cobra.Command{
		Use:   "trim --dir FOLDER --tablet ID --after TIME",
		Short: "take orphaned entries out of a stopped server's log",
		Long: `Take out of one tablet's log, on a stopped server, the first entry with a timestamp after TIME and all entries that follow it,
in one durable step, after writing a backup of them. It is for entries that a jumped clock has left in a log and that no
leader replaces: nyala wal check finds them and names the TIME.

What the log says is committed is refused, unless --force is given. The log alone doesn't know all that is committed: look
at the tablet's other replicas first. docs/repair.md says how, and what --force leaves to be done.`,
		Example: `  nyala wal trim --dir ~/.nyala/local/tserver-1 --tablet 0123456789abcdef0123456789abcdef --after 2026-03-01T12:00:00Z`,
		Args:    cobra.NoArgs,
	}
	cmd.Flags().StringVar(&f.dir, "dir", "", "the stopped server's folder (that of --fs_wal_dir, or one of a local cluster)")
	cmd.Flags().StringVar(&f.tablet, "tablet", "", "the tablet's id")
	cmd.Flags().StringVar(&f.after, "after", "", "the last good timestamp, as in 2013-01-01T10:00:00Z, with +N for a logical part")
	cmd.Flags().StringVar(&f.backup, "backup", "", "the file to keep the entries in (default: beside the log)")
	cmd.Flags().BoolVar(&f.force, "force", false, "take out entries that are known to be committed, too")
	cmd.Flags().BoolVar(&f.yes, "yes", false, "don't ask")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		for _, need := range []struct{ flag, value string }{{"dir", f.dir}, {"tablet", f.tablet}, {"after", f.after}} {
			if need.value == "" {
				return usageError("--%s is missing", need.flag)
			}
		}
		if _, err := ident.Bytes(f.tablet); err != nil {
			return usageError("--tablet: %w", err)
		}
		after, err := parseTimestamp(f.after)
		if err != nil {
			return usageError("--after: %w", err)
		}
		return a.trim(cmd.Context(), f, after)
	}
	return cmd
}

// trim holds the file from the first look to the end, so that no server can start on it meanwhile.
func (a *app) trim(ctx context.Context, f trimFlags, after hybridtime.Timestamp) error {
	path, err := stoppedWAL(f.dir)
	if err != nil {
		return err
	}
	r, err := wal.OpenRepair(path)
	if err != nil {
		return err
	}
	defer r.Close()
	cut, err := r.FindCut(ident.TabletID(f.tablet), after)
	if err != nil {
		return err
	}
	if cut == nil {
		a.note("tablet %s has no entry after %v in this log: nothing to do", f.tablet, after)
		return nil
	}
	if cut.Committed > 0 && !f.force {
		return fmt.Errorf("%w. Nothing was taken out; docs/repair.md says what it means to do so with --force",
			&wal.CommittedError{TabletID: cut.TabletID, From: cut.From, Committed: cut.Committed})
	}
	backup := f.backup
	if backup == "" {
		backup = backupName(path, cut)
	}
	a.announce(cut, backup)
	if err := a.confirm("Take them out?", f.yes); err != nil {
		return err
	}
	if err := r.Backup(cut, backup); err != nil {
		return fmt.Errorf("nothing was taken out: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := r.Apply(cut, f.force); err != nil {
		return fmt.Errorf("%w (a backup is in %s)", err, backup)
	}
	g := newGrid("TABLET", "FROM", "TO", "ENTRIES", "COMMITTED", "LOWEST TIMESTAMP", "HIGHEST TIMESTAMP", "BACKUP").numbers(1, 2, 3, 4)
	g.add(cut.TabletID, cut.From, cut.To, cut.Entries, cut.Committed, cut.Lowest, cut.Highest, backup)
	if err := g.print(a.Out); err != nil {
		return err
	}
	a.afterTrim(r, cut)
	return nil
}

// stoppedWAL returns the log's file in the folder of a server that doesn't run.
func stoppedWAL(dir string) (string, error) {
	if st, err := os.Stat(dir); err == nil && !st.IsDir() {
		return "", usageError("--dir %s is a file: give the server's folder", dir)
	}
	dir, err := findWALFolder(dir)
	if err != nil {
		return "", err
	}
	pid, held, err := fs.Holder(dir)
	switch {
	case err != nil:
		return "", fmt.Errorf("folder %s: %w", dir, err)
	case held:
		return "", fmt.Errorf("folder %s is in use by process %d: stop that server first", dir, pid)
	}
	return fs.WALPath(dir), nil
}

// backupName is the first free name beside the log.
func backupName(path string, c *wal.Cut) string {
	base := fmt.Sprintf("%s.trimmed-%s-%v", path, c.TabletID, c.From)
	name := base
	for i := 2; ; i++ {
		if _, err := os.Lstat(name); errors.Is(err, os.ErrNotExist) {
			return name
		}
		name = fmt.Sprintf("%s-%d", base, i)
	}
}

// announce says what is about to go.
func (a *app) announce(c *wal.Cut, backup string) {
	a.note("tablet %s: %s, %v, %s to be taken out; the log will end at %v", c.TabletID, countEntries(c.Entries), opIDs(c.From, c.To),
		isOrAre(c.Entries), c.Previous)
	switch {
	case c.Highest == 0:
	case c.Lowest == c.Highest:
		a.note("their timestamp is %v", c.Lowest)
	default:
		a.note("their timestamps are %v to %v", c.Lowest, c.Highest)
	}
	if c.Lowest != 0 && c.Lowest <= hybridtime.FromTime(time.Now()) {
		a.note("careful: by this machine's clock not all of these timestamps are in the future")
	}
	if c.Committed == 0 {
		a.note("none of them is known to be committed")
	} else {
		a.note("careful: %d of them %s known to be committed", c.Committed, isOrAre(c.Committed))
	}
	a.note("backup: %s", backup)
}

func isOrAre(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// confirm asks, unless yes was said already.
func (a *app) confirm(question string, yes bool) error {
	if yes {
		return nil
	}
	if in, ok := a.In.(*os.File); !ok || !isTerminal(in) {
		return usageError("it must be confirmed: add --yes")
	}
	fmt.Fprint(a.Err, question+" [y/N] ")
	answer, _ := bufio.NewReader(a.In).ReadString('\n')
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return errors.New("nothing was changed")
	}
	return nil
}

// afterTrim says what to do next.
func (a *app) afterTrim(r *wal.Repair, c *wal.Cut) {
	if c.Committed > 0 {
		a.note("next: cut every other replica of the tablet at the same place, before any of their servers starts. One whose rows hold these entries already fails at the start, and is lost")
	} else {
		a.note("next: look at the tablet's other replicas (nyala wal check); cut those that hold the same entries, too; then start the servers and see that all is well (nyala cluster ksck)")
	}
	m, err := clock.DecodeMark(r.Meta(clockMarkKey))
	if err == nil && m.Timestamp > hybridtime.FromTime(time.Now()).Add(markSlack) {
		a.note("careful: this server's clock mark is %v: until its clock is there it leads nothing", m.Timestamp)
	}
}

// markSlack is how far a clock mark may be ahead: what clocks may differ by, and what it is kept ahead of use.
const markSlack = 12 * time.Second
