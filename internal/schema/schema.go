package schema

import (
	"slices"

	"github.com/nyaladb/nyala/internal/status"
)

// Schema is a table's columns, key columns first in key order, at one version. It is immutable and safe for concurrent use.
type Schema struct {
	columns []Column
	numKey  int
	version uint32
	nextID  ColumnID

	byName map[string]int
	byID   map[ColumnID]int

	hasNullable bool
	// bitmapLen is the length of each of a row operation's bitmaps.
	bitmapLen int
	// cells holds, per column, what the row decoder needs, close together.
	cells []cellLayout
	// keyBits marks the key columns; nonKeyBits the others; requiredBits those that an insert must set.
	keyBits      Bitmap
	nonKeyBits   Bitmap
	requiredBits Bitmap
	// fixedKeySize is the encoded key's length without the values of variable length; varKeys are their positions.
	fixedKeySize int
	varKeys      []int
}

type cellLayout struct {
	size   uint8
	varLen bool
	// notNull: the column isn't nullable.
	notNull bool
}

// New checks columns and returns the schema they make; it keeps a copy of the slice. Version is the table's schema version,
// nextID what the next new column gets, above all ids in use. An error is a *status.Error with code InvalidSchema.
func New(columns []Column, version uint32, nextID ColumnID) (*Schema, error) {
	s := &Schema{
		columns:   slices.Clone(columns),
		version:   version,
		nextID:    nextID,
		byName:    make(map[string]int, len(columns)),
		byID:      make(map[ColumnID]int, len(columns)),
		bitmapLen: bitmapLen(len(columns)),
	}
	if err := s.validate(); err != nil {
		return nil, err
	}
	s.layOut()
	return s, nil
}

// NewTable returns the first schema of a new table: version 0, ids given from 0 on in the order of the columns, whatever ids
// they came with.
func NewTable(columns []Column) (*Schema, error) {
	columns = slices.Clone(columns)
	for i := range columns {
		columns[i].ID = ColumnID(i)
	}
	return New(columns, 0, ColumnID(len(columns)))
}

func (s *Schema) validate() error {
	if n := len(s.columns); n > MaxColumns {
		return status.New(status.InvalidSchema, "the table has %d columns, the most is %d", n, MaxColumns)
	}
	for i := range s.columns {
		c := &s.columns[i]
		if err := c.validate(); err != nil {
			return err
		}
		if _, dup := s.byName[c.Name]; dup {
			return status.New(status.InvalidSchema, "two columns have the name %q", c.Name)
		}
		if j, dup := s.byID[c.ID]; dup {
			return status.New(status.InvalidSchema, "columns %q and %q have the same id %d", s.columns[j].Name, c.Name, c.ID)
		}
		if c.ID >= s.nextID {
			return status.New(status.InvalidSchema, "column %q: its id %d isn't below the next id %d", c.Name, c.ID, s.nextID)
		}
		s.byName[c.Name], s.byID[c.ID] = i, i
		if !c.Key {
			continue
		}
		if s.numKey != i {
			return status.New(status.InvalidSchema, "key column %q stands after column %q, which isn't in the key: key columns come first",
				c.Name, s.columns[i-1].Name)
		}
		s.numKey++
	}
	if s.numKey == 0 {
		return status.New(status.InvalidSchema, "the table has no key column: it needs at least one")
	}
	return nil
}

// layOut computes what the encoders and decoders look up.
func (s *Schema) layOut() {
	n := len(s.columns)
	s.cells = make([]cellLayout, n)
	s.keyBits, s.nonKeyBits, s.requiredBits = NewBitmap(n), NewBitmap(n), NewBitmap(n)
	for i := range s.columns {
		c := &s.columns[i]
		s.cells[i] = cellLayout{size: uint8(c.Type.Size()), varLen: c.Type.VarLen(), notNull: !c.Nullable}
		s.hasNullable = s.hasNullable || c.Nullable
		if c.Key {
			s.keyBits.Set(i)
		} else {
			s.nonKeyBits.Set(i)
		}
		if !c.Nullable && c.WriteDefault == nil {
			s.requiredBits.Set(i)
		}
	}
	for i := range s.numKey {
		switch {
		case !s.cells[i].varLen:
			s.fixedKeySize += int(s.cells[i].size)
		case i < s.numKey-1:
			s.fixedKeySize += 2 // the terminator
			s.varKeys = append(s.varKeys, i)
		default:
			s.varKeys = append(s.varKeys, i)
		}
	}
}

// Columns returns all columns. The slice is the schema's own: don't change it.
func (s *Schema) Columns() []Column { return s.columns }

// Column returns the column at position i.
func (s *Schema) Column(i int) *Column { return &s.columns[i] }

// NumColumns is the number of columns.
func (s *Schema) NumColumns() int { return len(s.columns) }

// NumKeyColumns is the number of key columns; they are the first.
func (s *Schema) NumKeyColumns() int { return s.numKey }

// Version rises by one with each change of the table's columns.
func (s *Schema) Version() uint32 { return s.version }

// NextColumnID is the id that the next new column gets.
func (s *Schema) NextColumnID() ColumnID { return s.nextID }

// HasNullable says whether any column is nullable: row operations have a null bitmap only then.
func (s *Schema) HasNullable() bool { return s.hasNullable }

// IndexOf returns the position of the column with the name, -1 if there is none.
func (s *Schema) IndexOf(name string) int {
	if i, ok := s.byName[name]; ok {
		return i
	}
	return -1
}

// IndexOfID returns the position of the column with the id, -1 if there is none.
func (s *Schema) IndexOfID(id ColumnID) int {
	// In a table whose columns never changed, position and id are the same.
	if int64(id) < int64(len(s.columns)) && s.columns[id].ID == id {
		return int(id)
	}
	if i, ok := s.byID[id]; ok {
		return i
	}
	return -1
}
