package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/localcluster"
	"github.com/nyaladb/nyala/internal/schema"
)

// state is a cluster with a client, whose checks run twice: on what was just written, and after all servers were killed with -9
// and started again.
type state struct {
	*testing.T
	c        *localcluster.Cluster
	cl       *client.Client
	replicas int
}

// inStates fills a new cluster of one server once, and checks it in each state.
func inStates(t *testing.T, fill, check func(s state)) {
	t.Helper()
	inStatesOn(t, 1, fill, check)
}

// inStatesOn is inStates with several servers, and as many replicas of each tablet.
func inStatesOn(t *testing.T, n int, fill, check func(s state)) {
	t.Helper()
	c := newCluster(t, n)
	cl := connect(t, c)
	fill(state{t, c, cl, n})
	t.Run("memory", func(t *testing.T) { check(state{t, c, cl, n}) })
	servers, err := c.Servers()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range servers {
		if err := c.Kill(s.Name); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range servers {
		if err := c.Start(t.Context(), s.Name); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("killed", func(t *testing.T) { check(state{t, c, connect(t, c), n}) })
}

// create makes a table from a column spec, whose first columns are the key.
func (s state) create(name, columns string, key ...string) *client.Table {
	s.Helper()
	specs, err := schema.ParseColumnSpecs(columns)
	if err != nil {
		s.Fatal(err)
	}
	tbl, err := s.cl.CreateTable(s.Context(), client.CreateTableOptions{Name: name, Columns: specs, PrimaryKey: key, Replicas: s.replicas})
	if err != nil {
		s.Fatalf("create table %s: %v", name, err)
	}
	return tbl
}

func (s state) open(name string) *client.Table {
	s.Helper()
	tbl, err := s.cl.OpenTable(s.Context(), name)
	if err != nil {
		s.Fatal(err)
	}
	return tbl
}

// set gives the operation's first columns their values, in order.
func set(op *client.Operation, values ...any) error {
	var err error
	for i, v := range values {
		err = errors.Join(err, op.Set(op.Table().Columns()[i].Name, v))
	}
	return err
}

// insert writes a row, one value for each column in order.
func (s state) insert(tbl *client.Table, values ...any) {
	s.Helper()
	op := tbl.NewInsert()
	if err := set(op, values...); err != nil {
		s.Fatal(err)
	}
	if err := s.cl.NewSession(client.SessionOptions{}).Apply(s.Context(), op); err != nil {
		s.Fatalf("insert %v: %v", values, err)
	}
}

// rows returns the rows that match, each as its columns' text forms.
func (s state) rows(tbl *client.Table, preds ...client.Predicate) []string {
	s.Helper()
	rows := s.scan(tbl, client.ScanOptions{Predicates: preds})
	n, err := tbl.Count(s.Context(), client.ScanOptions{Predicates: preds})
	if err != nil || n != uint64(len(rows)) {
		s.Errorf("count: %d, %v; the scan had %d", n, err, len(rows))
	}
	return rows
}

func (s state) scan(tbl *client.Table, o client.ScanOptions) []string {
	s.Helper()
	return s.scanEach(tbl, o, func(func(string) client.Value) {})
}

// scanEach returns rows as the text forms of the columns asked for, and shows the values of each to see.
func (s state) scanEach(tbl *client.Table, o client.ScanOptions, see func(value func(name string) client.Value)) []string {
	s.Helper()
	names := o.Columns
	if len(names) == 0 {
		for _, c := range tbl.Columns() {
			names = append(names, c.Name)
		}
	}
	sc, err := tbl.Scan(s.Context(), o)
	if err != nil {
		s.Fatal(err)
	}
	defer sc.Close()
	rows := []string{}
	for {
		b, err := sc.Next(s.Context())
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			s.Fatal(err)
		}
		for r := range b.Rows {
			var cells []string
			for i := range names {
				cells = append(cells, b.Column(i).FormatText(b.Value(i, r)))
			}
			rows = append(rows, strings.Join(cells, " "))
			see(func(name string) client.Value { return b.Value(slices.Index(names, name), r) })
		}
		b.Release()
	}
	return rows
}

// wantRows compares rows, whatever their order.
func (s state) wantRows(what string, got []string, want ...string) {
	s.Helper()
	want = slices.Clone(want)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		s.Errorf("%s: %q, want %q", what, got, want)
	}
}

// wantTable compares all rows of a table, as the client and the command line have them.
func (s state) wantTable(tbl *client.Table, want ...string) {
	s.Helper()
	s.wantRows(tbl.Name(), s.rows(tbl), want...)
	s.wantRows(tbl.Name()+" by the command line", s.said(tbl), want...)
}

// said returns the rows that the command line scans, each as its columns' text forms.
func (s state) said(tbl *client.Table, flags ...string) []string {
	s.Helper()
	r := s.inProcess("", append(append([]string{"table", "scan", "--format", "ndjson"}, flags...), "--", tbl.Name())...)
	if r.code != 0 {
		s.Errorf("scan %s %v: exit code %d, %s", tbl.Name(), flags, r.code, r.err)
	}
	rows := []string{}
	for line := range strings.Lines(r.out) {
		row := map[string]any{}
		d := json.NewDecoder(strings.NewReader(line))
		d.UseNumber()
		if err := d.Decode(&row); err != nil {
			s.Fatalf("scan %s: %v: %s", tbl.Name(), err, line)
		}
		var cells []string
		for _, c := range tbl.Columns() {
			switch v := row[c.Name].(type) {
			case nil:
				cells = append(cells, "NULL")
			default:
				cells = append(cells, fmt.Sprint(v))
			}
		}
		rows = append(rows, strings.Join(cells, " "))
	}
	return rows
}

// wantCount counts the rows that match predicates through the client, and those that match a clause through the client and the command
// line. None: there is no such question.
func (s state) wantCount(tbl *client.Table, what string, want int, clause string, preds ...client.Predicate) {
	s.Helper()
	if preds != nil {
		if got := s.rows(tbl, preds...); len(got) != want {
			s.Errorf("%s: %d rows, want %d", what, len(got), want)
		}
	}
	if clause != "" {
		parsed, err := schema.ParseWhere(tbl.Schema(), clause)
		if err != nil {
			s.Fatal(err)
		}
		if n, err := tbl.Count(s.Context(), client.ScanOptions{Predicates: parsed}); err != nil || n != uint64(want) {
			s.Errorf("%s of %s: count %d, %v, want %d", clause, tbl.Name(), n, err, want)
		}
		s.inProcess("", "table", "count", "--where", clause, "--", tbl.Name()).want(s.T, clause, 0, fmt.Sprintf("%d\n", want))
	}
}

func (s state) predicate(tbl *client.Table, column string, c client.Comparison, v any) client.Predicate {
	s.Helper()
	p, err := tbl.Predicate(column, c, v)
	if err != nil {
		s.Fatal(err)
	}
	return p
}

func (s state) nyala(stdin string, args ...string) result {
	s.Helper()
	return nyala(s.T, stdin, s.arguments(args)...)
}

// arguments are those of a command, behind which cluster it is for: in front, since behind -- no flag is one.
func (s state) arguments(args []string) []string {
	return append([]string{"--masters", strings.Join(s.c.MasterAddresses(), ",")}, args...)
}
