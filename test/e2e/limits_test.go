package e2e

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/localcluster"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// TestLimits is trial T29: of each limit the last value that is taken and the first that isn't, which leaves no table and no row
// behind, and no server that had to start again.
func TestLimits(t *testing.T) {
	var pids []int
	processes := func(s state) (pids []int) {
		servers, err := s.c.Servers()
		if err != nil {
			t.Fatal(err)
		}
		for _, server := range servers {
			if server.State == localcluster.StateRunning {
				pids = append(pids, server.Pid)
			}
		}
		return pids
	}
	long, full := strings.Repeat("n", schema.MaxNameBytes), strings.Repeat("v", schema.MaxCellSize)
	names := []string{long, "表", "a\"b\n"}
	inStates(t, func(s state) {
		pids = processes(s)
		for _, name := range names {
			s.insert(s.create(name, "k string, v string", "k"), "a", "b")
		}
		tableFaults(s, long+"n")
		tableFaultsOnTheWire(s)

		wide := s.create("wide", manyColumns(schema.MaxColumns), "c0")
		op, del := wide.NewInsert(), wide.NewDelete()
		for i := range schema.MaxColumns {
			for _, o := range []*client.Operation{op, del} {
				if err := o.SetValue(i, client.IntValue(int64(i))); err != nil {
					t.Fatal(err)
				}
			}
		}
		keep := wide.NewInsert()
		for i := range schema.MaxColumns {
			if err := keep.SetValue(i, client.IntValue(1)); err != nil {
				t.Fatal(err)
			}
		}
		if codes, _ := s.batch(op, keep, del); len(codes) > 0 {
			t.Errorf("300 columns: %v", codes)
		}
		s.ok("table", "create", "wide too", "--columns", manyColumns(schema.MaxColumns), "--primary_key", "c0", "--replicas", "1")
		header := strings.NewReplacer(", ", ",", " int32", "").Replace(manyColumns(schema.MaxColumns)) + "\n"
		row := func(v string) string { return strings.Repeat(v+",", schema.MaxColumns-1) + v + "\n" }
		s.load("wide too", header+row("1")+row("2"))
		s.load("wide too", header+row("2"), "--op", "delete")

		s.create("keys", "k string, v string", "k")
		for _, k := range []int{schema.MaxEncodedKeySize, schema.MaxEncodedKeySize + 1} {
			err := s.apply(s.open("keys").NewInsert(), strings.Repeat("k", k), "client")
			load := s.nyala("k,v\n"+strings.Repeat("l", k)+",command\n", "table", "load", "keys", "-")
			if k == schema.MaxEncodedKeySize {
				if err != nil || load.code != 0 {
					t.Errorf("a key of %d bytes: %v; exit code %d, %s", k, err, load.code, load.err)
				}
				continue
			}
			wantError(t, "long key", err, status.KeyTooLarge, "16385 bytes")
			load.wantError(t, "long key", 4, "16385 bytes")
		}

		two := s.create("two", "a string, b string, v string", "a", "b")
		ses := s.cl.NewSession(client.SessionOptions{})
		half := strings.Repeat("k", 8191)
		for _, c := range []struct {
			a    string
			want status.Code
		}{{half, status.OK}, {half[1:] + "\x00", status.KeyTooLarge}, {half[2:] + "\x00", status.OK}} {
			op := two.NewInsert()
			if err := set(op, c.a, half, "x"); err != nil {
				t.Fatal(err)
			}
			if err := ses.Apply(t.Context(), op); client.CodeOf(err) != c.want {
				t.Errorf("two key columns: %v, want %v", err, c.want)
			}
			load := s.nyala("a,b,v\n"+strings.ReplaceAll(c.a, "k", "l")+","+half+",x\n", "table", "load", "two", "-")
			if want := map[bool]int{true: 0, false: 4}[c.want == status.OK]; load.code != want {
				t.Errorf("two key columns: exit code %d, want %d: %.300s", load.code, want, load.err)
			}
		}
		cells := s.create("cells", "k int32, v string, c varchar(10) null", "k")
		s.insert(cells, 1, full, strings.Repeat("é", 11))
		wantError(t, "large cell", set(cells.NewInsert(), 2, full+"v"), status.CellTooLarge, "65537")
		load := s.nyala("k,v,c\n3,x,"+strings.Repeat("ü", 11)+"\n4,"+full+"v,\n5,y,z\n", "table", "load", "cells", "-")
		if load.code != 4 || !strings.Contains(load.err, "65537 bytes") {
			t.Errorf("load: exit code %d, %s", load.code, load.err)
		}
		if now := processes(s); fmt.Sprint(now) != fmt.Sprint(pids) {
			t.Errorf("processes %v, were %v", now, pids)
		}
	}, func(s state) {
		for _, name := range names {
			s.wantTable(s.open(name), "a b")
		}
		tables, err := s.cl.ListTables(s.Context(), "")
		if err != nil || len(tables) != len(names)+5 {
			s.Errorf("%d tables, want %d, %v", len(tables), len(names)+5, err)
		}
		s.wantTable(s.open("wide"), strings.TrimSpace(strings.Repeat("1 ", schema.MaxColumns)))
		s.wantTable(s.open("wide too"), strings.TrimSpace(strings.Repeat("1 ", schema.MaxColumns)))
		longest := strings.Repeat("k", schema.MaxEncodedKeySize)
		s.wantTable(s.open("keys"), longest+" client", strings.ReplaceAll(longest, "k", "l")+" command")
		half := strings.Repeat("k", 8191)
		s.wantTable(s.open("two"), half+" "+half+" x", half[2:]+"\x00 "+half+" x", strings.ReplaceAll(half, "k", "l")+" "+half+" x",
			strings.ReplaceAll(half[2:], "k", "l")+"\x00 "+half+" x")
		s.wantTable(s.open("cells"), "1 "+full+" "+strings.Repeat("é", 10), "3 x "+strings.Repeat("ü", 10), "5 y z")
	})
}

func manyColumns(n int) string {
	var columns []string
	for i := range n {
		columns = append(columns, fmt.Sprintf("c%d int32", i))
	}
	return strings.Join(columns, ", ")
}

// tableFaults asks the client and the command line for tables that can't be.
func tableFaults(s state, tooLong string) {
	key := client.Column{Name: "k", Type: client.Int32, Key: true}
	nullable := client.Column{Name: "k", Type: client.Int8, Key: true, Nullable: true}
	for _, c := range []struct {
		what     string
		name     string
		columns  []client.Column
		replicas int
		code     status.Code
		text     string
	}{
		{"long name", tooLong, []client.Column{key}, 1, status.InvalidArgument, "has 257 bytes, the most is 256"},
		{"no name", "", []client.Column{key}, 1, status.InvalidArgument, "needs a name"},
		{"NUL in the name", "a\x00b", []client.Column{key}, 1, status.InvalidArgument, "NUL"},
		{"invalid UTF-8 in the name", "a\xff", []client.Column{key}, 1, status.InvalidArgument, "isn't valid UTF-8"},
		{"long column name", "bad", []client.Column{key, {Name: tooLong, Type: client.Int8}}, 1, status.InvalidSchema, "has 257 bytes"},
		{"column without a name", "bad", []client.Column{key, {Type: client.Int8}}, 1, status.InvalidSchema, "the name is empty"},
		{"NUL in a column name", "bad", []client.Column{key, {Name: "\x00", Type: client.Int8}}, 1, status.InvalidSchema, "NUL"},
		{"invalid UTF-8 in a column name", "bad", []client.Column{key, {Name: "\xff", Type: client.Int8}}, 1, status.InvalidSchema, "UTF-8"},
		{"2 replicas", "bad", []client.Column{key}, 2, status.InvalidArgument, "want an odd number from 1 to 7"},
		{"4 replicas", "bad", []client.Column{key}, 4, status.InvalidArgument, "want an odd number from 1 to 7"},
		{"9 replicas", "bad", []client.Column{key}, 9, status.InvalidArgument, "want an odd number from 1 to 7"},
		{"3 replicas", "bad", []client.Column{key}, 3, status.TooFewTabletServers, "only 1 tablet server is alive"},
		{"float key", "bad", []client.Column{{Name: "k", Type: client.Float, Key: true}}, 1, status.InvalidSchema, "can't be in a primary key"},
		{"nullable key", "bad", []client.Column{nullable}, 1, status.InvalidSchema, "can't be nullable"},
		{"no key", "bad", []client.Column{{Name: "k", Type: client.Int8}}, 1, status.InvalidSchema, "no key column"},
	} {
		_, err := s.cl.CreateTable(s.Context(), client.CreateTableOptions{Name: c.name, Columns: c.columns, Replicas: c.replicas})
		wantError(s.T, c.what, err, c.code, c.text)
	}
	s.nyala("", "table", "create", "bad", "--columns", manyColumns(schema.MaxColumns+1), "--primary_key", "c0", "--replicas", "1").
		wantError(s.T, "301 columns", 1, "has 301 columns, the most is 300")
	for _, c := range []struct {
		what, name, columns, replicas, text string
		code                                int
	}{
		{"long name", tooLong, "k int8", "1", "has 257 bytes, the most is 256", 1},
		{"no name", "", "k int8", "1", "needs a name", 1},
		{"NUL in the name", "a\x00b", "k int8", "1", "NUL", 1},
		{"invalid UTF-8 in the name", "a\xff", "k int8", "1", "isn't valid UTF-8", 1},
		{"long column name", "bad", "k int8, " + tooLong + " int8", "1", "has 257 bytes", 1},
		{"column without a name", "bad", `k int8, "" int8`, "1", "name", 1},
		{"2 replicas", "bad", "k int8", "2", "want an odd number from 1 to 7", 1},
		{"4 replicas", "bad", "k int8", "4", "want an odd number from 1 to 7", 1},
		{"9 replicas", "bad", "k int8", "9", "want an odd number from 1 to 7", 1},
		{"float key", "bad", "k float", "1", "can't be in a primary key", 1},
		{"nullable key", "bad", "k int8 null", "1", "can't be nullable", 1},
		{"a default that is too large", "bad", "k int8, v int32 default 4294967296", "1", "4294967296", 2},
	} {
		s.inProcess("", "table", "create", "--columns", c.columns, "--primary_key", "k", "--replicas", c.replicas, "--", c.name).
			wantError(s.T, c.what, c.code, c.text)
	}
}

// tableFaultsOnTheWire asks the master itself, past the client's own checks.
func tableFaultsOnTheWire(s state) {
	conn, err := grpc.NewClient(s.c.MasterAddresses()[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.Fatal(err)
	}
	defer conn.Close()
	master := nyalav1.NewMasterServiceClient(conn)
	key := &nyalav1.ColumnSchema{Name: "k", Type: nyalav1.DataType_DATA_TYPE_INT32, IsKey: true}
	value := &nyalav1.ColumnSchema{Name: "v", Type: nyalav1.DataType_DATA_TYPE_INT32}
	many := []*nyalav1.ColumnSchema{key}
	for i := range schema.MaxColumns {
		many = append(many, &nyalav1.ColumnSchema{Name: fmt.Sprint(i), Type: nyalav1.DataType_DATA_TYPE_INT8})
	}
	for _, c := range []struct {
		what    string
		columns []*nyalav1.ColumnSchema
		text    string
	}{
		{"301 columns", many, "has 301 columns, the most is 300"},
		{"key column not first", []*nyalav1.ColumnSchema{value, key}, "key columns come first"},
		{"default of 8 bytes", []*nyalav1.ColumnSchema{
			key, {Name: "v", Type: nyalav1.DataType_DATA_TYPE_INT32, WriteDefault: make([]byte, 8)},
		}, "its write default has 8 bytes, want 4"},
		{"default of 3 bytes", []*nyalav1.ColumnSchema{
			key, {Name: "v", Type: nyalav1.DataType_DATA_TYPE_INT32, ReadDefault: make([]byte, 3)},
		}, "its read default has 3 bytes, want 4"},
		{"decimal without precision", []*nyalav1.ColumnSchema{key, {Name: "v", Type: nyalav1.DataType_DATA_TYPE_DECIMAL32}}, "precision 0, want 1 to 9"},
		{"varchar without length", []*nyalav1.ColumnSchema{key, {Name: "v", Type: nyalav1.DataType_DATA_TYPE_VARCHAR}}, "length 0, want 1 to 65535"},
		{"two columns of one name", []*nyalav1.ColumnSchema{key, value, value}, `two columns have the name "v"`},
	} {
		_, err := master.CreateTable(s.Context(), &nyalav1.CreateTableRequest{Name: "bad", NumReplicas: 1, Schema: &nyalav1.Schema{Columns: c.columns}})
		wantError(s.T, c.what+" on the wire", status.FromGRPC(err), status.InvalidSchema, c.text)
	}
}
