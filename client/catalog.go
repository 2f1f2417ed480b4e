package client

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// HashPartition is one dimension of hash partitioning: rows go to one of Buckets by the hash of Columns.
type HashPartition struct {
	Columns []string
	Buckets int
	// Seed varies the hash, so that two dimensions or tables don't fill alike.
	Seed uint32
}

// CreateTableOptions describes a new table.
type CreateTableOptions struct {
	Name    string
	Columns []Column
	// PrimaryKey names the key columns in key order. Empty: those of Columns with Key set, in their order.
	PrimaryKey []string
	// Defaults are what an insert stores where it leaves a column unset, by the column's name; converted as Operation.Set does.
	Defaults map[string]any
	// Hash has the dimensions of hash partitioning; the number of tablets is the product of their buckets. None: one tablet.
	Hash []HashPartition
	// RangeColumns are the key columns by which the table is divided into ranges, in their order. Nil: all key columns; empty and
	// not nil: none.
	RangeColumns []string
	// Ranges are the table's; none: one without bounds. A row outside all of them can't be written. The number of tablets is that
	// of Hash for each range. Splits cut ranges in two at the given values of the range columns.
	Ranges []RangePartition
	Splits [][]any
	// NoRanges: the table begins without any range. No row can be written until Table.Alter has added one.
	NoRanges bool
	// Replicas is the number of replicas of each tablet; 0: the master's default.
	Replicas int
	// NoWait returns once the master has the table, before its tablets have leaders.
	NoWait bool
}

// Waiting for a new table's tablets takes createTimeout, and createTimeoutPerReplica for each replica, where ctx has no
// deadline: servers create replicas side by side but each creation is durable.
const (
	createTimeout           = 30 * time.Second
	createTimeoutPerReplica = 50 * time.Millisecond
	// createPoll is how often the master is asked whether the tablets are there; the first questions come sooner.
	createPoll = 200 * time.Millisecond
)

// tableColumns returns the columns in the order of the table, key columns first, checked.
func (o *CreateTableOptions) tableColumns() (*schema.Schema, error) {
	columns := slices.Clone(o.Columns)
	if err := setDefaults(columns, o.Defaults); err != nil {
		return nil, err
	}
	if len(o.PrimaryKey) == 0 {
		slices.SortStableFunc(columns, func(a, b Column) int {
			switch {
			case a.Key == b.Key:
				return 0
			case a.Key:
				return -1
			}
			return 1
		})
		return schema.NewTable(columns)
	}
	ordered := make([]Column, 0, len(columns))
	for k, name := range o.PrimaryKey {
		i := slices.IndexFunc(columns, func(c Column) bool { return c.Name == name })
		if i < 0 {
			if slices.Contains(o.PrimaryKey[:k], name) {
				return nil, status.New(status.InvalidSchema, "the primary key names column %q twice", name)
			}
			return nil, status.New(status.InvalidSchema, "the primary key names column %q, which the table doesn't have", name)
		}
		columns[i].Key = true
		ordered = append(ordered, columns[i])
		columns = slices.Delete(columns, i, i+1)
	}
	for _, col := range columns {
		if col.Key {
			return nil, status.New(status.InvalidSchema, "column %q is marked as a key column but PrimaryKey doesn't name it", col.Name)
		}
		ordered = append(ordered, col)
	}
	return schema.NewTable(ordered)
}

// setDefaults gives columns their write defaults.
func setDefaults(columns []Column, defaults map[string]any) error {
	for _, name := range slices.Sorted(maps.Keys(defaults)) {
		i := slices.IndexFunc(columns, func(c Column) bool { return c.Name == name })
		if i < 0 {
			return status.New(status.InvalidSchema, "there is a default for column %q, which the table doesn't have", name)
		}
		v, err := convert(&columns[i], defaults[name])
		if err != nil {
			return err
		}
		if columns[i].WriteDefault, err = columns[i].DefaultValueBytes(v); err != nil {
			return err
		}
	}
	return nil
}

func (o *CreateTableOptions) request() (*nyalav1.CreateTableRequest, error) {
	if o.Name == "" {
		return nil, status.New(status.InvalidArgument, "create table: it needs a name")
	}
	if err := schema.CheckName(o.Name); err != nil {
		return nil, status.New(status.InvalidArgument, "create table: %s", err.Error())
	}
	fault := func(err error) error { return status.Wrap(status.CodeOf(err), err, "create table %q", o.Name) }
	s, err := o.tableColumns()
	if err != nil {
		return nil, fault(err)
	}
	if o.Replicas < 0 {
		return nil, fault(status.New(status.InvalidArgument, "%d replicas: want 1, 3, 5 or 7", o.Replicas))
	}
	req := &nyalav1.CreateTableRequest{
		Name: o.Name, Schema: s.ToProto(), NumReplicas: uint32(o.Replicas), RequestId: make([]byte, 16), NoRanges: o.NoRanges,
	}
	rand.Read(req.RequestId)
	if req.Hash, err = hashProto(o.Hash); err != nil {
		return nil, fault(err)
	}
	for _, h := range o.Hash {
		for _, name := range h.Columns {
			if i := s.IndexOf(name); i < 0 || !s.Column(i).Key {
				return nil, fault(status.New(status.InvalidSchema, "hash column %q is not in the primary key", name))
			}
		}
	}
	if err := o.addRanges(req, s); err != nil {
		return nil, fault(err)
	}
	return req, nil
}

func (o *CreateTableOptions) addRanges(req *nyalav1.CreateTableRequest, s *schema.Schema) error {
	names := o.RangeColumns
	if names != nil {
		req.RangeColumns = &nyalav1.RangeColumns{Names: names}
	} else {
		for _, c := range s.Columns()[:s.NumKeyColumns()] {
			names = append(names, c.Name)
		}
	}
	columns, err := rangeColumns(s, names)
	if err != nil {
		return err
	}
	for i := range o.Ranges {
		r, err := o.Ranges[i].proto(columns)
		if err != nil {
			return err
		}
		req.Ranges = append(req.Ranges, r)
	}
	for _, split := range o.Splits {
		values, err := rangeValues(columns, split)
		if err != nil {
			return status.Wrap(status.CodeOf(err), err, "split")
		}
		req.Splits = append(req.Splits, &nyalav1.RangeSplit{Values: values})
	}
	return nil
}

// CreateTable creates a table and returns it once every tablet has a leader. Where ctx has no deadline the wait is bounded by
// one that grows with the number of tablets. That the name is taken is a CodeTableAlreadyPresent; that too few servers are
// alive for the replicas a CodeTooFewTabletServers. If the wait ends early, the table exists and goes on coming up.
func (c *Client) CreateTable(ctx context.Context, o CreateTableOptions) (*Table, error) {
	req, err := o.request()
	if err != nil {
		return nil, err
	}
	what := fmt.Sprintf("create table %q", o.Name)
	var created *nyalav1.CreateTableResponse
	// The request id makes a second try get the first one's answer, not "already present".
	err = c.callMaster(ctx, what, func(ctx context.Context, m nyalav1.MasterServiceClient, _ bool) (err error) {
		created, err = m.CreateTable(ctx, req)
		return err
	})
	if err != nil {
		return nil, err
	}
	id := &nyalav1.TableIdentifier{Id: created.GetTableId()}
	if !o.NoWait {
		replicas := max(o.Replicas, 1)
		timeout := createTimeout + time.Duration(int(created.GetNumTablets())*replicas)*createTimeoutPerReplica
		ctx, cancel := withTimeout(ctx, timeout)
		defer cancel()
		if err := c.waitCreated(ctx, id, what); err != nil {
			return nil, err
		}
	}
	return c.openTable(ctx, id, what)
}

// waitCreated asks the master until every tablet of a new table has a leader.
func (c *Client) waitCreated(ctx context.Context, id *nyalav1.TableIdentifier, what string) error {
	r := c.newRetry()
	var progress *nyalav1.IsCreateTableDoneResponse
	for {
		err := c.callMaster(ctx, what, func(ctx context.Context, m nyalav1.MasterServiceClient, _ bool) error {
			p, err := m.IsCreateTableDone(ctx, &nyalav1.IsCreateTableDoneRequest{Table: id})
			if err == nil {
				progress = p
			}
			return err
		})
		if err == nil && progress.GetDone() {
			return nil
		}
		if err == nil {
			err = r.pause(ctx, createPoll)
		}
		switch {
		case err == nil:
		case ctx.Err() == nil || c.isClosed() || progress == nil:
			return err
		default:
			r.blocked(status.New(status.TimedOut, "%d of %d tablets have a leader; the table exists and goes on coming up",
				progress.GetNumTabletsWithLeader(), progress.GetNumTablets()))
			return r.failure(ctx, what)
		}
	}
}

// DeleteTable deletes the table with the given name and all its rows.
func (c *Client) DeleteTable(ctx context.Context, name string) error {
	what := fmt.Sprintf("delete table %q", name)
	ctx, cancel := withTimeout(ctx, c.opts.Timeout)
	defer cancel()
	// By id, so that a second try can't hit another table that took the name in between.
	t, err := c.openTable(ctx, &nyalav1.TableIdentifier{Name: name}, what)
	if err != nil {
		return err
	}
	err = c.callMaster(ctx, what, func(ctx context.Context, m nyalav1.MasterServiceClient, again bool) error {
		_, err := m.DeleteTable(ctx, &nyalav1.DeleteTableRequest{Table: &nyalav1.TableIdentifier{Id: t.info.ID}})
		if again && status.CodeOf(status.FromGRPC(err)) == status.TableNotFound {
			return nil // an earlier try, whose answer was lost, deleted it
		}
		return err
	})
	if err == nil {
		c.forgetTable(t.info.ID)
	}
	return err
}

// ListTables returns the tables whose names contain filter, all for an empty one, ordered by name.
func (c *Client) ListTables(ctx context.Context, filter string) ([]TableInfo, error) {
	var tables []TableInfo
	err := c.callMaster(ctx, "list tables", func(ctx context.Context, m nyalav1.MasterServiceClient, _ bool) error {
		answer, err := m.ListTables(ctx, &nyalav1.ListTablesRequest{NameFilter: filter})
		if err != nil {
			return err
		}
		tables = tables[:0]
		for _, t := range answer.GetTables() {
			tables = append(tables, tableInfo(t))
		}
		return nil
	})
	slices.SortFunc(tables, func(a, b TableInfo) int { return strings.Compare(a.Name, b.Name) })
	return tables, err
}

// TabletServer is what the leading master knows about a tablet server.
type TabletServer struct {
	ID             string
	RPCAddresses   []string
	WebAddresses   []string
	Alive          bool
	SinceHeartbeat time.Duration
	Version        string
	Replicas       int
	Leaders        int
}

// ListTabletServers returns all servers that have registered, ordered by id.
func (c *Client) ListTabletServers(ctx context.Context) ([]TabletServer, error) {
	var servers []TabletServer
	err := c.callMaster(ctx, "list tablet servers", func(ctx context.Context, m nyalav1.MasterServiceClient, _ bool) error {
		answer, err := m.ListTabletServers(ctx, &nyalav1.ListTabletServersRequest{})
		if err != nil {
			return err
		}
		servers = servers[:0]
		for _, s := range answer.GetServers() {
			servers = append(servers, TabletServer{
				ID: s.GetServerId(), RPCAddresses: s.GetRpcAddresses(), WebAddresses: s.GetWebAddresses(),
				Alive: s.GetAlive(), SinceHeartbeat: time.Duration(s.GetMsSinceHeartbeat()) * time.Millisecond,
				Version: s.GetVersion(), Replicas: int(s.GetNumReplicas()), Leaders: int(s.GetNumLeaders()),
			})
		}
		return nil
	})
	slices.SortFunc(servers, func(a, b TabletServer) int { return strings.Compare(a.ID, b.ID) })
	return servers, err
}

// Master is one master of the cluster, as the leading one sees it.
type Master struct {
	ID           string
	RPCAddresses []string
	WebAddresses []string
	Leader       bool
}

// ListMasters returns the cluster's masters.
func (c *Client) ListMasters(ctx context.Context) ([]Master, error) {
	var list []Master
	err := c.callMaster(ctx, "list masters", func(ctx context.Context, m nyalav1.MasterServiceClient, _ bool) error {
		answer, err := m.GetClusterInfo(ctx, &nyalav1.GetClusterInfoRequest{})
		if err != nil {
			return err
		}
		list = list[:0]
		for _, m := range answer.GetMasters() {
			list = append(list, Master{
				ID: m.GetServerId(), RPCAddresses: m.GetRpcAddresses(), WebAddresses: m.GetWebAddresses(),
				Leader: m.GetRole() == nyalav1.Role_ROLE_LEADER,
			})
		}
		return nil
	})
	return list, err
}
