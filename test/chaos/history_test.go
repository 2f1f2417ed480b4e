package chaos

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/nyaladb/nyala/client"
)

// operation is what a worker did to one row. Value is what it wrote or saw; "": the row isn't there.
type operation struct {
	Worker      int    `json:"worker"`
	Kind        string `json:"kind"` // write, latest, snapshot
	Via         string `json:"via"`  // the server asked; "": the leader
	Key         int64  `json:"key"`
	Value       string `json:"value"`
	Call        int64  `json:"call"`   // ns since the history began
	Return      int64  `json:"return"` // math.MaxInt64: whether it took effect isn't known
	Timestamp   uint64 `json:"timestamp"`
	OutcomeText string `json:"outcome,omitempty"`
}

func (o *operation) unknown() bool { return o.Return == math.MaxInt64 }

// history gathers what workers did.
type history struct {
	began time.Time
	mu    sync.Mutex
	ops   []operation
}

func newHistory() *history { return &history{began: time.Now()} }

func (h *history) now() int64 { return int64(time.Since(h.began)) }

func (h *history) add(ops ...operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, ops...)
}

// model is a row: writes set it, reads see it.
var model = porcupine.Model{
	Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[int64][]porcupine.Operation{}
		for _, o := range all {
			key := o.Input.(operation).Key
			byKey[key] = append(byKey[key], o)
		}
		var parts [][]porcupine.Operation
		for _, ops := range byKey {
			parts = append(parts, ops)
		}
		return parts
	},
	Init: func() any { return "" },
	Step: func(state, input, _ any) (bool, any) {
		o := input.(operation)
		if o.Kind == "write" {
			return true, o.Value
		}
		return state == o.Value, state
	},
	DescribeOperation: func(input, _ any) string {
		o := input.(operation)
		return fmt.Sprintf("%s %d = %q via %s at %d%s", o.Kind, o.Key, o.Value, o.Via, o.Timestamp, o.OutcomeText)
	},
}

// check fails the test unless the rows are linearizable and the snapshots right.
func (h *history) check(t *testing.T) {
	t.Helper()
	var all []porcupine.Operation
	counts := map[string]int{}
	for _, o := range h.ops {
		kind := o.Kind
		if o.unknown() {
			kind += " (unknown)"
		}
		counts[kind]++
		all = append(all, porcupine.Operation{ClientId: o.Worker, Input: o, Call: o.Call, Output: o, Return: o.Return})
	}
	t.Logf("%d operations: %v", len(h.ops), counts)
	if faults := h.badSnapshots(); len(faults) > 0 {
		t.Errorf("%d reads at snapshots saw what they should not, the first: %s; the history: %s", len(faults), faults[0], h.save(t))
	}
	result, info := porcupine.CheckOperationsVerbose(model, all, 2*time.Minute)
	if result == porcupine.Ok {
		return
	}
	path := h.save(t)
	picture := strings.TrimSuffix(path, ".json") + ".html"
	if err := porcupine.VisualizePath(model, info, picture); err != nil {
		t.Logf("no picture: %v", err)
	}
	t.Errorf("the history is not linearizable (%s): %s, as a picture %s", result, path, picture)
}

// save writes the history to a file and returns its path.
func (h *history) save(t *testing.T) string {
	t.Helper()
	b, err := json.MarshalIndent(h.ops, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "nyala-history-")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "history.json")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// badSnapshots names the reads at a snapshot T that saw neither what the last acknowledged write below T left nor a write whose
// outcome nobody knows: whatever lies below a snapshot is there, and in the order of timestamps.
func (h *history) badSnapshots() (faults []string) {
	writes := map[int64][]operation{} // acknowledged, by key, in the order of timestamps
	unknown := map[string]bool{}
	for _, o := range h.ops {
		switch {
		case o.Kind != "write":
		case o.unknown():
			unknown[o.Value] = true
		default:
			writes[o.Key] = append(writes[o.Key], o)
		}
	}
	for _, ws := range writes {
		slices.SortFunc(ws, func(a, b operation) int {
			if a.Timestamp < b.Timestamp {
				return -1
			}
			return 1
		})
	}
	for _, o := range h.ops {
		if o.Kind != "snapshot" || unknown[o.Value] {
			continue
		}
		want := ""
		for _, w := range writes[o.Key] {
			if w.Timestamp < o.Timestamp {
				want = w.Value
			}
		}
		if o.Value != want {
			faults = append(faults, fmt.Sprintf("row %d at snapshot %s is %q, and %q was written below it", o.Key, client.Timestamp(o.Timestamp), o.Value, want))
		}
	}
	return faults
}

// TestCheckersFindFaults shows that the checkers fail what is wrong: a stale read, and a snapshot that misses a write.
func TestCheckersFindFaults(t *testing.T) {
	write := func(value string, call, ret int64, ts uint64) operation {
		return operation{Kind: "write", Key: 1, Value: value, Call: call, Return: ret, Timestamp: ts}
	}
	read := func(kind, value string, call, ret int64, ts uint64) operation {
		return operation{Kind: kind, Key: 1, Value: value, Call: call, Return: ret, Timestamp: ts}
	}
	lost := write("c", 40, math.MaxInt64, 0)
	for name, c := range map[string]struct {
		ops                  []operation
		linearizable, bySnap bool
	}{
		"right":            {[]operation{write("a", 0, 1, 10), read("latest", "a", 2, 3, 0), write("b", 4, 5, 20), read("snapshot", "b", 6, 7, 30)}, true, true},
		"stale":            {[]operation{write("a", 0, 1, 10), write("b", 2, 3, 20), read("latest", "a", 4, 5, 0)}, false, true},
		"lost write":       {[]operation{write("a", 0, 1, 10), read("latest", "", 2, 3, 0)}, false, true},
		"unknown, applied": {[]operation{write("a", 0, 1, 10), lost, read("latest", "c", 50, 51, 0)}, true, true},
		"unknown, not":     {[]operation{write("a", 0, 1, 10), lost, read("latest", "a", 50, 51, 0)}, true, true},
		"unknown, undone":  {[]operation{write("a", 0, 1, 10), lost, read("latest", "c", 50, 51, 0), read("latest", "a", 52, 53, 0)}, false, true},
		"snapshot":         {[]operation{write("a", 0, 9, 10), write("b", 0, 9, 20), read("snapshot", "a", 1, 2, 30)}, true, false},
	} {
		var all []porcupine.Operation
		for _, o := range c.ops {
			all = append(all, porcupine.Operation{ClientId: o.Worker, Input: o, Call: o.Call, Output: o, Return: o.Return})
		}
		if got := porcupine.CheckOperations(model, all); got != c.linearizable {
			t.Errorf("%s: linearizable: %v", name, got)
		}
		h := &history{ops: c.ops}
		if got := len(h.badSnapshots()) == 0; got != c.bySnap {
			t.Errorf("%s: snapshots: %v", name, got)
		}
	}
}
