package consensus_test

import (
	"testing"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/invariant"
	"github.com/nyaladb/nyala/internal/wal"
)

// lastNoticeLost writes once more when everything runs in good order, but for the notices of the commit, which are all lost:
// within a heartbeat interval the followers have to know it.
func (w *world) lastNoticeLost(t ident.TabletID) {
	s := w.ready(t)
	if s == nil || w.opts.noPush || w.check.fault != "" {
		return
	}
	w.lose = func(m *nyalav1.GroupMessage) bool { return m.GetCommitNotice() != nil }
	defer func() { w.lose = nil }()
	before := w.check.commits
	w.ask(s, "propose", t, 0)
	// The write takes a tick, as does what is batched; an interval has two.
	if !w.settle(5, func() bool { return w.check.commits > before && w.converged(t) }) && w.check.commits > before {
		w.check.failf("%s: a heartbeat interval after a commit, with its notices lost, not all replicas know of it", t)
	}
}

// kinds counts what a cluster sends, by kind.
type kinds map[string]int

func (k kinds) count(m *nyalav1.GroupMessage) {
	name := "other"
	switch {
	case m.GetCommitNotice() != nil:
		name = "notice"
	case m.GetRaft() != nil:
		rm := new(raftpb.Message)
		if err := proto.Unmarshal(m.GetRaft(), rm); err != nil {
			invariant.Check(false, "%v", err)
		}
		if name = rm.GetType().String(); rm.GetType() == raftpb.MsgApp && len(rm.GetEntries()) == 0 {
			name = "probe"
		}
	}
	k[name]++
}

// TestMessagesPerCommit counts what three replicas say. One write at a time costs an append, an answer and a notice to each
// follower; with many at once they share these; while writes go on there are no heartbeats; and after the last there is one per
// interval and follower, and nothing else.
func TestMessagesPerCommit(t *testing.T) {
	w := newWorld(worldOptions{seed: 1, servers: 3, tablets: 1, usual: true})
	w.calm = true
	defer w.start()()
	tablet := w.tablets[0]
	w.servers[0].core.Campaign(tablet)
	w.take(w.servers[0])
	w.settle(20, func() bool { return false })
	leader := w.ready(tablet)
	if leader == nil {
		t.Fatal("no leader")
	}
	run := func(writes, ticks int) kinds {
		k := kinds{}
		w.onSend = k.count
		for range ticks {
			for range writes {
				w.next++
				w.pending[w.next] = &asked{server: leader.id, tablet: tablet, kind: "propose"}
				leader.core.Propose(tablet, wal.KindWrite, []byte("x"), w.next)
			}
			w.take(leader)
			w.settle(1, func() bool { return false })
		}
		w.onSend = nil
		if w.check.fault != "" {
			t.Fatal(w.check.fault)
		}
		return k
	}
	run(1, 5)
	one := run(1, 40)
	if one["MsgApp"] != 80 || one["MsgAppResp"] != 80 || one["notice"] != 80 || one["probe"]+one["MsgHeartbeat"] != 0 {
		t.Errorf("40 writes one by one: %v", one)
	}
	if many := run(30, 40); many["MsgApp"]+many["MsgAppResp"]+many["notice"] > 3*2*40 || many["MsgHeartbeat"] > 8 {
		t.Errorf("1,200 writes, 30 at once: %v", many)
	}
	run(0, 10)
	if idle := run(0, 40); idle["MsgHeartbeat"] != 40 || idle["MsgHeartbeatResp"] != 40 || len(idle) != 2 {
		t.Errorf("no writes for 20 intervals: %v", idle)
	}
}
