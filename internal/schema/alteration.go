package schema

import (
	"slices"

	"github.com/nyaladb/nyala/internal/status"
)

// Alteration makes the next version of a schema, step by step. It begins with Schema.Alter; a step that fails changes nothing.
type Alteration struct {
	columns []Column
	numKey  int
	version uint32
	nextID  ColumnID
	changed bool
}

// Alter begins a change of the schema, which itself stays as it is.
func (s *Schema) Alter() *Alteration {
	return &Alteration{columns: slices.Clone(s.columns), numKey: s.numKey, version: s.version, nextID: s.nextID}
}

// Changed says whether any step so far changed anything.
func (a *Alteration) Changed() bool { return a.changed }

// Schema returns the schema at its next version, checked as a whole.
func (a *Alteration) Schema() (*Schema, error) { return New(a.columns, a.version+1, a.nextID) }

func (a *Alteration) find(name string) (int, error) {
	i := slices.IndexFunc(a.columns, func(c Column) bool { return c.Name == name })
	if i < 0 {
		return 0, status.New(status.NotFound, "the table has no column %q", name)
	}
	return i, nil
}

func (a *Alteration) checkNew(name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	if _, err := a.find(name); err == nil {
		return status.New(status.AlreadyPresent, "the table has a column %q already", name)
	}
	return nil
}

// AddColumn adds a column behind the others, under an id that no column had before. Rows from before read as its default; a
// column that isn't nullable needs one.
func (a *Alteration) AddColumn(c Column) error {
	c.ID, c.Key = a.nextID, false
	if c.ReadDefault == nil {
		c.ReadDefault = c.WriteDefault
	}
	switch err := a.checkNew(c.Name); {
	case err != nil:
		return err
	case !c.Nullable && c.ReadDefault == nil:
		return c.fault(status.InvalidArgument, "a new column that isn't nullable needs a default, which rows from before read as")
	case len(a.columns) == MaxColumns:
		return status.New(status.InvalidSchema, "the table has %d columns, which is the most there can be", MaxColumns)
	}
	if err := c.validate(); err != nil {
		return err
	}
	a.columns = append(a.columns, c)
	a.nextID++
	a.changed = true
	return nil
}

// DropColumn removes a column and its cells in all rows.
func (a *Alteration) DropColumn(name string) error {
	i, err := a.find(name)
	if err != nil {
		return err
	}
	if i < a.numKey {
		return a.columns[i].fault(status.InvalidArgument, "a key column can't be dropped")
	}
	a.columns = slices.Delete(slices.Clone(a.columns), i, i+1)
	a.changed = true
	return nil
}

// RenameColumn gives a column another name.
func (a *Alteration) RenameColumn(name, newName string) error {
	i, err := a.find(name)
	if err != nil {
		return err
	}
	if err := a.checkNew(newName); err != nil {
		return err
	}
	a.columns[i].Name = newName
	a.changed = true
	return nil
}

// SetDefault changes what an insert stores where it leaves the column unset; nil: nothing. What rows from before the column read
// as stays.
func (a *Alteration) SetDefault(name string, value []byte) error {
	i, err := a.find(name)
	if err != nil {
		return err
	}
	c := a.columns[i]
	if value == nil && c.WriteDefault == nil {
		return c.fault(status.NotFound, "it has no default to remove")
	}
	c.WriteDefault = value
	if err := c.validate(); err != nil {
		return err
	}
	a.columns[i], a.changed = c, true
	return nil
}

// SetComment changes a column's comment.
func (a *Alteration) SetComment(name, comment string) error {
	i, err := a.find(name)
	if err != nil {
		return err
	}
	c := a.columns[i]
	c.Comment = comment
	if err := c.validate(); err != nil {
		return err
	}
	a.columns[i], a.changed = c, true
	return nil
}
