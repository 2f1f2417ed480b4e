package consensus_test

import (
	"strings"
	"testing"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/consensus"
	"github.com/nyaladb/nyala/internal/status"
)

// TestRefusedEntriesDontSpin lets a leader whose clock is a minute ahead write more than one append message holds. The others
// refuse it; the leader is told, takes no further writes for as long, and offers the entries again at a measured pace. When
// the clocks agree they are committed.
func TestRefusedEntriesDontSpin(t *testing.T) {
	w := newWorld(worldOptions{seed: 1, servers: 3, tablets: 1})
	w.calm = true
	defer w.start()()
	tablet := w.tablets[0]
	w.settle(60, func() bool { return w.ready(tablet) != nil })
	leader := w.ready(tablet)
	leader.clock.offset = minute
	for range 12 {
		w.ask(leader, "propose", tablet, 0)
	}
	w.settle(4, func() bool { return false })
	st := leader.status(tablet)
	if !strings.HasPrefix(st.Stalled, "clocks: entry 2 ") || !strings.Contains(st.Stalled, "replicas ") {
		t.Fatalf("status %+v", st)
	}
	var got error
	w.onAnswer = func(d consensus.Done) { got = d.Err }
	w.ask(leader, "propose", tablet, 0)
	if status.CodeOf(got) != status.Clock {
		t.Fatalf("a write while the group waits for clocks: %v", got)
	}
	appends := 0
	w.onSend = func(m *nyalav1.GroupMessage) {
		if strings.Contains(describe(m), "MsgApp ") {
			appends++
		}
	}
	w.settle(20, func() bool { return false })
	// Ten heartbeat intervals, and so at most five offers to each of two followers, of a handful of messages each.
	if appends > 100 {
		t.Fatalf("%d appends for entries that nobody takes", appends)
	}
	if s := leader.status(tablet); s.Commit != 1 || s.Term != st.Term || s.LastIndex != 13 {
		t.Fatalf("status %+v", s)
	}
	for _, s := range w.servers {
		s.clock.offset = minute
	}
	w.settle(20, func() bool { return leader.status(tablet).Commit == 13 })
	if s := leader.status(tablet); s.Commit != 13 || s.Stalled != "" || w.check.fault != "" {
		t.Fatalf("status %+v, %s", s, w.check.fault)
	}
}
