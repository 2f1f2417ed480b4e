package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/schema"
)

// readFlags are what scan and count have in common.
type readFlags struct {
	where    string
	limit    uint64
	mode     choice
	snapshot string
	replica  string
	tablet   string
}

// The names of read modes, Kudu's.
const (
	readLatest     = "READ_LATEST"
	readAtSnapshot = "READ_AT_SNAPSHOT"
)

func (f *readFlags) add(cmd *cobra.Command) {
	f.mode = choice{words: []string{readLatest, readAtSnapshot}}
	cmd.Flags().StringVar(&f.where, "where", "", `conditions joined by "and", as in "distance > 2000 and origin = 'JFK'"`)
	cmd.Flags().Uint64Var(&f.limit, "limit", 0, "the most rows to return; 0: all")
	cmd.Flags().Var(&f.mode, "read_mode", "the present as the leaders know it, or a moment as any replica knows it")
	cmd.Flags().StringVar(&f.snapshot, "snapshot_timestamp", "",
		"the moment to read at: RFC 3339, with +N for a logical part, or microseconds; writes below it are seen")
	cmd.Flags().StringVar(&f.replica, "replica", "leader", "which replicas to read: leader, closest, or a tablet server's uuid (at a snapshot)")
	cmd.Flags().StringVar(&f.tablet, "tablet", "", "read this tablet alone")
}

// options turns the flags into a scan of the table.
func (f *readFlags) options(t *client.Table) (client.ScanOptions, error) {
	o := client.ScanOptions{Limit: f.limit, TabletID: f.tablet}
	var err error
	if o.Predicates, err = schema.ParseWhere(t.Schema(), f.where); err != nil {
		return o, usageError("--where: %w", err)
	}
	if f.snapshot != "" {
		ts, err := parseTimestamp(f.snapshot)
		if err != nil {
			return o, usageError("--snapshot_timestamp: %w", err)
		}
		if f.mode.value == readLatest {
			return o, usageError("--snapshot_timestamp goes with --read_mode %s", readAtSnapshot)
		}
		o.SnapshotTimestamp, f.mode.value = ts, readAtSnapshot
	}
	switch f.replica {
	case "leader", "":
	case "closest":
		o.Replica = client.ClosestReplica
	default:
		o.ServerID = f.replica
	}
	if f.mode.value == readAtSnapshot {
		o.ReadMode = client.ReadAtSnapshot
	} else if o.ServerID != "" || o.Replica != client.LeaderReplica {
		return o, usageError("--replica %s goes with --read_mode %s: only leaders know the present", f.replica, readAtSnapshot)
	}
	return o, nil
}

func (a *app) tableScan() *cobra.Command {
	var f readFlags
	var columns string
	cmd := &cobra.Command{
		Use:   "scan TABLE",
		Short: "print rows of a table",
		Long: `Print rows of a table, tablet after tablet, the rows of each in the order of their keys.

CSV has a header line; NULL is nothing, the empty string "". JSON is one array of objects, one object to a line; ndjson the
objects alone. Times are RFC 3339 in UTC (integers of microseconds outside the years 0 to 9999), decimals strings in
JSON, binary values hexadecimal after 0x. arrow is a stream of Arrow's IPC format, parquet a Parquet file: with the columns' own
types, for other programs. All but the table can be loaded again.`,
		Example: `  nyala table scan flights --columns carrier,flight,dest --where "distance > 2000 and origin = 'JFK'" --limit 10
  nyala table scan flights --format csv > flights.csv
  nyala table scan flights --format parquet > flights.parquet`,
		Args: cobra.ExactArgs(1),
	}
	f.add(cmd)
	cmd.Flags().StringVar(&columns, "columns", "", "the columns to print, separated by commas (default: all)")
	format := tableFormat(cmd, "how to print rows", "csv", "json", "ndjson", formatArrow, formatParquet)
	cmd.RunE = a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		t, err := openTable(cmd.Context(), c, args[0])
		if err != nil {
			return err
		}
		o, err := f.options(t)
		if err != nil {
			return err
		}
		if columns != "" {
			if o.Columns, err = parseNames(columns); err != nil {
				return usageError("--columns %q: %w", columns, err)
			}
		}
		return a.scan(cmd.Context(), t, o, format.value)
	})
	return cmd
}

// scan prints the rows that a scan returns.
func (a *app) scan(ctx context.Context, t *client.Table, o client.ScanOptions, format string) error {
	columns, err := scanColumns(t, o.Columns)
	if err != nil {
		return err
	}
	began := time.Now()
	sc, err := t.Scan(ctx, o)
	if err != nil {
		return err
	}
	defer sc.Close()
	var rows int64
	if format == formatArrow || format == formatParquet {
		rows, err = a.printRecords(ctx, sc, format)
	} else {
		rows, err = printRows(ctx, sc, newRowWriter(a.Out, format, columns), len(columns))
	}
	if err != nil {
		return err
	}
	note := fmt.Sprintf("%s in %s", plural(rows, "row"), took(time.Since(began)))
	if ts := sc.SnapshotTimestamp(); o.ReadMode == client.ReadAtSnapshot && ts != 0 {
		note += fmt.Sprintf(", snapshot %v", ts)
	}
	a.note("%s", note)
	return nil
}

// printRows prints what a scanner returns, row by row.
func printRows(ctx context.Context, sc *client.Scanner, out rowWriter, columns int) (rows int64, err error) {
	values := make([]client.Value, columns)
	for {
		b, err := sc.Next(ctx)
		if errors.Is(err, io.EOF) {
			return rows, out.end()
		}
		if err == nil {
			for r := 0; r < b.Rows && err == nil; r++ {
				for i := range values {
					values[i] = b.Value(i, r)
				}
				err = out.row(values)
			}
			rows += int64(b.Rows)
			b.Release()
		}
		if err != nil {
			// What was read so far is printed, without the end that would make it look whole.
			return rows, errors.Join(err, out.flush())
		}
	}
}

// printRecords prints what a scanner returns, batch by batch.
func (a *app) printRecords(ctx context.Context, sc *client.Scanner, format string) (rows int64, err error) {
	out, err := newRecordWriter(a.Out, format, sc.ArrowSchema())
	if err != nil {
		return 0, err
	}
	for {
		b, err := sc.Next(ctx)
		if errors.Is(err, io.EOF) {
			return rows, out.end()
		}
		if err != nil {
			return rows, err
		}
		err = out.write(b.Record)
		rows += int64(b.Rows)
		b.Release()
		if err != nil {
			return rows, err
		}
	}
}

// scanColumns are the table's columns with the given names, all for none.
func scanColumns(t *client.Table, names []string) ([]*client.Column, error) {
	s := t.Schema()
	var columns []*client.Column
	for _, name := range names {
		i := s.IndexOf(name)
		if i < 0 {
			return nil, usageError("%s", unknownColumn(name, s))
		}
		columns = append(columns, s.Column(i))
	}
	if len(names) == 0 {
		for i := range s.NumColumns() {
			columns = append(columns, s.Column(i))
		}
	}
	return columns, nil
}

func (a *app) tableCount() *cobra.Command {
	var f readFlags
	cmd := &cobra.Command{
		Use:   "count TABLE",
		Short: "print the number of rows of a table",
		Args:  cobra.ExactArgs(1),
	}
	f.add(cmd)
	cmd.RunE = a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		t, err := openTable(cmd.Context(), c, args[0])
		if err != nil {
			return err
		}
		o, err := f.options(t)
		if err != nil {
			return err
		}
		n, err := t.Count(cmd.Context(), o)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(a.Out, n)
		return err
	})
	return cmd
}
