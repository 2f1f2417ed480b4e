package schema

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/nyaladb/nyala/internal/status"
)

type drawnOp struct {
	typ    OpType
	values []Value
	set    Bitmap
}

// drawOp draws a sound operation: which columns are set follows its type.
func drawOp(t *rapid.T, s *Schema) drawnOp {
	op := drawnOp{
		typ:    rapid.SampledFrom([]OpType{Insert, Upsert, Update, Delete, InsertIgnore, UpsertIgnore, UpdateIgnore, DeleteIgnore}).Draw(t, "type"),
		values: drawRow(t, s), set: NewBitmap(s.NumColumns()),
	}
	plain, _ := op.typ.Plain()
	if plain == Update && s.NumColumns() == s.NumKeyColumns() {
		op.typ, plain = Delete, Delete
	}
	for i := range s.NumColumns() {
		c := s.Column(i)
		must := plain != Insert && plain != Upsert && c.Key || (plain == Insert || plain == Upsert) && !c.Nullable && c.WriteDefault == nil
		may := plain != Delete
		if must || may && rapid.Bool().Draw(t, "set") {
			op.set.Set(i)
		}
	}
	if plain == Update && op.set.firstCommon(s.nonKeyBits) < 0 {
		op.set.Set(s.NumColumns() - 1)
	}
	return op
}

// TestOpsRoundTrip shows I6: what the encoder wrote the decoder reads as the same operations, sound and in order, and a key
// left to its default is in the key.
func TestOpsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSchema(t)
		var ops []drawnOp
		e := NewOpsEncoder(s)
		for range rapid.IntRange(0, 5).Draw(t, "ops") {
			op := drawOp(t, s)
			if err := e.Append(op.typ, op.values, op.set); err != nil {
				t.Fatalf("%v: %v", op, err)
			}
			ops = append(ops, op)
		}
		rows, indirect := e.Bytes()
		if e.Size() != len(rows)+len(indirect) || e.Len() != len(ops) {
			t.Fatalf("size %d, length %d", e.Size(), e.Len())
		}
		if n, err := CountOps(s, rows, indirect); n != len(ops) || err != nil {
			t.Fatalf("%d operations, error %v, want %d", n, err, len(ops))
		}
		d := NewOpsDecoder(s, rows, indirect)
		for i, want := range ops {
			op, err := d.Next()
			if err != nil || op == nil || op.RowError != nil || op.Index != i || op.Type != want.typ {
				t.Fatalf("operation %d: %+v, error %v", i, op, err)
			}
			checkOp(t, s, op, want)
		}
		if op, err := d.Next(); op != nil || err != nil {
			t.Fatalf("after the end: %v, %v", op, err)
		}
	})
}

func checkOp(t *rapid.T, s *Schema, op *DecodedOp, want drawnOp) {
	key := make([][]byte, s.NumColumns())
	for i := range s.NumColumns() {
		if op.IsSet(i) != want.set.Get(i) {
			t.Fatalf("column %d set: %v", i, op.IsSet(i))
		}
		if !op.IsSet(i) {
			key[i] = s.Column(i).WriteDefault
			continue
		}
		v := want.values[i]
		if op.IsNull(i) != v.IsNull() || !op.Value(i).Equal(v) {
			t.Fatalf("column %d: %v, want %v", i, op.Value(i), v)
		}
		if !v.IsNull() {
			key[i], _ = s.Column(i).ValueBytes(v)
			if !bytes.Equal(op.Cell(i), key[i]) {
				t.Fatalf("column %d: cell %x, want %x", i, op.Cell(i), key[i])
			}
		}
	}
	wantKey := s.EncodeKey(nil, func(i int) []byte { return key[i] })
	if got := s.KeyOfOp(nil, op); !bytes.Equal(got, wantKey) {
		t.Fatalf("key %x, want %x", got, wantKey)
	}
	if got := s.EncodeKey(nil, op.Cell); !bytes.Equal(got, wantKey) {
		t.Fatalf("key by cells %x, want %x", got, wantKey)
	}
}

// decodeAll reads any bytes to the end and looks at all that a caller may look at.
func decodeAll(t interface{ Fatalf(string, ...any) }, s *Schema, rows, indirect []byte) (ops int, err error) {
	d := NewOpsDecoder(s, rows, indirect)
	for {
		op, err := d.Next()
		if err != nil {
			switch status.CodeOf(err) {
			case status.Corruption, status.InvalidArgument, status.NotSupported:
			default:
				t.Fatalf("code %v: %v", status.CodeOf(err), err)
			}
			if op, again := d.Next(); op != nil || again == nil {
				t.Fatalf("the error %v didn't stay: %v", err, op)
			}
			return ops, err
		}
		if op == nil {
			return ops, nil
		}
		ops++
		if op.RowError != nil {
			continue
		}
		if key := s.KeyOfOp(nil, op); len(key) > MaxEncodedKeySize {
			t.Fatalf("a key of %d bytes passed", len(key))
		}
		for i := range s.NumColumns() {
			if v := op.Value(i); len(v.Bytes()) > MaxCellSize || v.IsNull() && op.IsSet(i) && !s.Column(i).Nullable {
				t.Fatalf("column %d: %v passed", i, v)
			}
		}
	}
}

// TestOpsTruncated shows that a request cut anywhere fails as a whole, unless the cut is between two operations.
func TestOpsTruncated(t *testing.T) {
	s := vectorSchema(t)
	e := NewOpsEncoder(s)
	ends := map[int]int{0: 0}
	for i := range 3 {
		if err := e.Append(Insert, []Value{IntValue(int64(i)), StringValue("text"), IntValue(0)}, nil); err != nil {
			t.Fatal(err)
		}
		rows, _ := e.Bytes()
		ends[len(rows)] = i + 1
	}
	rows, indirect := e.Bytes()
	for cut := range len(rows) + 1 {
		n, err := CountOps(s, rows[:cut], indirect)
		if want, whole := ends[cut]; whole != (err == nil) || n != want {
			t.Errorf("cut at %d: %d operations, error %v", cut, n, err)
		}
		if err != nil && status.CodeOf(err) != status.Corruption {
			t.Errorf("cut at %d: code %v", cut, status.CodeOf(err))
		}
	}
	for cut := range indirect {
		if _, err := CountOps(s, rows, indirect[:cut]); status.CodeOf(err) != status.Corruption {
			t.Errorf("indirect data cut at %d: %v", cut, err)
		}
	}
}

// TestRequestFaults shows the faults of whole requests and their codes.
func TestRequestFaults(t *testing.T) {
	s := vectorSchema(t)
	for _, c := range []struct {
		name     string
		rows     string
		indirect string
		want     status.Code
	}{
		{"type 0", "00 00 00", "", status.InvalidArgument},
		{"split row", "04 01 00 01000000", "", status.InvalidArgument},
		{"range bound", "06 01 00 01000000", "", status.InvalidArgument},
		{"the type behind the last", "0e 07 02 01000000 0000000000000000", "", status.NotSupported},
		{"unknown type", "4d 07 02 01000000 0000000000000000", "", status.NotSupported},
		{"offset beyond the data", "01 07 00 01000000 0300000000000000 0000000000000000 0000000000000000", "6869", status.Corruption},
		{"length beyond the data", "01 07 00 01000000 0000000000000000 0300000000000000 0000000000000000", "6869", status.Corruption},
		{"offset and length that overflow", "01 07 00 01000000 ffffffffffffffff 0200000000000000 0000000000000000", "6869", status.Corruption},
		// NULL in a column that isn't nullable still has its cell; without it the decoder loses its place.
		{"NULL key without its cell", "03 01 01", "", status.Corruption},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := CountOps(s, unhex(t, c.rows), unhex(t, c.indirect))
			if status.CodeOf(err) != c.want {
				t.Errorf("error %v with code %v, want %v", err, status.CodeOf(err), c.want)
			}
		})
	}
}

// TestDecodedRowFaults shows the faults of single rows as they come over the wire: the row has an error, the ones around it
// don't.
func TestDecodedRowFaults(t *testing.T) {
	s := vectorSchema(t)
	good := "05 07 02 02000000 0700000000000000"
	large := make([]byte, MaxCellSize+1)
	for _, c := range []struct {
		name     string
		row      string
		indirect []byte
		want     status.Code
	}{
		{"NULL key with its cell", "03 01 01 01000000", nil, status.InvalidArgument},
		{"NULL value with its cell", "01 07 06 01000000 0700000000000000", nil, status.InvalidArgument},
		{"insert without v", "01 03 02 01000000", nil, status.InvalidArgument},
		{"delete with v", "03 05 00 01000000 0700000000000000", nil, status.InvalidArgument},
		{"update of the key alone", "02 01 00 01000000", nil, status.InvalidArgument},
		{"update without the key", "02 04 00 0700000000000000", nil, status.InvalidArgument},
		{"cell too large", "01 07 00 01000000 0000000000000000 0100010000000000 0700000000000000", large, status.CellTooLarge},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := NewOpsDecoder(s, unhex(t, good+c.row+good), c.indirect)
			for i, want := range []status.Code{status.OK, c.want, status.OK} {
				op, err := d.Next()
				if err != nil || op == nil {
					t.Fatalf("operation %d: %v", i, err)
				}
				got := status.OK
				if op.RowError != nil {
					got = op.RowError.Code
				}
				if got != want {
					t.Errorf("operation %d: %v, want code %v", i, op.RowError, want)
				}
			}
		})
	}
}

// TestKeyTooLarge shows the limit of encoded keys, to the byte, with the encoder and the decoder.
func TestKeyTooLarge(t *testing.T) {
	s := keySchema(t, String, String)
	for _, c := range []struct {
		name          string
		first, second int
		fill          byte
		want          status.Code
	}{
		{"largest", MaxEncodedKeySize - 12, 10, 'x', status.OK},
		{"one more", MaxEncodedKeySize - 12, 11, 'x', status.KeyTooLarge},
		{"largest of escapes", MaxEncodedKeySize/2 - 1, 0, 0, status.OK},
		{"one more of escapes", MaxEncodedKeySize/2 - 1, 1, 0, status.KeyTooLarge},
	} {
		t.Run(c.name, func(t *testing.T) {
			row := []Value{BytesValue(bytes.Repeat([]byte{c.fill}, c.first)), BytesValue(bytes.Repeat([]byte{c.fill}, c.second))}
			e := NewOpsEncoder(s)
			if err := e.Append(Insert, row, nil); status.CodeOf(err) != c.want {
				t.Errorf("encoder: %v, want code %v", err, c.want)
			}
			if key := s.EncodeKey(nil, s.CellsOf(row)); (len(key) > MaxEncodedKeySize) != (c.want == status.KeyTooLarge) {
				t.Errorf("the key has %d bytes", len(key))
			}
		})
	}
	// The encoder refuses such a row, so it is put together from two strings that share their bytes.
	rows := unhex(t, "01 03 0000000000000000 0020000000000000 0000000000000000 0020000000000000")
	op, err := NewOpsDecoder(s, rows, make([]byte, 8192)).Next()
	if err != nil || op.RowError == nil || op.RowError.Code != status.KeyTooLarge {
		t.Errorf("decoder: %v, %v", op, err)
	}
}
