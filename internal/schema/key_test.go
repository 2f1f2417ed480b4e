package schema

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
)

// unhex reads hexadecimal with spaces.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// failer is what the helpers need of a *testing.T or *rapid.T.
type failer interface {
	Helper()
	Fatal(args ...any)
}

// keySchema is a schema of key columns with the given types.
func keySchema(t failer, types ...Type) *Schema {
	t.Helper()
	columns := make([]Column, len(types))
	for i, typ := range types {
		columns[i] = testColumn(string(rune('a'+i)), typ)
		columns[i].ID, columns[i].Key = ColumnID(i), true
	}
	s, err := New(columns, 0, ColumnID(len(columns)))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// testColumn is a column of any type with attributes that are as wide as can be.
func testColumn(name string, typ Type) Column {
	c := Column{Name: name, Type: typ}
	switch typ {
	case Decimal32:
		c.Precision, c.Scale = 9, 2
	case Decimal64:
		c.Precision, c.Scale = 18, 2
	case Decimal128:
		c.Precision, c.Scale = 38, 2
	case Varchar:
		c.Length = MaxVarcharLength
	default:
	}
	return c
}

// TestKeyVectors has the worked examples of the key encoding.
func TestKeyVectors(t *testing.T) {
	seven := int128{lo: 7}.append(nil)
	for _, c := range []struct {
		name   string
		types  []Type
		values []Value
		want   string
	}{
		{"int32 20", []Type{Int32}, []Value{IntValue(20)}, "80000014"},
		{"int8 -1", []Type{Int8}, []Value{IntValue(-1)}, "7f"},
		{"int16 min", []Type{Int16}, []Value{IntValue(-32768)}, "0000"},
		{"int64 1", []Type{Int64}, []Value{IntValue(1)}, "8000000000000001"},
		{"time", []Type{UnixtimeMicros}, []Value{IntValue(0)}, "8000000000000000"},
		{"two strings", []Type{String, String}, []Value{StringValue("foo"), StringValue("bar")}, "666f6f 0000 626172"},
		{"a NUL inside", []Type{String, String}, []Value{StringValue("xxx\x00yyy"), StringValue("bar")}, "787878 0001 797979 0000 626172"},
		{"a NUL in the last", []Type{String}, []Value{StringValue("x\x00")}, "7800"},
		{"decimal128 7", []Type{Decimal128}, []Value{BytesValue(seven)}, "80 0000000000000000000000000000 07"},
		{"date min", []Type{Date}, []Value{IntValue(minDateDays)}, "7ff506c6"},
		{
			"range key of the Java vector",
			[]Type{Int32, String, String},
			[]Value{IntValue(0), StringValue("b"), StringValue("c")},
			"80000000 62 0000 63",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := keySchema(t, c.types...)
			key := s.EncodeKey(nil, s.CellsOf(c.values))
			if want := unhex(t, c.want); !bytes.Equal(key, want) {
				t.Fatalf("key %x, want %x", key, want)
			}
			values, err := s.DecodeKey(nil, key)
			if err != nil {
				t.Fatal(err)
			}
			for i := range values {
				if !values[i].Equal(c.values[i]) {
					t.Errorf("column %d came back as %v, want %v", i, values[i], c.values[i])
				}
			}
		})
	}
}

// TestMurmurVectors has hash inputs, seeds, hashes and buckets of 32 that Kudu computes.
func TestMurmurVectors(t *testing.T) {
	for _, c := range []struct {
		input  string
		seed   uint64
		hash   uint64
		bucket uint64
	}{
		{"80000000", 0, 0xcb281ab77b8e7980, 0},
		{"80000001", 0, 0xa70e96ba7bcb2725, 5},
		{"8000000062", 0, 0x56359db885aba43a, 26},
		{"", 42, 0x97037e2d10717c74, 20},
		{"63", 42, 0x81c48d4812b121fd, 29},
		{"8000000000000001", 0, 0x126a335c851912a9, 9},
		{"6162000063", 0, 0x2f4954a8db6aa343, 3},
	} {
		h := Murmur2_64(unhex(t, c.input), c.seed)
		if h != c.hash || h%32 != c.bucket {
			t.Errorf("%q seed %d: hash %x bucket %d, want %x and %d", c.input, c.seed, h, h%32, c.hash, c.bucket)
		}
	}
}
