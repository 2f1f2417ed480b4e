package schema

import (
	"bytes"
	"encoding/hex"
	"slices"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/nyaladb/nyala/internal/status"
)

func columnsOf(s *Schema, ps *PartitionSchema) []*Column {
	var out []*Column
	for _, i := range positionsOf(s, ps.Range) {
		out = append(out, s.Column(i))
	}
	return out
}

// TestRangeOf has bounds that were reported to go wrong: exclusive lower and inclusive upper ones that carry into the column
// before, unset columns, and ends of the type.
func TestRangeOf(t *testing.T) {
	three := &PartitionSchema{Range: []ColumnID{0, 1, 2}}
	one := &PartitionSchema{Range: []ColumnID{0}}
	int8s, text, micros := keySchema(t, Int8, Int8, Int8), keySchema(t, String, Int8), keySchema(t, UnixtimeMicros)
	for _, c := range []struct {
		s            *Schema
		ps           *PartitionSchema
		text         string
		lower, upper string // as FormatRangeKey has them
	}{
		{int8s, three, "((1,2,3), (1,2,3)]", "(1, 2, 4)", "(1, 2, 4)"},
		{int8s, three, "((1,2,127), (2)]", "(1, 3, -128)", "(2, -128, -127)"},
		{int8s, three, "((1,127,127), (1,127,127)]", "(2, -128, -128)", "(2, -128, -128)"},
		{int8s, three, "[(1,2), (1,2,5))", "(1, 2, -128)", "(1, 2, 5)"},
		{int8s, three, "((1,2), (127,127,127)]", "(1, 2, -127)", ""},
		{int8s, one, "[, 0)", "", "0"},
		{int8s, one, "(, ]", "", ""},
		{text, one, "('b', 'b']", `'b` + "\x00'", `'b` + "\x00'"},
		{text, one, "['', 'a')", "", "'a'"},
		{micros, one, "('1969-12-31T23:59:59.999999Z', )", "'1970-01-01T00:00:00Z'", ""},
	} {
		parsed, err := ParseRanges(columnsOf(c.s, c.ps), c.text)
		if err != nil || len(parsed) != 1 {
			t.Errorf("%s: %v, %v", c.text, parsed, err)
			continue
		}
		lower, err := c.ps.boundOf(c.s, "lower bound", lowerKind(parsed[0].RangeSpec), parsed[0].Lower)
		if got := c.ps.FormatRangeKey(c.s, lower); err != nil || got != c.lower {
			t.Errorf("%s: lower bound %s, %v, want %s", c.text, got, err, c.lower)
		}
		upper, err := c.ps.boundOf(c.s, "upper bound", upperKind(parsed[0].RangeSpec), parsed[0].Upper)
		if got := c.ps.FormatRangeKey(c.s, upper); err != nil || got != c.upper {
			t.Errorf("%s: upper bound %s, %v, want %s", c.text, got, err, c.upper)
		}
	}
}

// TestRangeOfFaults: what is no range, and what the message says.
func TestRangeOfFaults(t *testing.T) {
	int8s := keySchema(t, Int8, Int8)
	two := &PartitionSchema{Range: []ColumnID{0, 1}}
	for _, c := range []struct {
		ps   *PartitionSchema
		spec RangeSpec
		want string
	}{
		{two, RangeSpec{Lower: [][]byte{{127}, {127}}, LowerExclusive: true}, "lower bound: no row lies above it"},
		{two, RangeSpec{Lower: [][]byte{{1}}, Upper: [][]byte{{1}}}, "the range [(1, -128), (1, -128)) is empty"},
		{two, RangeSpec{Lower: [][]byte{{2}}, Upper: [][]byte{{1}}}, "the range [(2, -128), (1, -128)) is empty"},
		{two, RangeSpec{Lower: [][]byte{{2}, {1}, {3}}}, "lower bound: it has 3 values, but there are 2 range columns"},
		{two, RangeSpec{Upper: [][]byte{{2, 0}}}, `column "a" (int8): upper bound: its value has 2 bytes, want 1`},
		{&PartitionSchema{}, RangeSpec{Upper: [][]byte{{2}}}, "lower bound: the table has no range columns"},
	} {
		_, err := c.ps.RangeOf(int8s, c.spec)
		if status.CodeOf(err) != status.InvalidArgument || err.Error() != c.want {
			t.Errorf("%+v: %v, want %s", c.spec, err, c.want)
		}
	}
	if _, err := two.SplitOf(int8s, nil); err == nil || err.Error() != "split: it sets no column" {
		t.Errorf("split: %v", err)
	}
	overlapping := []RangeWithHash{{Lower: []byte{0x80, 0}}, {Lower: []byte{0x81, 0}, Upper: []byte{0x85, 0}}}
	if err := two.ValidateRanges(int8s, overlapping); err == nil || err.Error() != "the ranges [(0, -128), ) and [(1, -128), (5, -128)) overlap" {
		t.Errorf("overlap: %v", err)
	}
}

// TestParseRanges reads the grammar and says where a fault is.
func TestParseRanges(t *testing.T) {
	s := keySchema(t, Int8, String)
	ps := &PartitionSchema{Range: []ColumnID{0, 1}}
	columns, rest, err := ParseRangeColumns(` a, "b" : [1,2), [(3,'x'), (4)] hash(a, "b"):4 hash(c):2:7`)
	if err != nil || !slices.Equal(columns, []string{"a", "b"}) {
		t.Fatal(columns, err)
	}
	got, err := ParseRanges(columnsOf(s, ps), rest)
	if err != nil || len(got) != 2 {
		t.Fatal(got, err)
	}
	if r := got[0]; len(r.Lower) != 1 || r.Lower[0][0] != 1 || r.LowerExclusive || r.UpperInclusive || r.Hash != nil {
		t.Errorf("first: %+v", r)
	}
	r := got[1]
	if len(r.Lower) != 2 || string(r.Lower[1]) != "x" || !r.UpperInclusive || len(r.Hash) != 2 {
		t.Fatalf("second: %+v", r)
	}
	if !slices.Equal(r.Hash[0].Columns, []string{"a", "b"}) || r.Hash[0].Buckets != 4 || r.Hash[1].Buckets != 2 || r.Hash[1].Seed != 7 {
		t.Errorf("second: %+v", r)
	}
	if columns, rest, err := ParseRangeColumns("a"); err != nil || rest != "" || len(columns) != 1 {
		t.Error(columns, rest, err)
	}
	for _, c := range []struct{ text, want string }{
		{"", "range, character 1: want a range as in [1, 10), have the end"},
		{"[1 2)", `range, character 4: want ,, have "2"`},
		{"[1, 2", "range, character 6: want ) or ] behind the upper bound, have the end"},
		{"[x, 2)", `range, character 2: want a value, have "x": strings stand in single quotes`},
		{"[300, )", `range, character 2: column "a" (int8): "300": out of range`},
		{"[(1,2), )", `range, character 5: column "b" (string) takes a string in single quotes, as in '2'`},
		{"[(1,'2',3), )", "range, character 9: a bound has more values than the 2 range columns"},
		{"[1, 2) hash(a)", "range, character 15: want :, have the end"},
		{"[1, 2) [3, 4)", `range, character 8: want ,, have "["`},
	} {
		if _, err := ParseRanges(columnsOf(s, ps), c.text); err == nil || len(err.Error()) < len(c.want) || err.Error()[:len(c.want)] != c.want {
			t.Errorf("%q: %v, want %s", c.text, err, c.want)
		}
	}
	if _, _, err := ParseRangeColumns("a b: [1,2)"); err == nil {
		t.Error("a column list without a comma was read")
	}
}

func lowerKind(r RangeSpec) OpType {
	if r.LowerExclusive {
		return ExclusiveRangeLowerBound
	}
	return RangeLowerBound
}

func upperKind(r RangeSpec) OpType {
	if r.UpperInclusive {
		return InclusiveRangeUpperBound
	}
	return RangeUpperBound
}

// TestRangeText: a range's text reads back as the same range, whatever the columns.
func TestRangeText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSchema(t)
		ps := &PartitionSchema{}
		for i := range rapid.IntRange(1, s.NumKeyColumns()).Draw(t, "range columns") {
			ps.Range = append(ps.Range, s.Column(i).ID)
		}
		key := func(name string) []byte {
			if rapid.Bool().Draw(t, name) {
				return nil
			}
			values := make([]Value, s.NumColumns())
			for i := range s.NumKeyColumns() {
				c := s.Column(i)
				if values[i] = drawValue(t, c); c.CheckValue(values[i]) != nil || (c.Type == String || c.Type == Varchar) && !utf8.Valid(values[i].Bytes()) {
					return nil // more digits than the column has, or no text: nothing that reads back
				}
			}
			return ps.RangeKey(s, s.CellsOf(values), nil)
		}
		lower, upper := key("no lower"), key("no upper")
		if len(upper) > 0 && bytes.Compare(lower, upper) >= 0 {
			return
		}
		text := ps.FormatRange(s, lower, upper)
		parsed, err := ParseRanges(columnsOf(s, ps), text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		r, err := ps.RangeOf(s, parsed[0].RangeSpec)
		if err != nil || !bytes.Equal(r.Lower, lower) || !bytes.Equal(r.Upper, upper) {
			t.Fatalf("%s reads as [%x, %x), %v; want [%x, %x)", text, r.Lower, r.Upper, err, lower, upper)
		}
	})
}

// FuzzParseRanges: no text makes the parser panic, and what it reads is a range or a fault.
func FuzzParseRanges(f *testing.F) {
	for _, seed := range []string{"[1, 5)", "([(1,'a'), )", "[(1,'a'), (2)] hash(a,b):4:1, [3,4)", "(, ]"} {
		f.Add(seed)
	}
	s := keySchema(f, Int8, String)
	ps := &PartitionSchema{Range: []ColumnID{0, 1}}
	f.Fuzz(func(t *testing.T, text string) {
		parsed, err := ParseRanges(columnsOf(s, ps), text)
		if err != nil {
			return
		}
		for _, p := range parsed {
			if r, err := ps.RangeOf(s, p.RangeSpec); err == nil && len(r.Upper) > 0 && bytes.Compare(r.Lower, r.Upper) >= 0 {
				t.Fatalf("%q is [%s, %s)", text, hex.EncodeToString(r.Lower), hex.EncodeToString(r.Upper))
			}
		}
	})
}
