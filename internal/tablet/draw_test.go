package tablet

import (
	"encoding/base64"
	"fmt"
	"slices"

	"pgregory.net/rapid"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/invariant"
	"github.com/nyaladb/nyala/internal/schema"
)

var modelKeys = []string{"", "\x00", "\x00\x01", "a", "a\x00", "ab", "\xff"}

func drawEntry(t *rapid.T, m *modelTablet) modelEntry {
	index := ident.Index(len(m.log) + 1)
	e := modelEntry{op: Op{Index: index, Timestamp: hybridtime.Timestamp(index) * 10}}
	switch rapid.IntRange(0, 15).Draw(t, "what") {
	case 0:
		e.op.Timestamp = 0
	case 1:
		e.op.Config = &nyalav1.RaftConfig{OpidIndex: uint64(index)}
	case 2:
		if m.schema.Version() < 3 {
			e.op.Schema = nextSchema(m.schema).ToProto()
		}
	default:
		drawWrite(t, m, &e)
	}
	return e
}

// nextSchema drops the first column after v and adds a required one with defaults, then a nullable one.
func nextSchema(s *schema.Schema) *schema.Schema {
	cols := slices.Clone(s.Columns())
	id := s.NextColumnID()
	cols = slices.Delete(cols, 3, 4)
	name := fmt.Sprintf("c%d", id)
	if s.Version()%2 == 0 {
		cols = append(cols, schema.Column{ID: id, Name: name, Type: schema.Int64, WriteDefault: make([]byte, 8), ReadDefault: []byte{1, 0, 0, 0, 0, 0, 0, 0}})
	} else {
		cols = slices.Insert(cols, 2, schema.Column{ID: id, Name: name, Type: schema.String, Nullable: true})
	}
	next, err := schema.New(cols, s.Version()+1, id+1)
	invariant.Check(err == nil, "%v", err)
	return next
}

func drawWrite(t *rapid.T, m *modelTablet, e *modelEntry) {
	from := m.schemas[rapid.Uint32Range(0, m.schema.Version()).Draw(t, "version")]
	if rapid.Bool().Draw(t, "latest") {
		from = m.schema
	}
	enc := schema.NewOpsEncoder(from)
	e.rows = []modelOp{}
	for range rapid.IntRange(0, 8).Draw(t, "rows") {
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
			if m.schema.IndexOfID(id) < 0 {
				delete(op.values, id) // gone by now
			}
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
		key: []schema.Value{
			schema.StringValue(rapid.SampledFrom(modelKeys).Draw(t, "k1")),
			schema.IntValue(int64(rapid.SampledFrom([]int16{-32768, 0, 1}).Draw(t, "k2"))),
		},
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
	case schema.Double:
		return schema.FloatValue(float64(rapid.IntRange(-3, 3).Draw(t, "double")) / 2)
	case schema.String, schema.Binary:
		return schema.StringValue(rapid.SampledFrom([]string{"", "x", "yy", "0123456789012", "zzzzzzzzzzzzzzzz"}).Draw(t, "string"))
	default:
		return schema.IntValue(int64(rapid.IntRange(-5, 5).Draw(t, "int")))
	}
}

func drawPredicate(t *rapid.T, s *schema.Schema, c *schema.Column) *schema.BoundPredicate {
	v := drawValue(t, &schema.Column{Type: c.Type})
	if c.Key {
		v = drawRow(t, s).key[s.IndexOf(c.Name)]
	}
	p := []schema.Predicate{
		schema.Equal(c, v), schema.Less(c, v), schema.GreaterEqual(c, v), schema.IsNull(c), schema.IsNotNull(c), schema.Greater(c, v), schema.LessEqual(c, v),
	}[rapid.IntRange(0, 6).Draw(t, "predicate")]
	b, err := p.Bind(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func base64Text(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
