package client

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
)

// TestKeyMap feeds the cache answers about ranges that come and go, in any order and page size, and asks it for keys: what it
// says it knows is what the last answers about those keys said.
func TestKeyMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := &locations{}
		l.known.Store(&keyMap{})
		// model[k] is the tablet that holds key k as of the last answer that covered k; "" none, "?" not known.
		const keys = 12
		model := slices.Repeat([]string{"?"}, keys)
		bound := func(k int) []byte { return []byte{byte(k)} }
		ranges := map[int]string{} // start -> id; a range reaches to its width below
		width := map[int]int{}
		nextID := 0
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"add", "drop", "ask"}).Draw(t, "step") {
			case "add":
				k, w := rapid.IntRange(1, keys-1).Draw(t, "start"), rapid.IntRange(1, 4).Draw(t, "width")
				free := k+w <= keys
				for s := range ranges {
					free = free && (s+width[s] <= k || k+w <= s)
				}
				if free {
					nextID++
					ranges[k], width[k] = fmt.Sprint("t", nextID), w
				}
			case "drop":
				for k := range keys {
					if ranges[k] != "" && rapid.Bool().Draw(t, "this") {
						delete(ranges, k)
						break
					}
				}
			case "ask":
				from, page := rapid.IntRange(0, keys-1).Draw(t, "from"), rapid.IntRange(1, 4).Draw(t, "page")
				answer := &nyalav1.GetTableLocationsResponse{}
				covered := keys
				lowest := from
				for k := range keys {
					if ranges[k] == "" || k+width[k] <= from {
						continue
					}
					if len(answer.Tablets) == page {
						answer.HasMore = true
						break
					}
					covered = k + width[k]
					lowest = min(lowest, k)
					answer.Tablets = append(answer.Tablets, &nyalav1.TabletLocations{TabletId: ranges[k], Partition: &nyalav1.Partition{
						PartitionKeyStart: bound(k), PartitionKeyEnd: bound(k + width[k]),
					}})
				}
				if !answer.HasMore {
					covered = keys
				}
				mustMerge(t, l, bound(from), answer)
				for k := lowest; k < covered; k++ {
					model[k] = ""
				}
				for _, p := range answer.Tablets {
					for k := p.Partition.PartitionKeyStart[0]; k < p.Partition.PartitionKeyEnd[0]; k++ {
						model[k] = p.TabletId
					}
				}
				// A dropped range that one answer only half covered is known to be gone as a whole.
				for k := range keys {
					if tb := l.known.Load().find(bound(k)); tb == nil && model[k] != "" {
						model[k] = "?"
					}
				}
			}
			checkKeyMap(t, l.known.Load(), model, bound)
		}
	})
}

func checkKeyMap(t *rapid.T, m *keyMap, model []string, bound func(int) []byte) {
	for i := 1; i < len(m.tablets); i++ {
		if bytes.Compare(m.tablets[i-1].end, m.tablets[i].start) > 0 {
			t.Fatalf("tablets %s and %s overlap", m.tablets[i-1].id, m.tablets[i].id)
		}
	}
	for k, want := range model {
		got := m.find(bound(k))
		switch {
		case want == "?" || want == "":
			if got != nil {
				t.Fatalf("key %d: tablet %s, but %q is known", k, got.id, want)
			}
		case got == nil || got.id != want:
			t.Fatalf("key %d: tablet %v, want %s", k, got, want)
		}
		next, known := m.next(bound(k), time.Time{}, nil)
		if !known {
			continue
		}
		// What it says comes next must be what the model has next, with nothing unknown in between.
		wantNext := ""
		for j := k; j < len(model) && wantNext == ""; j++ {
			if model[j] == "?" {
				t.Fatalf("key %d: says it knows what comes next, but key %d is unknown", k, j)
			}
			wantNext = model[j]
		}
		if (next == nil) != (wantNext == "") || (next != nil && next.id != wantNext) {
			t.Fatalf("after key %d: tablet %v, want %q", k, next, wantNext)
		}
	}
}

// mustMerge takes over an answer that came at once.
func mustMerge(t interface{ Fatal(...any) }, l *locations, from []byte, answer *nyalav1.GetTableLocationsResponse) {
	if _, err := l.merge(from, time.Now(), answer); err != nil {
		t.Fatal(err)
	}
}

// TestMergeIdentity refreshes locations: a tablet keeps its identity and the leader that its servers named, one that
// disappears is gone, and gaps are forgotten in time.
func TestMergeIdentity(t *testing.T) {
	l := &locations{tableName: "t"}
	l.known.Store(&keyMap{})
	answer := &nyalav1.GetTableLocationsResponse{TtlMs: 1, Tablets: []*nyalav1.TabletLocations{{
		TabletId: "a", Partition: &nyalav1.Partition{PartitionKeyStart: []byte{5}},
		Replicas: []*nyalav1.ReplicaLocation{
			{ServerId: "s1", Role: nyalav1.Role_ROLE_LEADER}, {ServerId: "s2", Role: nyalav1.Role_ROLE_FOLLOWER},
		},
	}}}
	mustMerge(t, l, nil, answer)
	a := l.known.Load().find([]byte{7})
	if _, leader := a.locationsNow(); leader != "s1" {
		t.Errorf("leader %q", leader)
	}
	if !a.hint("s1", &nyalav1.Peer{ServerId: "s2"}, 7) || a.hint("s3", &nyalav1.Peer{ServerId: "s1"}, 6) {
		t.Error("a hint of an older term was believed, or that of a newer not")
	}
	mustMerge(t, l, nil, answer)
	if again := l.known.Load().find([]byte{7}); again != a {
		t.Error("the tablet lost its identity")
	}
	if _, leader := a.locationsNow(); leader != "s2" {
		t.Errorf("the master's older word on the leader was taken: %q", leader)
	}
	a.notLed("s2")
	mustMerge(t, l, nil, answer)
	if _, leader := a.locationsNow(); leader != "s1" {
		t.Errorf("leader %q", leader)
	}
	if tb, known := l.known.Load().next(nil, time.Time{}, nil); tb != a && known {
		t.Errorf("next %v", tb)
	}
	<-time.After(2 * time.Millisecond)
	if _, known := l.known.Load().next(nil, time.Time{}, nil); known || !a.expired() {
		t.Error("an answer whose time is over counts")
	}
	mustMerge(t, l, nil, &nyalav1.GetTableLocationsResponse{})
	if l.fate(a) == nil || CodeOf(l.fate(a)) != CodeTabletNotFound || l.known.Load().find([]byte{7}) != nil {
		t.Errorf("fate %v", l.fate(a))
	}
}
