package client

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// TableAlteration gathers the steps of a change of a table. They are taken in their order, all or none.
//
//	altered, err := table.Alter().AddColumn(client.Column{Name: "note", Type: client.String, Nullable: true}, nil).
//		RenameColumn("delay", "arr_delay").Apply(ctx)
//
// A Table that is open keeps the schema that it was opened with. What it writes stands as long as it sets no column that was
// dropped, with the defaults of columns that were added; what it reads are the columns that it knows, under the names that it
// knows. A column that was dropped is an error (CodeMismatchedSchema), also where another one has its name now.
type TableAlteration struct {
	t     *Table
	steps []*nyalav1.AlterTableRequest_Step
	err   error
}

// Alter begins a change of the table.
func (t *Table) Alter() *TableAlteration { return &TableAlteration{t: t} }

func (a *TableAlteration) add(s *nyalav1.AlterTableRequest_Step, err error) *TableAlteration {
	if err != nil && a.err == nil {
		a.err = status.Wrap(status.CodeOf(err), err, "alter table %q", a.t.info.Name)
	}
	a.steps = append(a.steps, s)
	return a
}

// RenameTable gives the table another name.
func (a *TableAlteration) RenameTable(name string) *TableAlteration {
	return a.add(&nyalav1.AlterTableRequest_Step{Step: &nyalav1.AlterTableRequest_Step_RenameTable{RenameTable: name}}, nil)
}

// AddColumn adds a column behind the others. Rows that are there read as its default, or NULL without one; new rows get it where
// they leave the column unset. A column that isn't nullable needs a default. Def is converted as Operation.Set does; nil: the
// column's own WriteDefault.
func (a *TableAlteration) AddColumn(c Column, def any) *TableAlteration {
	var err error
	if def != nil {
		c.WriteDefault, err = defaultBytes(&c, def)
	}
	p := schema.ColumnsToProto([]Column{c})[0]
	p.IsKey = false
	return a.add(&nyalav1.AlterTableRequest_Step{Step: &nyalav1.AlterTableRequest_Step_AddColumn{
		AddColumn: &nyalav1.AlterTableRequest_AddColumn{Column: p},
	}}, err)
}

// DropColumn removes a column that isn't in the key, and what it holds.
func (a *TableAlteration) DropColumn(name string) *TableAlteration {
	return a.add(&nyalav1.AlterTableRequest_Step{Step: &nyalav1.AlterTableRequest_Step_DropColumn{
		DropColumn: &nyalav1.AlterTableRequest_DropColumn{Name: name},
	}}, nil)
}

func (a *TableAlteration) alterColumn(c *nyalav1.AlterTableRequest_AlterColumn, err error) *TableAlteration {
	return a.add(&nyalav1.AlterTableRequest_Step{Step: &nyalav1.AlterTableRequest_Step_AlterColumn{AlterColumn: c}}, err)
}

// RenameColumn gives a column another name.
func (a *TableAlteration) RenameColumn(name, newName string) *TableAlteration {
	return a.alterColumn(&nyalav1.AlterTableRequest_AlterColumn{Name: name, NewName: &newName}, nil)
}

// SetDefault changes what an insert stores where it leaves a column unset. Rows that are there stay as they are. The column is one
// that the table had when it was opened.
func (a *TableAlteration) SetDefault(name string, value any) *TableAlteration {
	i, err := a.t.column(name)
	var b []byte
	if err == nil {
		b, err = defaultBytes(a.t.schema.Column(i), value)
	}
	return a.alterColumn(&nyalav1.AlterTableRequest_AlterColumn{Name: name, WriteDefault: append([]byte{}, b...)}, err)
}

// RemoveDefault takes a column's default away: an insert has to set the column, or stores NULL where it may.
func (a *TableAlteration) RemoveDefault(name string) *TableAlteration {
	return a.alterColumn(&nyalav1.AlterTableRequest_AlterColumn{Name: name, RemoveDefault: true}, nil)
}

// SetComment changes a column's comment.
func (a *TableAlteration) SetComment(name, comment string) *TableAlteration {
	return a.alterColumn(&nyalav1.AlterTableRequest_AlterColumn{Name: name, Comment: &comment}, nil)
}

// AddRange adds a range, which must not overlap any that is there.
func (a *TableAlteration) AddRange(r RangePartition) *TableAlteration {
	p, err := r.proto(a.t.RangeColumns())
	return a.add(&nyalav1.AlterTableRequest_Step{Step: &nyalav1.AlterTableRequest_Step_AddRange{AddRange: p}}, err)
}

// DropRange drops a range, given by the bounds that it has, and all rows in it.
func (a *TableAlteration) DropRange(r RangePartition) *TableAlteration {
	p, err := r.proto(a.t.RangeColumns())
	return a.add(&nyalav1.AlterTableRequest_Step{Step: &nyalav1.AlterTableRequest_Step_DropRange{DropRange: p}}, err)
}

// Apply carries the change out and returns the table as it is then, once every tablet has the change: from there on nobody can write
// to a range that was dropped, and every replica knows the new schema. Where ctx has no deadline the wait is bounded by one that
// grows with the number of tablets. If the wait ends early (CodeTimedOut) the change stands and goes on.
func (a *TableAlteration) Apply(ctx context.Context) (*Table, error) {
	c, what := a.t.c, fmt.Sprintf("alter table %q", a.t.info.Name)
	if a.err != nil {
		return nil, a.err
	}
	id := a.t.id()
	req := &nyalav1.AlterTableRequest{Table: id, Steps: a.steps, RequestId: make([]byte, 16)}
	rand.Read(req.RequestId)
	// The request id makes a second try get the first one's answer.
	err := c.callMaster(ctx, what, func(ctx context.Context, m nyalav1.MasterServiceClient, _ bool) error {
		_, err := m.AlterTable(ctx, req)
		return err
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := withTimeout(ctx, createTimeout+time.Duration(a.t.info.Tablets*max(a.t.info.Replicas, 1))*createTimeoutPerReplica)
	defer cancel()
	if err := c.waitAltered(ctx, id, what); err != nil {
		return nil, err
	}
	return c.openTable(ctx, id, what)
}

// waitAltered asks the master until every tablet has all changes of its table.
func (c *Client) waitAltered(ctx context.Context, id *nyalav1.TableIdentifier, what string) error {
	r := c.newRetry()
	var p *nyalav1.IsAlterTableDoneResponse
	for {
		err := c.callMaster(ctx, what, func(ctx context.Context, m nyalav1.MasterServiceClient, _ bool) error {
			answer, err := m.IsAlterTableDone(ctx, &nyalav1.IsAlterTableDoneRequest{Table: id})
			if err == nil {
				p = answer
			}
			return err
		})
		if err == nil && p.GetDone() {
			return nil
		}
		if err == nil {
			err = r.pause(ctx, createPoll)
		}
		switch {
		case err == nil:
		case ctx.Err() == nil || c.isClosed() || p == nil:
			return err
		default:
			r.blocked(status.New(status.TimedOut,
				"of %d tablets %d don't have the new schema, %d new ones have no leader, and %d dropped ones can still be written to; the change stands and goes on",
				p.GetNumTablets(), p.GetNumTabletsBehind(), p.GetNumTabletsWithoutLeader(), p.GetNumTabletsToDrop()))
			return r.failure(ctx, what)
		}
	}
}

// defaultBytes converts a default.
func defaultBytes(c *Column, value any) ([]byte, error) {
	v, err := convert(c, value)
	if err != nil {
		return nil, err
	}
	return c.DefaultValueBytes(v)
}
