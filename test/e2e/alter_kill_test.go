package e2e

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/localcluster"
)

// TestAlterUnderKills alters a table and its ranges again and again while it is written to, and kills a server with -9 in the middle of
// each change: the master, or a tablet server. Every change is carried out, every acknowledged row is there with every column.
func TestAlterUnderKills(t *testing.T) {
	c := newCluster(t, 3)
	s := state{t, c, connect(t, c), 3}
	s.ok("table", "create", "t", "--replicas", "3", "--columns", "k int64, v int64", "--primary_key", "k", "--hash", "k:2", "--range", "k: [0, 1000000)")
	tbl := s.open("t")
	var stop atomic.Bool
	var written atomic.Int64
	var writer sync.WaitGroup
	writer.Go(func() {
		ses := s.cl.NewSession(client.SessionOptions{})
		for k := int64(0); !stop.Load(); k++ {
			op := tbl.NewInsert()
			if err := set(op, k, k*k); err != nil {
				t.Error(err)
				return
			}
			if err := ses.Apply(t.Context(), op); err != nil {
				t.Errorf("insert %d: %v", k, err)
				return
			}
			written.Store(k + 1)
		}
	})
	victims := []localcluster.Server{}
	servers, err := c.Servers()
	if err != nil {
		t.Fatal(err)
	}
	for _, sv := range servers {
		if sv.Role == localcluster.RoleMaster {
			victims = append([]localcluster.Server{sv}, victims...)
		} else {
			victims = append(victims, sv)
		}
	}
	for i := range 6 {
		victim := victims[[]int{0, 1, 0, 2, 0, 3}[i]]
		altered := make(chan error, 1)
		lower := int64(1_000_000 * (i + 1))
		go func() {
			a := tbl.Alter().AddColumn(client.Column{Name: fmt.Sprint("c", i), Type: client.Int64}, i).
				AddRange(client.RangePartition{Lower: []any{lower}, Upper: []any{lower + 1_000_000}})
			if i > 0 {
				a = a.DropColumn(fmt.Sprint("c", i-1)).DropRange(client.RangePartition{Lower: []any{lower - 1_000_000}, Upper: []any{lower}})
			}
			if i == 1 { // the first range stays
				a = tbl.Alter().AddColumn(client.Column{Name: "c1", Type: client.Int64}, 1).DropColumn("c0").
					AddRange(client.RangePartition{Lower: []any{lower}, Upper: []any{lower + 1_000_000}})
			}
			_, err := a.Apply(t.Context())
			altered <- err
		}()
		if err := c.Kill(victim.Name); err != nil {
			t.Fatal(err)
		}
		if err := c.Start(t.Context(), victim.Name); err != nil {
			t.Fatal(err)
		}
		if err := <-altered; err != nil {
			t.Fatalf("change %d, %s killed: %v", i, victim.Name, err)
		}
	}
	stop.Store(true)
	writer.Wait()
	d := s.describe("t")
	if d.Version != 6 || len(d.Columns) != 3 || d.Columns[2].Name != "c5" || d.Columns[2].ID != 7 {
		t.Errorf("described as %+v", d)
	}
	s.wantRanges("t", "[0, 1000000)", "[1000000, 2000000)", "[6000000, 7000000)")
	var want []string
	for k := range written.Load() {
		want = append(want, fmt.Sprint(k, " ", k*k, " 5"))
	}
	t.Logf("%d rows", len(want))
	got := s.rows(s.open("t"))
	if len(got) == len(want)+1 { // one whose answer never came
		want = append(want, fmt.Sprint(len(want), " ", len(want)*len(want), " 5"))
	}
	s.wantRows("t", got, want...)
}
