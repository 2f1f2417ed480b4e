package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/status"
)

// description is what `table describe --format json` says of a table's partitions.
type description struct {
	Name    string `json:"name"`
	Version int    `json:"schema_version"`
	Tablets int    `json:"tablets"`
	Columns []struct {
		Name string `json:"name"`
		ID   int    `json:"id"`
	} `json:"columns"`
	Range  []string `json:"range"`
	Ranges []struct {
		Range   string `json:"range"`
		Tablets int    `json:"tablets"`
	} `json:"ranges"`
}

func (s state) describe(table string) description {
	s.Helper()
	out := s.nyala("", "table", "describe", table, "--format", "json")
	var d description
	if err := json.Unmarshal([]byte(out.out), &d); err != nil {
		s.Fatalf("describe %s: exit code %d, %v\n%s%s", table, out.code, err, out.out, out.err)
	}
	return d
}

// wantRanges compares a table's ranges, as the client and the command line have them.
func (s state) wantRanges(table string, want ...string) {
	s.Helper()
	ranges, err := s.open(table).Ranges(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	var got, said []string
	for _, r := range ranges {
		got = append(got, r.Text)
	}
	for _, r := range s.describe(table).Ranges {
		said = append(said, r.Range)
	}
	if !slices.Equal(got, want) || !slices.Equal(said, want) {
		s.Errorf("table %s has the ranges %q, described as %q, want %q", table, got, said, want)
	}
}

// ok runs a command that has to succeed.
func (s state) ok(args ...string) {
	s.Helper()
	if out := s.nyala("", args...); out.code != 0 {
		s.Fatalf("%q: exit code %d, %s", args, out.code, out.err)
	}
}

// refused runs a command that has to fail, and compares its message.
func (s state) refused(text string, args ...string) {
	s.Helper()
	if out := s.nyala("", args...); out.code == 0 || !strings.Contains(out.err, text) {
		s.Errorf("%q: exit code %d, %s, want %q", args, out.code, out.err, text)
	}
}

// apply writes one operation with a session that writes at once.
func (s state) apply(op *client.Operation, values ...any) error {
	s.Helper()
	if err := set(op, values...); err != nil {
		s.Fatal(err)
	}
	return s.cl.NewSession(client.SessionOptions{}).Apply(s.Context(), op)
}

// TestRangeBounds is trial T27: bounds that are taken in or left out, unset columns, ends that are open, and ALTERs of ranges and
// columns after that.
func TestRangeBounds(t *testing.T) {
	inStates(t, func(s state) {
		for name, ranges := range map[string]string{
			"carry":  "c1,c2,c3: [, (1,2,3)], ((1,2,3), (1,2,127)], ((1,2,127), (1,127,127)], ((1,127,127), )",
			"unset":  "c1,c2,c3: [(1,2), (1,2,5)), ((3,4), (5)]",
			"string": "s: ['', 'b'], ('b', )",
		} {
			s.ok("table", "create", name, "--replicas", "1", "--columns", "c1 int8, c2 int8, c3 int8, s string", "--primary_key", "c1,c2,c3,s",
				"--range", ranges)
		}
		s.refused("lower bound: no row lies above it", "table", "create", "top", "--replicas", "1",
			"--columns", "c1 int8, c2 int8, c3 int8", "--primary_key", "c1,c2,c3", "--range", "c1,c2,c3: ((127,127,127), )")
		wantError(t, "no half of it is left", func() error { _, err := s.cl.OpenTable(t.Context(), "top"); return err }(), status.TableNotFound, "top")

		s.ok("table", "create", "t", "--replicas", "1", "--columns", "k int64, a int32, b int32, x string null, y int32 null",
			"--primary_key", "k,a,b", "--hash", "a:3", "--hash", "b:3", "--range", "k: [, 0)")
		old := s.open("t")
		s.ok("table", "alter", "add_range_partition", "t", "[0, ) hash(b):2 hash(a):2")
		s.insert(old, -1, 1, 1, "low", 1) // by a client that was there before the range
		s.insert(old, 0, 1, 1, "high", 2)
		s.ok("table", "alter", "delete_column", "t", "y")
		s.ok("table", "alter", "rename_column", "t", "x", "z")
		s.refused("the new range [10, 20) conflicts with the existing one [0, )", "table", "alter", "add_range_partition", "t", "[10, 20)")
		s.refused("the table has the range [0, ) already", "table", "alter", "add_range_partition", "t", "[0, )")
		s.refused("no range partition to drop: the table has no range [0, 10)", "table", "alter", "drop_range_partition", "t", "[0, 10)")
		s.ok("table", "create", "time", "--replicas", "1", "--columns", "ts unixtime_micros, n int32", "--primary_key", "ts",
			"--range", "ts: ('1969-12-31T23:59:59.999999Z', )")
		s.insert(s.open("time"), 0, 7)
	}, func(s state) {
		s.wantRanges("carry", "[, (1, 2, 4))", "[(1, 2, 4), (1, 3, -128))", "[(1, 3, -128), (2, -128, -128))", "[(2, -128, -128), )")
		s.wantRanges("unset", "[(1, 2, -128), (1, 2, 5))", "[(3, 4, -127), (5, -128, -127))")
		s.wantRanges("string", `[, 'b`+"\x00"+`')`, `['b`+"\x00"+`', )`)
		s.wantRanges("t", "[, 0)", "[0, )")
		if d := s.describe("t"); d.Tablets != 13 || d.Version != 2 || d.Ranges[0].Tablets != 9 || d.Ranges[1].Tablets != 4 {
			s.Errorf("described as %+v", d)
		}
		tbl := s.open("t")
		s.wantTable(tbl, "-1 1 1 low", "0 1 1 high")
		s.wantCount(tbl, "k = 0", 1, "k = 0", s.predicate(tbl, "k", client.Equal, 0))
		s.wantCount(tbl, "a = 1", 2, "a = 1", s.predicate(tbl, "a", client.Equal, 1))
		ts := s.open("time")
		s.wantRanges("time", "['1970-01-01T00:00:00Z', )")
		wantError(s.T, "-1", s.apply(ts.NewInsert(), -1, 7), status.NotFound, `table "time" has no range partition for the row: ts = '1969-12-31T23:59:59.999999Z'`)
		s.nyala("ts,n\n1969-12-31T23:59:59.999999Z,7\n", "table", "load", "time", "-").wantError(s.T, "-1", 4, "no range partition for the row: ts = '1969-12-31T23:59:59.999999Z'")
		s.wantTable(ts, "1970-01-01T00:00:00Z 7")
		_, err := tbl.Alter().AddRange(client.RangePartition{Lower: []any{10}, Upper: []any{20}}).Apply(s.Context())
		wantError(s.T, "a range in another", err, status.InvalidArgument, "the new range [10, 20) conflicts with the existing one [0, )")
		_, err = s.cl.CreateTable(s.Context(), client.CreateTableOptions{
			Name: "top", Columns: []client.Column{{Name: "c1", Type: client.Int8, Key: true}}, Replicas: 1, RangeColumns: []string{"c1"},
			Ranges: []client.RangePartition{{Lower: []any{127}, LowerExclusive: true}},
		})
		wantError(s.T, "above the largest", err, status.InvalidArgument, "lower bound: no row lies above it")
	})
}

// TestDroppedRange is the end of trial T27, and the rest of T32, T33 and T43: rows outside every range are refused with the same words
// in every way of writing, alone; an empty lower bound is no bound; decimals lie in their ranges; a table begins without any range.
func TestDroppedRange(t *testing.T) {
	inStates(t, func(s state) {
		s.ok("table", "create", "t", "--replicas", "1", "--columns", "k int64, x string null, y int8 null", "--primary_key", "k", "--hash", "k:3",
			"--range", "k: [, 0), [0, )")
		tbl := s.open("t")
		s.insert(tbl, -1, "low")
		s.insert(tbl, 0, "high")
		s.ok("table", "alter", "delete_column", "t", "y")
		s.ok("table", "alter", "rename_column", "t", "x", "v")
		s.ok("table", "alter", "drop_range_partition", "t", "[0, )")

		s.ok("table", "create", "empty", "--replicas", "1", "--columns", "k string, v int32 null", "--primary_key", "k", "--range", "k: ['', 'm'), ['m', )")
		s.refused("overlap", "table", "create", "twice", "--replicas", "1", "--columns", "k string", "--primary_key", "k", "--range", "k: ['', 'm'), ['', 'n')")
		for i, k := range []string{"", "a", "m", "z"} {
			s.insert(s.open("empty"), k, i)
		}

		s.ok("table", "create", "bare", "--replicas", "1", "--columns", "k int64, v string null", "--primary_key", "k", "--hash", "k:2", "--range", "k: none")
		bare := s.open("bare")
		s.wantRanges("bare")
		wantError(s.T, "no range", s.apply(bare.NewInsert(), 5, "x"), status.NotFound, `table "bare" has no range partition for the row: k = 5`)
		s.wantCount(bare, "", 0, "")
		s.ok("table", "alter", "add_range_partition", "bare", "[0, 10)")
		s.insert(bare, 5, "x")
		file := filepath.Join(s.TempDir(), "bare.json")
		text := s.nyala("", "table", "describe", "bare", "--format", "json").out
		text = regexp.MustCompile(`(?s)"ranges": \[.*\],\n  "tablets"`).ReplaceAllString(text, `"ranges": [], "tablets"`)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			s.Fatal(err)
		}
		s.ok("table", "create", "bare again", "--file", file)

		nines := strings.Repeat("9", 38)
		s.ok("table", "create", "wide", "--replicas", "1", "--columns", "k decimal(38,0), v int32", "--primary_key", "k",
			"--range", "k: [, -1), [-1, 0), [0, 1), [1, )")
		for i, k := range []string{"-" + nines, "-1", "0", "1", nines} {
			s.insert(s.open("wide"), k, i)
		}
		s.ok("table", "create", "gaps", "--replicas", "1", "--columns", "k int32, v string null", "--primary_key", "k", "--range", "k: [0, 100), [200, 300)")
	}, func(s state) {
		tbl := s.open("t")
		s.wantRanges("t", "[, 0)")
		s.wantTable(tbl, "-1 low")
		s.nyala("k,v\n0,x\n", "table", "load", "t", "-").wantError(s.T, "0", 4, `table "t" has no range partition for the row: k = 0`)
		wantError(s.T, "0", s.apply(tbl.NewInsert(), 0, "x"), status.NotFound, `table "t" has no range partition for the row: k = 0`)
		s.wantTable(tbl, "-1 low")

		s.wantRanges("bare", "[0, 10)")
		s.wantRows("bare", s.rows(s.open("bare")), "5 x")
		wantError(s.T, "10", s.apply(s.open("bare").NewInsert(), 10, "x"), status.NotFound, `has no range partition for the row: k = 10`)
		s.wantRanges("bare again")

		empty := s.open("empty")
		s.wantRanges("empty", "[, 'm')", "['m', )")
		s.wantTable(empty, " 0", "a 1", "m 2", "z 3")
		s.refused("the table has the range [, 'm') already", "table", "alter", "add_range_partition", "empty", "['', 'm')")
		s.wantCount(empty, "k >= ''", 4, "k >= ''", s.predicate(empty, "k", client.GreaterEqual, ""))
		s.wantCount(empty, "k < 'm'", 2, "k < 'm'", s.predicate(empty, "k", client.Less, "m"))
		wide := s.open("wide")
		for clause, want := range map[string]int{"k < 0": 2, "k < -1": 1, "k = -1": 1, "k >= 0 and k < 1": 1, "k >= 1": 2} {
			s.wantCount(wide, clause, want, clause)
		}
		tablets, err := s.cl.Tablets(s.Context(), wide)
		if err != nil || len(tablets) != 4 {
			s.Fatal(len(tablets), err)
		}
		for i, want := range []uint64{1, 1, 1, 2} {
			n, err := wide.Count(s.Context(), client.ScanOptions{TabletID: tablets[i].ID})
			if err != nil || n != want {
				s.Errorf("tablet %d of wide holds %d rows, %v, want %d", i, n, err, want)
			}
		}

		gaps := s.open("gaps")
		const text = `table "gaps" has no range partition for the row: k = 150`
		wantError(s.T, "sync", s.apply(gaps.NewUpsert(), 150, "x"), status.NotFound, text)
		for _, mode := range []client.FlushMode{client.ManualFlush, client.BackgroundFlush} {
			ses := s.cl.NewSession(client.SessionOptions{Flush: mode})
			for _, k := range []int{50, 150, 250} {
				op := gaps.NewUpsert()
				if err := set(op, k, "x"); err != nil {
					s.Fatal(err)
				}
				if err := ses.Apply(s.Context(), op); k == 150 {
					wantError(s.T, "buffered", err, status.NotFound, text)
				} else if err != nil {
					s.Error(err)
				}
			}
			if faults, err := ses.Close(s.Context()); err != nil || len(faults) > 0 {
				s.Error(faults, err)
			}
		}
		s.wantRows("gaps", s.rows(gaps), "50 x", "250 x")
		load := s.nyala("k,v\n51,y\n199,y\n299,y\n300,y\n", "table", "load", "gaps", "-", "--op", "upsert")
		for _, k := range []string{"199", "300"} {
			if text := strings.ReplaceAll(text, "150", k); load.code != 4 || !strings.Contains(load.err, text) {
				s.Errorf("load: exit code %d, %s, want %q", load.code, load.err, text)
			}
		}
		s.wantTable(gaps, "50 x", "250 x", "51 y", "299 y")
		for _, k := range []int{51, 299} {
			if err := s.apply(gaps.NewDelete(), k); err != nil {
				s.Error(err)
			}
		}
	})
}

// TestRangePruning is trial T25: no tablet is left out that holds a row, with bounds that share a prefix and values at a type's ends.
func TestRangePruning(t *testing.T) {
	inStates(t, func(s state) {
		s.ok("table", "create", "t", "--replicas", "1", "--columns", "a int8, b string, c string", "--primary_key", "a,b,c",
			"--range", "a,b: [, (0,'m')), [(0,'m'), (10,'r')), [(10,'r'), )")
		tbl := s.open("t")
		s.insert(tbl, 10, "r", "a")
		s.insert(tbl, 10, "q", "z")
		s.insert(tbl, -1, "", "x")
		s.ok("table", "create", "u", "--replicas", "1", "--columns", "c int8, b string", "--primary_key", "c,b", "--range", "c,b: [, (0,'')), [(0,''), )")
		s.insert(s.open("u"), -128, "")
		s.insert(s.open("u"), 127, "")
		s.ok("table", "create", "mixed", "--replicas", "1", "--columns", "a int8, b string, c string", "--primary_key", "a,b,c",
			"--range", "a,b: [, (0,'m')), [(0,'m'), (10,'r')), [(10,'r'), )")
		s.load("mixed", "a,b,c\n10,r,a\n10,q,z\n-1,\"\",x\n")
	}, func(s state) {
		tbl := s.open("t")
		for _, k := range []struct {
			from, to []any
			touched  int
			rows     []string
		}{
			{nil, []any{10, "r", ""}, 2, []string{"-1  x", "10 q z"}},
			{nil, []any{10, "r", "z"}, 3, []string{"-1  x", "10 q z", "10 r a"}},
			{[]any{100, "", ""}, nil, 1, nil},
			{nil, []any{-1, "", ""}, 1, nil},
			{[]any{10, "q"}, []any{10, "r", "b"}, 2, []string{"10 q z", "10 r a"}},
		} {
			o := client.ScanOptions{LowerKey: k.from, UpperKey: k.to}
			tokens, err := tbl.ScanTokens(s.Context(), o)
			if err != nil || len(tokens) != k.touched {
				s.Errorf("keys from %v to %v: %d tablets, %v, want %d", k.from, k.to, len(tokens), err, k.touched)
			}
			s.wantRows(fmt.Sprint("keys from ", k.from, " to ", k.to), s.scan(tbl, o), k.rows...)
			if n, err := tbl.Count(s.Context(), o); err != nil || int(n) != len(k.rows) {
				s.Errorf("keys from %v to %v: count %d, %v", k.from, k.to, n, err)
			}
		}
		for _, tbl := range []*client.Table{tbl, s.open("mixed")} { // written by the client, and by the command line
			s.wantTable(tbl, "-1  x", "10 q z", "10 r a")
			for clause, want := range map[string]int{
				"a <= 10 and b < 'r'": 2, "a = 10 and b = 'r'": 1, "a = 10 and b >= 'q'": 2, "a >= 100": 0, "a < -1": 0, "a <= -1 and b = ''": 1, "a > 127": 0,
			} {
				s.wantCount(tbl, clause, want, clause)
			}
		}
		u := s.open("u")
		for clause, want := range map[string]int{"c = 127": 1, "c = -128": 1, "c < -128": 0, "c <= 127": 2, "c > 127": 0} {
			s.wantCount(u, clause, want, clause)
		}
		s.wantTable(u, "-128 ", "127 ")
	})
}
