//go:build planted

package consensus_test

import (
	"flag"
	"maps"
	"slices"
	"testing"

	"github.com/nyaladb/nyala/internal/consensus"
)

var simWhole = flag.Bool("sim.whole", false, "look for planted mistakes by their consequences for the whole cluster as well")

// TestPlantedMistakes plants one mistake at a time and shows that the simulated cluster finds each within 2,000 seeds. With
// -sim.whole it looks again with the rules about single messages switched off: then a mistake shows by what it does to the
// cluster, a lost entry or a broken snapshot, or not within so few runs.
func TestPlantedMistakes(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(consensus.Mistakes)) {
		if seed, fault := findMistake(name, false); fault == "" {
			t.Errorf("%s: not found", name)
		} else {
			t.Logf("%-40s seed %4d: %.150s", name, seed, fault)
		}
		if *simWhole {
			seed, fault := findMistake(name, true)
			t.Logf("%-40s by its consequences, seed %4d: %.150s", name, seed, fault)
		}
	}
}

func findMistake(name string, whole bool) (seed uint64, fault string) {
	for seed = 1; seed <= 2000; seed++ {
		w := newWorld(optionsOf(seed))
		w.check.onlyWhole = whole
		w.plant = func(c *consensus.Core) { consensus.Plant(c, consensus.Mistakes[name]) }
		if w.run(); w.check.fault != "" {
			return seed, w.check.fault
		}
	}
	return seed, ""
}
