package schema

import (
	"bytes"
	"math"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/status"
)

// drawPredicates draws predicates on the first columns of the schema.
func drawPredicates(t *rapid.T, s *Schema, columns int) []Predicate {
	var preds []Predicate
	for range rapid.IntRange(0, 5).Draw(t, "predicates") {
		p, _ := drawPredicate(t, s.Column(rapid.IntRange(0, columns-1).Draw(t, "column")))
		preds = append(preds, p)
	}
	return preds
}

// drawPredicate draws a predicate and its model: whether a value that isn't NULL matches.
func drawPredicate(t *rapid.T, c *Column) (Predicate, func(v Value) bool) {
	// ordered is false where IEEE 754 says that neither compares.
	compare := func(a, b Value) (d int, ordered bool) {
		if c.Type != Float && c.Type != Double {
			return compareValues(c, a, b), true
		}
		x, y := a.Float(), b.Float()
		switch {
		case x < y:
			return -1, true
		case x > y:
			return 1, true
		}
		return 0, x == y
	}
	against := func(v Value, test func(d int) bool) func(Value) bool {
		return func(cell Value) bool {
			d, ordered := compare(cell, v)
			return ordered && test(d)
		}
	}
	v := drawValue(t, c)
	switch rapid.IntRange(0, 7).Draw(t, "predicate") {
	case 0:
		return Equal(c, v), against(v, func(d int) bool { return d == 0 })
	case 1:
		return Less(c, v), against(v, func(d int) bool { return d < 0 })
	case 2:
		return LessEqual(c, v), against(v, func(d int) bool { return d <= 0 })
	case 3:
		return Greater(c, v), against(v, func(d int) bool { return d > 0 })
	case 4:
		return GreaterEqual(c, v), against(v, func(d int) bool { return d >= 0 })
	case 5:
		return IsNull(c), func(Value) bool { return false }
	case 6:
		return IsNotNull(c), func(Value) bool { return true }
	}
	var values []Value
	for range rapid.IntRange(0, 6).Draw(t, "list") {
		values = append(values, drawValue(t, c))
	}
	return In(c, values...), func(cell Value) bool {
		return slices.ContainsFunc(values, func(v Value) bool {
			d, ordered := compare(cell, v)
			return ordered && d == 0
		})
	}
}

func matchesAll(s *Schema, preds []*BoundPredicate, row []Value) bool {
	for _, p := range preds {
		v := row[p.Column()]
		var cell []byte
		if !v.IsNull() {
			cell, _ = s.Column(p.Column()).ValueBytes(v)
		}
		if !p.Matches(cell, v.IsNull()) {
			return false
		}
	}
	return true
}

// TestPredicateMatches shows that every kind of predicate on every type matches what the plain model of it matches, also after
// a way over the wire, and that NULL matches IS NULL alone.
func TestPredicateMatches(t *testing.T) {
	for _, typ := range allTypes {
		c := testColumn("v", typ)
		c.ID, c.Nullable = 1, true
		s, err := New([]Column{{Name: "k", Type: Int8, Key: true}, c}, 0, 2)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(typ.String(), rapid.MakeCheck(func(t *rapid.T) {
			c := s.Column(1)
			p, model := drawPredicate(t, c)
			wire, err := proto.Marshal(p.ToProto())
			if err != nil {
				t.Fatal(err)
			}
			m := &nyalav1.Predicate{}
			if err := proto.Unmarshal(wire, m); err != nil {
				t.Fatal(err)
			}
			p, err = PredicateFromProto(m)
			if err != nil {
				t.Fatal(err)
			}
			b, err := p.Bind(s)
			if err != nil {
				t.Fatal(err)
			}
			if b.Column() != 1 {
				t.Fatalf("column %d", b.Column())
			}
			if got, want := b.Matches(nil, true), p.Kind == PredicateIsNull; got != want {
				t.Fatalf("%s matches NULL: %v", p.Format(s), got)
			}
			for range 10 {
				v := drawValue(t, c)
				cell, _ := c.ValueBytes(v)
				if got, want := b.Matches(cell, false), model(v); got != want {
					t.Fatalf("%s matches %v: %v, want %v", p.Format(s), v, got, want)
				}
				if b.Nothing() && b.Matches(cell, false) {
					t.Fatal("nothing matches something")
				}
			}
		}))
	}
}

// TestKeyBounds shows I5 by brute force: a row that matches lies within the bounds, and none is said only if no row matches.
func TestKeyBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSchema(t)
		preds, err := BindAll(s, drawPredicates(t, s, s.NumColumns()))
		if err != nil {
			t.Fatal(err)
		}
		start, stop, none := s.KeyBounds(preds)
		for range 20 {
			row := drawRow(t, s)
			if !matchesAll(s, preds, row) {
				continue
			}
			key := s.EncodeKey(nil, s.CellsOf(row))
			if none || bytes.Compare(key, start) < 0 || stop != nil && bytes.Compare(key, stop) >= 0 {
				t.Fatalf("row %v with key %x matches, but the bounds are [%x, %x), none %v", row, key, start, stop, none)
			}
		}
	})
}

// TestKeyBoundsTight shows, over all rows of a small domain, that predicates which confine a prefix of the key to single
// values and the next column to a range leave exactly the matching rows between the bounds.
func TestKeyBoundsTight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		types := rapid.SampledFrom([][]Type{{Int8, String, Int16}, {String, String}, {String, Int8, Binary}, {Int8, Int8, Int8}, {Decimal128, Date}}).Draw(t, "types")
		s := keySchema(t, types...)
		domain := make([][]Value, len(types))
		for i := range domain {
			for range rapid.IntRange(2, 4).Draw(t, "domain") {
				domain[i] = append(domain[i], drawValue(t, s.Column(i)))
			}
		}
		equal := rapid.IntRange(0, len(types)).Draw(t, "equal columns")
		var preds []Predicate
		for i := range equal {
			preds = append(preds, Equal(s.Column(i), rapid.SampledFrom(domain[i]).Draw(t, "value")))
		}
		if equal < len(types) {
			c, v := s.Column(equal), rapid.SampledFrom(domain[equal]).Draw(t, "bound")
			lower := rapid.SampledFrom([]func(*Column, Value) Predicate{Greater, GreaterEqual}).Draw(t, "lower")
			upper := rapid.SampledFrom([]func(*Column, Value) Predicate{Less, LessEqual}).Draw(t, "upper")
			switch rapid.IntRange(0, 3).Draw(t, "range") {
			case 0:
				preds = append(preds, lower(c, v))
			case 1:
				preds = append(preds, upper(c, v))
			case 2:
				preds = append(preds, lower(c, v), upper(c, rapid.SampledFrom(domain[equal]).Draw(t, "bound")))
			}
		}
		bound, err := BindAll(s, preds)
		if err != nil {
			t.Fatal(err)
		}
		start, stop, none := s.KeyBounds(bound)
		eachRow(domain, func(row []Value) {
			key := s.EncodeKey(nil, s.CellsOf(row))
			within := !none && bytes.Compare(key, start) >= 0 && (stop == nil || bytes.Compare(key, stop) < 0)
			if matches := matchesAll(s, bound, row); matches != within {
				t.Fatalf("row %v with key %x: matches %v, within [%x, %x): %v", row, key, matches, start, stop, within)
			}
		})
	})
}

func eachRow(domain [][]Value, f func(row []Value), row ...Value) {
	if len(row) == len(domain) {
		f(row)
		return
	}
	for _, v := range domain[len(row)] {
		eachRow(domain, f, append(slices.Clone(row), v)...)
	}
}

// TestKeyBoundsExamples shows the bounds of some clauses.
func TestKeyBoundsExamples(t *testing.T) {
	s, err := NewTable([]Column{
		{Name: "a", Type: Int8, Key: true},
		{Name: "b", Type: String, Key: true},
		{Name: "c", Type: Int8, Key: true},
		{Name: "v", Type: Int64, Nullable: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ where, start, stop string }{
		{"", "", ""},
		{"v > 3 and v is not null", "", ""},
		{"a = 1", "81", "82"},
		{"a = 127", "ff", ""},
		{"a > 1", "82", ""},
		{"a <= 1", "", "82"},
		{"a < 1 and a >= -1 and a >= -5", "7f", "81"},
		{"a = 1 and b = 'x'", "81780000", "81780001"},
		{"a = 1 and b = 'x' and c = 2", "8178000082", "817800008200"},
		{"a = 1 and b >= 'x'", "81780000", "82"},
		{"a = 1 and b < 'x'", "81", "81780000"},
		{"a = 1 and b > 'x'", "817800010000", "82"},
		{"a >= 1 and b = 'x'", "81780000", ""},
		{"a in (5, 1, 3)", "81", "86"},
		{"a in (5, 1, 3) and a < 5", "81", "84"},
		{"b = 'x'", "", ""},
		{"a is not null", "", ""},
		{"a is null", "none", ""},
		{"a > 127", "none", ""},
		{"a < -128", "none", ""},
		{"a = 1 and a = 2", "none", ""},
		{"a in (1, 2) and a in (3, 4)", "none", ""},
		{"a = 1 and b < ''", "none", ""},
		{"v > 3 and v < 3", "none", ""},
	} {
		preds, err := ParseWhere(s, c.where)
		if err != nil {
			t.Fatal(err)
		}
		bound, err := BindAll(s, preds)
		if err != nil {
			t.Fatal(err)
		}
		start, stop, none := s.KeyBounds(bound)
		if want := c.start == "none"; none != want {
			t.Errorf("%s: none %v", c.where, none)
			continue
		}
		if !none && (!bytes.Equal(start, unhex(t, c.start)) || !bytes.Equal(stop, unhex(t, c.stop))) {
			t.Errorf("%s: [%x, %x), want [%s, %s)", c.where, start, stop, c.start, c.stop)
		}
	}
}

// TestBindFaults shows the faults of predicates and their codes.
func TestBindFaults(t *testing.T) {
	s := vectorSchema(t)
	for _, c := range []struct {
		name string
		p    Predicate
		want status.Code
	}{
		{"unknown column", Predicate{Column: "x", Kind: PredicateIsNull}, status.InvalidScanSpec},
		{"nothing said", Predicate{Column: "v"}, status.InvalidScanSpec},
		{"range without bounds", Predicate{Column: "v", Kind: PredicateRange}, status.InvalidScanSpec},
		{"short equality", Predicate{Column: "v", Kind: PredicateEquality, Value: []byte{1}}, status.InvalidScanSpec},
		{"empty equality", Predicate{Column: "v", Kind: PredicateEquality}, status.InvalidScanSpec},
		{"long bound", Predicate{Column: "key", Kind: PredicateRange, Lower: make([]byte, 5)}, status.InvalidScanSpec},
		{"short member", Predicate{Column: "key", Kind: PredicateInList, Values: [][]byte{make([]byte, 4), {1}}}, status.InvalidScanSpec},
		{"a string for an integer", Equal(s.Column(2), StringValue("1")), status.InvalidArgument},
		{"an integer out of range", Less(s.Column(0), IntValue(1<<40)), status.InvalidArgument},
		{"NULL", GreaterEqual(s.Column(1), Null()), status.InvalidArgument},
		{"NULL in a list", In(s.Column(1), StringValue("x"), Null()), status.InvalidArgument},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := c.p.Bind(s); status.CodeOf(err) != c.want {
				t.Errorf("error %v, code %v, want %v", err, status.CodeOf(err), c.want)
			}
		})
	}
	if _, err := PredicateFromProto(&nyalav1.Predicate{Column: "v"}); status.CodeOf(err) != status.InvalidScanSpec {
		t.Errorf("a message that says nothing: %v", err)
	}
}

// TestFloatEdges shows IEEE 754's corners: NaN matches no comparison, and the largest number's comparisons don't let it in.
func TestFloatEdges(t *testing.T) {
	s, err := NewTable([]Column{{Name: "k", Type: Int8, Key: true}, {Name: "v", Type: Double}})
	if err != nil {
		t.Fatal(err)
	}
	c := s.Column(1)
	inf, nan := FloatValue(math.Inf(1)), FloatValue(math.NaN())
	for _, x := range []struct {
		name string
		p    Predicate
		cell Value
		want bool
	}{
		{"NaN <= inf", LessEqual(c, inf), nan, false},
		{"inf <= inf", LessEqual(c, inf), inf, true},
		{"-inf <= inf", LessEqual(c, inf), FloatValue(math.Inf(-1)), true},
		{"inf > inf", Greater(c, inf), inf, false},
		{"NaN = NaN", Equal(c, nan), nan, false},
		{"1 <= NaN", LessEqual(c, nan), FloatValue(1), false},
		{"NaN is not null", IsNotNull(c), nan, true},
		{"-0 = 0", Equal(c, FloatValue(0)), FloatValue(math.Copysign(0, -1)), true},
		{"0 in (-0, 5)", In(c, FloatValue(5), FloatValue(math.Copysign(0, -1))), FloatValue(0), true},
	} {
		b, err := x.p.Bind(s)
		if err != nil {
			t.Fatal(err)
		}
		cell, _ := c.ValueBytes(x.cell)
		if got := b.Matches(cell, false); got != x.want {
			t.Errorf("%s: %v", x.name, got)
		}
	}
}
