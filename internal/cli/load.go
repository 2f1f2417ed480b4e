package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/spf13/cobra"

	"github.com/nyaladb/nyala/client"
)

// loadFlags are what `table load` is told.
type loadFlags struct {
	file        string
	format      choice
	op          choice
	nulls       []string
	ignoreExtra bool
	sessions    int
	maxRejected int
	via         string

	// create makes the table from what the input looks like.
	create   bool
	key      string
	hashes   []string
	replicas int
}

// loadOps are the words of --op, opTypes what they stand for.
var (
	loadOps = []string{"insert", "upsert", "update", "delete", "insert_ignore", "upsert_ignore", "update_ignore", "delete_ignore"}
	opTypes = map[string]client.OpType{
		"insert": client.Insert, "upsert": client.Upsert, "update": client.Update, "delete": client.Delete,
		"insert_ignore": client.InsertIgnore, "upsert_ignore": client.UpsertIgnore, "update_ignore": client.UpdateIgnore,
		"delete_ignore": client.DeleteIgnore,
	}
)

func (a *app) tableLoad() *cobra.Command {
	f := loadFlags{
		format: choice{words: []string{formatCSV, formatNDJSON, "json", formatParquet, formatArrow}},
		op:     choice{value: "insert", words: loadOps},
	}
	cmd := &cobra.Command{
		Use:   "load TABLE FILE",
		Short: "load rows from a CSV, NDJSON, Parquet or Arrow file",
		Long: `Load rows from a file, or from standard input ("-"), whose rows are written as they arrive. Content compressed with gzip
or zstd is decompressed.

CSV begins with a line of column names. A field that is nothing is NULL, "" is the empty string; --null names another word
for NULL (may be repeated; --null "" adds nothing to the words again). JSON is one object to a line, or one array of them.
Times are RFC 3339, as in 2013-01-01T10:00:00Z, or integers of microseconds; dates are as in 2013-01-01; binary values are
hexadecimal after 0x. A decimal with more digits than its column holds is rejected; a varchar that is too long is cut.

Parquet files and streams of Arrow's IPC format have types of their own; a value that the table's column can't hold exactly is
rejected.

Rows that can't be taken are named with their line and left out; the others are written, and the exit code is 4.
With --op upsert a row whose key is there already is replaced, so that loading a file again is safe. With insert_ignore such a
row stays as it is. update changes rows that are there, delete deletes them (columns beside the key are left out); with
update_ignore and delete_ignore rows that aren't there are passed over.

--create creates the table first. Its columns are those of the file: with the types that a Parquet file has, or those that suit the
values in the first 256 KiB of text (numbers with leading zeros are text). They are shown before anything is created; --primary_key
names the key columns. A row further on that doesn't suit is rejected as any other.`,
		Example: `  nyala table load flights flights.csv.gz --null NA
  tail -f events.ndjson | nyala table load events - --op upsert
  nyala table load trips trips.parquet --create --primary_key vendor,picked_up --hash vendor,picked_up:8`,
		Args: cobra.ExactArgs(2),
	}
	cmd.Flags().Var(&f.format, "input_format", "the input's format (default: by the file's name, else by its first letter)")
	cmd.Flags().Var(&f.op, "op", "how to write rows: insert rejects a key that is there already, upsert replaces its row, insert_ignore keeps it")
	cmd.Flags().StringArrayVar(&f.nulls, "null", []string{""}, `CSV: a bare word that means NULL; may be repeated`)
	cmd.Flags().BoolVar(&f.ignoreExtra, "ignore_extra_columns", false, "leave out columns that the table doesn't have")
	cmd.Flags().IntVar(&f.sessions, "sessions", 4, "how many batches are written at once")
	cmd.Flags().IntVar(&f.maxRejected, "max_rejected", 0, "stop after this many rejected rows; 0: go on")
	cmd.Flags().StringVar(&f.via, "via", "", "the tablet server, by UUID or RPC address, that is to take the rows of all tablets that it has a replica of; default: each tablet's leader")
	cmd.Flags().BoolVar(&f.create, "create", false, "create the table, with columns like the input's")
	cmd.Flags().StringVar(&f.key, "primary_key", "", "--create: the key columns in key order, separated by commas")
	cmd.Flags().StringArrayVar(&f.hashes, "hash", nil, "--create: key columns and a number of buckets, as in id:4; may be repeated")
	cmd.Flags().IntVar(&f.replicas, "replicas", 3, "--create: replicas of each tablet: 1, 3, 5 or 7")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		for _, name := range []string{"primary_key", "hash", "replicas"} {
			if cmd.Flags().Changed(name) && !f.create {
				return usageError("--%s goes with --create", name)
			}
		}
		if f.sessions < 1 || f.sessions > 64 {
			return usageError("--sessions %d: choose 1 to 64", f.sessions)
		}
		f.file = args[1]
		return a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return a.loadFile(cmd.Context(), c, args[0], f)
		})(cmd, args)
	}
	return cmd
}

func (a *app) loadFile(ctx context.Context, c *client.Client, table string, f loadFlags) error {
	var t *client.Table
	var err error
	if !f.create {
		if t, err = openTable(ctx, c, table); err != nil {
			return err
		}
	}
	via, err := tabletServer(ctx, c, f.via)
	if err != nil {
		return err
	}
	in, err := openInput(f.file, a.In)
	if err != nil {
		return err
	}
	defer in.close()
	if f.create {
		if t, err = a.createLike(ctx, c, table, in, f); err != nil {
			return err
		}
	}
	l := &load{client: c, table: t, op: opTypes[f.op.value], sessions: f.sessions, maxRejected: f.maxRejected, via: via}
	progress := newProgress(a.Err, func() string { return l.progress(in) })
	l.rejected = func(place string, err error) {
		progress.println(fmt.Sprintf("%s, %s: %s", in.name, place, printable(err.Error())))
	}
	// The first bytes of standard input may be long in coming: Ctrl-C must work meanwhile, so the reader opens the source.
	result := l.run(ctx, func() (rowSource, error) { return in.rows(t.Schema(), f) })
	progress.stop()
	return a.reportLoad(result, in, t, f)
}

// tabletServer returns the id of the tablet server that a person named by it or by an RPC address; "" for none.
func tabletServer(ctx context.Context, c *client.Client, name string) (string, error) {
	if name == "" {
		return "", nil
	}
	servers, err := c.ListTabletServers(ctx)
	if err != nil {
		return "", err
	}
	for _, s := range servers {
		if s.ID == name || slices.Contains(s.RPCAddresses, name) {
			return s.ID, nil
		}
	}
	return "", fmt.Errorf("the master knows no tablet server %q; nyala tserver list shows those there are", name)
}

// rows opens the input's rows in the format that it has.
func (in *input) rows(s *client.Schema, f loadFlags) (rowSource, error) {
	format := f.format.value
	if format == "" {
		format = in.format
	}
	if format == "" {
		format = in.sniffFormat()
	}
	plain, _ := opTypes[f.op.value].Plain()
	keyAlone := plain == client.Update || plain == client.Delete
	o := sourceOptions{nulls: f.nulls, ignoreExtra: f.ignoreExtra, keyAlone: keyAlone}
	var src rowSource
	var err error
	switch format {
	case formatCSV:
		src, err = newCSVSource(in.content, s, o)
	case formatParquet, formatArrow:
		var records array.RecordReader
		var done func()
		if records, done, err = in.openRecords(format); err == nil {
			src, err = newRecordSource(records, done, s, o)
		}
	default:
		var objects *jsonSource
		if objects, err = newJSONSource(in.content, s, f.ignoreExtra); err == nil {
			objects.keyAlone = keyAlone
			src = objects
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", in.name, err)
	}
	return &namedSource{rowSource: src, name: in.name}, nil
}

// namedSource puts the input's name before the errors that end it.
type namedSource struct {
	rowSource
	name string
}

func (s *namedSource) next(row *inputRow) error {
	err := s.rowSource.next(row)
	var bad *badRow
	if err == nil || errors.Is(err, io.EOF) || errors.As(err, &bad) {
		return err
	}
	return fmt.Errorf("%s: %w", s.name, err)
}

// progress is the line that is shown while a load runs.
func (l *load) progress(in *input) string {
	n := l.written.Load()
	s := fmt.Sprintf("%s written", plural(n, "row"))
	if in.size > 0 {
		s += fmt.Sprintf(", %d%% of the file read", 100*in.read.Load()/in.size)
	}
	return s + ", " + perSecond(n, time.Since(l.began))
}

// reportLoad says what became of a load.
func (a *app) reportLoad(r loadResult, in *input, t *client.Table, f loadFlags) error {
	if hidden := r.rejected - min(r.rejected, maxRejectedShown); hidden > 0 {
		a.note("%s: %s rejected that aren't shown", in.name, plural(hidden, "more row"))
	}
	if r.err != nil && !r.began && !errors.Is(r.err, context.Canceled) {
		return r.err
	}
	summary := fmt.Sprintf("loaded %s into %s in %s (%s); %s rejected", plural(r.written, "row"), quoteName(t.Name()), took(r.took),
		perSecond(r.written, r.took), thousands(r.rejected))
	if r.rejected > 0 {
		summary += " (" + r.reasons + ")"
	}
	a.note("%s", summary)
	if r.written > 0 {
		a.note("to read the table as it is now, later: --read_mode READ_AT_SNAPSHOT --snapshot_timestamp %v", r.last+1)
	}
	if r.err == nil {
		if r.rejected > 0 {
			return &exitError{code: exitRejected}
		}
		return nil
	}
	if r.unknown > 0 {
		a.note("%s may have been written all the same: no server's answer came in time", plural(r.unknown, "row"))
	}
	again := "loading the whole file again with --op " + f.op.value + " is safe"
	switch f.op.value {
	case "upsert", "upsert_ignore":
		again = "loading the whole file again is safe: --op " + f.op.value + " writes the same rows again"
	case "insert":
		again = "loading the whole file again with --op upsert is safe; with --op insert the rows written are rejected as already present"
	case "delete":
		again = "loading the whole file again with --op delete_ignore is safe; with --op delete the rows deleted are rejected as not found"
	}
	if r.written+r.unknown > 0 {
		a.note("%s", again)
	}
	if errors.Is(r.err, context.Canceled) {
		return &exitError{code: exitInterrupted, err: errors.New("interrupted: the rows counted above are written, the rest is not")}
	}
	return fmt.Errorf("the load stopped: %w", r.err)
}

func perSecond[N int | int64 | uint64](n N, d time.Duration) string {
	return thousands(int64(float64(n)/max(d.Seconds(), 1e-3))) + " rows/s"
}
