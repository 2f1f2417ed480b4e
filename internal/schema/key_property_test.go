package schema

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

// TestKeyOrder shows I2 for each type alone and for composite keys: keys compare bytewise as their values do. It also shows
// that the size is computed right and that I3 holds for what EncodeKey makes.
func TestKeyOrder(t *testing.T) {
	check := func(t *rapid.T, s *Schema) {
		a, b := drawRow(t, s), drawRow(t, s)
		// Often equal in the first columns, so that the later ones decide.
		for i := range rapid.IntRange(0, s.NumKeyColumns()).Draw(t, "common") {
			b[i] = a[i]
		}
		ka, kb := s.EncodeKey(nil, s.CellsOf(a)), s.EncodeKey([]byte("before"), s.CellsOf(b))[len("before"):]
		if got, want := bytes.Compare(ka, kb), sign(compareKeys(s, a, b)); got != want {
			t.Fatalf("keys %x and %x compare %d, their values %d: %v, %v", ka, kb, got, want, a, b)
		}
		back, err := s.DecodeKey(nil, ka)
		if err != nil {
			t.Fatalf("key %x of %v: %v", ka, a, err)
		}
		for i, v := range back {
			if !v.Equal(a[i]) {
				t.Fatalf("column %d of key %x came back as %v, was %v", i, ka, v, a[i])
			}
		}
	}
	for _, typ := range keyTypes {
		t.Run(typ.String(), func(t *testing.T) {
			for _, s := range []*Schema{keySchema(t, typ), keySchema(t, typ, typ), keySchema(t, typ, String, Int8)} {
				rapid.Check(t, func(t *rapid.T) { check(t, s) })
			}
		})
	}
	t.Run("composite", rapid.MakeCheck(func(t *rapid.T) { check(t, drawSchema(t)) }))
}

// checkDecodedKey shows I3 for any bytes: what decodes encodes to the same bytes, and what doesn't leaves dst alone.
func checkDecodedKey(t interface{ Fatalf(string, ...any) }, s *Schema, key []byte) {
	dst := []Value{IntValue(7)}
	values, err := s.DecodeKey(dst, key)
	if err != nil {
		if len(values) != 1 {
			t.Fatalf("%d values beside the error %v", len(values), err)
		}
		return
	}
	if again := s.EncodeKey(nil, s.CellsOf(values[1:])); !bytes.Equal(again, key) {
		t.Fatalf("key %x decodes to %v, which encodes to %x", key, values[1:], again)
	}
}

// TestDecodeKeyCanonical shows I3 for bytes that are nearly keys.
func TestDecodeKeyCanonical(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSchema(t)
		key := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 0, 0, 1, 2, 'a', 0x80, 0xff}), 0, 30).Draw(t, "key")
		checkDecodedKey(t, s, key)
	})
}

// TestDecodeKeyFaults shows that broken keys are refused.
func TestDecodeKeyFaults(t *testing.T) {
	two := keySchema(t, String, Int32)
	for _, c := range []struct {
		name string
		s    *Schema
		key  string
	}{
		{"empty", keySchema(t, Int32), ""},
		{"short integer", keySchema(t, Int32), "800000"},
		{"more behind an integer", keySchema(t, Int32), "8000000000"},
		{"no terminator", two, "616263"},
		{"half a terminator", two, "61626300"},
		{"a bad escape", two, "610002 0000 80000000"},
		{"nothing behind the string", two, "61 0000"},
		{"short decimal128", keySchema(t, Decimal128), "80"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if v, err := c.s.DecodeKey(nil, unhex(t, c.key)); err == nil {
				t.Fatalf("decoded to %v", v)
			}
		})
	}
}

// TestEncodedKeySize shows that the size computed from cells is that of the key.
func TestEncodedKeySize(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSchema(t)
		row := drawRow(t, s)
		cells := make([][]byte, s.NumColumns())
		for i := range s.NumKeyColumns() {
			cells[i], _ = s.Column(i).ValueBytes(row[i])
		}
		key := s.EncodeKey(nil, func(i int) []byte { return cells[i] })
		if got := s.encodedKeySize(cells); got != len(key) {
			t.Fatalf("size %d, the key %x has %d", got, key, len(key))
		}
	})
}
