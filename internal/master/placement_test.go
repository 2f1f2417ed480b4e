package master

import (
	"fmt"
	"testing"

	"github.com/nyaladb/nyala/internal/ident"
)

// TestPlaceEvenly places tablets on various numbers of servers and shows that replicas and first replicas are spread evenly
// and that no tablet has two replicas on one server.
func TestPlaceEvenly(t *testing.T) {
	for _, c := range []struct{ servers, tablets, replicas int }{
		{1, 7, 1}, {3, 8, 3}, {4, 100, 3}, {5, 41, 3}, {7, 50, 5}, {10, 1000, 1},
	} {
		t.Run(fmt.Sprintf("servers=%d/tablets=%d/replicas=%d", c.servers, c.tablets, c.replicas), func(t *testing.T) {
			var cands []candidate
			for i := range c.servers {
				cands = append(cands, candidate{id: ident.ServerID(fmt.Sprint(i)), address: fmt.Sprint("a", i)})
			}
			replicas, first := map[string]int{}, map[string]int{}
			for _, config := range place(cands, c.tablets, c.replicas) {
				seen := map[string]bool{}
				for j, p := range config.GetPeers() {
					if seen[p.GetServerId()] {
						t.Fatalf("two replicas on server %s: %v", p.GetServerId(), config)
					}
					seen[p.GetServerId()] = true
					if p.GetReplicaId() != uint64(j)+1 || config.GetNextReplicaId() != uint64(c.replicas)+1 {
						t.Fatalf("replica ids: %v", config)
					}
					replicas[p.GetServerId()]++
				}
				if len(seen) != c.replicas {
					t.Fatalf("%d replicas, want %d", len(seen), c.replicas)
				}
				first[config.GetPeers()[0].GetServerId()]++
			}
			spread(t, "replicas", replicas, c.servers, 1)
			spread(t, "first replicas", first, c.servers, 2)
		})
	}
}

func spread(t *testing.T, what string, count map[string]int, servers, most int) {
	t.Helper()
	lo, hi := 1<<30, 0
	for i := range servers {
		n := count[fmt.Sprint(i)]
		lo, hi = min(lo, n), max(hi, n)
	}
	if hi-lo > most {
		t.Errorf("%s differ by %d: %v", what, hi-lo, count)
	}
}
