package tablet

import (
	"slices"

	"github.com/nyaladb/nyala/internal/invariant"
	"github.com/nyaladb/nyala/internal/schema"
)

// folder folds the versions of one row, given from the latest back, into the cells of the columns that are wanted.
type folder struct {
	columns  []foldColumn // by rising id
	unfilled int
	present  bool
	kept     []byte
}

// foldColumn is a wanted column and its cell of the row at hand.
type foldColumn struct {
	id   schema.ColumnID
	size int    // of its cells; varLen for no fixed one
	def  []byte // what a row from before the column reads as; nil: NULL

	filled, null bool
	// kept: the cell is the folder's memory, not the version's.
	kept bool
	cell []byte
}

const varLen = -1

// want adds a column. The caller sorts.
func (f *folder) want(col *schema.Column) {
	size := col.Type.Size()
	if col.Type.VarLen() {
		size = varLen
	}
	f.columns = append(f.columns, foldColumn{id: col.ID, size: size, def: col.ReadDefault})
}

// column returns the column with the id, which must be wanted. It stays in place.
func (f *folder) column(id schema.ColumnID) *foldColumn {
	i := slices.IndexFunc(f.columns, func(c foldColumn) bool { return c.id == id })
	invariant.Check(i >= 0, "column id %d isn't among the wanted ones", id)
	return &f.columns[i]
}

// begin begins a row.
func (f *folder) begin() {
	for i := range f.columns {
		f.columns[i].filled = false
	}
	f.unfilled, f.present = len(f.columns), false
	f.kept = f.kept[:0]
}

// add folds the next older version and says whether the row is decided: present or not, with all cells. Cells are the
// version's memory until keep is called.
func (f *folder) add(version []byte) (decided bool, err error) {
	kind, cells, err := parseVersion(version)
	if err != nil {
		return false, err
	}
	if kind == deletedRow {
		if f.present {
			return false, errNoBase
		}
		return true, nil
	}
	f.present = true
	if f.unfilled > 0 {
		if err := f.fill(cells); err != nil {
			return false, err
		}
	}
	if kind == wholeRow && f.unfilled > 0 {
		f.fillDefaults()
	}
	// The row is there whatever came before; without a column left to fill nothing older matters.
	return f.unfilled == 0, nil
}

func (f *folder) fill(cells []byte) error {
	r := cellReader{buf: cells}
	columns := f.columns
	for i := 0; i < len(columns); {
		more, err := r.more()
		if err != nil {
			return err
		}
		if !more {
			return nil
		}
		for columns[i].id < r.id {
			if i++; i == len(columns) {
				return nil
			}
		}
		c := &columns[i]
		if c.id != r.id {
			continue
		}
		i++
		if c.filled {
			continue
		}
		if !r.null && c.size != varLen && len(r.cell) != c.size {
			return errVersionCell
		}
		c.filled, c.null, c.kept, c.cell = true, r.null, false, r.cell
		f.unfilled--
	}
	return nil
}

func (f *folder) fillDefaults() {
	for i := range f.columns {
		if c := &f.columns[i]; !c.filled {
			c.filled, c.null, c.kept, c.cell = true, c.def == nil, true, c.def
		}
	}
	f.unfilled = 0
}

// keep copies the cells that are still the last version's memory, since the iterator is about to leave it.
func (f *folder) keep() {
	for i := range f.columns {
		c := &f.columns[i]
		if !c.filled || c.kept {
			continue
		}
		c.kept = true
		if !c.null {
			off := len(f.kept)
			f.kept = append(f.kept, c.cell...)
			c.cell = f.kept[off:len(f.kept):len(f.kept)]
		}
	}
}
