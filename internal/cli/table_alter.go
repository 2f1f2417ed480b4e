package cli

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/schema"
)

// tableAlter has the changes of a table, under the names that they have in kudu table.
func (a *app) tableAlter() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "alter",
		Short: "change a table's name, columns and ranges",
		Long: `Change a table while it is read and written, and return when every tablet has the change.

Programs that have the table open go on with the columns that they know. What reads or writes a column that was deleted is
refused, also where another column has its name by then.`,
		Example: `  nyala table alter add_column t "severity int8 default 3 comment '9 is the worst'"
  nyala table alter rename_column t what message
  nyala table alter add_range_partition d "['2015-01-01', '2016-01-01')"
  nyala table alter drop_range_partition d "[, '2014-01-01')"
  nyala table alter rename_table t events`,
	}
	cmd.AddCommand(
		a.alterCommand("rename_table TABLE NEW_NAME", "give a table another name", 2,
			func(_ *client.Table, alt *client.TableAlteration, args []string) error {
				alt.RenameTable(args[1])
				return nil
			}),
		a.alterCommand(`add_column TABLE "NAME TYPE [null] [default VALUE] [comment 'TEXT']"`, "add a column, written as in table create", 2, addColumn),
		a.alterCommand("delete_column TABLE COLUMN", "delete a column and what it holds, for good", 2,
			func(_ *client.Table, alt *client.TableAlteration, args []string) error {
				alt.DropColumn(args[1])
				return nil
			}),
		a.alterCommand("rename_column TABLE COLUMN NEW_NAME", "give a column another name", 3,
			func(_ *client.Table, alt *client.TableAlteration, args []string) error {
				alt.RenameColumn(args[1], args[2])
				return nil
			}),
		a.alterCommand("column_set_default TABLE COLUMN VALUE", "change what an insert stores where it leaves a column out", 3, setDefault),
		a.alterCommand("column_remove_default TABLE COLUMN", "take a column's default away", 2,
			func(_ *client.Table, alt *client.TableAlteration, args []string) error {
				alt.RemoveDefault(args[1])
				return nil
			}),
		a.alterCommand("column_set_comment TABLE COLUMN TEXT", "change a column's comment", 3,
			func(_ *client.Table, alt *client.TableAlteration, args []string) error {
				alt.SetComment(args[1], args[2])
				return nil
			}),
		a.alterCommand(`add_range_partition TABLE "[LOW, HIGH)"`, "add ranges, written as in table create --range without the columns", 2,
			func(t *client.Table, alt *client.TableAlteration, args []string) error {
				ranges, err := parseRanges(t.RangeColumns(), args[1])
				for _, r := range ranges {
					alt.AddRange(r)
				}
				return err
			}),
		a.alterCommand(`drop_range_partition TABLE "[LOW, HIGH)"`, "drop ranges and all rows in them, for good", 2,
			func(t *client.Table, alt *client.TableAlteration, args []string) error {
				ranges, err := parseRanges(t.RangeColumns(), args[1])
				for _, r := range ranges {
					alt.DropRange(r)
				}
				return err
			}),
	)
	return cmd
}

// alterCommand is one change, whose steps come from the arguments.
func (a *app) alterCommand(use, short string, args int, steps func(*client.Table, *client.TableAlteration, []string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(args),
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			t, err := openTable(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			alt := t.Alter()
			if err := steps(t, alt, args); err != nil {
				return err
			}
			ctx := cmd.Context()
			if cmd.Flags().Changed("timeout") {
				var cancel func()
				ctx, cancel = withTimeout(ctx, a.timeout.d)
				defer cancel()
			}
			began := time.Now()
			now, err := alt.Apply(ctx)
			if err != nil {
				return err
			}
			a.note("altered table %s: schema version %d, %s, in %s", quoteName(now.Name()), now.Schema().Version(),
				plural(now.Info().Tablets, "tablet"), took(time.Since(began)))
			return nil
		}),
	}
}

func addColumn(_ *client.Table, alt *client.TableAlteration, args []string) error {
	columns, err := schema.ParseColumnSpecs(args[1])
	if err != nil {
		return usageError("%q: %w", args[1], err)
	}
	for _, c := range columns {
		alt.AddColumn(c, nil)
	}
	return nil
}

func setDefault(t *client.Table, alt *client.TableAlteration, args []string) error {
	s := t.Schema()
	i := s.IndexOf(args[1])
	if i < 0 {
		return usageError("table %s has no column %q", quoteName(t.Name()), args[1])
	}
	v, err := s.Column(i).ParseText(args[2])
	if err != nil {
		return usageError("%w", err)
	}
	alt.SetDefault(args[1], v)
	return nil
}

// parseRanges reads ranges of the given columns.
func parseRanges(columns []*client.Column, text string) ([]client.RangePartition, error) {
	parsed, err := schema.ParseRanges(columns, text)
	if err != nil {
		return nil, usageError("%w", err)
	}
	var out []client.RangePartition
	for _, p := range parsed {
		r := client.RangePartition{LowerExclusive: p.LowerExclusive, UpperInclusive: p.UpperInclusive}
		if r.Lower, err = boundValues(columns, p.Lower); err != nil {
			return nil, err
		}
		if r.Upper, err = boundValues(columns, p.Upper); err != nil {
			return nil, err
		}
		for _, h := range p.Hash {
			r.Hash = append(r.Hash, client.HashPartition{Columns: h.Columns, Buckets: int(h.Buckets), Seed: h.Seed})
		}
		out = append(out, r)
	}
	return out, nil
}

func boundValues(columns []*client.Column, cells [][]byte) ([]any, error) {
	var values []any
	for i, cell := range cells {
		v, err := columns[i].ValueFromBytes(cell)
		if err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	return values, nil
}

// parseRangeFlag reads --range: the range columns, and behind a colon the ranges.
func parseRangeFlag(o *client.CreateTableOptions, text string) error {
	names, rest, err := schema.ParseRangeColumns(text)
	if err != nil {
		return usageError("--range: %w", err)
	}
	var columns []*client.Column
	for _, name := range names {
		found := false
		for i := range o.Columns {
			if o.Columns[i].Name == name {
				columns, found = append(columns, &o.Columns[i]), true
			}
		}
		if !found {
			return usageError("--range: there is no column %q", name)
		}
	}
	o.RangeColumns = names
	switch strings.TrimSpace(rest) {
	case "":
		return nil
	case "none":
		o.NoRanges = true
		return nil
	}
	// With blanks in the columns' place, so that the positions in messages are those of the whole.
	if o.Ranges, err = parseRanges(columns, strings.Repeat(" ", len(text)-len(rest))+rest); err != nil {
		return usageError("--range: %w", err)
	}
	return nil
}
