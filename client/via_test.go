package client

import (
	"testing"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/status"
)

// TestWriteVia writes through one server, whoever leads: tablets without a replica on it are written to as ever, the leader
// that answers name is learned, and while the server doesn't take a write no other is asked.
func TestWriteVia(t *testing.T) {
	c := newFakeCluster(t, 1, 3)
	c.forwards = true
	cl := c.connect(Options{})
	table := c.createTable(cl, rowsTable("t", 3))
	c.change(func() {
		first := true
		for _, tb := range c.tablets {
			tb.leader = "ts-0"
			if first { // one has no replica on the server
				tb.hosts, tb.listed = []string{"ts-0", "ts-2"}, []string{"ts-0", "ts-2"}
				first = false
			}
		}
	})
	asked := map[string]map[string]int{} // by tablet, by server
	refuse := 3
	c.setHook(func(call *fakeCall) error {
		req, ok := call.req.(*nyalav1.WriteRequest)
		if !ok || call.after {
			return nil
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if asked[req.GetTabletId()] == nil {
			asked[req.GetTabletId()] = map[string]int{}
		}
		asked[req.GetTabletId()][call.server.id]++
		if refuse > 0 && call.server.id == "ts-1" {
			refuse--
			return status.New(status.ServiceUnavailable, "not now")
		}
		return nil
	})
	s := cl.NewSession(SessionOptions{Flush: ManualFlush, Via: "ts-1"})
	for i := range 300 {
		if err := s.Apply(t.Context(), insert(table, i, "via")); err != nil {
			t.Fatal(err)
		}
	}
	if faults, err := s.Flush(t.Context()); err != nil || len(faults) > 0 {
		t.Fatal(faults, err)
	}
	for id, by := range asked {
		want := "ts-1"
		if len(c.tablets[id].hosts) == 2 {
			want = "ts-0"
		}
		if len(by) != 1 || by[want] == 0 {
			t.Errorf("tablet %s with replicas on %v was written to at %v", id, c.tablets[id].hosts, by)
		}
	}
	if len(asked) != 4 || refuse != 0 {
		t.Errorf("%d of 4 tablets were written to, %d refusals are left", len(asked), refuse)
	}
	clear(asked)
	s = cl.NewSession(SessionOptions{Flush: ManualFlush})
	for i := range 300 {
		if err := s.Apply(t.Context(), insert(table, 300+i, "as ever")); err != nil {
			t.Fatal(err)
		}
	}
	if faults, err := s.Flush(t.Context()); err != nil || len(faults) > 0 {
		t.Fatal(faults, err)
	}
	for id, by := range asked {
		if len(by) != 1 || by["ts-0"] == 0 {
			t.Errorf("tablet %s, whose leader answers have named, was written to at %v", id, by)
		}
	}
}
