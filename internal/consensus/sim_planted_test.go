//go:build planted

package consensus_test

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/nyaladb/nyala/internal/consensus"
)

var simMistake = flag.String("sim.mistake", "", "look for this planted mistake alone")

var simWhole = flag.Bool("sim.whole", false, "look for planted mistakes by their consequences for the whole cluster as well")

// TestPlantedMistakes plants one mistake at a time and shows that the simulated cluster finds each within 2,000 seeds. With
// -sim.whole it looks again with the rules about single messages switched off: then a mistake shows by what it does to the
// cluster, a lost entry or a broken snapshot, or not within so few runs.
func TestPlantedMistakes(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(consensus.Mistakes)) {
		if *simMistake != "" && name != *simMistake {
			continue
		}
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

// firstSeeds are those that find mistakes which show late: they are looked at first, to save the time of those before them.
var firstSeeds = map[string]uint64{
	"cuts an inherited entry":                 332,
	"read without a round":                    415,
	"a copy that is out of date is installed": 492,
	"a copy forgets acknowledged entries":     1751,
}

// membersMistakes are about members: they are looked for where those come and go.
var membersMistakes = map[string]bool{
	"a learner counts":                        true,
	"config taken from before the restart":    true,
	"promoted before it has caught up":        true,
	"an overwritten change stays pending":     true,
	"a copy forgets the vote":                 true,
	"a copy forgets acknowledged entries":     true,
	"a copy that is out of date is installed": true,
}

func findMistake(name string, whole bool) (seed uint64, fault string) {
	if seed = firstSeeds[name]; seed != 0 && !whole {
		if fault = runMistake(name, seed, false); fault != "" {
			return seed, fault
		}
	}
	for seed = 1; seed <= 2000; seed++ {
		if fault = runMistake(name, seed, whole); fault != "" {
			return seed, fault
		}
	}
	return seed, ""
}

// runMistake runs one seed with a mistake planted. A mistake may also show by a check of the log's that stops the program.
func runMistake(name string, seed uint64, whole bool) (fault string) {
	defer func() {
		if r := recover(); r != nil {
			fault = fmt.Sprint(r)
		}
	}()
	o := optionsOf(seed)
	if membersMistakes[name] {
		o = membersOptionsOf(seed)
	}
	w := newWorld(o)
	w.check.onlyWhole = whole
	w.plantBatcher = func(b *consensus.HeartbeatBatcher) { consensus.PlantBatcher(b, consensus.Mistakes[name]) }
	w.plant = func(c *consensus.Core) { consensus.Plant(c, consensus.Mistakes[name]) }
	w.plantCopy = func(in *consensus.CopyInstall) { consensus.PlantCopy(in, consensus.Mistakes[name]) }
	w.run()
	return w.check.fault
}
