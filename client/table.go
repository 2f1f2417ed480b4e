package client

import (
	"context"
	"fmt"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// Table is an open table: its name and its schema as of when it was opened, and where its tablets are. It is safe for
// concurrent use and needs no closing.
type Table struct {
	c         *Client
	info      TableInfo
	schema    *schema.Schema
	partition *schema.PartitionSchema
	locations *locations
}

// TableState is how far a table's creation or deletion has come.
type TableState = nyalav1.TableState

// The states of a table.
const (
	TableCreating = nyalav1.TableState_TABLE_STATE_CREATING
	TableRunning  = nyalav1.TableState_TABLE_STATE_RUNNING
	TableDeleting = nyalav1.TableState_TABLE_STATE_DELETING
)

// TableInfo is what the master's list says about a table.
type TableInfo struct {
	ID       string
	Name     string
	State    TableState
	Tablets  int
	Replicas int // per tablet
}

func tableInfo(p *nyalav1.TableInfo) TableInfo {
	return TableInfo{
		ID: p.GetId(), Name: p.GetName(), State: p.GetState(),
		Tablets: int(p.GetNumTablets()), Replicas: int(p.GetNumReplicas()),
	}
}

// OpenTable returns the table with the given name. That there is none is a CodeTableNotFound.
func (c *Client) OpenTable(ctx context.Context, name string) (*Table, error) {
	return c.openTable(ctx, &nyalav1.TableIdentifier{Name: name}, fmt.Sprintf("open table %q", name))
}

func (c *Client) openTable(ctx context.Context, table *nyalav1.TableIdentifier, what string) (*Table, error) {
	var answer *nyalav1.GetTableResponse
	err := c.callMaster(ctx, what, func(ctx context.Context, m nyalav1.MasterServiceClient, _ bool) (err error) {
		answer, err = m.GetTable(ctx, &nyalav1.GetTableRequest{Table: table})
		return err
	})
	if err != nil {
		return nil, err
	}
	s, err := schema.FromProto(answer.GetSchema())
	if err != nil {
		return nil, status.Wrap(status.CodeOf(err), err, "%s: the master's schema", what)
	}
	ps := schema.PartitionSchemaFromProto(answer.GetPartitionSchema())
	if err := ps.Validate(s); err != nil {
		return nil, status.Wrap(status.CodeOf(err), err, "%s: the master's partition schema", what)
	}
	t := &Table{c: c, info: tableInfo(answer.GetTable()), schema: s, partition: ps}
	t.locations = c.locationsOf(t, answer.GetPartitionVersion())
	return t, nil
}

// id names the table whatever it is called now.
func (t *Table) id() *nyalav1.TableIdentifier { return &nyalav1.TableIdentifier{Id: t.info.ID} }

// Name is the table's name when it was opened.
func (t *Table) Name() string { return t.info.Name }

// ID is the table's id, which stays when it is renamed.
func (t *Table) ID() string { return t.info.ID }

// Info is what the master said about the table when it was opened.
func (t *Table) Info() TableInfo { return t.info }

// Schema is the table's schema when it was opened.
func (t *Table) Schema() *Schema { return t.schema }

// Columns are the table's columns, key columns first. The slice is shared: don't change it.
func (t *Table) Columns() []Column { return t.schema.Columns() }

// PartitionSchema says how the rows were divided among tablets when the table was opened.
func (t *Table) PartitionSchema() *PartitionSchema { return t.partition }

// Replicas is the number of replicas of each tablet.
func (t *Table) Replicas() int { return t.info.Replicas }

// column finds a column by name.
func (t *Table) column(name string) (int, error) {
	i := t.schema.IndexOf(name)
	if i < 0 {
		return 0, status.New(status.InvalidArgument, "table %q has no column %q; it has %s", t.info.Name, name, t.columnNames())
	}
	return i, nil
}

// columnNames lists the columns for an error message, the first twenty of them.
func (t *Table) columnNames() string {
	const most = 20
	list := ""
	for i, col := range t.schema.Columns() {
		if i == most {
			return list + ", …"
		}
		if i > 0 {
			list += ", "
		}
		list += col.Name
	}
	return list
}
