package schema

import (
	"strings"
	"testing"

	"github.com/nyaladb/nyala/internal/status"
)

// TestAlteration changes a schema in every way: ids stay and are never given again, the version rises by one for all steps.
func TestAlteration(t *testing.T) {
	s := vectorSchema(t)
	a := s.Alter()
	if a.Changed() {
		t.Error("changed before the first step")
	}
	for i, err := range []error{
		a.AddColumn(Column{Name: "n", Type: Int32, WriteDefault: []byte{7, 0, 0, 0}}),
		a.DropColumn("s"),
		a.RenameColumn("key", "k"),
		a.AddColumn(Column{Name: "s", Type: Int8, Nullable: true}),
		a.SetDefault("n", []byte{8, 0, 0, 0}),
		a.SetDefault("v", []byte{1, 0, 0, 0, 0, 0, 0, 0}),
		a.SetDefault("v", nil),
		a.SetComment("v", "remark"),
	} {
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
	next, err := a.Schema()
	if err != nil {
		t.Fatal(err)
	}
	if next.Version() != 1 || next.NextColumnID() != 5 || !a.Changed() {
		t.Errorf("version %d, next id %d", next.Version(), next.NextColumnID())
	}
	var got []string
	for _, c := range next.Columns() {
		got = append(got, c.String())
	}
	if want := "k int32|v int64 comment 'remark'|n int32 default 8|s int8 null"; strings.Join(got, "|") != want {
		t.Errorf("%s, want %s", strings.Join(got, "|"), want)
	}
	for name, id := range map[string]ColumnID{"k": 0, "v": 2, "n": 3, "s": 4} {
		if c := next.Column(next.IndexOf(name)); c.ID != id {
			t.Errorf("column %s has id %d, want %d", name, c.ID, id)
		}
	}
	if c := next.Column(next.IndexOf("n")); c.ReadDefault[0] != 7 || c.WriteDefault[0] != 8 {
		t.Errorf("defaults %v, %v", c.ReadDefault, c.WriteDefault)
	}
	if s.NumColumns() != 3 || s.Column(0).Name != "key" || s.Column(2).Comment != "" {
		t.Error("the schema itself has changed")
	}
}

// TestAlterationFaults: a step that can't be is refused with its reason and leaves nothing behind.
func TestAlterationFaults(t *testing.T) {
	s := vectorSchema(t)
	for _, c := range []struct {
		step func(*Alteration) error
		code status.Code
		want string
	}{
		{func(a *Alteration) error { return a.AddColumn(Column{Name: "s", Type: Int8, Nullable: true}) }, status.AlreadyPresent, `the table has a column "s" already`},
		{func(a *Alteration) error { return a.AddColumn(Column{Name: "x", Type: Int8}) }, status.InvalidArgument, `column "x" (int8): a new column that isn't nullable needs a default`},
		{func(a *Alteration) error {
			return a.AddColumn(Column{Name: "x", Type: Int8, WriteDefault: []byte{1, 2}})
		}, status.InvalidSchema, "its write default has 2 bytes, want 1"},
		{func(a *Alteration) error {
			return a.AddColumn(Column{Name: strings.Repeat("x", 257), Type: Int8, Nullable: true})
		}, status.InvalidSchema, "257 bytes, the most is 256"},
		{func(a *Alteration) error { return a.DropColumn("key") }, status.InvalidArgument, `column "key" (int32): a key column can't be dropped`},
		{func(a *Alteration) error { return a.DropColumn("x") }, status.NotFound, `the table has no column "x"`},
		{func(a *Alteration) error { return a.RenameColumn("s", "s") }, status.AlreadyPresent, `the table has a column "s" already`},
		{func(a *Alteration) error { return a.RenameColumn("s", "") }, status.InvalidSchema, "the name is empty"},
		{func(a *Alteration) error { return a.RenameColumn("x", "y") }, status.NotFound, `no column "x"`},
		{func(a *Alteration) error { return a.SetDefault("v", []byte{1}) }, status.InvalidSchema, "want 8"},
		{func(a *Alteration) error { return a.SetDefault("v", nil) }, status.NotFound, "no default to remove"},
		{func(a *Alteration) error { return a.SetComment("v", strings.Repeat("x", 257)) }, status.InvalidSchema, "257 bytes"},
	} {
		a := s.Alter()
		err := c.step(a)
		if status.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %v with %s", err, c.code, c.want)
		}
		if next, err := a.Schema(); err != nil || a.Changed() || next.NumColumns() != 3 || next.NextColumnID() != 3 {
			t.Errorf("%s: something was left behind: %v", c.want, err)
		}
	}
	a := s.Alter()
	for a.columns = a.columns[:3:3]; len(a.columns) < MaxColumns; {
		if err := a.AddColumn(Column{Name: "c" + strings.Repeat("x", len(a.columns)/2) + string(rune('a'+len(a.columns)%2)), Type: Int8, Nullable: true}); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.AddColumn(Column{Name: "one more", Type: Int8, Nullable: true}); status.CodeOf(err) != status.InvalidSchema || !strings.Contains(err.Error(), "300 columns") {
		t.Error(err)
	}
}
