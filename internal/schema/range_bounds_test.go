package schema

import (
	"encoding/hex"
	"testing"

	"github.com/nyaladb/nyala/internal/status"
)

func hexBounds(p Partition) string {
	return hex.EncodeToString(p.Start) + "-" + hex.EncodeToString(p.End)
}

// TestRangeBoundVectors has the worked examples of range bounds.
func TestRangeBoundVectors(t *testing.T) {
	s := vectorSchema(t)
	ps := &PartitionSchema{Range: []ColumnID{0}}
	for _, c := range []struct{ name, rows, lower, upper string }{
		{"[0, 100)", "06 01 00 00000000   07 01 00 64000000", "80000000", "80000064"},
		{"unbounded", "06 00 00            07 00 00", "", ""},
		{"(0, 100]", "08 01 00 00000000   09 01 00 64000000", "80000001", "80000065"},
		{"inclusive upper at the largest", "06 00 00   09 01 00 ffffff7f", "", ""},
		{"inclusive upper with nothing set", "06 00 00   09 00 00", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			ranges, splits, err := ps.DecodeRangeBounds(s, unhex(t, c.rows), nil)
			if err != nil || len(ranges) != 1 || len(splits) != 0 {
				t.Fatal(ranges, splits, err)
			}
			if lower, upper := hex.EncodeToString(ranges[0].Lower), hex.EncodeToString(ranges[0].Upper); lower != c.lower || upper != c.upper {
				t.Errorf("[%s, %s), want [%s, %s)", lower, upper, c.lower, c.upper)
			}
		})
	}
}

// TestRangeBoundIncrement has the examples of an exclusive lower bound over three INT8 columns.
func TestRangeBoundIncrement(t *testing.T) {
	s := keySchema(t, Int8, Int8, Int8)
	ps := &PartitionSchema{Range: []ColumnID{0, 1, 2}}
	lower := func(cells string) (string, error) {
		// Exclusive lower bound, then an unbounded upper one.
		ranges, _, err := ps.DecodeRangeBounds(s, unhex(t, "08"+cells+"07 00"), nil)
		if err != nil {
			return "", err
		}
		return hex.EncodeToString(ranges[0].Lower), nil
	}
	for _, c := range []struct{ name, cells, want string }{
		{"(1,2,127)", "07 01 02 7f", "818300"}, // (1,3,_)
		{"(1,_,3)", "05 01 03", "810084"},      // (1,_,4)
		{"(_,_,_)", "00", "000001"},            // (_,_,-127)
		{"(1,127,127)", "07 01 7f 7f", "820000"},
	} {
		if got, err := lower(c.cells); got != c.want || err != nil {
			t.Errorf("%s: %s, %v, want %s", c.name, got, err, c.want)
		}
	}
	if _, err := lower("07 7f 7f 7f"); status.CodeOf(err) != status.InvalidArgument {
		t.Errorf("every column at its largest: %v", err)
	}
}

// TestRangeBoundsAndSplits shows other types' bounds, splits, and what is refused.
func TestRangeBoundsAndSplits(t *testing.T) {
	s := keySchema(t, Date, String)
	ps := &PartitionSchema{Range: []ColumnID{0, 1}}
	// (2020-01-01, "a"] as an inclusive upper bound; a date left unset is the first one.
	ranges, splits, err := ps.DecodeRangeBounds(s,
		unhex(t, "06 02 0000000000000000 0100000000000000  09 03 56470000 0000000000000000 0100000000000000  04 01 00000000"), []byte("a"))
	if err != nil || len(ranges) != 1 || len(splits) != 1 {
		t.Fatal(ranges, splits, err)
	}
	if got := hex.EncodeToString(ranges[0].Lower); got != "7ff506c6"+"61" {
		t.Errorf("lower bound %s", got)
	}
	if got := hex.EncodeToString(ranges[0].Upper); got != "80004756"+"6100" {
		t.Errorf("upper bound %s", got)
	}
	cut, err := SplitRanges(ranges, splits)
	if err != nil || len(cut) != 2 || string(cut[0].Upper) != string(splits[0]) || string(cut[1].Lower) != string(splits[0]) {
		t.Errorf("split into %v, %v", cut, err)
	}
	if _, err := SplitRanges(cut, splits); status.CodeOf(err) != status.InvalidArgument {
		t.Errorf("a split that repeats: %v", err)
	}
	v := vectorSchema(t)
	for _, c := range []struct {
		name, rows string
		want       status.Code
	}{
		{"an insert", "01 07 02 01000000 0000000000000000", status.InvalidArgument},
		{"two lower bounds", "06 00 00 06 00 00", status.InvalidArgument},
		{"an upper bound alone", "07 00 00", status.InvalidArgument},
		{"a lower bound alone", "06 00 00", status.InvalidArgument},
		{"a split between two bounds", "06 00 00 04 01 00 01000000 07 00 00", status.InvalidArgument},
		{"another column", "06 04 00 0100000000000000 07 00 00", status.InvalidArgument},
		{"a split without columns", "04 00 00", status.InvalidArgument},
		{"an empty range", "06 01 00 64000000 07 01 00 64000000", status.InvalidArgument},
		{"overlapping ranges", "06 00 00 07 00 00 06 01 00 64000000 07 00 00", status.InvalidArgument},
		{"short", "06 01 00 0100", status.Corruption},
	} {
		t.Run(c.name, func(t *testing.T) {
			ps := &PartitionSchema{Range: []ColumnID{0}}
			if ranges, _, err := ps.DecodeRangeBounds(v, unhex(t, c.rows), nil); status.CodeOf(err) != c.want {
				t.Errorf("%v, error %v, want code %v", ranges, err, c.want)
			}
		})
	}
}
