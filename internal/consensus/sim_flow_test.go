package consensus_test

import (
	"strings"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/invariant"
	"github.com/nyaladb/nyala/internal/wal"
)

// TestEntryLargerThanAMessage shows what a follower that was away costs when it is back and an entry far above the size of a
// message, and of all that may be under way, is among those that it lacks: a few appends per entry, and then none.
func TestEntryLargerThanAMessage(t *testing.T) {
	w, tablet := slowWorld(t) // messages of 64 bytes, 512 under way
	leader, away := w.servers[0], w.servers[2]
	appends, largest := 0, 0
	w.onSend = func(m *nyalav1.GroupMessage) {
		rm := new(raftpb.Message)
		if err := proto.Unmarshal(m.GetRaft(), rm); err != nil {
			invariant.Check(false, "%v", err)
		}
		if rm.GetType() == raftpb.MsgApp && rm.GetTo() == uint64(away.id+1) {
			appends++
			largest = max(largest, len(m.GetRaft()))
		}
	}
	for _, s := range w.servers {
		w.cut[[2]int{s.id, away.id}], w.cut[[2]int{away.id, s.id}] = true, true
	}
	w.settle(40, func() bool { return false })
	const ops = 101
	for i := range ops {
		payload := "small"
		if i == 0 {
			payload = strings.Repeat("x", 100_000)
		}
		w.next++
		w.pending[w.next] = &asked{server: leader.id, tablet: tablet, kind: "propose", payload: payload}
		leader.core.Propose(tablet, wal.KindWrite, []byte(payload), w.next)
		w.take(leader)
		w.settle(1, func() bool { return false })
	}
	if appends > 2*ops {
		t.Errorf("%d appends to a follower that answers nothing", appends)
	}
	appends = 0
	clear(w.cut)
	if !w.settle(40, func() bool { return w.converged(tablet) }) || w.check.fault != "" {
		t.Fatalf("the follower isn't level: %s", w.check.fault)
	}
	t.Logf("%d appends for %d operations, the largest of %d bytes", appends, ops, largest)
	if appends > 20*ops || largest < 100_000 {
		t.Errorf("%d appends for %d operations, the largest of %d bytes", appends, ops, largest)
	}
	appends = 0
	if w.settle(60, func() bool { return false }); appends != 0 {
		t.Errorf("%d appends when there is nothing to say", appends)
	}
}
