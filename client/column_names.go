package client

import (
	"context"
	"errors"

	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/status"
)

// columnNames is what a scan asks for, in the names of a later version of the schema.
type columnNames struct {
	version    uint32
	columns    []string
	predicates []*nyalav1.Predicate
}

// newNames finds the columns of a scan in the table's present schema. Refused is the error of a tablet that doesn't know the one that
// the table was opened with, or that has dropped one of the columns.
func (ts *tabletScan) newNames(ctx context.Context, refused *Error) (*columnNames, *Error) {
	old := ts.t
	now, err := old.c.openTable(ctx, old.id(), "scan table "+old.info.Name)
	var e *Error
	switch {
	case errors.As(err, &e):
		return nil, e
	case err != nil:
		return nil, status.Wrap(status.CodeOf(err), err, "scan table %q", old.info.Name)
	case now.schema.Version() == old.schema.Version():
		return nil, refused
	}
	n := &columnNames{version: now.schema.Version()}
	rename := func(name string) (string, *Error) {
		i := now.schema.IndexOfID(old.schema.Column(old.schema.IndexOf(name)).ID)
		if i < 0 {
			return "", now.dropped(name)
		}
		return now.schema.Column(i).Name, nil
	}
	for _, name := range ts.spec.columns {
		if name, e = rename(name); e != nil {
			return nil, e
		}
		n.columns = append(n.columns, name)
	}
	for _, p := range ts.spec.predicates {
		p = proto.CloneOf(p)
		if p.Column, e = rename(p.GetColumn()); e != nil {
			return nil, e
		}
		n.predicates = append(n.predicates, p)
	}
	return n, nil
}
