package schema

import (
	"bytes"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/nyaladb/nyala/internal/status"
)

// TestPartitionKeyVectors has the worked examples of hashing: the same rows fall into the same buckets as Kudu's.
func TestPartitionKeyVectors(t *testing.T) {
	s := keySchema(t, Int32, String, String)
	ps := &PartitionSchema{
		Hash: []HashDimension{
			{Columns: []ColumnID{0, 1}, Buckets: 32},
			{Columns: []ColumnID{2}, Buckets: 32, Seed: 42},
		},
		Range: []ColumnID{0, 1, 2},
	}
	if err := ps.Validate(s); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		a    int64
		b, c string
		want string
	}{
		{0, "b", "c", "0000001a 0000001d 80000000 62 0000 63"},
		{0, "", "", "00000000 00000014 80000000 0000"},
		{1, "", "c", "00000005 0000001d 80000001 0000 63"},
		{1, "", "", "00000005 00000014 80000001 0000"},
		{1, "b", "c", "00000000 0000001d 80000001 62 0000 63"},
	} {
		row := []Value{IntValue(c.a), StringValue(c.b), StringValue(c.c)}
		if key := ps.PartitionKey(s, s.CellsOf(row), nil); !bytes.Equal(key, unhex(t, c.want)) {
			t.Errorf("%v: partition key %x, want %s", row, key, c.want)
		}
		// The columns of a dimension are hashed in the order of their ids, whatever order they are listed in.
		other := *ps
		other.Hash = []HashDimension{{Columns: []ColumnID{1, 0}, Buckets: 32}, ps.Hash[1]}
		if key := other.PartitionKey(s, s.CellsOf(row), []byte("dst")); !bytes.Equal(key, append([]byte("dst"), unhex(t, c.want)...)) {
			t.Errorf("%v: partition key %x with the columns the other way round, want %s", row, key, c.want)
		}
	}
}

// TestPartitionBounds has partitions as Kudu's master builds them.
func TestPartitionBounds(t *testing.T) {
	hash3 := []HashDimension{{Columns: []ColumnID{0}, Buckets: 3}}
	ranges := []RangeWithHash{{Lower: unhex(t, "80000064")}, {Upper: unhex(t, "80000064")}}
	for _, c := range []struct {
		name   string
		ps     PartitionSchema
		ranges []RangeWithHash
		want   []string // start-end
	}{
		{"nothing", PartitionSchema{}, nil, []string{"-"}},
		{"one range column", PartitionSchema{Range: []ColumnID{0}}, nil, []string{"-"}},
		{"hash", PartitionSchema{Hash: hash3}, nil, []string{"00000000-00000001", "00000001-00000002", "00000002-00000003"}},
		{"ranges", PartitionSchema{Range: []ColumnID{0}}, ranges, []string{"-80000064", "80000064-"}},
		{"hash and ranges", PartitionSchema{Hash: []HashDimension{{Columns: []ColumnID{0}, Buckets: 2}}, Range: []ColumnID{0}}, ranges, []string{
			"00000000-0000000080000064", "0000000080000064-00000001", "00000001-0000000180000064", "0000000180000064-00000002",
		}},
		{"two dimensions", PartitionSchema{Hash: []HashDimension{
			{Columns: []ColumnID{0}, Buckets: 2}, {Columns: []ColumnID{1}, Buckets: 2},
		}}, nil, []string{
			"0000000000000000-0000000000000001", "0000000000000001-0000000000000002",
			"0000000100000000-0000000100000001", "0000000100000001-0000000100000002",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			parts, err := c.ps.PartitionsOf(c.ranges)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range parts {
				got = append(got, hexBounds(p))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("partitions %q, want %q", got, c.want)
			}
			if n := c.ps.NumPartitions(); c.ranges == nil && n != uint64(len(parts)) {
				t.Errorf("NumPartitions is %d, there are %d", n, len(parts))
			}
		})
	}
}

// drawPartitionSchema draws hash dimensions over disjoint key columns, range columns, and ranges, some with their own hash.
func drawPartitionSchema(t *rapid.T, s *Schema) (*PartitionSchema, []RangeWithHash) {
	ps := &PartitionSchema{Hash: drawHash(t, s, -1)}
	for i := range s.NumKeyColumns() {
		if rapid.Bool().Draw(t, "range column") {
			ps.Range = append(ps.Range, s.Column(i).ID)
		}
	}
	if len(ps.Range) == 0 {
		return ps, nil
	}
	ps.Range = rapid.Permutation(ps.Range).Draw(t, "range order")
	var splits [][]byte
	for range rapid.IntRange(0, 4).Draw(t, "splits") {
		split := appendComponents(s, ps.Range, s.CellsOf(drawRow(t, s)), nil)
		if len(split) > 0 && !slices.ContainsFunc(splits, func(b []byte) bool { return bytes.Equal(b, split) }) {
			splits = append(splits, split)
		}
	}
	ranges, err := SplitRanges(nil, splits)
	if err != nil {
		t.Fatal(err)
	}
	for i := range ranges {
		if rapid.IntRange(0, 2).Draw(t, "own hash") == 0 {
			ranges[i].Hash = drawHash(t, s, len(ps.Hash))
			ps.CustomRanges = append(ps.CustomRanges, ranges[i])
		}
	}
	return ps, ranges
}

// drawHash draws disjoint dimensions, as many as wanted if that is not -1; it may return fewer only then.
func drawHash(t *rapid.T, s *Schema, want int) []HashDimension {
	n := s.NumKeyColumns()
	most := rapid.IntRange(0, n).Draw(t, "dimensions")
	if want >= 0 {
		most = want
	}
	dims := make([]HashDimension, most)
	for i, k := range rapid.Permutation(slices.Collect(func(yield func(int) bool) {
		for i := range n {
			if !yield(i) {
				return
			}
		}
	})).Draw(t, "hashed") {
		if most == 0 || i >= most && rapid.Bool().Draw(t, "not hashed") {
			break
		}
		d := &dims[i%most]
		d.Columns = append(d.Columns, s.Column(k).ID)
	}
	for i := range dims {
		dims[i].Buckets = uint32(rapid.IntRange(2, 5).Draw(t, "buckets"))
		dims[i].Seed = uint32(rapid.IntRange(0, 3).Draw(t, "seed"))
	}
	return dims
}

// TestEveryRowHasOnePartition shows I4: each row's partition key lies in exactly one partition, the one whose buckets it begins
// with, and FindPartition finds it.
func TestEveryRowHasOnePartition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSchema(t)
		ps, ranges := drawPartitionSchema(t, s)
		if err := ps.Validate(s); err != nil {
			t.Fatal(err)
		}
		parts, err := ps.PartitionsOf(ranges)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.IsSortedFunc(parts, Partition.Compare) {
			t.Fatalf("partitions out of order: %v", parts)
		}
		for range 10 {
			row := drawRow(t, s)
			key := ps.PartitionKey(s, s.CellsOf(row), nil)
			found := -1
			for i := range parts {
				if !parts[i].Contains(key) {
					continue
				}
				if found >= 0 {
					t.Fatalf("key %x is in %v and in %v", key, parts[found], parts[i])
				}
				found = i
				if !bytes.HasPrefix(key, appendBuckets(nil, parts[i].Buckets)) {
					t.Fatalf("key %x is in %v, which has other buckets", key, parts[i])
				}
			}
			if found < 0 {
				t.Fatalf("key %x of %v is in none of %v", key, row, parts)
			}
			if i := FindPartition(parts, key); i != found {
				t.Fatalf("FindPartition says %d, want %d", i, found)
			}
		}
	})
}

// TestFindPartitionGaps shows that a key between ranges belongs nowhere.
func TestFindPartitionGaps(t *testing.T) {
	ps := PartitionSchema{Range: []ColumnID{0}}
	parts, err := ps.PartitionsOf([]RangeWithHash{
		{Lower: []byte("d"), Upper: []byte("f")}, {Lower: []byte("b"), Upper: []byte("c")},
	})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]int{"a": -1, "b": 0, "bz": 0, "c": -1, "cz": -1, "d": 1, "ez": 1, "f": -1} {
		if got := FindPartition(parts, []byte(key)); got != want {
			t.Errorf("%q is in %d, want %d", key, got, want)
		}
	}
	if got := FindPartition(nil, nil); got != -1 {
		t.Errorf("found %d in nothing", got)
	}
}

// TestPartitionFilter shows that no partition with a matching row is left out, and that equality on the hashed columns leaves
// one bucket.
func TestPartitionFilter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSchema(t)
		ps, ranges := drawPartitionSchema(t, s)
		parts, err := ps.PartitionsOf(ranges)
		if err != nil {
			t.Fatal(err)
		}
		preds, err := BindAll(s, drawPredicates(t, s, s.NumKeyColumns()))
		if err != nil {
			t.Fatal(err)
		}
		f := ps.Filter(s, preds)
		for range 10 {
			row := drawRow(t, s)
			if !matchesAll(s, preds, row) {
				continue
			}
			key := ps.PartitionKey(s, s.CellsOf(row), nil)
			if p := parts[FindPartition(parts, key)]; !f.MayContain(&p) {
				t.Fatalf("row %v matches, but its partition %v is left out", row, p)
			}
		}
	})
	s := keySchema(t, Int32, String)
	ps := &PartitionSchema{Hash: []HashDimension{{Columns: []ColumnID{1}, Buckets: 8}}}
	for text, want := range map[string]int{
		"b = 'x'": 1, "b in ('x', 'y', 'x')": 2, "b > 'x'": 8, "a = 1": 8, "a = 1 and b >= 'x' and b <= 'x'": 1,
		"b in ('x', 'y') and b in ('y', 'z')": 1, "b = 'x' and b = 'y'": 0,
	} {
		preds, err := ParseWhere(s, text)
		if err != nil {
			t.Fatal(err)
		}
		bound, err := BindAll(s, preds)
		if err != nil {
			t.Fatal(err)
		}
		f := ps.Filter(s, bound)
		left := slices.DeleteFunc(ps.Partitions(), func(p Partition) bool { return !f.MayContain(&p) })
		if len(left) != want {
			t.Errorf("%s leaves %v, want %d", text, left, want)
		}
	}
}

// TestPartitionSchemaFaults shows what Validate and PartitionsOf refuse.
func TestPartitionSchemaFaults(t *testing.T) {
	s, err := NewTable([]Column{{Name: "a", Type: Int32, Key: true}, {Name: "b", Type: String, Key: true}, {Name: "v", Type: Int64}})
	if err != nil {
		t.Fatal(err)
	}
	dim := func(buckets uint32, columns ...ColumnID) HashDimension {
		return HashDimension{Columns: columns, Buckets: buckets}
	}
	for _, c := range []struct {
		name string
		ps   PartitionSchema
	}{
		{"one bucket", PartitionSchema{Hash: []HashDimension{dim(1, 0)}}},
		{"no columns", PartitionSchema{Hash: []HashDimension{dim(2)}}},
		{"not a key column", PartitionSchema{Hash: []HashDimension{dim(2, 2)}}},
		{"unknown column", PartitionSchema{Hash: []HashDimension{dim(2, 9)}}},
		{"hashed twice", PartitionSchema{Hash: []HashDimension{dim(2, 0), dim(2, 1, 0)}}},
		{"range over a value", PartitionSchema{Range: []ColumnID{2}}},
		{"range over a column twice", PartitionSchema{Range: []ColumnID{0, 0}}},
		{"custom range without range columns", PartitionSchema{CustomRanges: []RangeWithHash{{}}}},
		{"custom range with more dimensions", PartitionSchema{Range: []ColumnID{0}, CustomRanges: []RangeWithHash{{Hash: []HashDimension{dim(2, 0)}}}}},
		{"empty range", PartitionSchema{Range: []ColumnID{0}, CustomRanges: []RangeWithHash{{Lower: []byte("b"), Upper: []byte("b")}}}},
		{"overlapping ranges", PartitionSchema{Range: []ColumnID{0}, CustomRanges: []RangeWithHash{{Lower: []byte("b")}, {Upper: []byte("c")}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.ps.Validate(s); status.CodeOf(err) != status.InvalidSchema {
				t.Errorf("error %v, code %v", err, status.CodeOf(err))
			}
		})
	}
	huge := PartitionSchema{Hash: []HashDimension{dim(1<<31, 0), dim(1<<31, 1), dim(1<<31, 0)}}
	if n := huge.NumPartitions(); n != ^uint64(0) {
		t.Errorf("NumPartitions of far too many: %d", n)
	}
}

// TestPartitionProto sends partition schemas and partitions through their messages and back.
func TestPartitionProto(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSchema(t)
		ps, ranges := drawPartitionSchema(t, s)
		wire, err := proto.Marshal(ps.ToProto())
		if err != nil {
			t.Fatal(err)
		}
		m := ps.ToProto()
		m.Reset()
		if err := proto.Unmarshal(wire, m); err != nil {
			t.Fatal(err)
		}
		back := PartitionSchemaFromProto(m)
		if err := back.Validate(s); err != nil {
			t.Fatal(err)
		}
		row := drawRow(t, s)
		if a, b := ps.PartitionKey(s, s.CellsOf(row), nil), back.PartitionKey(s, s.CellsOf(row), nil); !bytes.Equal(a, b) {
			t.Fatalf("partition key %x became %x", a, b)
		}
		parts, _ := ps.PartitionsOf(ranges)
		for _, p := range parts {
			if q := PartitionFromProto(p.ToProto()); p.Compare(q) != 0 || !bytes.Equal(p.End, q.End) || !slices.Equal(p.Buckets, q.Buckets) {
				t.Fatalf("%v became %v", p, q)
			}
		}
	})
}
