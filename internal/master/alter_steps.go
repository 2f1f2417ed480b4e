package master

import (
	"bytes"
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// alteration gathers the steps of one change of a table.
type alteration struct {
	m       *Master
	t       *table
	name    string
	columns *schema.Alteration
	ps      *schema.PartitionSchema
	// ranges are those that the table would have; added and dropped say how they differ from those it has.
	ranges  []schema.RangeWithHash
	added   []schema.RangeWithHash
	dropped []*tabletInfo
}

func (m *Master) beginAlteration(t *table) (*alteration, error) {
	s, err := schema.FromProto(t.meta.GetSchema())
	if err != nil {
		return nil, err
	}
	a := &alteration{m: m, t: t, name: t.meta.GetName(), columns: s.Alter(), ps: schema.PartitionSchemaFromProto(t.meta.GetPartitionSchema())}
	seen := map[string]bool{}
	for _, ti := range t.tablets {
		p := schema.PartitionFromProto(ti.meta.GetPartition())
		if lower := p.RangeStart(); !seen[string(lower)] {
			seen[string(lower)] = true
			a.ranges = append(a.ranges, schema.RangeWithHash{Lower: lower, Upper: p.RangeEnd(), Hash: a.ownHash(lower)})
		}
	}
	return a, nil
}

// ownHash is the hash dimensions of the range's own that begins at a key.
func (a *alteration) ownHash(lower []byte) []schema.HashDimension {
	for _, r := range a.ps.CustomRanges {
		if bytes.Equal(r.Lower, lower) {
			return r.Hash
		}
	}
	return nil
}

func (a *alteration) changes() bool {
	return a.columns.Changed() || a.rangesChanged() || a.name != a.t.meta.GetName()
}

func (a *alteration) rangesChanged() bool { return len(a.added)+len(a.dropped) > 0 }

func (a *alteration) step(s *nyalav1.AlterTableRequest_Step) error {
	switch s := s.GetStep().(type) {
	case *nyalav1.AlterTableRequest_Step_RenameTable:
		return a.rename(s.RenameTable)
	case *nyalav1.AlterTableRequest_Step_AddColumn:
		columns, err := schema.ColumnsFromProto([]*nyalav1.ColumnSchema{s.AddColumn.GetColumn()})
		if err != nil {
			return err
		}
		return a.columns.AddColumn(columns[0])
	case *nyalav1.AlterTableRequest_Step_DropColumn:
		return a.columns.DropColumn(s.DropColumn.GetName())
	case *nyalav1.AlterTableRequest_Step_AlterColumn:
		return a.alterColumn(s.AlterColumn)
	case *nyalav1.AlterTableRequest_Step_AddRange:
		return a.addRange(s.AddRange)
	case *nyalav1.AlterTableRequest_Step_DropRange:
		return a.dropRange(s.DropRange)
	default:
		return status.New(status.NotSupported, "a step that this version doesn't know")
	}
}

func (a *alteration) rename(name string) error {
	if err := checkTableName(name); err != nil {
		return err
	}
	a.m.catalog.mu.RLock()
	defer a.m.catalog.mu.RUnlock()
	if a.m.catalog.byName[name] != nil || name == a.name {
		return status.New(status.TableAlreadyPresent, "table %q already exists", name)
	}
	a.name = name
	return nil
}

func (a *alteration) alterColumn(c *nyalav1.AlterTableRequest_AlterColumn) error {
	name := c.GetName()
	if c.NewName != nil {
		if err := a.columns.RenameColumn(name, c.GetNewName()); err != nil {
			return err
		}
		name = c.GetNewName()
	}
	switch {
	case c.WriteDefault != nil && c.GetRemoveDefault():
		return status.New(status.InvalidArgument, "column %q: its default can't be set and removed in one step", name)
	case c.WriteDefault != nil || c.GetRemoveDefault():
		if err := a.columns.SetDefault(name, c.WriteDefault); err != nil {
			return err
		}
	}
	if c.Comment != nil {
		return a.columns.SetComment(name, c.GetComment())
	}
	return nil
}

func (a *alteration) addRange(p *nyalav1.RangePartition) error {
	s, err := a.columns.Schema()
	if err != nil {
		return err
	}
	r, err := rangeFromProto(s, a.ps, p)
	if err != nil {
		return err
	}
	if err := a.ps.ValidateRanges(s, []schema.RangeWithHash{r}); err != nil {
		return err
	}
	for i := range a.ranges {
		if have := &a.ranges[i]; bytes.Equal(have.Lower, r.Lower) && bytes.Equal(have.Upper, r.Upper) {
			return status.New(status.AlreadyPresent, "the table has the range %s already", a.ps.FormatRange(s, r.Lower, r.Upper))
		}
	}
	for _, have := range a.ranges {
		if a.ps.ValidateRanges(s, []schema.RangeWithHash{{Lower: have.Lower, Upper: have.Upper}, {Lower: r.Lower, Upper: r.Upper}}) != nil {
			return status.New(status.InvalidArgument, "the new range %s conflicts with the existing one %s",
				a.ps.FormatRange(s, r.Lower, r.Upper), a.ps.FormatRange(s, have.Lower, have.Upper))
		}
	}
	next := a.ps.WithRanges(append(slices.Clone(a.ranges), r))
	if err := next.Validate(s); err != nil {
		return err
	}
	added := append(slices.Clone(a.added), r)
	if n := a.ps.NumPartitionsOf(added); n > uint64(a.m.cfg.TabletsPerTable) {
		return status.New(status.InvalidArgument, "the new ranges would have %d tablets, the most at a time is %d (--max_create_tablets_per_table)",
			n, a.m.cfg.TabletsPerTable)
	}
	a.added, a.ranges, a.ps = added, append(a.ranges, r), next
	return nil
}

func (a *alteration) dropRange(p *nyalav1.RangePartition) error {
	s, err := a.columns.Schema()
	if err != nil {
		return err
	}
	r, err := rangeFromProto(s, a.ps, &nyalav1.RangePartition{
		Lower: p.GetLower(), LowerExclusive: p.GetLowerExclusive(), Upper: p.GetUpper(), UpperInclusive: p.GetUpperInclusive(),
	})
	if err != nil {
		return err
	}
	same := func(o schema.RangeWithHash) bool {
		return bytes.Equal(o.Lower, r.Lower) && bytes.Equal(o.Upper, r.Upper)
	}
	if !slices.ContainsFunc(a.ranges, same) {
		return status.New(status.InvalidArgument, "no range partition to drop: the table has no range %s", a.ps.FormatRange(s, r.Lower, r.Upper))
	}
	a.ranges = slices.DeleteFunc(a.ranges, same)
	if slices.ContainsFunc(a.added, same) {
		a.added = slices.DeleteFunc(a.added, same)
	} else {
		for _, ti := range a.t.tablets {
			if p := schema.PartitionFromProto(ti.meta.GetPartition()); bytes.Equal(p.RangeStart(), r.Lower) {
				a.dropped = append(a.dropped, ti)
			}
		}
	}
	a.ps = a.ps.WithRanges(a.ranges)
	return nil
}

// createdName is the name that a table was created with.
func createdName(meta *nyalav1.CatalogTable) string {
	return cmp.Or(meta.GetCreatedName(), meta.GetName())
}

// kept are the table's tablets that aren't dropped.
func (a *alteration) kept() []*tabletInfo {
	return slices.DeleteFunc(slices.Clone(a.t.tablets), func(ti *tabletInfo) bool { return slices.Contains(a.dropped, ti) })
}

// meta is the table's metadata after the change.
func (a *alteration) meta(requestID []byte) (*nyalav1.CatalogTable, error) {
	old := a.t.meta
	meta := proto.CloneOf(old)
	if meta.Name = a.name; a.name != old.GetName() {
		meta.CreatedName = createdName(old)
	}
	kept := a.kept()
	if a.columns.Changed() || a.name != old.GetName() {
		// A name alone makes a version too: that is how it gets to the tablets.
		s, err := a.columns.Schema()
		if err != nil {
			return nil, err
		}
		if err := a.ps.Validate(s); err != nil {
			return nil, err
		}
		meta.Schema = s.ToProto()
		if len(kept) > 0 {
			meta.AppliedSchema = clientSchema(old)
		}
	}
	if len(kept) == 0 {
		meta.AppliedSchema = nil // there is nobody to wait for
	}
	if a.rangesChanged() {
		meta.PartitionSchema = a.ps.ToProto()
		meta.PartitionVersion++
	}
	keepSchemas(meta, old, kept)
	if len(requestID) > 0 {
		meta.AlterRequestIds = append(meta.AlterRequestIds, requestID)
		if n := len(meta.AlterRequestIds) - rememberedAlters; n > 0 {
			meta.AlterRequestIds = meta.AlterRequestIds[n:]
		}
	}
	return meta, checkSize(meta)
}
