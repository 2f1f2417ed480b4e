package schema

import (
	"bytes"
	"testing"

	"github.com/nyaladb/nyala/internal/status"
)

// vectorSchema is the schema of the worked examples: key INT32, s STRING nullable, v INT64.
func vectorSchema(t testing.TB) *Schema {
	t.Helper()
	s, err := NewTable([]Column{
		{Name: "key", Type: Int32, Key: true}, {Name: "s", Type: String, Nullable: true}, {Name: "v", Type: Int64},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestOpsVectors encodes the worked examples and decodes them again.
func TestOpsVectors(t *testing.T) {
	s := vectorSchema(t)
	keyOnly := NewBitmap(3)
	keyOnly.Set(0)
	for _, c := range []struct {
		name     string
		op       OpType
		values   []Value
		set      Bitmap
		rows     string
		indirect string
	}{
		{
			"insert", Insert,
			[]Value{IntValue(1), StringValue("hi"), IntValue(-2)},
			nil,
			"01 07 00 01000000 0000000000000000 0200000000000000 feffffffffffffff", "6869",
		},
		{"upsert with NULL", Upsert, []Value{IntValue(2), Null(), IntValue(7)}, nil, "05 07 02 02000000 0700000000000000", ""},
		{"delete", Delete, []Value{IntValue(1), {}, {}}, keyOnly, "03 01 00 01000000", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := NewOpsEncoder(s)
			if err := e.Append(c.op, c.values, c.set); err != nil {
				t.Fatal(err)
			}
			rows, indirect := e.Bytes()
			if !bytes.Equal(rows, unhex(t, c.rows)) || !bytes.Equal(indirect, unhex(t, c.indirect)) {
				t.Fatalf("rows %x indirect %x, want %s and %s", rows, indirect, c.rows, c.indirect)
			}
			op, err := NewOpsDecoder(s, rows, indirect).Next()
			if err != nil || op.RowError != nil {
				t.Fatal(err, op)
			}
			if op.Type != c.op {
				t.Errorf("type %v, want %v", op.Type, c.op)
			}
			for i, want := range c.values {
				if set := c.set == nil || c.set.Get(i); op.IsSet(i) != set {
					t.Errorf("column %d set: %v", i, op.IsSet(i))
				}
				if got := op.Value(i); !got.Equal(want) {
					t.Errorf("column %d: %v, want %v", i, got, want)
				}
			}
		})
	}
}

// TestRowFaults shows the faults of single rows, found by the encoder and, with the same code, by the decoder.
func TestRowFaults(t *testing.T) {
	s := vectorSchema(t)
	bits := func(positions ...int) Bitmap {
		b := NewBitmap(3)
		for _, i := range positions {
			b.Set(i)
		}
		return b
	}
	row := []Value{IntValue(1), StringValue("x"), IntValue(3)}
	for _, c := range []struct {
		name   string
		op     OpType
		values []Value
		set    Bitmap
		want   status.Code
	}{
		{"insert without a required column", Insert, row, bits(0, 1), status.InvalidArgument},
		{"upsert without a required column", Upsert, row, bits(0), status.InvalidArgument},
		{"update without the key", Update, row, bits(1, 2), status.InvalidArgument},
		{"update of nothing", Update, row, bits(0), status.InvalidArgument},
		{"delete with another column", Delete, row, bits(0, 2), status.InvalidArgument},
		{"delete without the key", Delete, row, bits(), status.InvalidArgument},
		{"NULL in a key", Insert, []Value{Null(), Null(), IntValue(1)}, nil, status.InvalidArgument},
		{"a string for an integer", Insert, []Value{StringValue("1"), Null(), IntValue(1)}, nil, status.InvalidArgument},
		{"an integer out of range", Insert, []Value{IntValue(1 << 40), Null(), IntValue(1)}, nil, status.InvalidArgument},
		{"a cell too large", Insert, []Value{IntValue(1), BytesValue(make([]byte, MaxCellSize+1)), IntValue(1)}, nil, status.CellTooLarge},
		{"an unknown type", 77, row, nil, status.NotSupported},
		{"too few values", Insert, row[:2], nil, status.InvalidArgument},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := NewOpsEncoder(s)
			err := e.Append(c.op, c.values, c.set)
			if err == nil || status.CodeOf(err) != c.want {
				t.Fatalf("error %v, code %v, want %v", err, status.CodeOf(err), c.want)
			}
			if e.Len() != 0 || e.Size() != 0 {
				t.Errorf("%d operations, %d bytes stayed behind", e.Len(), e.Size())
			}
		})
	}
}
