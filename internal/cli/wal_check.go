package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/clock"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/wal"
)

// The names under which a server keeps its clock's marks with its log: those of package consensus, which a test compares.
const (
	clockMarkKey   wal.MetaKey = "clock_mark"
	promiseMarkKey wal.MetaKey = "promise_mark"
)

// walReport is all that wal check has found in one log.
type walReport struct {
	source   string // the file, or the server's address
	dir      string // as --dir named it; empty: --server
	running  bool
	backup   string // of a file of wal trim: what it says of itself
	truth    time.Time
	given    bool // the true time was given; else it is this machine's, and goes on
	maxAhead time.Duration
	judge    *walJudge
	marks    []walMark
	whole    string // what is wrong with the file as a whole; nothing else is known of it then
}

// walMark is a durable mark of the server's clock.
type walMark struct {
	name string
	ts   hybridtime.Timestamp
	bad  string // why it can't be read
}

func (a *app) walCheck() *cobra.Command {
	var dir, server, truth string
	maxAhead := spanFlag{10 * time.Second}
	cmd := &cobra.Command{
		Use:   "check --dir FOLDER | --server ADDR",
		Short: "look for entries with wrong timestamps, damaged and missing ones",
		Long: `Look through a server's write-ahead log for what doesn't belong there: timestamps too far ahead of the true time, timestamps
that don't rise with the index, entries that can't be read, entries that are missing, and a clock mark too far ahead. For each
tablet it says from which term.index on, whether that is known to be committed, and what to do.

A running server's log is read through the server, a stopped one's file read-only; the command never waits for a lock. The
true time is this machine's, unless --true_time gives another.

Exit codes: 0 nothing was found; 1 something was found (it stands on standard output), or the log could not be read (then
nothing does).`,
		Example: `  nyala wal check --dir ~/.nyala/local/tserver-1
  nyala wal check --server localhost:7050 --max_ahead 1m --format json`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&dir, "dir", "", "the server's folder (that of --fs_wal_dir, or one of a local cluster), or a file of wal trim")
	cmd.Flags().StringVar(&server, "server", "", "the server's RPC address")
	cmd.Flags().Var(&maxAhead, "max_ahead", "how far a timestamp may be ahead of the true time")
	cmd.Flags().StringVar(&truth, "true_time", "", "the time to hold timestamps against, as in 2013-01-01T10:00:00Z, where this machine's clock is wrong")
	format := tableFormat(cmd, "how to print what is found", "json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if (dir == "") == (server == "") {
			return usageError("give either --dir or --server")
		}
		if maxAhead.d < 0 {
			return usageError("--max_ahead %v: want 0 or more", maxAhead.d)
		}
		r := &walReport{dir: dir, truth: time.Now().UTC(), maxAhead: maxAhead.d}
		if truth != "" {
			ts, err := parseTimestamp(truth)
			if err != nil {
				return usageError("--true_time: %w", err)
			}
			r.truth, r.given = ts.Time(), true
		}
		r.judge = newWALJudge(r.limit(r.truth))
		if err := a.readLog(cmd.Context(), r, server); err != nil {
			return err
		}
		return a.printReport(r, format.value)
	}
	return cmd
}

// limit is the latest timestamp that may be there at a moment.
func (r *walReport) limit(at time.Time) hybridtime.Timestamp {
	return hybridtime.FromTime(at).Add(r.maxAhead)
}

// readLog fills the report from a file or through a server.
func (a *app) readLog(ctx context.Context, r *walReport, server string) error {
	if server == "" {
		path, addr, err := a.locateWAL(ctx, r.dir)
		if err != nil {
			return err
		}
		if addr == "" {
			r.source = path
			return r.readFile(ctx, path)
		}
		server = addr
	} else if _, err := getStatus(ctx, server, min(a.timeout.d, connectTimeout)); err != nil {
		return err
	}
	r.source, r.running = server, true
	return r.readServer(ctx, server, min(a.timeout.d, connectTimeout))
}

// readFile looks through the file of a server that doesn't run.
func (r *walReport) readFile(ctx context.Context, path string) error {
	f, err := wal.OpenReader(path)
	if errors.Is(err, wal.ErrDamaged) {
		r.whole = damageText(err)
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	r.backup = string(f.Meta(wal.MetaBackup))
	for _, name := range []wal.MetaKey{clockMarkKey, promiseMarkKey} {
		if b := f.Meta(name); b != nil {
			m, err := clock.DecodeMark(b)
			mark := walMark{name: markNames[name], ts: m.Timestamp}
			if err != nil {
				mark.bad = err.Error()
			}
			r.marks = append(r.marks, mark)
		}
	}
	for _, g := range f.Groups() {
		t := r.judge.tablet(walKey{string(g.TabletID), g.Number})
		if g.Damaged != nil {
			t.damage = damageText(g.Damaged)
		}
		h := f.Log(g.Number).HardState()
		t.committed, t.known = h.GetCommit(), g.Damaged == nil || h.GetTerm() != 0
	}
	return f.Dump(ctx, "", func(d wal.DumpEntry) error {
		r.judge.add(walKey{string(d.TabletID), d.Number}, d.Proto(false))
		return nil
	})
}

var markNames = map[wal.MetaKey]string{clockMarkKey: "clock mark", promiseMarkKey: "promise mark"}

// damageText is what is damaged, without the file's name, which stands elsewhere.
func damageText(err error) string {
	var d *wal.DamageError
	switch {
	case !errors.As(err, &d):
		return err.Error()
	case d.Err != nil:
		return d.What + ": " + d.Err.Error()
	}
	return d.What
}

// readServer looks through the log of a running server. The commit indexes are asked for before the entries, so that an entry
// at or below one is final; where the log begins afterwards, so that entries that were compacted away meanwhile aren't missed.
func (r *walReport) readServer(ctx context.Context, addr string, timeout time.Duration) error {
	if c, err := getClock(ctx, addr, timeout); err == nil {
		r.marks = []walMark{
			{name: markNames[clockMarkKey], ts: hybridtime.Timestamp(c.GetMark())},
			{name: markNames[promiseMarkKey], ts: hybridtime.Timestamp(c.GetPromise())},
		}
	} else if status.CodeOf(err) != status.NotSupported {
		return err
	}
	replicas, err := replicasOf(ctx, addr, timeout)
	if err != nil {
		return err
	}
	for _, s := range replicas {
		t := r.judge.tablet(walKey{tablet: s.GetTabletId()})
		if s.GetState() == nyalav1.TabletState_TABLET_STATE_RUNNING {
			t.committed, t.known = s.GetCommitIndex(), true
		}
	}
	err = streamWAL(ctx, addr, &nyalav1.DumpWALRequest{}, func(e *nyalav1.WALEntry) error {
		if !r.given {
			r.judge.limit = r.limit(time.Now()) // the log grows while it is read
		}
		r.judge.add(walKey{tablet: e.GetTabletId()}, e)
		return nil
	})
	if err != nil {
		return err
	}
	for _, t := range r.judge.tablets {
		if t.problems[walGap] == nil {
			continue
		}
		if replicas, err = replicasOf(ctx, addr, timeout); err != nil {
			return err
		}
		r.forgetCompacted(replicas)
		break
	}
	return nil
}

// forgetCompacted drops the gaps that a compaction has made while the log was read.
func (r *walReport) forgetCompacted(replicas []*nyalav1.ReplicaStatus) {
	for _, s := range replicas {
		if t := r.judge.at[walKey{tablet: s.GetTabletId()}]; t != nil {
			if p := t.problems[walGap]; p != nil && p.end < s.GetFirstIndex() {
				delete(t.problems, walGap)
			}
		}
	}
}

// replicasOf asks a tablet server for its replicas; a master has none that it tells of.
func replicasOf(ctx context.Context, addr string, timeout time.Duration) ([]*nyalav1.ReplicaStatus, error) {
	replicas, err := listTablets(ctx, addr, timeout)
	if status.CodeOf(err) == status.NotSupported {
		return nil, nil
	}
	return replicas, err
}

// printReport prints what was found; that there is something is the command's error.
func (a *app) printReport(r *walReport, format string) error {
	slices.SortFunc(r.judge.tablets, func(a, b *walTablet) int {
		return cmp.Or(strings.Compare(a.tablet, b.tablet), cmp.Compare(a.number, b.number))
	})
	found := r.rows()
	var entries int64
	for _, t := range r.judge.tablets {
		entries += t.entries
	}
	err := error(nil)
	if format == "json" {
		err = printJSON(a.Out, r.toJSON())
	} else if len(found) > 0 {
		err = printFound(a.Out, found)
	}
	if err != nil {
		return err
	}
	if r.backup != "" {
		a.note("a backup of %s", r.backup)
	}
	summary := fmt.Sprintf("%s, %s", plural(len(r.judge.tablets), "tablet"), countEntries(entries))
	if len(found) == 0 {
		a.note("%s: nothing found", summary)
		return nil
	}
	a.note("%s: %s found", summary, plural(len(found), "problem"))
	return &exitError{code: exitFailed}
}

// countEntries is plural for a noun that isn't regular.
func countEntries[N int | int64](n N) string {
	if n == 1 {
		return "1 entry"
	}
	return thousands(n) + " entries"
}
