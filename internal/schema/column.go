package schema

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/nyaladb/nyala/internal/status"
)

// ColumnID names a column of a table for good: a column that is renamed keeps it, one that is added gets a new one.
type ColumnID uint32

// Bounds of a column's parts.
const (
	MaxColumns       = 300
	MaxNameBytes     = 256
	MaxCommentBytes  = 256
	MaxVarcharLength = 65535
	// MaxCellSize is the largest value of a type of variable length, in bytes.
	MaxCellSize = 65536
	// MaxEncodedKeySize is the largest encoded primary key, in bytes.
	MaxEncodedKeySize = 16384
)

// Column describes one column. A column within a Schema is never changed.
type Column struct {
	ID       ColumnID
	Name     string
	Type     Type
	Key      bool
	Nullable bool
	// WriteDefault is what an insert stores for the column if it isn't given, ReadDefault what a row from before the column
	// reads as. Both are value bytes; nil: no default.
	WriteDefault []byte
	ReadDefault  []byte
	Comment      string
	// Precision and Scale belong to the decimal types, Length (in characters) to varchar.
	Precision uint8
	Scale     uint8
	Length    uint16
}

// TypeName is the type as a user writes it, with its attributes: "int64", "decimal(9,2)", "varchar(20)".
func (c *Column) TypeName() string {
	switch c.Type {
	case Decimal32, Decimal64, Decimal128:
		return fmt.Sprintf("decimal(%d,%d)", c.Precision, c.Scale)
	case Varchar:
		return fmt.Sprintf("varchar(%d)", c.Length)
	default:
		return c.Type.String()
	}
}

// String is the column as a column spec has it: "name string null", "price decimal(9,2) default 0.00 comment 'in EUR'".
func (c *Column) String() string {
	s := quoteIdentifier(c.Name) + " " + c.TypeName()
	if c.Nullable {
		s += " null"
	}
	if c.WriteDefault != nil {
		if v, err := c.ValueFromBytes(c.WriteDefault); err == nil {
			s += " default " + c.formatLiteral(v)
		}
	}
	if c.Comment != "" {
		s += " comment " + quoteText(c.Comment)
	}
	return s
}

// label is how errors name the column.
func (c *Column) label() string { return fmt.Sprintf("column %q (%s)", c.Name, c.TypeName()) }

func (c *Column) fault(code status.Code, format string, args ...any) *status.Error {
	return status.New(code, "%s: %s", c.label(), fmt.Sprintf(format, args...))
}

// CheckName says what is wrong with the name of a column or a table: it has 1 to MaxNameBytes bytes of valid UTF-8 without NUL.
// An error is a *status.Error with code InvalidSchema.
func CheckName(name string) error {
	switch {
	case name == "":
		return status.New(status.InvalidSchema, "the name is empty")
	case len(name) > MaxNameBytes:
		return status.New(status.InvalidSchema, "the name %.40q… has %d bytes, the most is %d", name, len(name), MaxNameBytes)
	case !utf8.ValidString(name):
		return status.New(status.InvalidSchema, "the name %q isn't valid UTF-8", name)
	case strings.IndexByte(name, 0) >= 0:
		return status.New(status.InvalidSchema, "the name %q holds a NUL byte", name)
	}
	return nil
}

// validate checks what concerns the column alone.
func (c *Column) validate() error {
	if err := CheckName(c.Name); err != nil {
		return status.Wrap(status.InvalidSchema, err, "column id %d", c.ID)
	}
	switch {
	case !c.Type.Valid():
		return status.New(status.InvalidSchema, "column %q: unknown type %d", c.Name, uint8(c.Type))
	case len(c.Comment) > MaxCommentBytes:
		return c.fault(status.InvalidSchema, "its comment has %d bytes, the most is %d", len(c.Comment), MaxCommentBytes)
	case !utf8.ValidString(c.Comment):
		return c.fault(status.InvalidSchema, "its comment isn't valid UTF-8")
	case c.Key && !c.Type.KeyAllowed():
		return c.fault(status.InvalidSchema, "the type can't be in a primary key")
	case c.Key && c.Nullable:
		return c.fault(status.InvalidSchema, "a key column can't be nullable")
	}
	if err := c.validateAttributes(); err != nil {
		return err
	}
	if err := c.validateDefault("write", c.WriteDefault); err != nil {
		return err
	}
	return c.validateDefault("read", c.ReadDefault)
}

func (c *Column) validateAttributes() error {
	minPrecision, maxPrecision := uint8(0), uint8(0)
	switch c.Type {
	case Decimal32:
		minPrecision, maxPrecision = 1, 9
	case Decimal64:
		minPrecision, maxPrecision = 10, 18
	case Decimal128:
		minPrecision, maxPrecision = 19, 38
	default:
	}
	switch {
	case c.Precision < minPrecision || c.Precision > maxPrecision:
		return status.New(status.InvalidSchema, "column %q (%s): precision %d, want %d to %d",
			c.Name, c.Type, c.Precision, minPrecision, maxPrecision)
	case c.Scale > c.Precision:
		return status.New(status.InvalidSchema, "column %q (%s): scale %d is above precision %d", c.Name, c.Type, c.Scale, c.Precision)
	case c.Type == Varchar && c.Length == 0:
		return status.New(status.InvalidSchema, "column %q (varchar): length 0, want 1 to %d", c.Name, MaxVarcharLength)
	case c.Type != Varchar && c.Length != 0:
		return status.New(status.InvalidSchema, "column %q (%s): length %d, but only varchar has one", c.Name, c.Type, c.Length)
	}
	return nil
}

func (c *Column) validateDefault(which string, v []byte) error {
	switch {
	case v == nil:
		return nil
	case c.Type.VarLen():
		if len(v) > MaxCellSize {
			return c.fault(status.InvalidSchema, "its %s default has %d bytes, the most is %d", which, len(v), MaxCellSize)
		}
	case len(v) != c.Type.Size():
		return c.fault(status.InvalidSchema, "its %s default has %d bytes, want %d", which, len(v), c.Type.Size())
	}
	return nil
}
