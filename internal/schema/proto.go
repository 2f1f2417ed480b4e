package schema

import (
	"math"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/status"
)

// FromProto checks a schema message and returns the schema. An error is a *status.Error with code InvalidSchema. The schema
// keeps the message's default values.
func FromProto(p *nyalav1.Schema) (*Schema, error) {
	columns, err := ColumnsFromProto(p.GetColumns())
	if err != nil {
		return nil, err
	}
	return New(columns, p.GetVersion(), ColumnID(p.GetNextColumnId()))
}

// ColumnsFromProto turns column messages into columns. It checks only that the numbers fit: New and NewTable do the rest.
func ColumnsFromProto(ps []*nyalav1.ColumnSchema) ([]Column, error) {
	if len(ps) > MaxColumns {
		return nil, status.New(status.InvalidSchema, "the table has %d columns, the most is %d", len(ps), MaxColumns)
	}
	columns := make([]Column, len(ps))
	for i, p := range ps {
		if p.GetType() < 0 || int(p.GetType()) >= numTypes {
			return nil, status.New(status.InvalidSchema, "column %q: unknown type %d", p.GetName(), p.GetType())
		}
		if p.GetPrecision() > math.MaxUint8 || p.GetScale() > math.MaxUint8 || p.GetLength() > math.MaxUint16 {
			return nil, status.New(status.InvalidSchema, "column %q: precision %d, scale %d or length %d is out of range",
				p.GetName(), p.GetPrecision(), p.GetScale(), p.GetLength())
		}
		columns[i] = Column{
			ID:           ColumnID(p.GetId()),
			Name:         p.GetName(),
			Type:         Type(p.GetType()),
			Key:          p.GetIsKey(),
			Nullable:     p.GetNullable(),
			WriteDefault: p.GetWriteDefault(),
			ReadDefault:  p.GetReadDefault(),
			Comment:      p.GetComment(),
			Precision:    uint8(p.GetPrecision()),
			Scale:        uint8(p.GetScale()),
			Length:       uint16(p.GetLength()),
		}
	}
	return columns, nil
}

// ToProto returns the schema as a message, which shares the default values with the schema.
func (s *Schema) ToProto() *nyalav1.Schema {
	return &nyalav1.Schema{
		Columns:      ColumnsToProto(s.columns),
		Version:      s.version,
		NextColumnId: uint32(s.nextID),
	}
}

// ColumnsToProto is the reverse of ColumnsFromProto.
func ColumnsToProto(columns []Column) []*nyalav1.ColumnSchema {
	ps := make([]*nyalav1.ColumnSchema, len(columns))
	for i := range columns {
		c := &columns[i]
		ps[i] = &nyalav1.ColumnSchema{
			Id:           uint32(c.ID),
			Name:         c.Name,
			Type:         nyalav1.DataType(c.Type),
			IsKey:        c.Key,
			Nullable:     c.Nullable,
			WriteDefault: c.WriteDefault,
			ReadDefault:  c.ReadDefault,
			Comment:      c.Comment,
			Precision:    uint32(c.Precision),
			Scale:        uint32(c.Scale),
			Length:       uint32(c.Length),
		}
	}
	return ps
}
