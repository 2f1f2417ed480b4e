package e2e

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/status"
)

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
