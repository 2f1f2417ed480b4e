package schema

import (
	"slices"
	"strings"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/status"
)

// Type is a column's data type. The numbers are those of nyala.v1.DataType, which are Kudu's; they stand on disk.
type Type uint8

// The table types.
const (
	Int8           = Type(nyalav1.DataType_DATA_TYPE_INT8)
	Int16          = Type(nyalav1.DataType_DATA_TYPE_INT16)
	Int32          = Type(nyalav1.DataType_DATA_TYPE_INT32)
	Int64          = Type(nyalav1.DataType_DATA_TYPE_INT64)
	String         = Type(nyalav1.DataType_DATA_TYPE_STRING)
	Bool           = Type(nyalav1.DataType_DATA_TYPE_BOOL)
	Float          = Type(nyalav1.DataType_DATA_TYPE_FLOAT)
	Double         = Type(nyalav1.DataType_DATA_TYPE_DOUBLE)
	Binary         = Type(nyalav1.DataType_DATA_TYPE_BINARY)
	UnixtimeMicros = Type(nyalav1.DataType_DATA_TYPE_UNIXTIME_MICROS)
	Decimal32      = Type(nyalav1.DataType_DATA_TYPE_DECIMAL32)
	Decimal64      = Type(nyalav1.DataType_DATA_TYPE_DECIMAL64)
	Decimal128     = Type(nyalav1.DataType_DATA_TYPE_DECIMAL128)
	Varchar        = Type(nyalav1.DataType_DATA_TYPE_VARCHAR)
	Date           = Type(nyalav1.DataType_DATA_TYPE_DATE)
)

// numTypes bounds the tables below.
const numTypes = int(Date) + 1

// class groups the types that are encoded and compared alike.
type class uint8

const (
	classNone   class = iota
	classInt          // a signed integer of 1 to 8 bytes: integers, times, dates, small decimals
	classInt128       // a signed integer of 16 bytes
	classBool         // one byte
	classFloat        // IEEE 754, 4 or 8 bytes
	classBytes        // any number of bytes
)

type traits struct {
	name  string
	size  uint8
	class class
}

var typeTraits = [numTypes]traits{
	Int8:           {"int8", 1, classInt},
	Int16:          {"int16", 2, classInt},
	Int32:          {"int32", 4, classInt},
	Int64:          {"int64", 8, classInt},
	String:         {"string", 16, classBytes},
	Bool:           {"bool", 1, classBool},
	Float:          {"float", 4, classFloat},
	Double:         {"double", 8, classFloat},
	Binary:         {"binary", 16, classBytes},
	UnixtimeMicros: {"unixtime_micros", 8, classInt},
	Decimal32:      {"decimal32", 4, classInt},
	Decimal64:      {"decimal64", 8, classInt},
	Decimal128:     {"decimal128", 16, classInt128},
	Varchar:        {"varchar", 16, classBytes},
	Date:           {"date", 4, classInt},
}

func (t Type) traits() traits {
	if int(t) < numTypes {
		return typeTraits[t]
	}
	return traits{}
}

func (t Type) class() class { return t.traits().class }

// Valid says whether t is one of the table types.
func (t Type) Valid() bool { return t.class() != classNone }

// Size is the length of a cell in row operations: the value's own for a fixed-width type, 16 (offset and length) for one of
// variable length.
func (t Type) Size() int { return int(t.traits().size) }

// VarLen says whether values have lengths of their own.
func (t Type) VarLen() bool { return t.class() == classBytes }

// KeyAllowed says whether a primary key may hold the type: all but bool, float and double.
func (t Type) KeyAllowed() bool {
	switch t.class() {
	case classInt, classInt128, classBytes:
		return true
	case classNone, classBool, classFloat:
	}
	return false
}

// String is the type's name: "int64", "unixtime_micros".
func (t Type) String() string {
	if n := t.traits().name; n != "" {
		return n
	}
	return nyalav1.DataType(t).String()
}

// ParseType returns the type with the given name, which is what String gives.
func ParseType(name string) (Type, error) {
	for t, tr := range typeTraits {
		if tr.name == name && name != "" {
			return Type(t), nil
		}
	}
	return 0, status.New(status.InvalidArgument, "unknown type %q: the types are %s", name, typeList())
}

// typeList lists the types as a column spec has them, for an error message.
func typeList() string {
	names := []string{"decimal(precision, scale)", "varchar(length)"}
	for t, tr := range typeTraits {
		switch Type(t) {
		case Decimal32, Decimal64, Decimal128, Varchar:
		default:
			if tr.name != "" {
				names = append(names, tr.name)
			}
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
