package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/schema"
)

// maxTableFileBytes bounds a description of a table: one of 300 columns with names, defaults and comments is far smaller.
const maxTableFileBytes = 4 << 20

// readTableFile reads what a table is to be like, in the form of tableDescription. What the cluster chose when it made the table that
// was described (ids, the state, numbers of tablets) may stand there and is left aside.
func (a *app) readTableFile(name string) (client.CreateTableOptions, error) {
	in := a.In
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return client.CreateTableOptions{}, err
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxTableFileBytes+1))
	if err != nil {
		return client.CreateTableOptions{}, fmt.Errorf("%s: %w", name, err)
	}
	o, err := parseTableFile(text)
	if err != nil {
		return o, usageError("%s: %w", name, err)
	}
	return o, nil
}

func parseTableFile(text []byte) (client.CreateTableOptions, error) {
	var d tableDescription
	if len(text) > maxTableFileBytes {
		return client.CreateTableOptions{}, fmt.Errorf("it is longer than %d bytes: no table's description", maxTableFileBytes)
	}
	if err := decodeTableFile(text, &d); err != nil {
		return client.CreateTableOptions{}, err
	}
	return d.options()
}

// decodeTableFile reads JSON, which begins with a brace, or YAML.
func decodeTableFile(text []byte, d *tableDescription) error {
	if text = bytes.TrimSpace(text); len(text) == 0 {
		return errors.New("it is empty")
	}
	var again any
	var err, end error
	if text[0] == '{' {
		dec := json.NewDecoder(bytes.NewReader(text))
		dec.DisallowUnknownFields()
		if err = dec.Decode(d); err == nil {
			end = dec.Decode(&again)
		}
	} else {
		dec := yaml.NewDecoder(bytes.NewReader(text))
		dec.KnownFields(true)
		if err = dec.Decode(d); err == nil {
			end = dec.Decode(&again)
		}
	}
	if err == nil && !errors.Is(end, io.EOF) {
		err = errors.New("more stands behind the table: a file describes one")
	}
	return err
}

// options are those that make a table like the one described.
func (d *tableDescription) options() (client.CreateTableOptions, error) {
	o := client.CreateTableOptions{Name: d.Name, PrimaryKey: d.PrimaryKey, Hash: hashOptions(d.Hash), RangeColumns: d.Range, Replicas: d.Replicas}
	if len(d.Columns) == 0 {
		return o, errors.New("it has no columns")
	}
	for i := range d.Columns {
		c, err := d.Columns[i].column()
		if err != nil {
			return o, err
		}
		o.Columns = append(o.Columns, c)
	}
	names := d.Range
	if names == nil {
		names = d.PrimaryKey
	}
	var columns []*client.Column
	for _, name := range names {
		i := slices.IndexFunc(o.Columns, func(c client.Column) bool { return c.Name == name })
		if i < 0 {
			return o, fmt.Errorf("range: there is no column %q", name)
		}
		columns = append(columns, &o.Columns[i])
	}
	o.NoRanges = d.Ranges != nil && len(d.Ranges) == 0 && len(names) > 0 // an empty list isn't one that is left out
	for _, r := range d.Ranges {
		parsed, err := parseRanges(columns, r.Range)
		if err != nil {
			return o, err
		}
		for i := range parsed {
			if !sameHash(r.Hash, d.Hash) && r.Hash != nil {
				parsed[i].Hash = hashOptions(r.Hash)
			}
		}
		o.Ranges = append(o.Ranges, parsed...)
	}
	return o, nil
}

func hashOptions(dims []hashJSON) []client.HashPartition {
	var out []client.HashPartition
	for _, h := range dims {
		out = append(out, client.HashPartition{Columns: h.Columns, Buckets: int(h.Buckets), Seed: h.Seed})
	}
	return out
}

// column is the described column. Its type is one of a column spec.
func (c *columnJSON) column() (client.Column, error) {
	specs, err := schema.ParseColumnSpecs("c " + c.Type)
	if err != nil {
		return client.Column{}, fmt.Errorf("column %q: type %q: %w", c.Name, c.Type, err)
	}
	col := specs[0]
	if len(specs) > 1 || col.Nullable || col.WriteDefault != nil || col.Comment != "" {
		return col, fmt.Errorf("column %q: %q is more than a type: nullable, default and comment stand beside it", c.Name, c.Type)
	}
	col.Name, col.Nullable, col.Key, col.Comment = c.Name, c.Nullable, c.Key, c.Comment
	if c.Default != nil {
		v, err := col.ParseText(*c.Default)
		if err != nil {
			return col, fmt.Errorf("default: %w", err)
		}
		if col.WriteDefault, err = col.DefaultValueBytes(v); err != nil {
			return col, fmt.Errorf("default: %w", err)
		}
	}
	return col, nil
}

func printYAML(w io.Writer, doc any) error {
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	return errors.Join(e.Encode(doc), e.Close())
}
