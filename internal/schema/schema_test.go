package schema

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/status"
)

// TestTypes shows that the numbers are those of the wire, that names read back, and which types keys may have.
func TestTypes(t *testing.T) {
	seen := 0
	for n, name := range nyalav1.DataType_name {
		typ := Type(n)
		if n == 0 {
			if typ.Valid() || typ.KeyAllowed() || typ.Size() != 0 {
				t.Error("type 0 passes for one")
			}
			continue
		}
		seen++
		if want := strings.ToLower(strings.TrimPrefix(name, "DATA_TYPE_")); typ.String() != want {
			t.Errorf("type %d is called %q, want %q", n, typ, want)
		}
		if back, err := ParseType(typ.String()); back != typ || err != nil {
			t.Errorf("%v reads back as %v, %v", typ, back, err)
		}
		if want := typ != Bool && typ != Float && typ != Double; typ.KeyAllowed() != want {
			t.Errorf("%v in a key: %v", typ, typ.KeyAllowed())
		}
		if typ.VarLen() != (typ == String || typ == Binary || typ == Varchar) {
			t.Errorf("%v has values of any length: %v", typ, typ.VarLen())
		}
	}
	if seen != len(allTypes) {
		t.Errorf("%d types on the wire, %d here", seen, len(allTypes))
	}
	for _, name := range []string{"", "int", "INT64", "DATA_TYPE_INT64"} {
		if typ, err := ParseType(name); err == nil {
			t.Errorf("%q is %v", name, typ)
		}
	}
	if got := Type(200).String(); got != "200" {
		t.Errorf("type 200 is called %q", got)
	}
}

// TestNewFaults shows what New refuses.
func TestNewFaults(t *testing.T) {
	key := Column{Name: "k", Type: Int64, Key: true}
	with := func(c Column) []Column {
		c.ID = 1
		return []Column{key, c}
	}
	many := make([]Column, MaxColumns+1)
	for i := range many {
		many[i] = Column{ID: ColumnID(i), Name: fmt.Sprint(i), Type: Int8, Key: i == 0}
	}
	if _, err := New(many[:MaxColumns], 0, MaxColumns); err != nil {
		t.Errorf("%d columns: %v", MaxColumns, err)
	}
	if _, err := New(with(Column{Name: strings.Repeat("n", MaxNameBytes), Type: Int8}), 0, 2); err != nil {
		t.Errorf("the longest name: %v", err)
	}
	for _, c := range []struct {
		name    string
		columns []Column
	}{
		{"no columns", nil},
		{"no key", []Column{{Name: "a", Type: Int8}}},
		{"too many columns", many},
		{"key behind a value", []Column{key, {ID: 1, Name: "v", Type: Int8}, {ID: 2, Name: "w", Type: Int8, Key: true}}},
		{"value first", []Column{{ID: 1, Name: "v", Type: Int8}, key}},
		{"nullable key", []Column{{Name: "k", Type: Int64, Key: true, Nullable: true}}},
		{"bool key", []Column{{Name: "k", Type: Bool, Key: true}}},
		{"float key", []Column{{Name: "k", Type: Float, Key: true}}},
		{"double key", []Column{{Name: "k", Type: Double, Key: true}}},
		{"the same name", with(Column{Name: "k", Type: Int8})},
		{"the same id", []Column{key, {Name: "v", Type: Int8}}},
		{"id not below the next", []Column{key, {ID: 2, Name: "v", Type: Int8}}},
		{"empty name", with(Column{Type: Int8})},
		{"long name", with(Column{Name: strings.Repeat("n", MaxNameBytes+1), Type: Int8})},
		{"NUL in a name", with(Column{Name: "a\x00b", Type: Int8})},
		{"a name that isn't UTF-8", with(Column{Name: "a\xff", Type: Int8})},
		{"no type", with(Column{Name: "v"})},
		{"unknown type", with(Column{Name: "v", Type: 14})},
		{"type above all", with(Column{Name: "v", Type: 99})},
		{"decimal without precision", with(Column{Name: "v", Type: Decimal32})},
		{"too precise", with(Column{Name: "v", Type: Decimal64, Precision: 19})},
		{"scale above precision", with(Column{Name: "v", Type: Decimal32, Precision: 4, Scale: 5})},
		{"precision of an integer", with(Column{Name: "v", Type: Int8, Precision: 4})},
		{"varchar without length", with(Column{Name: "v", Type: Varchar})},
		{"length of a string", with(Column{Name: "v", Type: String, Length: 4})},
		{"short default", with(Column{Name: "v", Type: Int32, WriteDefault: []byte{1}})},
		{"long default", with(Column{Name: "v", Type: Int32, ReadDefault: make([]byte, 5)})},
		{"default too large", with(Column{Name: "v", Type: String, ReadDefault: make([]byte, MaxCellSize+1)})},
		{"comment too long", with(Column{Name: "v", Type: Int8, Comment: strings.Repeat("c", MaxCommentBytes+1)})},
		{"a comment that isn't UTF-8", with(Column{Name: "v", Type: Int8, Comment: "\xff"})},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := New(c.columns, 0, 2); err == nil || status.CodeOf(err) != status.InvalidSchema {
				t.Errorf("error %v, code %v", err, status.CodeOf(err))
			}
		})
	}
}

// TestNewTable shows that ids are given in order whatever the type.
func TestNewTable(t *testing.T) {
	s, err := NewTable([]Column{{ID: 7, Name: "k", Type: Int64, Key: true}, {ID: 7, Name: "v", Type: String, Nullable: true}})
	if err != nil {
		t.Fatal(err)
	}
	if s.Column(1).ID != 1 || s.NextColumnID() != 2 || s.Version() != 0 || !s.HasNullable() || s.NumColumns() != 2 || s.NumKeyColumns() != 1 {
		t.Errorf("%+v", s)
	}
	for _, typ := range allTypes {
		c := testColumn("v", typ)
		_, err := NewTable([]Column{{Name: "k", Type: Int64, Key: true}, c})
		if err != nil {
			t.Errorf("%v: %v", typ, err)
		}
	}
}

// TestLookups shows the ways to find a column, also where ids and positions differ.
func TestLookups(t *testing.T) {
	s, err := New([]Column{{ID: 1, Name: "k", Type: Int8, Key: true}, {ID: 0, Name: "v", Type: Int8}, {ID: 9, Name: "w", Type: Int8}}, 3, 10)
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[ColumnID]int{0: 1, 1: 0, 2: -1, 9: 2, 1 << 31: -1} {
		if got := s.IndexOfID(id); got != want {
			t.Errorf("id %d is at %d, want %d", id, got, want)
		}
	}
	for name, want := range map[string]int{"k": 0, "w": 2, "K": -1, "": -1} {
		if got := s.IndexOf(name); got != want {
			t.Errorf("%q is at %d, want %d", name, got, want)
		}
	}
}

// TestSchemaProto sends schemas over the wire and back.
func TestSchemaProto(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSchema(t)
		wire, err := proto.Marshal(s.ToProto())
		if err != nil {
			t.Fatal(err)
		}
		m := &nyalav1.Schema{}
		if err := proto.Unmarshal(wire, m); err != nil {
			t.Fatal(err)
		}
		back, err := FromProto(m)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(back, s) {
			t.Fatalf("%+v became %+v", s, back)
		}
	})
	for name, m := range map[string]*nyalav1.ColumnSchema{
		"type above a byte":   {Name: "k", Type: 263, IsKey: true},
		"negative type":       {Name: "k", Type: -1, IsKey: true},
		"precision too large": {Name: "k", Type: nyalav1.DataType_DATA_TYPE_DECIMAL32, Precision: 256 + 5, IsKey: true},
		"length too large":    {Name: "k", Type: nyalav1.DataType_DATA_TYPE_VARCHAR, Length: 65536 + 5, IsKey: true},
	} {
		if _, err := FromProto(&nyalav1.Schema{Columns: []*nyalav1.ColumnSchema{m}, NextColumnId: 1}); status.CodeOf(err) != status.InvalidSchema {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := FromProto(nil); status.CodeOf(err) != status.InvalidSchema {
		t.Errorf("no message: %v", err)
	}
}

// TestColumnSpecs shows what column specs mean, written again.
func TestColumnSpecs(t *testing.T) {
	for _, c := range []struct{ specs, want string }{
		{"id int64, name string null", "id int64, name string null"},
		{" id  INT64 not null,\n\"a b\" Unixtime_Micros NULL ", `id int64, "a b" unixtime_micros null`},
		{`"null" bool, "" string`, `"null" bool, "" string`},
		{"p decimal(9), q decimal(10,2) null, r decimal(38, 38), v varchar(20)", "p decimal(9,0), q decimal(10,2) null, r decimal(38,38), v varchar(20)"},
		{"null int8", `"null" int8`},
		{"v int32 default 5 comment 'it''s' null", "v int32 null default 5 comment 'it''s'"},
		{"default date default '2020-01-01' not null, s string default ''", "default date default '2020-01-01', s string default ''"},
		{"v varchar(3) default 'äöüß', b bool default TRUE", "v varchar(3) default 'äöü', b bool default true"},
		{"p decimal(9,2) default -.5, t unixtime_micros default -1", "p decimal(9,2) default -0.50, t unixtime_micros default '1969-12-31T23:59:59.999999Z'"},
	} {
		columns, err := ParseColumnSpecs(c.specs)
		if err != nil {
			t.Errorf("%s: %v", c.specs, err)
			continue
		}
		var parts []string
		for i := range columns {
			parts = append(parts, columns[i].String())
		}
		if got := strings.Join(parts, ", "); got != c.want {
			t.Errorf("%s: %s, want %s", c.specs, got, c.want)
		}
	}
	for _, c := range []struct{ specs, want string }{
		{"", "character 1: want a column name, have the end"},
		{"id", `character 3: want the type of column "id", have the end`},
		{"id int64,", "character 10: want a column name, have the end"},
		{"id int", `character 4: column "id": unknown type "int": the types are binary, bool, date, decimal(precision, scale), double, float, int16, int32, int64, int8, string, unixtime_micros, varchar(length)`},
		{"id int64 nul", `character 10: want NULL, NOT NULL, DEFAULT, COMMENT, a comma or the end after column "id", have "nul"`},
		{"id int64 not", "character 13: want NULL after NOT, have the end"},
		{"id int64 null null", `character 15: column "id": NULL stands there twice`},
		{"id int64 not null null", `character 19: column "id": NULL stands there twice`},
		{"id int8 default 128", `character 17: column "id" (int8): "128": out of range -128 to 127`},
		{"id int8 default null", `character 17: column "id": a default can't be NULL: a nullable column without a default stores NULL`},
		{"id int8 default", `character 16: want the default of column "id", have the end: strings stand in single quotes`},
		{"s string default 5", `character 18: column "s" (string) takes a string in single quotes, as in '5'`},
		{"d decimal(4,2) default 1.005", `character 24: column "d" (decimal(4,2)): "1.005": more digits behind the point than the scale 2`},
		{"id int8 comment hello", `character 17: want a comment in single quotes, have "hello"`},
		{"id int64(3)", `character 10: column "id": the type int64 takes no attributes`},
		{"id decimal", `character 4: column "id": a decimal needs a precision, as in decimal(9) or decimal(9, 2)`},
		{"id decimal(39)", `character 12: column "id": the precision of a decimal is 1 to 38`},
		{"id decimal(0, 0)", `character 12: column "id": the precision of a decimal is 1 to 38`},
		{"id varchar", `character 4: column "id": a varchar needs a length, as in varchar(100)`},
		{"id varchar(x)", `character 12: want a number, have "x"`},
		{"id varchar(70000)", "character 12: the length of a varchar is 1 to 65535"},
	} {
		if _, err := ParseColumnSpecs(c.specs); err == nil || err.Error() != "columns, "+c.want {
			t.Errorf("%s:\n have %v\n want %s", c.specs, err, c.want)
		}
	}
}

// TestOrderKeyFirst shows the order of a new table's columns.
func TestOrderKeyFirst(t *testing.T) {
	columns, err := ParseColumnSpecs("a int64, b string null, c int8, d int8")
	if err != nil {
		t.Fatal(err)
	}
	got, err := OrderKeyFirst(columns, []string{"d", "a"})
	if err != nil {
		t.Fatal(err)
	}
	names := ""
	for _, c := range got {
		names += fmt.Sprint(c.Name, c.Key, " ")
	}
	if names != "dtrue atrue bfalse cfalse " {
		t.Error(names)
	}
	for _, key := range [][]string{nil, {"x"}, {"a", "a"}} {
		if _, err := OrderKeyFirst(columns, key); status.CodeOf(err) != status.InvalidArgument {
			t.Errorf("%q: %v", key, err)
		}
	}
}
