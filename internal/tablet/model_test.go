package tablet

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"math/big"
	"slices"
	"sort"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/invariant"
	"github.com/nyaladb/nyala/internal/schema"
)

// modelTablet is a tablet as one would write it down without a thought for speed: for each key all its versions, each a
// whole row or none, and for each client all its answers.
type modelTablet struct {
	log     []modelEntry
	applied int // entries of the log in rows and clients
	schema  *schema.Schema
	schemas map[uint32]*schema.Schema
	rows    map[string][]modelVersion
	clients map[string]*modelClient
	config  uint64
	name    string // of the table
}

// modelEntry is a log entry and what it was answered when it was first applied.
type modelEntry struct {
	op   Op
	rows []modelOp // of a write: the operations as they were before encoding
	// dropped: one of them sets a column that the schema doesn't have any more.
	dropped bool
	result  string
}

type modelOp struct {
	typ    schema.OpType
	key    []schema.Value
	values map[schema.ColumnID]schema.Value // besides the key
}

type modelVersion struct {
	ts    hybridtime.Timestamp
	cells map[schema.ColumnID]schema.Value // nil: deleted
}

type modelClient struct {
	bound   uint64
	answers map[uint64]string
}

func newModelTablet(s *schema.Schema) *modelTablet {
	return &modelTablet{
		name: "t", schema: s, schemas: map[uint32]*schema.Schema{s.Version(): s},
		rows: map[string][]modelVersion{}, clients: map[string]*modelClient{},
	}
}

// resultText is all of a result that must be the same everywhere.
func resultText(r Result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "ts=%d", r.Timestamp)
	if r.Err != nil {
		fmt.Fprintf(&b, " err=%v", r.Err.Code)
	}
	if r.Stale {
		b.WriteString(" stale")
	}
	for _, e := range r.RowErrors {
		fmt.Fprintf(&b, " %d:%v", e.GetRowIndex(), e.GetCode())
	}
	return b.String()
}

// apply applies an entry and returns what it must be answered; duplicates are told apart by the caller's comparison, since
// their text is the first answer's.
func (m *modelTablet) apply(e *modelEntry) (text string, duplicate bool) {
	m.applied++
	op := e.op
	switch {
	case op.Config != nil:
		m.config = op.Config.GetOpidIndex()
	case op.Schema != nil:
		s, err := schema.FromProto(op.Schema)
		invariant.Check(err == nil, "%v", err)
		if s.Version() > m.schema.Version() && op.TableName != "" {
			m.name = op.TableName
		}
		m.schemas[s.Version()], m.schema = s, s
	case op.Write != nil:
		return m.applyWrite(e)
	}
	return fmt.Sprintf("ts=%d", op.Timestamp), false
}

func (m *modelTablet) applyWrite(e *modelEntry) (string, bool) {
	id := e.op.Write.GetRequestId()
	if id == nil {
		return m.applyRows(e), false
	}
	fi := min(id.GetFirstIncompleteSeqNo(), id.GetSeqNo())
	c := m.clients[string(id.GetClientId())]
	if c == nil {
		c = &modelClient{bound: fi, answers: map[uint64]string{}}
		m.clients[string(id.GetClientId())] = c
	}
	stale := id.GetSeqNo() < c.bound
	c.bound = max(c.bound, fi)
	if stale {
		return fmt.Sprintf("ts=%d stale", e.op.Timestamp), false
	}
	if a, ok := c.answers[id.GetSeqNo()]; ok {
		return a, true
	}
	a := m.applyRows(e)
	if !strings.Contains(a, "err=") {
		c.answers[id.GetSeqNo()] = a
	}
	return a, false
}

func (m *modelTablet) applyRows(e *modelEntry) string {
	text := fmt.Sprintf("ts=%d", e.op.Timestamp)
	from := m.schemas[e.op.Write.GetSchemaVersion()]
	switch {
	case from == nil && e.op.Write.GetSchemaVersion() > m.schema.Version():
		return text + " err=SERVICE_UNAVAILABLE"
	case from == nil || e.rows == nil || e.dropped:
		return text + " err=MISMATCHED_SCHEMA"
	}
	for i, op := range e.rows {
		if code := m.applyRow(op, e.op.Timestamp); code != "" {
			text += fmt.Sprintf(" %d:ERROR_CODE_%s", i, code)
		}
	}
	return text
}

func (m *modelTablet) latest(key string) map[schema.ColumnID]schema.Value {
	v := m.rows[key]
	if len(v) == 0 {
		return nil
	}
	return v[len(v)-1].cells
}

func (m *modelTablet) applyRow(op modelOp, ts hybridtime.Timestamp) string {
	key := string(m.schema.EncodeKey(nil, m.schema.CellsOf(append(slices.Clone(op.key), make([]schema.Value, m.schema.NumColumns())...))))
	old := m.latest(key)
	var cells map[schema.ColumnID]schema.Value
	typ, ignore := op.typ.Plain()
	switch typ {
	case schema.Insert:
		if !m.complete(op) {
			return "INVALID_ARGUMENT"
		}
		if old != nil {
			return unlessIgnored(ignore, "ALREADY_PRESENT")
		}
		cells = m.withDefaults(op)
	case schema.Upsert:
		if !m.complete(op) {
			return "INVALID_ARGUMENT"
		}
		if cells = m.withDefaults(op); old != nil {
			cells = overlayValues(old, op.values)
		}
	case schema.Update:
		if old == nil {
			return unlessIgnored(ignore, "NOT_FOUND")
		}
		cells = overlayValues(old, op.values)
	case schema.Delete:
		if old == nil {
			return unlessIgnored(ignore, "NOT_FOUND")
		}
	default:
	}
	m.rows[key] = append(m.rows[key], modelVersion{ts, cells})
	return ""
}

func unlessIgnored(ignore bool, code string) string {
	if ignore {
		return ""
	}
	return code
}

// complete says whether all columns of the latest schema that need a value have one.
func (m *modelTablet) complete(op modelOp) bool {
	for _, c := range m.schema.Columns()[m.schema.NumKeyColumns():] {
		if _, set := op.values[c.ID]; !set && c.WriteDefault == nil && !c.Nullable {
			return false
		}
	}
	return true
}

func (m *modelTablet) withDefaults(op modelOp) map[schema.ColumnID]schema.Value {
	cells := map[schema.ColumnID]schema.Value{}
	for _, c := range m.schema.Columns()[m.schema.NumKeyColumns():] {
		v, set := op.values[c.ID]
		if !set && c.WriteDefault != nil {
			v, _ = c.ValueFromBytes(c.WriteDefault)
		}
		cells[c.ID] = v
	}
	return cells
}

func overlayValues(base, over map[schema.ColumnID]schema.Value) map[schema.ColumnID]schema.Value {
	out := map[schema.ColumnID]schema.Value{}
	for id, v := range base {
		out[id] = v
	}
	for id, v := range over {
		out[id] = v
	}
	return out
}

// modelRow is a row of a scan's answer: all columns of a schema, in its order.
type modelRow struct {
	key    string
	values []schema.Value
}

// scan returns all rows at a snapshot, in key order.
func (m *modelTablet) scan(s *schema.Schema, snapshot hybridtime.Timestamp) []modelRow {
	var out []modelRow
	for key, versions := range m.rows {
		n := sort.Search(len(versions), func(i int) bool { return versions[i].ts >= snapshot })
		if n == 0 || versions[n-1].cells == nil {
			continue
		}
		values, err := s.DecodeKey(nil, []byte(key))
		invariant.Check(err == nil, "%v", err)
		for _, c := range s.Columns()[s.NumKeyColumns():] {
			v, ok := versions[n-1].cells[c.ID]
			if !ok && c.ReadDefault != nil {
				v, _ = c.ValueFromBytes(c.ReadDefault)
			}
			values = append(values, v)
		}
		out = append(out, modelRow{key, values})
	}
	slices.SortFunc(out, func(a, b modelRow) int { return cmp.Compare(a.key, b.key) })
	return out
}

// modelPredicate is a predicate in the words of a where clause.
type modelPredicate struct {
	column int
	typ    schema.Type
	op     string
	values []schema.Value
}

// holds compares numbers as numbers and bytes as bytes. NULL and NaN compare with nothing.
func (p *modelPredicate) holds(v schema.Value) bool {
	switch {
	case p.op == "null" || p.op == "not null":
		return v.IsNull() == (p.op == "null")
	case v.IsNull():
		return false
	}
	return slices.ContainsFunc(p.values, func(w schema.Value) bool {
		var order int
		switch p.typ {
		case schema.Bool:
			number := map[bool]int{true: 1}
			order = number[v.Bool()] - number[w.Bool()]
		case schema.Float, schema.Double:
			if math.IsNaN(v.Float()) || math.IsNaN(w.Float()) {
				return false
			}
			order = cmp.Compare(v.Float(), w.Float())
		case schema.String, schema.Binary, schema.Varchar:
			order = bytes.Compare(v.Bytes(), w.Bytes())
		case schema.Decimal128:
			order = number128(v).Cmp(number128(w))
		default:
			order = cmp.Compare(v.Int(), w.Int())
		}
		switch p.op {
		case "=", "in":
			return order == 0
		case "<":
			return order < 0
		case "<=":
			return order <= 0
		case ">":
			return order > 0
		default:
			return order >= 0
		}
	})
}

// number128 is a little-endian number of 128 bits in two's complement.
func number128(v schema.Value) *big.Int {
	b := slices.Clone(v.Bytes())
	slices.Reverse(b)
	n := new(big.Int).SetBytes(b)
	if b[0]&0x80 != 0 {
		n.Sub(n, new(big.Int).Lsh(big.NewInt(1), 128))
	}
	return n
}

// filter applies what a scan does to rows: bounds, resume key, predicates, limit.
func (m *modelTablet) filter(rows []modelRow, spec ScanSpec, preds []modelPredicate) []modelRow {
	var out []modelRow
	for _, r := range rows {
		key := []byte(r.key)
		if bytes.Compare(key, spec.Start) < 0 || len(spec.Stop) > 0 && bytes.Compare(key, spec.Stop) >= 0 ||
			spec.After != nil && bytes.Compare(key, spec.After) <= 0 || spec.Limit > 0 && uint64(len(out)) == spec.Limit {
			continue
		}
		ok := true
		for _, p := range preds {
			ok = ok && p.holds(r.values[p.column])
		}
		if ok {
			out = append(out, r)
		}
	}
	return out
}

// matches says whether row i of a record holds the given columns of the row, bit for bit.
func (r *modelRow) matches(s *schema.Schema, columns []int, rec arrow.RecordBatch, i int) bool {
	for k, pos := range columns {
		v, a := r.values[pos], rec.Column(k)
		if a.IsNull(i) || v.IsNull() {
			if a.IsNull(i) != v.IsNull() {
				return false
			}
			continue
		}
		want, err := s.Column(pos).ValueBytes(v)
		if err != nil || !bytes.Equal(arrowCell(a, i, len(want)), want) {
			return false
		}
	}
	return true
}

// arrowCell is the value bytes of a cell, of which there are size.
func arrowCell(a arrow.Array, i, size int) []byte {
	switch a := a.(type) {
	case *array.String:
		return []byte(a.Value(i))
	case *array.Binary:
		return a.Value(i)
	case *array.Boolean:
		if a.Value(i) {
			return []byte{1}
		}
		return []byte{0}
	default: // little-endian values of one width, of which decimals are cut down
		width := a.DataType().(arrow.FixedWidthDataType).BitWidth() / 8
		return a.Data().Buffers()[1].Bytes()[i*width:][:size]
	}
}
