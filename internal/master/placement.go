package master

import (
	"cmp"
	"slices"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
)

// candidate is a tablet server that replicas can be placed on.
type candidate struct {
	id      ident.ServerID
	address string
	// replicas is how many it holds or is to hold, first how many of these stand first in their config: a new tablet's
	// first replica is the one that asks for votes first, so these are the leaders to be.
	replicas, first int
}

// place chooses the servers of n new tablets with the given number of replicas each and returns their configs. Each
// tablet goes to the servers that hold least, so that no two differ by more than one where they began even; the first
// replica is on the one of them that has fewest of those. candidates is changed as it goes. There must be at least as many
// candidates as replicas.
func place(candidates []candidate, n, replicas int) []*nyalav1.RaftConfig {
	configs := make([]*nyalav1.RaftConfig, n)
	order := make([]*candidate, len(candidates))
	for i := range candidates {
		order[i] = &candidates[i]
	}
	for i := range configs {
		// A stable order among equals would put tablet after tablet on the same groups of servers; turning the order by
		// one each time spreads them over all combinations.
		slices.SortStableFunc(order, func(a, b *candidate) int { return cmp.Compare(a.replicas, b.replicas) })
		chosen := slices.Clone(order[:replicas])
		slices.SortStableFunc(chosen, func(a, b *candidate) int { return cmp.Compare(a.first, b.first) })
		chosen[0].first++
		config := &nyalav1.RaftConfig{NextReplicaId: uint64(replicas) + 1}
		for j, c := range chosen {
			c.replicas++
			config.Peers = append(config.Peers, &nyalav1.Peer{
				ReplicaId: uint64(j) + 1, ServerId: string(c.id), Address: c.address,
			})
		}
		configs[i] = config
		order = append(order[1:], order[0])
	}
	return configs
}
