package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/schema"
)

func (a *app) tableCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "table", Short: "create, fill, read and delete tables"}
	cmd.AddCommand(a.tableCreate(), a.tableList(), a.tableDescribe(), a.tableStatistics(), a.tableAlter(), a.tableDelete(), a.tableLoad(), a.tableScan(), a.tableCount())
	return cmd
}

// tableFormat returns a --format flag that takes table and the given other words.
func tableFormat(cmd *cobra.Command, usage string, words ...string) *choice {
	f := &choice{value: "table", words: append([]string{"table"}, words...)}
	cmd.Flags().Var(f, "format", usage)
	return f
}

func (a *app) tableCreate() *cobra.Command {
	var columns, key, ranges, file string
	var hashes []string
	var replicas int
	var noWait bool
	cmd := &cobra.Command{
		Use:   "create [TABLE] (--columns SPEC --primary_key NAMES | --file FILE)",
		Short: "create a table",
		Long: `Create a table and return when every tablet has a leader.

Columns are written as "name type", "null" behind those that may be NULL; a name that isn't a plain word stands in double
quotes. The types are bool, int8, int16, int32, int64, float, double, decimal(precision, scale), string, varchar(length),
binary, unixtime_micros (a moment) and date. "default VALUE" behind a type is what an insert stores where it leaves the column
out, "comment 'TEXT'" a remark that describe shows; text, times and dates stand in single quotes.

Each --hash spreads the rows over a number of buckets by a hash of some key columns. --range divides them by some key columns
into ranges, outside of which no row can be written: [low, high) has its low end in it and its high one not, (low, high] the
reverse; an end that is left out is open, the values of several columns stand in parentheses. Behind a range may stand a hash of
its own. Columns alone ("day") make one range without ends, "day: none" a table without ranges, which takes no row until it is
given some (nyala table alter add_range_partition). The number of tablets is the product of all buckets, for each range.

--file reads all of it from a file instead, YAML or JSON, of the form that "table describe --format yaml" prints; a TABLE given here
goes before the file's name, --replicas before its replicas.`,
		Example: `  nyala table create t --columns "id int64, name string null" --primary_key id --hash id:4
  nyala table create m --columns "host string, at unixtime_micros, load double null" --primary_key host,at \
      --hash host:8 --replicas 1
  nyala table create d --columns "day date, id int64, n int32" --primary_key day,id --hash id:4 \
      --range "day: ['2013-01-01', '2014-01-01'), ['2014-01-01', ) hash(id):8"
  nyala table create --file table.yaml
  nyala table create p --columns "id int64, price decimal(9,2) default 0.00 comment 'in EUR', day date null" --primary_key id`,
		Args: cobra.MaximumNArgs(1),
	}
	cmd.Flags().StringVar(&file, "file", "", "a YAML or JSON file that says what the table is like; - is the standard input")
	cmd.Flags().StringVar(&columns, "columns", "", `the columns, as in "id int64, name string null"`)
	cmd.Flags().StringVar(&key, "primary_key", "", "the key columns in key order, separated by commas")
	cmd.Flags().StringArrayVar(&hashes, "hash", nil, "key columns and a number of buckets, as in id:4 or a,b:8; may be repeated")
	cmd.Flags().StringVar(&ranges, "range", "", "range columns and ranges, as in \"day: ['2013-01-01', '2014-01-01'), ['2014-01-01', )\"")
	cmd.Flags().IntVar(&replicas, "replicas", 3, "replicas of each tablet: 1, 3, 5 or 7")
	cmd.Flags().BoolVar(&noWait, "no_wait", false, "return before the tablets have leaders")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var o client.CreateTableOptions
		var err error
		switch {
		case file != "" && (columns != "" || key != "" || hashes != nil || ranges != ""):
			return usageError("--file says all of --columns, --primary_key, --hash and --range: give either")
		case file != "":
			o, err = a.readTableFile(file)
			if len(args) > 0 {
				o.Name = args[0]
			}
			if cmd.Flags().Changed("replicas") || o.Replicas == 0 {
				o.Replicas = replicas
			}
		case len(args) == 0:
			return usageError("the table's name is missing: nyala table create TABLE --columns SPEC --primary_key NAMES, or --file FILE")
		default:
			o, err = createOptions(args[0], columns, key, hashes, replicas)
			if err == nil && ranges != "" {
				err = parseRangeFlag(&o, ranges)
			}
		}
		if err != nil {
			return err
		}
		o.NoWait = noWait
		return a.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error { return a.createTable(cmd, c, o) })(cmd, args)
	}
	return cmd
}

// createOptions reads what a table is to be like from the command line.
func createOptions(name, columns, key string, hashes []string, replicas int) (client.CreateTableOptions, error) {
	o := client.CreateTableOptions{Name: name, Replicas: replicas}
	switch {
	case columns == "":
		return o, usageError(`--columns is missing, as in --columns "id int64, name string null"`)
	case key == "":
		return o, usageError("--primary_key is missing, as in --primary_key id")
	case replicas < 1:
		return o, usageError("--replicas %d: choose 1, 3, 5 or 7", replicas)
	}
	var err error
	if o.Columns, err = schema.ParseColumnSpecs(columns); err != nil {
		return o, usageError("--columns: %w", err)
	}
	if o.PrimaryKey, err = parseNames(key); err != nil {
		return o, usageError("--primary_key %q: %w", key, err)
	}
	for _, h := range hashes {
		dimension, err := parseHash(h)
		if err != nil {
			return o, usageError("--hash %q: %w", h, err)
		}
		o.Hash = append(o.Hash, dimension)
	}
	return o, nil
}

func (a *app) createTable(cmd *cobra.Command, c *client.Client, o client.CreateTableOptions) error {
	ctx := cmd.Context()
	if cmd.Flags().Changed("timeout") {
		var cancel func()
		ctx, cancel = withTimeout(ctx, a.timeout.d)
		defer cancel()
	}
	_, err := a.makeTable(ctx, c, o)
	return err
}

// makeTable creates a table and says so.
func (a *app) makeTable(ctx context.Context, c *client.Client, o client.CreateTableOptions) (*client.Table, error) {
	began := time.Now()
	t, err := c.CreateTable(ctx, o)
	if client.CodeOf(err) == client.CodeTooFewTabletServers {
		servers, lerr := c.ListTabletServers(ctx)
		if lerr == nil {
			return nil, errors.New(tooFewServers(servers))
		}
	}
	if err != nil {
		return nil, err
	}
	a.note("created table %s: %s, %s each, in %s", quoteName(t.Name()), plural(t.Info().Tablets, "tablet"),
		plural(t.Replicas(), "replica"), took(time.Since(began)))
	if o.NoRanges {
		a.note("it takes no row before it has a range: nyala table alter add_range_partition %s \"[LOW, HIGH)\"", quoteName(t.Name()))
	}
	return t, nil
}

// tooFewServers says what to do when there are fewer servers alive than replicas asked for: the largest odd number there is.
func tooFewServers(servers []client.TabletServer) string {
	alive := 0
	for _, s := range servers {
		if s.Alive {
			alive++
		}
	}
	switch alive {
	case 0:
		return "no tablet server is alive; start one, or see nyala tserver list"
	case 1:
		return "only 1 tablet server is alive; add --replicas 1"
	}
	return fmt.Sprintf("only %d tablet servers are alive; add --replicas %d", alive, alive-1+alive%2)
}

func (a *app) tableDelete() *cobra.Command {
	return &cobra.Command{
		Use:   "delete TABLE",
		Short: "delete a table and all its rows, for good",
		Args:  cobra.ExactArgs(1),
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			t, err := openTable(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			if err := c.DeleteTable(cmd.Context(), t.Name()); err != nil {
				return err
			}
			a.note("deleted table %s", quoteName(t.Name()))
			return nil
		}),
	}
}

// tableJSON is one table in `table list --format json`.
type tableJSON struct {
	ID       string `json:"id"`
	Name     string `json:"name"`
	State    string `json:"state"`
	Tablets  int    `json:"tablets"`
	Replicas int    `json:"replicas"`
}

func (a *app) tableList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list [FILTER]",
		Short: "list the tables, or those whose names contain FILTER",
		Args:  cobra.MaximumNArgs(1),
	}
	format := tableFormat(cmd, "how to print them", "json")
	cmd.RunE = a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		tables, err := c.ListTables(cmd.Context(), strings.Join(args, ""))
		if err != nil {
			return err
		}
		if format.value == "json" {
			doc := struct {
				Tables []tableJSON `json:"tables"`
			}{[]tableJSON{}}
			for _, t := range tables {
				doc.Tables = append(doc.Tables, tableJSON{t.ID, t.Name, tableState(t.State), t.Tablets, t.Replicas})
			}
			return printJSON(a.Out, doc)
		}
		if len(tables) == 0 {
			a.note("no tables")
			return nil
		}
		g := newGrid("NAME", "STATE", "TABLETS", "REPLICAS", "ID").numbers(2, 3)
		for _, t := range tables {
			g.add(t.Name, tableState(t.State), t.Tablets, t.Replicas, t.ID)
		}
		return g.print(a.Out)
	})
	return cmd
}

func tableState(s client.TableState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "TABLE_STATE_"))
}

// took writes a duration for people: "0.31 s", "12.4 s".
func took(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
