package schema

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"

	"github.com/nyaladb/nyala/internal/status"
)

// Value bytes are a value without its place in a row: for a fixed-width type its cell, little-endian; for one of variable
// length the bytes themselves. Defaults, predicates and stored cells are value bytes; docs/format/rows.md has the table.

// accepts is the kind of Value that a column of each class takes.
func (cl class) accepts() valueKind {
	switch cl {
	case classInt:
		return kindInt
	case classBool:
		return kindBool
	case classFloat:
		return kindFloat
	case classInt128, classBytes:
		return kindBytes
	case classNone:
	}
	return kindNull
}

// AppendValueBytes appends the value bytes of v to dst. An error (a Value of another kind, a number that the type can't
// hold, a value over MaxCellSize, NULL) names the column; dst then comes back as it was.
func (c *Column) AppendValueBytes(dst []byte, v Value) ([]byte, error) {
	cl := c.Type.class()
	if v.kind != cl.accepts() || v.kind == kindNull {
		return dst, c.fault(status.InvalidArgument, "the value is %v, want %v", v.kind, cl.accepts())
	}
	size := c.Type.Size()
	switch cl {
	case classInt:
		if lo, hi := c.Type.intRange(); int64(v.bits) < lo || int64(v.bits) > hi {
			return dst, c.fault(status.InvalidArgument, "%d is out of range: %d to %d", int64(v.bits), lo, hi)
		}
		return appendLittleEndian(dst, v.bits, size), nil
	case classBool:
		return append(dst, byte(v.bits)), nil
	case classFloat:
		if size == 8 {
			return appendLittleEndian(dst, v.bits, 8), nil
		}
		f := v.Float()
		if math.IsInf(float64(float32(f)), 0) && !math.IsInf(f, 0) {
			return dst, c.fault(status.InvalidArgument, "%v is out of range: the largest is %v", f, math.MaxFloat32)
		}
		return appendLittleEndian(dst, uint64(math.Float32bits(float32(f))), 4), nil
	case classInt128:
		if len(v.bytes) != size {
			return dst, c.fault(status.InvalidArgument, "the value has %d bytes, want %d", len(v.bytes), size)
		}
		return append(dst, v.bytes...), nil
	case classBytes:
		if len(v.bytes) > MaxCellSize {
			return dst, c.fault(status.CellTooLarge, "the value has %d bytes, the most is %d", len(v.bytes), MaxCellSize)
		}
		return append(dst, v.bytes...), nil
	case classNone:
	}
	return dst, c.fault(status.InvalidArgument, "the type holds no values")
}

// ValueBytes returns the value bytes of v in a slice of its own, never nil without an error.
func (c *Column) ValueBytes(v Value) ([]byte, error) {
	b, err := c.AppendValueBytes(make([]byte, 0, max(c.Type.Size(), len(v.bytes))), v)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// ValueFromBytes returns the value that value bytes stand for. A Value of variable length keeps b itself. A wrong length for
// a fixed-width type is an InvalidArgument.
func (c *Column) ValueFromBytes(b []byte) (Value, error) {
	if !c.Type.VarLen() && len(b) != c.Type.Size() {
		return Value{}, c.fault(status.InvalidArgument, "the value has %d bytes, want %d", len(b), c.Type.Size())
	}
	return c.Type.valueOf(b), nil
}

// valueOf is ValueFromBytes for bytes of the right length.
func (t Type) valueOf(b []byte) Value {
	switch t.class() {
	case classInt:
		return IntValue(intOf(b))
	case classBool:
		return BoolValue(b[0] != 0)
	case classFloat:
		return FloatValue(floatOf(b))
	case classInt128, classBytes:
		return BytesValue(b)
	case classNone:
	}
	return Value{}
}

// Compare orders two values of the type by their value bytes, which must have the type's length: negative, zero or positive.
// It is the order of keys and of scans. For floating-point numbers it is total: -0 equals 0, NaN stands above all and equals
// itself. (In predicates NaN compares with nothing, as IEEE 754 has it.)
func (t Type) Compare(a, b []byte) int {
	switch t.class() {
	case classInt:
		return cmp.Compare(intOf(a), intOf(b))
	case classInt128:
		return int128Of(a).compare(int128Of(b))
	case classBool:
		return cmp.Compare(a[0], b[0])
	case classFloat:
		return -cmp.Compare(-floatOf(a), -floatOf(b)) // cmp puts NaN below all
	case classBytes:
		return bytes.Compare(a, b)
	case classNone:
	}
	return 0
}

// intRange returns the smallest and the largest integer that a cell of the type can hold; for a boolean 0 and 1.
func (t Type) intRange() (smallest, largest int64) {
	if t == Bool {
		return 0, 1
	}
	shift := 64 - 8*t.Size()
	return math.MinInt64 >> shift, math.MaxInt64 >> shift
}

func appendLittleEndian(dst []byte, v uint64, size int) []byte {
	switch size {
	case 1:
		return append(dst, byte(v))
	case 2:
		return binary.LittleEndian.AppendUint16(dst, uint16(v))
	case 4:
		return binary.LittleEndian.AppendUint32(dst, uint32(v))
	default:
		return binary.LittleEndian.AppendUint64(dst, v)
	}
}

// intOf reads a signed little-endian integer of 1, 2, 4 or 8 bytes.
func intOf(b []byte) int64 {
	switch len(b) {
	case 1:
		return int64(int8(b[0]))
	case 2:
		return int64(int16(binary.LittleEndian.Uint16(b)))
	case 4:
		return int64(int32(binary.LittleEndian.Uint32(b)))
	default:
		return int64(binary.LittleEndian.Uint64(b))
	}
}

// floatOf reads a floating-point number of 4 or 8 bytes.
func floatOf(b []byte) float64 {
	if len(b) == 4 {
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
	}
	return math.Float64frombits(binary.LittleEndian.Uint64(b))
}

// int128 is a signed integer of 128 bits.
type int128 struct {
	hi int64
	lo uint64
}

var (
	maxInt128 = int128{math.MaxInt64, math.MaxUint64}
	minInt128 = int128{math.MinInt64, 0}
)

func int128Of(b []byte) int128 {
	return int128{hi: int64(binary.LittleEndian.Uint64(b[8:])), lo: binary.LittleEndian.Uint64(b)}
}

func (v int128) append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, v.lo)
	return binary.LittleEndian.AppendUint64(dst, uint64(v.hi))
}

func (v int128) compare(o int128) int {
	return cmp.Or(cmp.Compare(v.hi, o.hi), cmp.Compare(v.lo, o.lo))
}

// next is v + 1; v must not be the largest.
func (v int128) next() int128 {
	v.lo++
	if v.lo == 0 {
		v.hi++
	}
	return v
}

// prev is v - 1; v must not be the smallest.
func (v int128) prev() int128 {
	if v.lo == 0 {
		v.hi--
	}
	v.lo--
	return v
}
