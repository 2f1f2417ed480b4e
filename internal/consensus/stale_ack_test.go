package consensus

import (
	"testing"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/wal"
)

// TestAckOfNothingDoesNotWedgeFollower leads with a log that was cut, and gets the answer that a follower once gave to an
// earlier term of this server: it shows the term that the server leads in by now, and acknowledges index 0. The follower
// must still get what is written next.
func TestAckOfNothingDoesNotWedgeFollower(t *testing.T) {
	tablet := testTablet(1)
	log := wal.NewMem()
	var b wal.Batch
	n := log.AllocateNumber()
	b.CreateGroup(n, tablet, nil, ident.OpID{Term: 3, Index: 10})
	if err := log.Commit(&b); err != nil {
		t.Fatal(err)
	}
	clock := newTestClock()
	c := NewCore(CoreConfig{HeartbeatTicks: 2, ElectionTicks: 6}, clock)
	cfg := &nyalav1.RaftConfig{Peers: []*nyalav1.Peer{
		{ReplicaId: 1, ServerId: "a"}, {ReplicaId: 2, ServerId: "b"}, {ReplicaId: 3, ServerId: "c"},
	}}
	v, err := c.StartGroup(GroupConfig{Number: n, Tablet: tablet, Replica: 1, Config: cfg, Applied: 10}, log.Log(n))
	if err != nil {
		t.Fatal(err)
	}
	// settle commits and applies until nothing is left, and returns the appends that went to replica 3.
	settle := func() (toThird []*raftpb.Message) {
		for {
			d := c.Take()
			for _, m := range d.Messages {
				rm := new(raftpb.Message)
				if err := proto.Unmarshal(m.Message.GetRaft(), rm); err != nil {
					t.Fatal(err)
				}
				if rm.GetTo() == 3 && rm.GetType() == raftpb.MsgApp {
					toThird = append(toThird, rm)
				}
			}
			if len(d.Appends)+len(d.Applies) == 0 {
				return toThird
			}
			var commit Commit
			for i := range d.Appends {
				commit.Add(&d.Appends[i], true)
			}
			commit.Seal(clock)
			if err := log.Commit(&commit.Batch); err != nil {
				t.Fatal(err)
			}
			for _, a := range d.Appends {
				c.Appended(a.Tablet, a.Seq)
			}
			for _, a := range d.Applies {
				c.Applied(a.Tablet, nil)
			}
		}
	}
	answer := func(from uint64, typ raftpb.MessageType, index uint64) {
		m := &raftpb.Message{Type: typ.Enum(), From: &from, To: new(uint64(1)), Term: new(uint64(4)), Index: &index}
		c.Receive(groupMessage(t, tablet, m))
	}
	c.Campaign(tablet)
	settle()
	answer(2, raftpb.MsgVoteResp, 0)
	settle()
	if v.Status().Role != nyalav1.Role_ROLE_LEADER {
		t.Fatalf("%+v", v.Status())
	}
	answer(3, raftpb.MsgAppResp, 0) // of an earlier term's append, which never reached replica 3's log
	answer(2, raftpb.MsgAppResp, 11)
	settle()
	answer(3, raftpb.MsgHeartbeatResp, 0)
	if got := settle(); len(got) == 0 || got[len(got)-1].GetIndex() != 10 || len(got[len(got)-1].GetEntries()) == 0 {
		t.Fatalf("replica 3 gets %v", got)
	}
}
