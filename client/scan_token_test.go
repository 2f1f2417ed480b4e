package client

import (
	"errors"
	"io"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
)

// TestScanTokens divides a scan, sends the parts to another client, and gets each row once, as of the same moment.
func TestScanTokens(t *testing.T) {
	c := newFakeCluster(t, 1, 3)
	cl, other := c.connect(Options{}), c.connect(Options{})
	table := c.createTable(cl, rowsTable("t", 3))
	fill(t, table, 200)
	even, err := table.PredicateIn("n", 0, 2, 4, 6, 8)
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := table.ScanTokens(t.Context(), ScanOptions{Columns: []string{"id"}, Predicates: []Predicate{even}, ReadMode: ReadAtSnapshot})
	if err != nil || len(tokens) < 2 {
		t.Fatalf("%d tokens, %v", len(tokens), err)
	}
	s := cl.NewSession(SessionOptions{})
	if err := s.Apply(t.Context(), set(table.NewInsert(), "id", 1000, "n", 2)); err != nil {
		t.Fatal(err)
	}
	for _, remote := range []bool{true, false} {
		var all []int64
		seen := map[string]bool{}
		for _, k := range tokens {
			if seen[k.TabletID()] || len(k.Servers()) != 3 {
				t.Errorf("token for tablet %s on %v", k.TabletID(), k.Servers())
			}
			seen[k.TabletID()] = true
			sc, err := k.Scan(t.Context())
			if remote {
				b, serr := k.Serialize()
				if serr != nil {
					t.Fatal(serr)
				}
				sc, err = other.ScanSerialized(t.Context(), b)
			}
			if err != nil {
				t.Fatal(err)
			}
			list, err := ids(t, sc)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, list...)
		}
		slices.Sort(all)
		want := make([]int64, 100)
		for i := range want {
			want[i] = int64(2 * i)
		}
		if !slices.Equal(all, want) {
			t.Errorf("remote %v: %d rows: %v", remote, len(all), all)
		}
	}
	if _, err := table.ScanTokens(t.Context(), ScanOptions{Limit: 3}); CodeOf(err) != CodeInvalidScanSpec {
		t.Errorf("tokens with a limit: %v", err)
	}
}

// TestScanTokenPruned gives tokens for the tablets alone that can hold a matching row.
func TestScanTokenPruned(t *testing.T) {
	c := newFakeCluster(t, 1, 3)
	cl := c.connect(Options{})
	table := c.createTable(cl, rowsTable("t", 3))
	fill(t, table, 50)
	p, err := table.Predicate("id", Equal, 7)
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := table.ScanTokens(t.Context(), ScanOptions{CountOnly: true, Predicates: []Predicate{p}})
	if err != nil || len(tokens) != 1 {
		t.Fatalf("%d tokens, %v", len(tokens), err)
	}
	sc, err := tokens[0].Scan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer sc.Close()
	if b, err := sc.Next(t.Context()); err != nil || b.Rows != 1 {
		t.Errorf("%+v, %v", b, err)
	}
	if _, err := sc.Next(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("after the row: %v", err)
	}
}

// TestForeignScanTokens refuses what isn't a token, and tokens of other clusters, versions and tables.
func TestForeignScanTokens(t *testing.T) {
	c := newFakeCluster(t, 1, 3)
	cl := c.connect(Options{})
	table := c.createTable(cl, rowsTable("t", 3))
	tokens, err := table.ScanTokens(t.Context(), ScanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]struct {
		change func(k *nyalav1.ScanToken)
		want   Code
	}{
		"newer":       {func(k *nyalav1.ScanToken) { k.Version = 9 }, CodeNotSupported},
		"no version":  {func(k *nyalav1.ScanToken) { k.Version = 0 }, CodeInvalidArgument},
		"cluster":     {func(k *nyalav1.ScanToken) { k.ClusterId = "other" }, CodeInvalidArgument},
		"table":       {func(k *nyalav1.ScanToken) { k.TableId = "00000000000000000000000000000000" }, CodeTableNotFound},
		"column":      {func(k *nyalav1.ScanToken) { k.Columns = []string{"gone"} }, CodeInvalidArgument},
		"no column":   {func(k *nyalav1.ScanToken) { k.Columns = nil }, CodeInvalidArgument},
		"read mode":   {func(k *nyalav1.ScanToken) { k.ReadMode = 77 }, CodeNotSupported},
		"no operator": {func(k *nyalav1.ScanToken) { k.Predicates = []*nyalav1.Predicate{{Column: "id"}} }, CodeInvalidScanSpec},
	} {
		k := proto.CloneOf(tokens[0].token)
		f.change(k)
		b, err := (&ScanToken{token: k}).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cl.ScanSerialized(t.Context(), b); CodeOf(err) != f.want {
			t.Errorf("%s: %v (%v)", name, err, CodeOf(err))
		}
	}
	if _, err := cl.ScanSerialized(t.Context(), []byte("rubbish")); CodeOf(err) != CodeInvalidArgument {
		t.Errorf("rubbish: %v", err)
	}
}

func FuzzDecodeToken(f *testing.F) {
	f.Add([]byte{})
	whole, err := (&ScanToken{token: &nyalav1.ScanToken{
		Version: 1, TableId: "t", TabletId: "x", Columns: []string{"a"},
		Predicates: []*nyalav1.Predicate{{Column: "a", Kind: &nyalav1.Predicate_Equality_{Equality: &nyalav1.Predicate_Equality{Value: []byte{1}}}}},
	}}).Serialize()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Fuzz(func(t *testing.T, b []byte) {
		k, err := decodeToken(b)
		if err != nil {
			return
		}
		if o, err := scanOptions(k); err == nil && o.TabletID == "" {
			t.Errorf("a token without a tablet: %v", k)
		}
	})
}

// TestReadYourWrites sends what the client has seen, reads at any replica, and goes on elsewhere at the snapshot it had.
func TestReadYourWrites(t *testing.T) {
	c := newFakeCluster(t, 1, 3)
	cl := c.connect(Options{})
	table := c.createTable(cl, rowsTable("t", 3))
	fill(t, table, 100)
	modes := make(chan *nyalav1.NewScan, 1000)
	c.setHook(func(call *fakeCall) error {
		if s, ok := call.req.(*nyalav1.ScanRequest); ok && !call.after && s.GetNewScan() != nil {
			modes <- s.GetNewScan()
		}
		return nil
	})
	seen := uint64(cl.LatestTimestamp())
	list := scan(t, table, ScanOptions{ReadMode: ReadYourWrites, Replica: ClosestReplica})
	if !each(list, sequence(100)) {
		t.Errorf("rows %v", list)
	}
	close(modes)
	n := 0
	for m := range modes {
		n++
		if m.GetReadMode() != nyalav1.ReadMode_READ_MODE_READ_YOUR_WRITES || m.SnapshotTimestamp != nil || m.GetPropagatedTimestamp() < seen {
			t.Errorf("scan %v, the client has seen %d", m, seen)
		}
	}
	if n < 2 {
		t.Errorf("%d scanners", n)
	}
}
