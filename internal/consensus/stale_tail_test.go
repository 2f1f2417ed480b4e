package consensus

import (
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/wal"
)

// TestStaleTailReplaced cuts off a leader that goes on to log six entries which nobody else gets. The next leader begins below the
// last four of them, and puts three there which are larger than a message, and than all that the old leader's log keeps in memory.
// Back among the others the old leader holds what they hold and no more, in memory, in its file, and applied.
func TestStaleTailReplaced(t *testing.T) {
	c := newTestClusterAt(t, 0, 200*time.Millisecond)
	paths := map[ident.ServerID]string{}
	open := func(id ident.ServerID) *wal.Bolt {
		cfg := wal.DefaultConfig(paths[id])
		cfg.CacheBytes = 64 << 10
		b, err := wal.OpenBolt(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, id := range []ident.ServerID{"s1", "s2", "s3"} {
		paths[id] = filepath.Join(t.TempDir(), "wal")
		store := open(id)
		t.Cleanup(func() { store.Close() })
		c.start(id, store)
	}
	tablet := testTablet(1)
	c.createGroup(tablet, 3)
	c.write(tablet, "before")
	old := c.leader(tablet)
	c.net.mu.Lock()
	c.net.cut[old.id] = true
	c.net.mu.Unlock()
	stale := ident.OpID{}
	for i := range 6 {
		op, _, err := old.Propose(t.Context(), tablet, wal.KindWrite, []byte(fmt.Sprint("stale ", i)), nil)
		if err != nil {
			t.Fatal(err)
		}
		stale = op
	}
	want := []string{"before"}
	var last ident.OpID
	for i := range 3 {
		payload := strings.Repeat(fmt.Sprint(i), DefaultConfig().Limits.MaxMessageBytes+1)
		want = append(want, payload)
		last, _ = c.write(tablet, payload)
	}
	if last.Term <= stale.Term || last.Index >= stale.Index {
		t.Fatalf("the new leader's last entry is %s, the old one's %s: there is no tail to be cut", last, stale)
	}
	c.net.mu.Lock()
	delete(c.net.cut, old.id)
	c.net.mu.Unlock()
	level := func() bool {
		first, _ := c.hosts[0].Status(tablet)
		for _, h := range c.hosts {
			if s, _ := h.Status(tablet); s.LastIndex != first.LastIndex || s.Applied != first.LastIndex || s.Applied < last.Index {
				return false
			}
		}
		return true
	}
	if !eventually(t, level) {
		t.Fatalf("the old leader isn't level at %s", last)
	}
	check := func(state string, log func(h *testHost) wal.Store) {
		t.Helper()
		for _, h := range c.hosts {
			store := log(h)
			l := store.Log(store.Groups()[0].Number)
			end, err := l.LastIndex()
			if err != nil || ident.Index(end) < last.Index {
				t.Fatalf("%s, %s: the last entry is %d, %v", h.id, state, end, err)
			}
			var got []string
			seen := map[ident.Index]ident.Term{}
			if err := store.Dump(t.Context(), tablet, func(e wal.DumpEntry) error {
				seen[e.OpID.Index] = e.OpID.Term
				if e.Kind == wal.KindWrite {
					got = append(got, string(e.Payload))
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s, %s: its file holds %d writes of %d", h.id, state, len(got), len(want))
			}
			es, err := l.Entries(1, end+1, math.MaxUint64)
			if err != nil || len(es) != len(seen) {
				t.Fatalf("%s, %s: %d entries of %d, %v", h.id, state, len(es), len(seen), err)
			}
			inMemory := map[ident.Index]ident.Term{}
			for _, e := range es {
				inMemory[ident.Index(e.GetIndex())] = ident.Term(e.GetTerm())
			}
			if !maps.Equal(inMemory, seen) {
				t.Errorf("%s, %s: %v, its file has %v", h.id, state, inMemory, seen)
			}
		}
	}
	check("running", func(h *testHost) wal.Store { return h.log })
	for _, h := range c.hosts {
		h.mu.Lock()
		if got := payloads(h.applied[tablet]); !slices.Equal(got, want) {
			t.Errorf("%s: applied %d writes of %d", h.id, len(got), len(want))
		}
		h.mu.Unlock()
	}
	for _, h := range c.hosts {
		c.stop(h)
		h.log.Close()
	}
	check("opened again", func(h *testHost) wal.Store {
		b := open(h.id)
		t.Cleanup(func() { b.Close() })
		return b
	})
	c.hosts = nil
}
