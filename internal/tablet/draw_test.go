package tablet

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"slices"

	"pgregory.net/rapid"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/invariant"
	"github.com/nyaladb/nyala/internal/schema"
)

func drawEntry(t *rapid.T, m *modelTablet) modelEntry {
	index := ident.Index(len(m.log) + 1)
	e := modelEntry{op: Op{Index: index, Timestamp: hybridtime.Timestamp(index) * 10}}
	switch rapid.IntRange(0, 15).Draw(t, "what") {
	case 0:
		e.op.Timestamp = 0
	case 1:
		e.op.Config = &nyalav1.RaftConfig{OpidIndex: uint64(index)}
	case 2, 3:
		if len(m.schemas) < 8 {
			e.op.Schema = drawNextSchema(t, m.schema).ToProto()
			e.op.TableName = rapid.SampledFrom([]string{"", "t", "u"}).Draw(t, "table name")
		}
	case 4:
		if rapid.Bool().Draw(t, "say it again") {
			e.op.Schema, e.op.TableName = m.schema.ToProto(), "another"
		}
	default:
		drawWrite(t, m, &e)
	}
	return e
}

// drawSchema draws a table of any types, with values at their ends as defaults.
func drawSchema(t *rapid.T) *schema.Schema {
	var columns []schema.Column
	for i := range rapid.IntRange(1, 3).Draw(t, "key columns") {
		c := drawColumn(t, fmt.Sprintf("k%d", i), true)
		c.Key = true
		columns = append(columns, c)
	}
	for i := range rapid.IntRange(0, 5).Draw(t, "other columns") {
		columns = append(columns, drawColumn(t, fmt.Sprintf("v%d", i), false))
	}
	s, err := schema.NewTable(columns)
	invariant.Check(err == nil, "%v", err)
	return s
}

func drawColumn(t *rapid.T, name string, key bool) schema.Column {
	types := []schema.Type{
		schema.Int8, schema.Int16, schema.Int32, schema.Int64, schema.String, schema.Binary, schema.UnixtimeMicros, schema.Decimal32,
		schema.Decimal64, schema.Decimal128, schema.Varchar, schema.Date, schema.Bool, schema.Float, schema.Double,
	}
	if key {
		types = types[:12]
	}
	c := schema.Column{Name: name, Type: rapid.SampledFrom(types).Draw(t, "column type")}
	switch c.Type {
	case schema.Decimal32:
		c.Precision, c.Scale = 9, 2
	case schema.Decimal64:
		c.Precision, c.Scale = 18, 18
	case schema.Decimal128:
		c.Precision = 38
	case schema.Varchar:
		c.Length = 10
	default:
	}
	if !key {
		c.Nullable = rapid.Bool().Draw(t, "nullable")
		if rapid.IntRange(0, 2).Draw(t, "default") == 0 {
			c.WriteDefault = defaultOf(t, c)
		}
	}
	return c
}

func defaultOf(t *rapid.T, c schema.Column) []byte {
	c.Nullable = false
	b, err := c.ValueBytes(drawValue(t, &c))
	invariant.Check(err == nil, "%v", err)
	return b
}

// drawNextSchema changes a schema by some steps of an ALTER; sometimes a version or two are left out.
func drawNextSchema(t *rapid.T, s *schema.Schema) *schema.Schema {
	a := s.Alter()
	for range rapid.IntRange(1, 3).Draw(t, "steps") {
		name := s.Column(s.NumColumns() - 1).Name // often one that was added
		if rapid.Bool().Draw(t, "any column") {
			name = s.Column(rapid.IntRange(0, s.NumColumns()-1).Draw(t, "altered")).Name
		}
		switch rapid.IntRange(0, 5).Draw(t, "step") {
		case 0, 1:
			c := drawColumn(t, fmt.Sprintf("n%d", rapid.IntRange(0, 3).Draw(t, "new")), false)
			if !c.Nullable && c.WriteDefault == nil {
				c.WriteDefault = defaultOf(t, c)
			}
			_ = a.AddColumn(c) // a step that can't be changes nothing
		case 2:
			_ = a.DropColumn(name)
		case 3:
			_ = a.RenameColumn(name, name+"'")
		case 4:
			if c := s.Column(s.IndexOf(name)); !c.Key {
				_ = a.SetDefault(name, defaultOf(t, *c))
			}
		default:
			if c := s.Column(s.IndexOf(name)); !c.Key {
				_ = a.SetDefault(name, nil)
			}
		}
	}
	next, err := a.Schema()
	invariant.Check(err == nil, "%v", err)
	next, err = schema.New(next.Columns(), next.Version()+rapid.Uint32Range(0, 2).Draw(t, "left out"), next.NextColumnID())
	invariant.Check(err == nil, "%v", err)
	return next
}

func drawWrite(t *rapid.T, m *modelTablet, e *modelEntry) {
	from := m.schemas[rapid.SampledFrom(slices.Sorted(maps.Keys(m.schemas))).Draw(t, "version")]
	if rapid.Bool().Draw(t, "latest") {
		from = m.schema
	}
	enc := schema.NewOpsEncoder(from)
	e.rows = []modelOp{}
	for range rapid.SampledFrom([]int{0, 1, 2, 4, 8, 24}).Draw(t, "rows") {
		op := drawRow(t, from)
		values := make([]schema.Value, from.NumColumns())
		set := schema.NewBitmap(from.NumColumns())
		for i := range from.NumKeyColumns() {
			values[i] = op.key[i]
			set.Set(i)
		}
		for i, c := range from.Columns() {
			if v, ok := op.values[c.ID]; ok {
				values[i] = v
				set.Set(i)
			}
		}
		if err := enc.Append(op.typ, values, set); err != nil {
			continue // an operation that its own schema refuses
		}
		for id := range op.values {
			e.dropped = e.dropped || m.schema.IndexOfID(id) < 0
		}
		e.rows = append(e.rows, op)
	}
	rows, indirect := enc.Bytes()
	w := &nyalav1.WriteOp{SchemaVersion: from.Version(), RowOperations: &nyalav1.RowOperations{Rows: rows, IndirectData: indirect}}
	switch rapid.IntRange(0, 20).Draw(t, "fault") {
	case 0:
		w.SchemaVersion = 99
	case 1:
		w.RowOperations.Rows = append(w.RowOperations.Rows, 200)
		e.rows = nil
	}
	if rapid.IntRange(0, 2).Draw(t, "tracked") > 0 {
		w.RequestId = &nyalav1.StoredRequestId{
			ClientId: append(make([]byte, 15), byte(rapid.IntRange(0, 2).Draw(t, "client"))),
			SeqNo:    rapid.Uint64Range(0, 20).Draw(t, "seq"), FirstIncompleteSeqNo: rapid.Uint64Range(0, 6).Draw(t, "fi"),
		}
	}
	e.op.Write = w
}

func drawRow(t *rapid.T, s *schema.Schema) modelOp {
	op := modelOp{
		typ: rapid.SampledFrom([]schema.OpType{
			schema.Insert, schema.Upsert, schema.Update, schema.Delete,
			schema.InsertIgnore, schema.UpsertIgnore, schema.UpdateIgnore, schema.DeleteIgnore,
		}).Draw(t, "type"),
		values: map[schema.ColumnID]schema.Value{},
	}
	for i := range s.NumKeyColumns() {
		op.key = append(op.key, drawValue(t, s.Column(i)))
	}
	if plain, _ := op.typ.Plain(); plain == schema.Delete {
		return op
	}
	all := rapid.IntRange(0, 2).Draw(t, "all") == 0
	for _, c := range s.Columns()[s.NumKeyColumns():] {
		if !all && rapid.IntRange(0, 2).Draw(t, "unset") == 0 {
			continue
		}
		op.values[c.ID] = drawValue(t, &c)
	}
	return op
}

func drawValue(t *rapid.T, c *schema.Column) schema.Value {
	if c.Nullable && rapid.IntRange(0, 3).Draw(t, "null") == 0 {
		return schema.Null()
	}
	switch c.Type {
	case schema.Bool:
		return schema.BoolValue(rapid.Bool().Draw(t, "bool"))
	case schema.Float, schema.Double:
		return schema.FloatValue(rapid.SampledFrom(floatEdges).Draw(t, "float"))
	case schema.String, schema.Binary, schema.Varchar:
		texts := []string{"", "\x00", "\x00\x01", "a", "a\x00", "ab", "0123456789012", "zzzzzzzzzzzzzzzz", "\xff"}
		return schema.StringValue(rapid.SampledFrom(texts).Draw(t, "string"))
	case schema.Decimal128:
		return schema.BytesValue(rapid.SampledFrom(edges128).Draw(t, "decimal"))
	default:
		most := int64(1)<<(8*c.Type.Size()-1) - 1
		return schema.IntValue(rapid.SampledFrom([]int64{-most - 1, -1, 0, 1, most}).Draw(t, "int"))
	}
}

// floatEdges fit into both types. Both zeros come often: they are equal and not the same.
var floatEdges = []float64{
	math.Inf(-1), -math.MaxFloat32, -0.5, math.Copysign(0, -1), 0, math.Copysign(0, -1), 0, math.SmallestNonzeroFloat32, 1.5, math.MaxFloat32, math.Inf(1), math.NaN(),
}

// edges128 are the value bytes of 128-bit numbers: the least, -1, 0, 1, the greatest.
var edges128 = [][]byte{
	append(make([]byte, 15), 0x80), bytes.Repeat([]byte{0xff}, 16), make([]byte, 16), append([]byte{1}, make([]byte, 15)...),
	append(bytes.Repeat([]byte{0xff}, 15), 0x7f),
}

// operators are those of modelPredicate.
var operators = []string{"=", "<", ">=", ">", "<=", "in", "null", "not null"}

// drawPredicate draws a predicate's values, as the scanner has it and as the model does: often those of rows.
func drawPredicate(t *rapid.T, s *schema.Schema, rows []modelRow, column int, op string) (*schema.BoundPredicate, modelPredicate) {
	c := s.Column(column)
	m := modelPredicate{column: column, typ: c.Type, op: op}
	values := 1
	if m.op == "in" {
		values = rapid.IntRange(0, 3).Draw(t, "listed")
	}
	for range values {
		v := drawValue(t, &schema.Column{Type: c.Type})
		if len(rows) > 0 && rapid.Bool().Draw(t, "a row's") {
			if own := rapid.SampledFrom(rows).Draw(t, "row").values[column]; !own.IsNull() {
				v = own
			}
		}
		m.values = append(m.values, v)
	}
	var p schema.Predicate
	switch m.op {
	case "=":
		p = schema.Equal(c, m.values[0])
	case "<":
		p = schema.Less(c, m.values[0])
	case ">=":
		p = schema.GreaterEqual(c, m.values[0])
	case ">":
		p = schema.Greater(c, m.values[0])
	case "<=":
		p = schema.LessEqual(c, m.values[0])
	case "in":
		p = schema.In(c, m.values...)
	case "null":
		p = schema.IsNull(c)
	default:
		p = schema.IsNotNull(c)
	}
	b, err := p.Bind(s)
	if err != nil {
		t.Fatal(err)
	}
	return b, m
}

// drawSnapshot draws one at a version of a row, just above it, or anywhere.
func drawSnapshot(t *rapid.T, m *modelTablet) hybridtime.Timestamp {
	if len(m.rows) > 0 && rapid.Bool().Draw(t, "at a version") {
		versions := m.rows[rapid.SampledFrom(slices.Sorted(maps.Keys(m.rows))).Draw(t, "key")]
		return rapid.SampledFrom(versions).Draw(t, "version").ts + hybridtime.Timestamp(rapid.IntRange(0, 1).Draw(t, "above"))
	}
	return hybridtime.Timestamp(rapid.IntRange(0, 10*len(m.log)+11).Draw(t, "snapshot"))
}

// drawBound draws an encoded key for one of a scan's bounds; often none.
func drawBound(t *rapid.T, s *schema.Schema, name string) []byte {
	if rapid.IntRange(0, 2).Draw(t, name+"?") > 0 {
		return nil
	}
	op := drawRow(t, s)
	return s.EncodeKey(nil, s.CellsOf(append(op.key, make([]schema.Value, s.NumColumns())...)))
}
