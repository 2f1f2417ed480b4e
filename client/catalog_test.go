package client

import (
	"context"
	"strings"
	"testing"
	"time"
)

// rowsTable is the table of most tests: hashed over four tablets, with a column of each kind.
func rowsTable(name string, replicas int) CreateTableOptions {
	return CreateTableOptions{
		Name: name,
		Columns: []Column{
			{Name: "note", Type: String, Nullable: true},
			{Name: "id", Type: Int64},
			{Name: "n", Type: Int32, Nullable: true},
			{Name: "ok", Type: Bool, WriteDefault: []byte{1}},
		},
		PrimaryKey: []string{"id"},
		Hash:       []HashPartition{{Columns: []string{"id"}, Buckets: 4}},
		Replicas:   replicas,
	}
}

func (c *fakeCluster) createTable(cl *Client, o CreateTableOptions) *Table {
	c.tb.Helper()
	t, err := cl.CreateTable(context.Background(), o)
	if err != nil {
		c.tb.Fatal(err)
	}
	return t
}

// TestCatalog creates, lists, opens, describes and deletes.
func TestCatalog(t *testing.T) {
	c := newFakeCluster(t, 1, 3)
	c.pollsUntilLeader = 3
	cl := c.connect(Options{})
	table := c.createTable(cl, rowsTable("flights", 3))
	if got := table.columnNames(); got != "id, note, n, ok" {
		t.Errorf("columns %s: the key comes first, the rest keeps its order", got)
	}
	if table.Replicas() != 3 || table.Schema().NumKeyColumns() != 1 || len(table.PartitionSchema().Hash) != 1 {
		t.Errorf("table %+v", table.Info())
	}
	c.createTable(cl, rowsTable("other", 1))
	if list, err := cl.ListTables(t.Context(), ""); err != nil || len(list) != 2 || list[0].Name != "flights" || list[0].Tablets != 4 {
		t.Errorf("list: %v, %v", list, err)
	}
	if list, err := cl.ListTables(t.Context(), "oth"); err != nil || len(list) != 1 {
		t.Errorf("filtered list: %v, %v", list, err)
	}
	servers, err := cl.ListTabletServers(t.Context())
	if err != nil || len(servers) != 3 || !servers[0].Alive {
		t.Errorf("servers: %v, %v", servers, err)
	}
	c.pageSize = 3
	tablets, err := cl.Tablets(t.Context(), table)
	if err != nil || len(tablets) != 4 {
		t.Fatalf("tablets over two pages: %v, %v", tablets, err)
	}
	if l, ok := tablets[2].Leader(); !ok || l.Address != c.server(l.ServerID).addr || tablets[2].HashBuckets[0] != 2 {
		t.Errorf("tablet: %+v", tablets[2])
	}
	if err := cl.DeleteTable(t.Context(), "flights"); err != nil {
		t.Error(err)
	}
	if _, err := cl.OpenTable(t.Context(), "flights"); CodeOf(err) != CodeTableNotFound {
		t.Errorf("open a deleted table: %v", err)
	}
	if err := cl.DeleteTable(t.Context(), "flights"); CodeOf(err) != CodeTableNotFound {
		t.Errorf("delete it again: %v", err)
	}
}

// TestCatalogLostAnswers loses the answer of each first call after it was carried out: creating again is no "already present",
// deleting again no "not found".
func TestCatalogLostAnswers(t *testing.T) {
	c := newFakeCluster(t, 1, 1)
	cl := c.connect(Options{})
	lost := map[string]bool{}
	c.setHook(func(call *fakeCall) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if call.after && !lost[call.method] {
			lost[call.method] = true
			return errLost
		}
		return nil
	})
	c.createTable(cl, rowsTable("t", 1))
	if err := cl.DeleteTable(t.Context(), "t"); err != nil {
		t.Errorf("delete: %v", err)
	}
	if !lost["MasterService/CreateTable"] || !lost["MasterService/DeleteTable"] {
		t.Errorf("lost %v", lost)
	}
}

// TestCreateTableFaults names what is wrong with a new table, mostly before anything is sent.
func TestCreateTableFaults(t *testing.T) {
	c := newFakeCluster(t, 1, 1)
	cl := c.connect(Options{})
	c.createTable(cl, rowsTable("taken", 1))
	for _, f := range []struct {
		name   string
		change func(*CreateTableOptions)
		code   Code
		want   string
	}{
		{"no name", func(o *CreateTableOptions) { o.Name = "" }, CodeInvalidArgument, "it needs a name"},
		{"unknown key column", func(o *CreateTableOptions) { o.PrimaryKey = []string{"x"} }, CodeInvalidSchema, `names column "x"`},
		{"key column twice", func(o *CreateTableOptions) { o.PrimaryKey = []string{"id", "id"} }, CodeInvalidSchema, "twice"},
		{"no key", func(o *CreateTableOptions) { o.PrimaryKey = nil }, CodeInvalidSchema, "no key column"},
		{"nullable key", func(o *CreateTableOptions) { o.PrimaryKey = []string{"n"} }, CodeInvalidSchema, "nullable"},
		{"bool key", func(o *CreateTableOptions) { o.PrimaryKey = []string{"ok"} }, CodeInvalidSchema, "primary key"},
		{"one bucket", func(o *CreateTableOptions) { o.Hash[0].Buckets = 1 }, CodeInvalidSchema, "1 buckets"},
		{"hash of a plain column", func(o *CreateTableOptions) { o.Hash[0].Columns = []string{"n"} }, CodeInvalidSchema, "not in the primary key"},
		{"too few servers", func(o *CreateTableOptions) { o.Replicas = 3 }, CodeTooFewTabletServers, "only 1 tablet server"},
		{"taken", func(o *CreateTableOptions) { o.Name = "taken" }, CodeTableAlreadyPresent, "taken"},
	} {
		o := rowsTable("t", 1)
		f.change(&o)
		_, err := cl.CreateTable(t.Context(), o)
		if CodeOf(err) != f.code || !strings.Contains(err.Error(), f.want) {
			t.Errorf("%s: %v (%v), want %v with %q", f.name, err, CodeOf(err), f.code, f.want)
		}
	}
	// Key columns may be marked instead of named.
	o := rowsTable("marked", 1)
	o.PrimaryKey, o.Columns[1].Key = nil, true
	if table, err := cl.CreateTable(t.Context(), o); err != nil || table.Columns()[0].Name != "id" {
		t.Errorf("marked key: %v", err)
	}
}

// TestCreateTableDeadline ends the wait for leaders early: the error says how far it came.
func TestCreateTableDeadline(t *testing.T) {
	c := newFakeCluster(t, 1, 1)
	c.pollsUntilLeader = 1000
	cl := c.connect(Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Millisecond)
	defer cancel()
	_, err := cl.CreateTable(ctx, rowsTable("t", 1))
	if CodeOf(err) != CodeTimedOut || !strings.Contains(err.Error(), "1 of 4 tablets have a leader; the table exists") {
		t.Errorf("create: %v", err)
	}
	o := rowsTable("u", 1)
	o.NoWait = true
	c.createTable(cl, o)
}

// TestDeadlines holds calls up at the server: each ends with its context, in time, and says so.
func TestDeadlines(t *testing.T) {
	c := newFakeCluster(t, 1, 1)
	cl := c.connect(Options{})
	table := c.createTable(cl, rowsTable("t", 1))
	op := set(table.NewInsert(), "id", 1)
	s := cl.NewSession(SessionOptions{})
	if err := s.Apply(t.Context(), op); err != nil {
		t.Fatal(err)
	}
	c.setHook(func(call *fakeCall) error {
		<-call.ctx.Done()
		return call.ctx.Err()
	})
	for name, call := range map[string]func(ctx context.Context) error{
		"list": func(ctx context.Context) error { _, err := cl.ListTables(ctx, ""); return err },
		"open": func(ctx context.Context) error { _, err := cl.OpenTable(ctx, "t"); return err },
		"scan": func(ctx context.Context) error {
			sc, err := table.Scan(ctx, ScanOptions{})
			if err != nil {
				return err
			}
			defer sc.Close()
			_, err = sc.Next(ctx)
			return err
		},
		"count": func(ctx context.Context) error { _, err := table.Count(ctx, ScanOptions{}); return err },
		"write": func(ctx context.Context) error {
			err := s.Apply(ctx, op)
			if !OutcomeUnknown(err) {
				t.Errorf("a write that was given up: its outcome is unknown, but %v", err)
			}
			return err
		},
	} {
		for _, end := range []string{"deadline", "cancel"} {
			want := CodeTimedOut
			ctx, cancel := context.WithTimeout(t.Context(), 40*time.Millisecond)
			if end == "cancel" {
				want = CodeAborted
				ctx, cancel = context.WithCancel(t.Context())
				time.AfterFunc(20*time.Millisecond, cancel)
			}
			start := time.Now()
			err := call(ctx)
			if CodeOf(err) != want {
				t.Errorf("%s, %s: %v (%v)", name, end, err, CodeOf(err))
			}
			if d := time.Since(start); d > time.Second {
				t.Errorf("%s, %s: took %v", name, end, d)
			}
			cancel()
		}
	}
}
