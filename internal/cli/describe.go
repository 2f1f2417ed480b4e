package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/schema"
)

// tableDescription is `table describe --format json` or yaml, and what `table create --file` reads.
type tableDescription struct {
	ID         string       `json:"id" yaml:"id"`
	Name       string       `json:"name" yaml:"name"`
	State      string       `json:"state" yaml:"state"`
	Version    uint32       `json:"schema_version" yaml:"schema_version"`
	Columns    []columnJSON `json:"columns" yaml:"columns"`
	PrimaryKey []string     `json:"primary_key" yaml:"primary_key"`
	Hash       []hashJSON   `json:"hash" yaml:"hash"`
	Range      []string     `json:"range" yaml:"range"`
	Ranges     []rangeJSON  `json:"ranges" yaml:"ranges"`
	Tablets    int          `json:"tablets" yaml:"tablets"`
	Replicas   int          `json:"replicas" yaml:"replicas"`
}

type columnJSON struct {
	ID       uint32 `json:"id" yaml:"id"`
	Name     string `json:"name" yaml:"name"`
	Type     string `json:"type" yaml:"type"`
	Key      bool   `json:"key" yaml:"key"`
	Nullable bool   `json:"nullable" yaml:"nullable"`
	// Default is the text form of what an insert stores for the column where it leaves it unset.
	Default *string `json:"default,omitempty" yaml:"default,omitempty"`
	Comment string  `json:"comment,omitempty" yaml:"comment,omitempty"`
}

// rangeJSON is one range, as --range takes it, with the hash dimensions that hold in it.
type rangeJSON struct {
	Range   string     `json:"range" yaml:"range"`
	Hash    []hashJSON `json:"hash" yaml:"hash"`
	Tablets int        `json:"tablets" yaml:"tablets"`
}

type hashJSON struct {
	Columns []string `json:"columns" yaml:"columns"`
	Buckets uint32   `json:"buckets" yaml:"buckets"`
	Seed    uint32   `json:"seed" yaml:"seed"`
}

func (a *app) tableDescribe() *cobra.Command {
	cmd := &cobra.Command{Use: "describe TABLE", Short: "show a table's columns, key and partitions", Args: cobra.ExactArgs(1)}
	format := tableFormat(cmd, "how to print it", "json", "yaml")
	cmd.RunE = a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		t, err := openTable(cmd.Context(), c, args[0])
		if err != nil {
			return err
		}
		d := describeTable(t)
		ranges, err := t.Ranges(cmd.Context())
		if err != nil {
			return err
		}
		d.addRanges(t, ranges)
		switch format.value {
		case "json":
			return printJSON(a.Out, d)
		case "yaml":
			return printYAML(a.Out, d)
		}
		return d.print(a.Out)
	})
	return cmd
}

func describeTable(t *client.Table) tableDescription {
	s := t.Schema()
	d := tableDescription{
		ID: t.ID(), Name: t.Name(), State: tableState(t.Info().State), Version: s.Version(),
		PrimaryKey: []string{}, Hash: []hashJSON{}, Range: []string{}, Tablets: t.Info().Tablets, Replicas: t.Replicas(),
	}
	for _, c := range s.Columns() {
		d.Columns = append(d.Columns, columnJSON{uint32(c.ID), c.Name, c.TypeName(), c.Key, c.Nullable, defaultText(&c), c.Comment})
		if c.Key {
			d.PrimaryKey = append(d.PrimaryKey, c.Name)
		}
	}
	names := func(ids []client.ColumnID) []string {
		out := []string{}
		for _, id := range ids {
			out = append(out, s.Column(s.IndexOfID(id)).Name)
		}
		return out
	}
	ps := t.PartitionSchema()
	d.Hash = hashOf(t, ps.Hash)
	d.Range = names(ps.Range)
	return d
}

func hashOf(t *client.Table, dims []schema.HashDimension) []hashJSON {
	out := []hashJSON{}
	for _, h := range dims {
		var names []string
		for _, id := range h.Columns {
			names = append(names, t.Schema().Column(t.Schema().IndexOfID(id)).Name)
		}
		out = append(out, hashJSON{names, h.Buckets, h.Seed})
	}
	return out
}

func (d *tableDescription) addRanges(t *client.Table, ranges []client.TableRange) {
	d.Ranges = []rangeJSON{}
	for _, r := range ranges {
		d.Ranges = append(d.Ranges, rangeJSON{r.Text, hashOf(t, r.Hash), r.Tablets})
	}
}

// rangeText is a range with its hash dimensions, where they aren't the table's.
func (d *tableDescription) rangeText(r rangeJSON) string {
	text := r.Range
	if sameHash(r.Hash, d.Hash) {
		return text
	}
	for _, h := range r.Hash {
		text += fmt.Sprintf(" hash(%s):%d", quoteNames(h.Columns), h.Buckets)
		if h.Seed != 0 {
			text += fmt.Sprintf(":%d", h.Seed)
		}
	}
	return text
}

func sameHash(a, b []hashJSON) bool {
	return slices.EqualFunc(a, b, func(a, b hashJSON) bool {
		return a.Buckets == b.Buckets && a.Seed == b.Seed && slices.Equal(a.Columns, b.Columns)
	})
}

// defaultText is the text form of a column's default, nil if it has none.
func defaultText(c *client.Column) *string {
	if c.WriteDefault == nil {
		return nil
	}
	v, err := c.ValueFromBytes(c.WriteDefault)
	if err != nil { // a schema holds none of the wrong length
		return nil
	}
	text := c.FormatText(v)
	return &text
}

// defaultCell shows a default in a table, the empty string as such.
func defaultCell(text *string) string {
	switch {
	case text == nil:
		return ""
	case *text == "":
		return `""`
	}
	return *text
}

func (d tableDescription) print(w io.Writer) error {
	// Defaults and comments take a column only where there are any.
	header := []string{"COLUMN", "TYPE", "NULL", "KEY", "ID"}
	defaults := slices.ContainsFunc(d.Columns, func(c columnJSON) bool { return c.Default != nil })
	comments := slices.ContainsFunc(d.Columns, func(c columnJSON) bool { return c.Comment != "" })
	if defaults {
		header = append(header, "DEFAULT")
	}
	if comments {
		header = append(header, "COMMENT")
	}
	g := newGrid(header...).numbers(4)
	for _, c := range d.Columns {
		null, key := "", ""
		if c.Nullable {
			null = "null"
		}
		if c.Key {
			key = "key"
		}
		cells := []any{c.Name, c.Type, null, key, c.ID}
		if defaults {
			cells = append(cells, defaultCell(c.Default))
		}
		if comments {
			cells = append(cells, c.Comment)
		}
		g.add(cells...)
	}
	if err := g.print(w); err != nil {
		return err
	}
	var parts []string
	for _, h := range d.Hash {
		part := fmt.Sprintf("hash(%s) in %d buckets", quoteNames(h.Columns), h.Buckets)
		if h.Seed != 0 {
			part += fmt.Sprintf(", seed %d", h.Seed)
		}
		parts = append(parts, part)
	}
	if len(d.Range) > 0 {
		part := fmt.Sprintf("range(%s)", quoteNames(d.Range))
		switch {
		case len(d.Ranges) == 0:
			part += ": none"
		case len(d.Ranges) > 1 || d.Ranges[0].Range != "[, )":
			for i, r := range d.Ranges {
				part += [...]string{": ", ", "}[min(i, 1)] + d.rangeText(r)
			}
		}
		parts = append(parts, part)
	}
	if len(parts) == 0 {
		parts = append(parts, "none")
	}
	_, err := fmt.Fprintf(w, "\nprimary key: %s\npartitions:  %s\ntablets:     %d, %s each\ntable id:    %s (%s, schema version %d)\n",
		printable(quoteNames(d.PrimaryKey)), printable(strings.Join(parts, "; ")), d.Tablets, plural(d.Replicas, "replica"), d.ID, d.State,
		d.Version)
	return err
}
