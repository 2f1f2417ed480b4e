package e2e

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/localcluster"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
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

// TestDecimals is trial T33: decimals at their edges, predicates with values of another scale, and values that don't fit.
func TestDecimals(t *testing.T) {
	nines, negative := strings.Repeat("9", 38), "-"+strings.Repeat("9", 38)
	inStates(t, func(s state) {
		d := s.create("d", "k int32, d decimal(4,2) null", "k")
		for k, v := range []any{"99.99", client.NewDecimal(-9999, 2), 0, client.NewDecimal(110, 2)} {
			s.insert(d, k, v)
		}
		op := d.NewInsert()
		wantError(t, "99.995", op.Set("d", "99.995"), status.InvalidArgument, "scale")
		wantError(t, "100.00", op.Set("d", client.NewDecimal(10000, 2)), status.InvalidArgument, "precision")
		load := s.nyala("k,d\n10,99.995\n11,100.00\n", "table", "load", "d", "-")
		if load.code != 4 || !strings.Contains(load.err, "scale 2") || !strings.Contains(load.err, "precision 4") {
			t.Errorf("load: exit code %d, errors %s", load.code, load.err)
		}
		wide := s.create("wide", "k decimal(38,0), n decimal(9,0), f decimal(18,18), g decimal(38,38)", "k")
		for _, v := range []string{nines, negative, "1", "-1", "0"} {
			small, fraction := v, "0."+nines
			if len(v) > 2 {
				small = strings.ReplaceAll(v, nines, nines[:9])
			}
			if strings.HasPrefix(v, "-") {
				fraction = "-" + fraction
			}
			s.insert(wide, v, small, strings.ReplaceAll(fraction, nines, nines[:18]), fraction)
		}
	}, func(s state) {
		d := s.open("d")
		s.wantCount(d, "d = 1.1", 1, "d = 1.1", s.predicate(d, "d", client.Equal, client.NewDecimal(11, 1)))
		s.wantCount(d, "d = 1.100", 1, "d = 1.100", s.predicate(d, "d", client.Equal, "1.100"))
		s.wantCount(d, "d < 0", 1, "d < 0", s.predicate(d, "d", client.Less, 0))
		s.wantCount(d, "d <= 99.99", 4, "d <= 99.99", s.predicate(d, "d", client.LessEqual, "99.99"))
		_, err := d.Predicate("d", client.Equal, 100)
		wantError(s.T, "d = 100", err, status.InvalidArgument, "precision 4")
		s.refused("precision 4", "table", "count", "d", "--where", "d = 100")
		in, err := d.PredicateIn("d", "-99.99", client.NewDecimal(11, 1))
		if err != nil {
			s.Fatal(err)
		}
		s.wantCount(d, "in", 2, "d IN (-99.99, 1.1)", in)
		s.wantTable(d, "0 99.99", "1 -99.99", "2 0.00", "3 1.10")

		wide := s.open("wide")
		all := []string{
			nines + " 999999999 0.999999999999999999 0." + nines, negative + " -999999999 -0.999999999999999999 -0." + nines,
			"1 1 0.999999999999999999 0." + nines, "-1 -1 -0.999999999999999999 -0." + nines, "0 0 0.999999999999999999 0." + nines,
		}
		s.wantTable(wide, all...)
		for clause, want := range map[string]int{"k < 0": 2, "k >= " + nines: 1, "k = " + negative: 1, "g < 0": 2, "f < 0": 2, "n = -999999999": 1} {
			s.wantCount(wide, clause, want, clause)
		}
		s.wantRows("k < 0", s.rows(wide, s.predicate(wide, "k", client.Less, 0)), all[1], all[3])
		s.wantRows("k >= 10^38-1", s.rows(wide, s.predicate(wide, "k", client.GreaterEqual, nines)), all[0])
		s.wantRows("g < 0", s.rows(wide, s.predicate(wide, "g", client.Less, 0)), all[1], all[3])
		out := s.nyala("", "table", "scan", "d", "--format", "ndjson")
		out.want(s.T, "ndjson", 0, `{"k":0,"d":"99.99"}`+"\n"+`{"k":1,"d":"-99.99"}`+"\n"+`{"k":2,"d":"0.00"}`+"\n"+`{"k":3,"d":"1.10"}`+"\n")
	})
}

// TestTimes is trial T34: times before 1970 and at both ends, dates at theirs; the zone of server and client changes nothing.
func TestTimes(t *testing.T) {
	t.Setenv("TZ", "America/New_York") // the servers and commands that this test starts
	micros := []int64{
		-3843556560235001, -1, -999999, -1000000, 0, -62135596800000000, 253402300799999999, math.MinInt64, math.MaxInt64,
	}
	days := []int64{-719162, -1, 0, 2932896}
	inStates(t, func(s state) {
		ts := s.create("ts", "t unixtime_micros, k int32", "t")
		for k, v := range micros {
			s.insert(ts, v, k)
		}
		d := s.create("days", "d date, k int32", "d")
		for k, v := range days {
			s.insert(d, v, k)
		}
		op := d.NewInsert()
		for _, v := range []int64{-719163, 2932897} {
			wantError(t, "a day beyond the ends", op.Set("d", v), status.InvalidArgument, "out of range")
		}
		wantError(t, "year 10000", op.Set("d", time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)), status.InvalidArgument, "out of range")
		if load := s.nyala("d,k\n0000-12-31,9\n10000-01-01,9\n", "table", "load", "days", "-"); load.code != 4 {
			t.Errorf("load of days beyond the ends: exit code %d, %s", load.code, load.err)
		}
	}, func(s state) {
		ts, d := s.open("ts"), s.open("days")
		want := []string{
			"1848-03-15T09:23:59.764999Z 0", "1969-12-31T23:59:59.999999Z 1", "1969-12-31T23:59:59.000001Z 2", "1969-12-31T23:59:59Z 3",
			"1970-01-01T00:00:00Z 4", "0001-01-01T00:00:00Z 5", "9999-12-31T23:59:59.999999Z 6", "-9223372036854775808 7",
			"9223372036854775807 8",
		}
		s.wantTable(ts, want...)
		for _, zone := range []string{"UTC", "Asia/Kolkata", "America/New_York"} {
			out := command(s.T, "", []string{"TZ=" + zone}, filepath.Join(binDir, "nyala"), s.arguments([]string{"table", "count", "ts", "--where", "t < '1970-01-01T00:00:00Z'"})...)
			out.want(s.T, "a count in "+zone, 0, "6\n")
			out = command(s.T, "", []string{"TZ=" + zone}, filepath.Join(binDir, "nyala"), s.arguments([]string{"table", "scan", "ts", "--format", "csv", "--where", "k = 0"})...)
			out.want(s.T, "a scan in "+zone, 0, "t,k\n1848-03-15T09:23:59.764999Z,0\n")
		}
		csv := s.nyala("", "table", "scan", "ts", "--format", "csv")
		lines := strings.Split(strings.TrimSuffix(strings.ReplaceAll(csv.out, ",", " "), "\n"), "\n")
		s.wantRows("times as CSV", lines, append(slices.Clone(want), "t k")...)
		for k, v := range micros {
			s.wantRows(fmt.Sprint(v), s.rows(ts, s.predicate(ts, "t", client.Equal, v)), want[k])
		}
		s.wantCount(ts, "before 1970", 6, "t < 0", s.predicate(ts, "t", client.Less, time.UnixMicro(0)))
		s.wantCount(ts, "around 1970", 2, "t >= -1 and t < 1", s.predicate(ts, "t", client.GreaterEqual, -1), s.predicate(ts, "t", client.Less, 1))
		s.wantCount(ts, "largest", 1, "t = 9223372036854775807", s.predicate(ts, "t", client.Equal, int64(math.MaxInt64)))

		s.wantTable(d, "0001-01-01 0", "1969-12-31 1", "1970-01-01 2", "9999-12-31 3")
		s.wantCount(d, "from 1970 on", 2, "d >= '1970-01-01'", s.predicate(d, "d", client.GreaterEqual, "1970-01-01"))
		s.wantCount(d, "up to the last day", 4, "d <= '9999-12-31'", s.predicate(d, "d", client.LessEqual, "9999-12-31"))
		s.wantCount(d, "the first day", 1, "d = '0001-01-01'", s.predicate(d, "d", client.Equal, time.Date(1, 1, 1, 12, 0, 0, 0, time.UTC)))
	})
}

// TestDefaults shows that an insert or upsert stores a column's default where it leaves the column unset, that an upsert of a row
// that is there doesn't, and that comments and defaults come back; a default of the wrong size makes no table.
func TestDefaults(t *testing.T) {
	const columns = "k int32 default 7, v int32 default -5 comment 'it''s', s string null default '', d decimal(4,2) default 1.5, " +
		"day date null default '2020-01-01', c varchar(3) default 'äöüß', n int8 null"
	inStates(t, func(s state) {
		create := s.nyala("", "table", "create", "t", "--columns", columns, "--primary_key", "k", "--replicas", "1")
		create.want(t, "create", 0, "")
		tbl := s.open("t")
		s.insert(tbl)
		s.insert(tbl, 1, 2, nil, "3.25", nil, "x", 4)
		ses := s.cl.NewSession(client.SessionOptions{})
		for _, v := range [][]any{{2}, {1}} { // the second is there already, and stays as it is
			op := tbl.NewUpsert()
			if err := errors.Join(set(op, v...), ses.Apply(t.Context(), op)); err != nil {
				t.Fatal(err)
			}
		}
		s.nyala("k,v\n3,9\n", "table", "load", "t", "-").want(t, "load", 0, "")

		o := client.CreateTableOptions{
			Name: "go", PrimaryKey: []string{"k"}, Replicas: 1, Defaults: map[string]any{"v": "0.5"},
			Columns: []client.Column{
				{Name: "k", Type: client.Int32, Comment: "the key"},
				{Name: "v", Type: client.DecimalType(3), Precision: 3, Scale: 1},
			},
		}
		made, err := s.cl.CreateTable(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		s.insert(made, 1)
		for what, bad := range map[string]any{"no such column": nil, "too wide": "100", "NULL": nil, "another type": 1.5} {
			o := o
			o.Name = "bad"
			o.Defaults = map[string]any{"v": bad}
			if what == "no such column" {
				o.Defaults = map[string]any{"x": 1}
			}
			if _, err := s.cl.CreateTable(t.Context(), o); err == nil {
				t.Errorf("%s: the table is made", what)
			}
		}
		o.Name, o.Defaults = "bad", nil
		o.Columns = []client.Column{{Name: "k", Type: client.Int32, WriteDefault: make([]byte, 8)}}
		_, err = s.cl.CreateTable(t.Context(), o)
		wantError(t, "a default of 8 bytes", err, status.InvalidSchema, "its write default has 8 bytes, want 4")
		if _, err := s.cl.OpenTable(t.Context(), "bad"); client.CodeOf(err) != status.TableNotFound {
			t.Errorf("a table was half made: %v", err)
		}
	}, func(s state) {
		s.wantTable(s.open("t"), "7 -5  1.50 2020-01-01 äöü NULL", "1 2 NULL 3.25 NULL x 4", "2 -5  1.50 2020-01-01 äöü NULL",
			"3 9  1.50 2020-01-01 äöü NULL")
		made := s.open("go")
		s.wantRows("go", s.rows(made), "1 0.5")
		if c := made.Columns()[0].Comment; c != "the key" {
			s.Errorf("comment %q", c)
		}
		describe := s.nyala("", "table", "describe", "t").out
		for _, line := range []string{
			"COLUMN  TYPE          NULL  KEY  ID  DEFAULT     COMMENT", "v       int32                     1  -5          it's",
			`s       string        null        2  ""`, "c       varchar(3)                5  äöü",
		} {
			if !strings.Contains(describe, line+"\n") {
				s.Errorf("describe has no line %q:\n%s", line, describe)
			}
		}
		if d := s.nyala("", "table", "describe", "t", "--format", "json").out; !strings.Contains(d, `"default": "1.50"`) || !strings.Contains(d, `"comment": "it's"`) {
			s.Errorf("describe as JSON: %s", d)
		}
	})
}

// batch sends operations in one request and returns the code of each row that failed.
func (s state) batch(ops ...*client.Operation) (map[uint64]status.Code, client.Timestamp) {
	s.Helper()
	ses := s.cl.NewSession(client.SessionOptions{Flush: client.ManualFlush})
	for _, op := range ops {
		if err := ses.Apply(s.Context(), op); err != nil {
			s.Fatal(err)
		}
	}
	faults, err := ses.Flush(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	codes := map[uint64]status.Code{}
	for _, f := range faults {
		codes[f.Index] = f.Code
	}
	return codes, ses.LastTimestamp()
}

// TestSeveralOpsOnOneKey is trial T39: one request with several operations on one key, on three replicas.
func TestSeveralOpsOnOneKey(t *testing.T) {
	var at client.Timestamp
	inStatesOn(t, 3, func(s state) {
		tbl := s.create("t", "k int32, v string", "k")
		with := func(op *client.Operation, values ...any) *client.Operation {
			if err := set(op, values...); err != nil {
				t.Fatal(err)
			}
			return op
		}
		wantError(t, "large cell", set(tbl.NewInsert(), 4, strings.Repeat("x", 65537)), status.CellTooLarge, "65537")
		var codes map[uint64]status.Code
		codes, _ = s.batch(with(tbl.NewInsert(), 1, "a"), with(tbl.NewInsert(), 1, "b"), with(tbl.NewUpsert(), 1, "c"), with(tbl.NewDelete(), 1),
			with(tbl.NewInsert(), 1, "d"), with(tbl.NewUpdate(), 2, "x"), with(tbl.NewDelete(), 3), with(tbl.NewInsertIgnore(), 1, "e"),
			with(tbl.NewUpdateIgnore(), 2, "y"), with(tbl.NewInsert(), 5, "z"))
		want := map[uint64]status.Code{1: status.AlreadyPresent, 5: status.NotFound, 6: status.NotFound}
		if !maps.Equal(codes, want) {
			t.Errorf("row errors %v, want %v", codes, want)
		}
		at = s.rawBatch(s.create("raw", "k int32, v string", "k"))
		load := s.nyala("k,v\n1,a\n1,b\n3,c\n", "table", "load", s.create("loaded", "k int32, v string", "k").Name(), "-")
		if load.code != 4 || !strings.Contains(load.err, "1 rejected (1 already present)") {
			t.Errorf("load: exit code %d, %s", load.code, load.err)
		}
	}, func(s state) {
		s.wantTable(s.open("t"), "1 d", "5 z")
		s.wantTable(s.open("loaded"), "1 a", "3 c")
		tbl := s.open("raw")
		s.wantTable(tbl, "1 d", "5 z")
		servers, err := s.cl.ListTabletServers(s.Context())
		if err != nil {
			s.Fatal(err)
		}
		for _, server := range servers {
			o := client.ScanOptions{ReadMode: client.ReadAtSnapshot, SnapshotTimestamp: at, ServerID: server.ID}
			s.wantRows("before, on "+server.ID, s.scan(tbl, o))
			s.wantRows("before, on "+server.ID, s.said(tbl, "--replica", server.ID, "--snapshot_timestamp", o.SnapshotTimestamp.String(), "--read_mode", "READ_AT_SNAPSHOT"))
			o.SnapshotTimestamp++
			s.wantRows("after, on "+server.ID, s.scan(tbl, o), "1 d", "5 z")
			s.wantRows("after, on "+server.ID, s.said(tbl, "--replica", server.ID, "--snapshot_timestamp", o.SnapshotTimestamp.String(), "--read_mode", "READ_AT_SNAPSHOT"), "1 d", "5 z")
		}
	})
}

// rawBatch sends the trial's whole batch past the client, which refuses the cell that is too large, to a table of k and v. It returns the
// timestamp of all of it.
func (s state) rawBatch(tbl *client.Table) client.Timestamp {
	s.Helper()
	ops := &nyalav1.RowOperations{}
	add := func(kind schema.OpType, k int32, v ...string) {
		set := byte(1)
		if len(v) > 0 {
			set = 3
		}
		ops.Rows = binary.LittleEndian.AppendUint32(append(ops.Rows, byte(kind), set), uint32(k))
		for _, text := range v {
			ops.Rows = binary.LittleEndian.AppendUint64(ops.Rows, uint64(len(ops.IndirectData)))
			ops.Rows = binary.LittleEndian.AppendUint64(ops.Rows, uint64(len(text)))
			ops.IndirectData = append(ops.IndirectData, text...)
		}
	}
	add(schema.Insert, 1, "a")
	add(schema.Insert, 1, "b")
	add(schema.Upsert, 1, "c")
	add(schema.Delete, 1)
	add(schema.Insert, 1, "d")
	add(schema.Update, 2, "x")
	add(schema.Delete, 3)
	add(schema.InsertIgnore, 1, "e")
	add(schema.UpdateIgnore, 2, "y")
	add(schema.Insert, 4, strings.Repeat("x", 65537))
	add(schema.Insert, 5, "z")
	tablets, err := s.cl.Tablets(s.Context(), tbl)
	if err != nil || len(tablets) != 1 {
		s.Fatal(len(tablets), err)
	}
	raw := newRawScan(s.T, tabletServers(s.T, s.c)[0], tbl, tablets[0].ID) // any replica takes writes that have a number
	resp, err := raw.Write(s.Context(), &nyalav1.WriteRequest{
		TabletId: tablets[0].ID, RowOperations: ops,
		RequestId: &nyalav1.RequestId{ClientId: []byte("the trial's own!"), SeqNo: 1, FirstIncompleteSeqNo: 1},
	})
	if err != nil {
		s.Fatal(status.FromGRPC(err))
	}
	codes := map[uint32]status.Code{}
	for _, e := range resp.GetRowErrors() {
		codes[e.GetRowIndex()] = status.Code(e.GetCode())
	}
	want := map[uint32]status.Code{1: status.AlreadyPresent, 5: status.NotFound, 6: status.NotFound, 9: status.CellTooLarge}
	if !maps.Equal(codes, want) {
		s.Errorf("row errors %v, want %v", codes, want)
	}
	return client.Timestamp(resp.GetTimestamp())
}

// TestIgnore is trial T43 but for its ranges: operations with IGNORE, deletes with more than the key set, an update with less.
func TestIgnore(t *testing.T) {
	inStates(t, func(s state) {
		tbl := s.create("t", "k int32, v int32 null, w string null", "k")
		with := func(op *client.Operation, values ...any) *client.Operation {
			if err := set(op, values...); err != nil {
				t.Fatal(err)
			}
			return op
		}
		s.nyala("k\n250\n", "table", "load", "t", "-", "--op", "update").wantError(t, "nothing to update", 4, "UPDATE sets no column besides the key")
		wantError(t, "nothing to update", s.cl.NewSession(client.SessionOptions{}).Apply(t.Context(), with(tbl.NewUpdate(), 250)),
			status.InvalidArgument, "UPDATE sets no column besides the key")
		codes, _ := s.batch(with(tbl.NewInsert(), 50, 1, "a"), with(tbl.NewInsert(), 250, 1, "b"), with(tbl.NewInsertIgnore(), 50, 2, "c"),
			with(tbl.NewDeleteIgnore(), 51, 1, "x"), with(tbl.NewUpdateIgnore(), 52, 3), with(tbl.NewUpsertIgnore(), 50, 4),
			with(tbl.NewUpsertIgnore(), 60, 6), with(tbl.NewDelete(), 50, 1, "a"))
		if len(codes) > 0 {
			t.Errorf("row errors %v", codes)
		}
		_, metrics := get(t, "http://"+tabletServers(t, s.c)[0].Web+"/metrics")
		for _, name := range []string{"insert", "delete", "update"} {
			if line := "\n" + name + "_ignore_errors 1\n"; !strings.Contains(metrics, line) {
				t.Errorf("metrics have no line %q", line)
			}
		}
		for _, c := range []struct {
			op, rows string
			code     int
		}{
			{"insert_ignore", "k,v\n60,7\n61,7\n", 0},
			{"update_ignore", "k,v\n60,8\n62,8\n", 0},
			{"delete_ignore", "k\n61\n63\n", 0},
			{"update", "k,v\n64,9\n", 4},
			{"delete", "k,v\n64,9\n", 4},
			{"upsert_ignore", "k,v\n65,9\n", 0},
		} {
			if r := s.nyala(c.rows, "table", "load", "t", "-", "--op", c.op); r.code != c.code {
				t.Errorf("load --op %s: exit code %d, want %d: %s", c.op, r.code, c.code, r.err)
			}
		}
	}, func(s state) {
		s.wantTable(s.open("t"), "250 1 b", "60 8 NULL", "65 9 NULL")
	})
}

// TestInLists is trial T36: IN lists, with NULLs and duplicates, tests for NULL, and columns that are NULL for long runs or all over.
func TestInLists(t *testing.T) {
	inStates(t, func(s state) {
		tbl := s.create("t", "k int32, v string null, b bool null, n int32 null", "k")
		ses := s.cl.NewSession(client.SessionOptions{Flush: client.ManualFlush})
		for k := range 10_000 {
			op := tbl.NewInsert()
			err := op.Set("k", k)
			if k >= 5000 {
				err = errors.Join(err, op.Set("v", fmt.Sprint("x", k%7)), op.Set("b", k%2 == 0))
			}
			if err = errors.Join(err, ses.Apply(t.Context(), op)); err != nil {
				t.Fatal(err)
			}
		}
		if faults, err := ses.Flush(t.Context()); err != nil || len(faults) > 0 {
			t.Fatal(faults, err)
		}
	}, func(s state) {
		tbl := s.open("t")
		in := func(column string, values ...any) client.Predicate {
			p, err := tbl.PredicateIn(column, values...)
			if err != nil {
				s.Fatal(err)
			}
			return p
		}
		_, err := tbl.PredicateIn("v", "x1", nil)
		wantError(s.T, "NULL in a list", err, status.InvalidScanSpec, "NULL compares with nothing")
		s.nyala("", "table", "count", "t", "--where", "v in ('x1', NULL)").wantError(s.T, "NULL in a list", 2, "nothing compares with NULL")
		s.wantCount(tbl, "empty", 0, "v in ()", in("v"))
		s.wantCount(tbl, "one", 714, "v in ('x1')", in("v", "x1"))
		s.wantCount(tbl, "duplicates", 1429, "v in ('x1','x1','x2')", in("v", "x1", "x1", "x2"))
		s.wantCount(tbl, "both", 5000, "b in (true,false)", in("b", true, false))
		s.wantCount(tbl, "true", 2500, "b in (true)", in("b", true))
		s.wantCount(tbl, "v IS NULL", 5000, "v is null", s.predicate(tbl, "v", client.IsNull, nil))
		s.wantCount(tbl, "v IS NOT NULL", 5000, "v is not null", s.predicate(tbl, "v", client.IsNotNull, nil))
		s.wantCount(tbl, "n = 1", 0, "n = 1", s.predicate(tbl, "n", client.Equal, 1))
		s.wantCount(tbl, "n IS NULL", 10_000, "n is null", s.predicate(tbl, "n", client.IsNull, nil))
		s.wantCount(tbl, "k IS NULL", 0, "k is null", s.predicate(tbl, "k", client.IsNull, nil))
		s.wantCount(tbl, "contradiction", 0, "v in ('x1') and v is null", in("v", "x1"), s.predicate(tbl, "v", client.IsNull, nil))
		many, clause := []any{"x1"}, "v in ('x1'"
		for i := range 9999 {
			many, clause = append(many, fmt.Sprint("y", i)), clause+fmt.Sprintf(",'y%d'", i)
		}
		s.wantCount(tbl, "10,000 values", 714, clause+")", in("v", many...))
	})
}

// TestEmptyString is trial T32: the empty string as a key and as a value.
func TestEmptyString(t *testing.T) {
	inStates(t, func(s state) {
		tbl := s.create("t", "k string, v string null", "k")
		s.insert(tbl, "", "")
		s.insert(tbl, "a", nil)
		ses := s.cl.NewSession(client.SessionOptions{})
		update, del := tbl.NewUpdate(), tbl.NewDelete()
		if err := errors.Join(set(update, "", "x"), ses.Apply(t.Context(), update), set(del, ""), ses.Apply(t.Context(), del)); err != nil {
			t.Fatal(err)
		}
		s.insert(tbl, "", "")
	}, func(s state) {
		tbl := s.open("t")
		s.wantTable(tbl, " ", "a NULL")
		s.wantCount(tbl, `k = ""`, 1, "k = ''", s.predicate(tbl, "k", client.Equal, ""))
		s.wantCount(tbl, `k >= ""`, 2, "k >= ''", s.predicate(tbl, "k", client.GreaterEqual, ""))
		s.wantCount(tbl, `k < ""`, 0, "k < ''", s.predicate(tbl, "k", client.Less, ""))
		s.wantCount(tbl, `v = ""`, 1, "v = ''", s.predicate(tbl, "v", client.Equal, ""))
		s.wantCount(tbl, "v IS NULL", 1, "v is null", s.predicate(tbl, "v", client.IsNull, nil))
		s.nyala("", "table", "scan", "t", "--format", "csv").want(s.T, "CSV", 0, "k,v\n\"\",\"\"\na,\n")
	})
}

// TestIntegerExtremes is trial T30: the largest and smallest of each integer type, as keys and as values among NULLs.
func TestIntegerExtremes(t *testing.T) {
	types := map[string]int{"int8": 8, "int16": 16, "int32": 32, "int64": 64}
	inStates(t, func(s state) {
		for name, bits := range types {
			tbl := s.create(name, fmt.Sprintf("k %s, v %s null", name, name), "k")
			for i := range int64(10) {
				s.insert(tbl, int64(math.MaxInt64>>(64-bits))-i, int64(math.MaxInt64>>(64-bits))-i)
			}
			for i := range int64(5) {
				s.insert(tbl, i+5, nil)
			}
		}
	}, func(s state) {
		for name, bits := range types {
			tbl := s.open(name)
			most, least := int64(math.MaxInt64>>(64-bits)), int64(math.MinInt64>>(64-bits))
			for column, all := range map[string]int{"k": 15, "v": 10} {
				count := func(want int, op string, c client.Comparison, v int64) {
					s.Helper()
					clause := fmt.Sprintf("%s %s %d", column, op, v)
					s.wantCount(tbl, fmt.Sprint(name, " ", column, op, v), want, clause, s.predicate(tbl, column, c, v))
				}
				count(10, ">=", client.GreaterEqual, most-9)
				count(0, ">", client.Greater, most)
				count(all, "<=", client.LessEqual, most)
				count(0, "<", client.Less, least)
				count(all, ">=", client.GreaterEqual, least)
				count(1, "=", client.Equal, most)
				s.wantCount(tbl, "both ends", 10, fmt.Sprintf("%s >= %d and %s <= %d", column, most-9, column, most), s.predicate(tbl, column, client.GreaterEqual, most-9), s.predicate(tbl, column, client.LessEqual, most))
			}
			s.wantCount(tbl, "bounds that exclude each other", 0, "k >= 5 and k < 10 and k >= 20")
			var want []string
			for i := range int64(10) {
				want = append(want, fmt.Sprint(most-i, " ", most-i))
			}
			for i := range 5 {
				want = append(want, fmt.Sprint(i+5, " NULL"))
			}
			s.wantTable(tbl, want...)
		}
	})
}

// TestPartitioning is the live part of trial T28: rows with any bytes in their keys go to tablets of two hash dimensions, whose
// servers check that they belong there, and each is found again by its key in the one tablet that the client asks.
func TestPartitioning(t *testing.T) {
	const rows = 10_000
	rnd := rand.New(rand.NewPCG(28, 1))
	text := func(any bool) string { // any bytes, or those of characters, which the command line takes
		b := make([]byte, rnd.IntN(6))
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		if any {
			return string(b)
		}
		return strings.ToValidUTF8(string(b), string(rune(1+rnd.IntN(0x7ff))))
	}
	characters := func(k [3]any) bool { return utf8.ValidString(k[1].(string)) && utf8.ValidString(k[2].(string)) }
	quoted := func(text any, quote string) string {
		return quote + strings.ReplaceAll(text.(string), quote, quote+quote) + quote
	}
	keys := map[[3]any]bool{{int64(0), "", ""}: true, {int64(1), "", ""}: true, {int64(0), "b", "c"}: true, {int64(1), "b", "c"}: true}
	for len(keys) < rows {
		bytes := len(keys)%2 == 0
		keys[[3]any{int64(int32(rnd.Uint32())), text(bytes), text(bytes)}] = true
	}
	inStates(t, func(s state) {
		tbl, err := s.cl.CreateTable(t.Context(), client.CreateTableOptions{
			Name: "t", PrimaryKey: []string{"a", "b", "c"}, Replicas: 1,
			Columns: []client.Column{{Name: "a", Type: client.Int32}, {Name: "b", Type: client.String}, {Name: "c", Type: client.String}},
			Hash:    []client.HashPartition{{Columns: []string{"a", "b"}, Buckets: 4}, {Columns: []string{"c"}, Buckets: 4, Seed: 42}},
		})
		if err != nil {
			t.Fatal(err)
		}
		ses := s.cl.NewSession(client.SessionOptions{Flush: client.ManualFlush})
		text, i := "a,b,c\n", 0
		for k := range keys {
			if i++; i%2 == 0 && characters(k) {
				text += fmt.Sprintf("%d,%s,%s\n", k[0], quoted(k[1], `"`), quoted(k[2], `"`))
				continue
			}
			op := tbl.NewInsert()
			if err := errors.Join(set(op, k[:]...), ses.Apply(t.Context(), op)); err != nil {
				t.Fatal(err)
			}
		}
		if faults, err := ses.Flush(t.Context()); err != nil || len(faults) > 0 {
			t.Fatal(faults, err)
		}
		s.load("t", text)
	}, func(s state) {
		tbl := s.open("t")
		s.wantCount(tbl, "all", rows, "a >= -2147483648")
		looked := 0
		for k := range keys {
			if looked++; looked > rows/5 {
				break
			}
			n, err := tbl.Count(s.Context(), client.ScanOptions{Predicates: []client.Predicate{
				s.predicate(tbl, "a", client.Equal, k[0]), s.predicate(tbl, "b", client.Equal, k[1]), s.predicate(tbl, "c", client.Equal, k[2]),
			}})
			if err != nil || n != 1 {
				s.Fatalf("key %q: %d rows, %v", k, n, err)
			}
			if looked%20 == 0 && characters(k) {
				s.wantCount(tbl, fmt.Sprintf("key %q", k), 1, fmt.Sprintf("a = %d and b = %s and c = %s", k[0], quoted(k[1], "'"), quoted(k[2], "'")))
			}
		}
	})
}
