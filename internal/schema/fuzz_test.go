package schema

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/status"
)

// fuzzSchemas are the schemas that foreign bytes are decoded with: every type, with and without nullable columns, keys of
// every shape.
func fuzzSchemas(f *testing.F) []*Schema {
	f.Helper()
	all := []Column{{Name: "k0", Type: String, Key: true}, {Name: "k1", Type: Int16, Key: true}, {Name: "k2", Type: Binary, Key: true}}
	for i, typ := range allTypes {
		c := testColumn("v"+typ.String(), typ)
		c.Nullable = i%2 == 0
		all = append(all, c)
	}
	for i := range all {
		all[i].ID = ColumnID(i)
	}
	wide, err := New(all, 0, ColumnID(len(all)))
	if err != nil {
		f.Fatal(err)
	}
	vector, err := NewTable([]Column{
		{Name: "key", Type: Int32, Key: true}, {Name: "s", Type: String, Nullable: true}, {Name: "v", Type: Int64},
	})
	if err != nil {
		f.Fatal(err)
	}
	return []*Schema{vector, wide, keySchema(f, String, String), keySchema(f, Decimal128, Date, Varchar, Int64)}
}

// FuzzDecodeOps shows I6: no bytes make the decoder panic or pass a row that breaks the limits, and a row that passes comes
// through the encoder and back as the same.
func FuzzDecodeOps(f *testing.F) {
	schemas := fuzzSchemas(f)
	for i := range schemas {
		f.Add(uint8(i), unhex(f, "01 07 00 01000000 0000000000000000 0200000000000000 feffffffffffffff"), []byte("hi"))
		f.Add(uint8(i), unhex(f, "05 07 02 02000000 0700000000000000 03 01 00 01000000"), []byte{})
		f.Add(uint8(i), unhex(f, "01 07 00 01000000 ffffffffffffffff 0200000000000000 feffffffffffffff"), []byte("hi"))
	}
	f.Fuzz(func(t *testing.T, which uint8, rows, indirect []byte) {
		s := schemas[int(which)%len(schemas)]
		n, err := decodeAll(t, s, rows, indirect)
		if count, cerr := CountOps(s, rows, indirect); (cerr == nil) != (err == nil) || err == nil && count != n {
			t.Fatalf("%d operations and %v, CountOps says %d and %v", n, err, count, cerr)
		}
		d := NewOpsDecoder(s, rows, indirect)
		for {
			op, err := d.Next()
			if op == nil || err != nil {
				return
			}
			if op.RowError == nil {
				reencode(t, s, op)
			}
		}
	})
}

func reencode(t *testing.T, s *Schema, op *DecodedOp) {
	values, set := make([]Value, s.NumColumns()), NewBitmap(s.NumColumns())
	for i := range values {
		if values[i] = op.Value(i); op.IsSet(i) {
			set.Set(i)
		}
	}
	e := NewOpsEncoder(s)
	if err := e.Append(op.Type, values, set); err != nil {
		t.Fatalf("%v of %v: %v", op.Type, values, err)
	}
	rows, indirect := e.Bytes()
	again, err := NewOpsDecoder(s, rows, indirect).Next()
	if err != nil || again.RowError != nil || again.Type != op.Type {
		t.Fatalf("%v, %v", again, err)
	}
	for i := range values {
		switch typ := s.Column(i).Type; {
		case op.IsSet(i) != again.IsSet(i) || op.IsNull(i) != again.IsNull(i):
			t.Fatalf("column %d changed", i)
		// A boolean other than 0 and 1, and a NaN that signals, become ordinary ones.
		case op.IsSet(i) && !op.IsNull(i) && typ.class() != classBool && typ.Compare(op.Cell(i), again.Cell(i)) != 0:
			t.Fatalf("column %d: %x became %x", i, op.Cell(i), again.Cell(i))
		}
	}
}

// FuzzDecodeRangeBounds: no bytes make it panic, and what passes makes partitions.
func FuzzDecodeRangeBounds(f *testing.F) {
	schemas := fuzzSchemas(f)
	f.Add(uint8(0), unhex(f, "06 01 00 00000000 07 01 00 64000000 04 01 00 32000000"), []byte{})
	f.Add(uint8(2), unhex(f, "08 00 09 01 0000000000000000 0200000000000000"), []byte("hi"))
	f.Fuzz(func(t *testing.T, which uint8, rows, indirect []byte) {
		s := schemas[int(which)%len(schemas)]
		ps := &PartitionSchema{}
		for i := range s.NumKeyColumns() {
			ps.Range = append(ps.Range, s.Column(i).ID)
		}
		ranges, splits, err := ps.DecodeRangeBounds(s, rows, indirect)
		if err != nil || len(splits) > 100 {
			return
		}
		if ranges, err = SplitRanges(ranges, splits); err != nil {
			return
		}
		if parts, err := ps.PartitionsOf(ranges); err != nil || len(parts) != len(ranges) {
			t.Fatalf("%d ranges made %d partitions: %v", len(ranges), len(parts), err)
		}
	})
}

// FuzzDecodeKey shows I3 for any bytes.
func FuzzDecodeKey(f *testing.F) {
	schemas := fuzzSchemas(f)
	f.Add(uint8(0), unhex(f, "80000014"))
	f.Add(uint8(1), unhex(f, "787878 0001 797979 0000 8001 626172"))
	f.Add(uint8(2), unhex(f, "666f6f 0000 626172"))
	f.Add(uint8(3), unhex(f, "80000000000000000000000000000007 7ff506c6 0001 61 0000 8000000000000001"))
	f.Fuzz(func(t *testing.T, which uint8, key []byte) {
		checkDecodedKey(t, schemas[int(which)%len(schemas)], key)
	})
}

// FuzzParseWhere: no clause makes the parser panic; one that passes binds and, written again, reads back the same.
func FuzzParseWhere(f *testing.F) {
	s := fuzzSchemas(f)[1]
	for _, clause := range []string{
		"vint64 > 2000 and vstring = 'JFK'", "k0 in ('a', 'b''c') and vbool is not null", `"vdouble" <= -1.5e3`,
		"vunixtime_micros >= '2013-01-01T10:00:00Z'", "vdecimal32 < 12.34 and vdate = '2020-01-01'", "5 < vint8", "vbinary = 0x00",
	} {
		f.Add(clause)
	}
	f.Fuzz(func(t *testing.T, clause string) {
		preds, err := ParseWhere(s, clause)
		if err != nil {
			if status.CodeOf(err) != status.InvalidArgument {
				t.Fatalf("code %v: %v", status.CodeOf(err), err)
			}
			return
		}
		if _, err := BindAll(s, preds); err != nil {
			t.Fatalf("%q: %v", clause, err)
		}
		var parts []string
		for _, p := range preds {
			if p.Kind == PredicateInList && len(p.Values) == 0 {
				return // "nothing" has no form
			}
			parts = append(parts, p.Format(s))
		}
		form := strings.Join(parts, " AND ")
		again, err := ParseWhere(s, form)
		if err != nil {
			// The bound of "<= the last date" is the day after it, which has no text form.
			if strings.Contains(form, "vdate") || strings.Contains(form, "decimal") {
				return
			}
			t.Fatalf("%q is written as %q, which doesn't read: %v", clause, form, err)
		}
		if len(again) != len(preds) {
			t.Fatalf("%q became %q", clause, form)
		}
	})
}

// FuzzParseColumnSpecs: no specs make the parser panic; those that pass read back the same.
func FuzzParseColumnSpecs(f *testing.F) {
	f.Add("id int64, name string null")
	f.Add(`"a ""b""" decimal(9, 2) not null, v varchar(3)`)
	f.Add(`a int8 default -1 comment 'c', s string null default '', d date default '0001-01-01'`)
	f.Fuzz(func(t *testing.T, specs string) {
		columns, err := ParseColumnSpecs(specs)
		if err != nil {
			return
		}
		var parts []string
		for i := range columns {
			if columns[i].Type.class() != classNone && strings.HasPrefix(columns[i].Type.String(), "decimal") && columns[i].Precision == 0 {
				return // "decimal32" has no precision; NewTable says so
			}
			parts = append(parts, columns[i].String())
		}
		again, err := ParseColumnSpecs(strings.Join(parts, ", "))
		if err != nil || len(again) != len(columns) {
			t.Fatalf("%q is written as %q: %v", specs, parts, err)
		}
	})
}

// FuzzDecodeSchema: no message makes a schema that breaks I1 or changes on its way back.
func FuzzDecodeSchema(f *testing.F) {
	for _, s := range fuzzSchemas(f) {
		b, err := proto.Marshal(s.ToProto())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := &nyalav1.Schema{}
		if proto.Unmarshal(b, m) != nil {
			return
		}
		s, err := FromProto(m)
		if err != nil {
			if status.CodeOf(err) != status.InvalidSchema {
				t.Fatalf("code %v: %v", status.CodeOf(err), err)
			}
			return
		}
		if s.NumKeyColumns() < 1 || s.NumColumns() > MaxColumns {
			t.Fatalf("%d columns, %d of them keys", s.NumColumns(), s.NumKeyColumns())
		}
		if back, err := FromProto(s.ToProto()); err != nil || !proto.Equal(back.ToProto(), s.ToProto()) {
			t.Fatalf("%v became %v, %v", s.ToProto(), back, err)
		}
	})
}

// FuzzDecodePartitionSchema: no message that passes Validate makes PartitionKey panic or leaves the row without a partition.
func FuzzDecodePartitionSchema(f *testing.F) {
	s := fuzzSchemas(f)[3]
	for _, ps := range []*PartitionSchema{
		{},
		{Range: []ColumnID{2, 0}},
		{
			Hash: []HashDimension{{Columns: []ColumnID{0, 3}, Buckets: 4, Seed: 1}, {Columns: []ColumnID{1}, Buckets: 2}}, Range: []ColumnID{1},
			CustomRanges: []RangeWithHash{{Upper: []byte{0x80}, Hash: []HashDimension{{Columns: []ColumnID{1}, Buckets: 3}, {Columns: []ColumnID{2}, Buckets: 2}}}},
		},
	} {
		b, err := proto.Marshal(ps.ToProto())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := &nyalav1.PartitionSchema{}
		if proto.Unmarshal(b, m) != nil {
			return
		}
		ps := PartitionSchemaFromProto(m)
		if ps.Validate(s) != nil {
			return
		}
		row := []Value{BytesValue(make([]byte, 16)), IntValue(1), StringValue("x"), IntValue(2)}
		key := ps.PartitionKey(s, s.CellsOf(row), nil)
		if len(ps.CustomRanges) == 0 && ps.NumPartitions() < 10000 && FindPartition(ps.Partitions(), key) < 0 {
			t.Fatalf("key %x is in none of %v", key, ps.Partitions())
		}
	})
}

// FuzzDecodePredicate: no message makes Bind, Matches, KeyBounds or Format panic.
func FuzzDecodePredicate(f *testing.F) {
	s := fuzzSchemas(f)[1]
	for i := range s.NumColumns() {
		c := s.Column(i)
		zero, err := c.ValueFromBytes(make([]byte, c.Type.Size()))
		if err != nil {
			f.Fatal(err)
		}
		for _, p := range []Predicate{Equal(c, zero), Less(c, zero), GreaterEqual(c, zero), In(c, zero, zero), IsNull(c), IsNotNull(c)} {
			b, err := proto.Marshal(p.ToProto())
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := &nyalav1.Predicate{}
		if proto.Unmarshal(b, m) != nil {
			return
		}
		p, err := PredicateFromProto(m)
		if err != nil {
			return
		}
		p.Format(s)
		bound, err := p.Bind(s)
		if err != nil {
			return
		}
		start, stop, none := s.KeyBounds([]*BoundPredicate{bound})
		if !none && stop != nil && bytes.Compare(start, stop) >= 0 {
			t.Fatalf("bounds [%x, %x)", start, stop)
		}
		c := s.Column(bound.Column())
		bound.Matches(make([]byte, c.Type.Size()), false)
		bound.Matches(nil, true)
	})
}
