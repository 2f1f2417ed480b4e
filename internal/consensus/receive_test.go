package consensus

import (
	"errors"
	"strings"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/wal"
)

// newTestCore returns a core with one group of three voters, of which it has the first, on an empty log.
func newTestCore(t testing.TB) (*Core, *View, ident.TabletID) {
	t.Helper()
	tablet := testTablet(1)
	log := wal.NewMem()
	var b wal.Batch
	n := log.AllocateNumber()
	b.CreateGroup(n, tablet, nil, ident.OpID{})
	if err := log.Commit(&b); err != nil {
		t.Fatal(err)
	}
	c := NewCore(CoreConfig{HeartbeatTicks: 2, ElectionTicks: 6, PreElection: true, PushCommit: true}, newTestClock())
	cfg := &nyalav1.RaftConfig{}
	for _, s := range []string{"a", "b", "c"} {
		cfg.Peers = append(cfg.Peers, &nyalav1.Peer{ReplicaId: uint64(len(cfg.Peers) + 1), ServerId: s, Address: s})
	}
	v, err := c.StartGroup(GroupConfig{Number: n, Tablet: tablet, Replica: 1, Config: cfg}, log.Log(n))
	if err != nil {
		t.Fatal(err)
	}
	c.Take()
	return c, v, tablet
}

func groupMessage(t testing.TB, tablet ident.TabletID, m *raftpb.Message) *nyalav1.GroupMessage {
	t.Helper()
	id, err := ident.Bytes(string(tablet))
	if err != nil {
		t.Fatal(err)
	}
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return &nyalav1.GroupMessage{TabletId: id[:], From: m.GetFrom(), To: m.GetTo(), Kind: &nyalav1.GroupMessage_Raft{Raft: b}}
}

func testEntry(term, index uint64, ts hybridtime.Timestamp) *raftpb.Entry {
	return &raftpb.Entry{Term: &term, Index: &index, Data: wal.EncodePayload(wal.KindWrite, ts, []byte("x"))}
}

func msgApp(term, prevTerm, prev, commit uint64, ents ...*raftpb.Entry) *raftpb.Message {
	return &raftpb.Message{
		Type: raftpb.MsgApp.Enum(), From: new(uint64(2)), To: new(uint64(1)), Term: &term, LogTerm: &prevTerm, Index: &prev,
		Commit: &commit, Entries: ents,
	}
}

// TestStampOrderFailsReplica shows that timestamps that don't rise fail the replica by name before they reach its log.
func TestStampOrderFailsReplica(t *testing.T) {
	c, v, tablet := newTestCore(t)
	now := newTestClock().wall()
	if reason := c.Receive(groupMessage(t, tablet, msgApp(1, 0, 0, 0, testEntry(1, 1, now), testEntry(1, 2, now)))); reason != "" {
		t.Fatal(reason)
	}
	d := c.Take()
	var breach *StampOrderError
	if len(d.Failures) != 1 || !errors.As(d.Failures[0].Err, &breach) || breach.At.Index != 2 {
		t.Fatalf("failures %v", d.Failures)
	}
	if len(d.Appends) != 0 || len(d.Messages) != 0 {
		t.Fatalf("a failed replica appends %v and says %v", d.Appends, d.Messages)
	}
	if v.Status().Err == nil {
		t.Fatal("the status doesn't say so")
	}
	if reason := c.Receive(groupMessage(t, tablet, msgApp(1, 0, 0, 0))); reason != ignoredFailed {
		t.Fatalf("a failed replica listens: %q", reason)
	}
	c.Propose(tablet, wal.KindWrite, nil, 1)
	c.Campaign(tablet)
	c.Tick()
	if d = c.Take(); len(d.Done) != 1 || status.CodeOf(d.Done[0].Err) != status.TabletFailed || len(d.Messages) != 0 {
		t.Fatalf("a failed replica answers %+v", d)
	}
}

// TestStampOrderOverSupersededEntries shows that an entry is compared with those it stands behind, not with those it
// supersedes.
func TestStampOrderOverSupersededEntries(t *testing.T) {
	c, _, tablet := newTestCore(t)
	now := newTestClock().wall()
	c.Receive(groupMessage(t, tablet, msgApp(1, 0, 0, 0, testEntry(1, 1, now), testEntry(1, 2, now+10), testEntry(1, 3, now+20))))
	d := c.Take()
	c.Receive(groupMessage(t, tablet, msgApp(2, 1, 1, 0, testEntry(2, 2, now+5), testEntry(2, 3, now+6))))
	d2 := c.Take()
	if len(d.Failures)+len(d2.Failures) != 0 || len(d2.Appends) != 1 || d2.Appends[0].MaxTimestamp != now+6 {
		t.Fatalf("%+v\n%+v", d, d2)
	}
}

// TestRefusesEntriesAhead shows that what is beyond the guard is left out, unless it is known committed, and that the leader is
// told so at most once per heartbeat interval.
func TestRefusesEntriesAhead(t *testing.T) {
	c, v, tablet := newTestCore(t)
	far := newTestClock().wall().Add(1 << 40)
	now := newTestClock().wall()
	c.Receive(groupMessage(t, tablet, msgApp(1, 0, 0, 0, testEntry(1, 1, now), testEntry(1, 2, far), testEntry(1, 3, far+1))))
	d := c.Take()
	if len(d.Refusals) != 1 || d.Refusals[0].Index != 2 || v.Status().LastIndex != 1 || v.Status().Leader != 2 {
		t.Fatalf("refusals %+v, status %+v", d.Refusals, v.Status())
	}
	told := func(d Decisions) (n int) {
		for _, m := range d.Messages {
			if r := m.Message.GetEntryRefused(); r != nil && m.Channel == Control && m.Message.GetTo() == 2 && r.GetTerm() == 1 {
				n++
			}
		}
		return n
	}
	if told(d) != 1 {
		t.Fatalf("messages %+v", d.Messages)
	}
	take := func() Decisions {
		c.Receive(groupMessage(t, tablet, msgApp(1, 1, 1, 2, testEntry(1, 2, far), testEntry(1, 3, far+1))))
		return c.Take()
	}
	if d = take(); len(d.Refusals)+told(d) != 0 || v.Status().LastIndex != 2 {
		t.Fatalf("refusals %+v, status %+v", d.Refusals, v.Status())
	}
	for range c.cfg.HeartbeatTicks {
		c.Tick()
	}
	if d = take(); told(d) != 1 || d.Refusals[0].Index != 3 || v.Status().LastIndex != 2 {
		t.Fatalf("messages %+v, refusals %+v", d.Messages, d.Refusals)
	}
	if n := counted(t, c.metrics.refused[sideFollower]); n != 4 {
		t.Fatalf("%v entries counted", n)
	}
}

// TestReceiveIgnores names each kind of message that is left alone.
func TestReceiveIgnores(t *testing.T) {
	c, _, tablet := newTestCore(t)
	good := func() *raftpb.Message { return msgApp(1, 0, 0, 0) }
	for name, tc := range map[string]struct {
		want string
		make func() *nyalav1.GroupMessage
	}{
		"no tablet":     {ignoredMalformed, func() *nyalav1.GroupMessage { return &nyalav1.GroupMessage{TabletId: []byte("x")} }},
		"other tablet":  {ignoredNoGroup, func() *nyalav1.GroupMessage { return groupMessage(t, testTablet(9), good()) }},
		"other replica": {ignoredWrongReplica, func() *nyalav1.GroupMessage { m := good(); m.To = new(uint64(4)); return groupMessage(t, tablet, m) }},
		"from itself":   {ignoredWrongReplica, func() *nyalav1.GroupMessage { m := good(); m.From = new(uint64(1)); return groupMessage(t, tablet, m) }},
		"empty": {ignoredMalformed, func() *nyalav1.GroupMessage {
			g := groupMessage(t, tablet, good())
			g.Kind = nil
			return g
		}},
		"local message": {ignoredMalformed, func() *nyalav1.GroupMessage {
			m := good()
			m.Type = raftpb.MsgHup.Enum()
			return groupMessage(t, tablet, m)
		}},
		"forwarded proposal": {ignoredMalformed, func() *nyalav1.GroupMessage {
			m := good()
			m.Type = raftpb.MsgProp.Enum()
			return groupMessage(t, tablet, m)
		}},
		"no term": {ignoredMalformed, func() *nyalav1.GroupMessage { m := good(); m.Term = nil; return groupMessage(t, tablet, m) }},
		"a gap":   {ignoredMalformed, func() *nyalav1.GroupMessage { return groupMessage(t, tablet, msgApp(1, 0, 0, 0, testEntry(1, 2, 1))) }},
		"a term that falls": {ignoredMalformed, func() *nyalav1.GroupMessage {
			return groupMessage(t, tablet, msgApp(2, 0, 0, 0, testEntry(2, 1, 1), testEntry(1, 2, 2)))
		}},
		"an envelope that lies": {ignoredMalformed, func() *nyalav1.GroupMessage {
			g := groupMessage(t, tablet, good())
			g.From = 3
			return g
		}},
	} {
		if got := c.Receive(tc.make()); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
	if d := c.Take(); len(d.Messages)+len(d.Appends)+len(d.Failures) != 0 {
		t.Fatalf("%+v", d)
	}
}

// TestStartRefusesBrokenLogs names what is wrong with a log and a store that don't fit.
func TestStartRefusesBrokenLogs(t *testing.T) {
	tablet := testTablet(1)
	log := wal.NewMem()
	var b wal.Batch
	n := log.AllocateNumber()
	b.CreateGroup(n, tablet, nil, ident.OpID{Term: 3, Index: 10})
	b.Append(n, []*raftpb.Entry{testEntry(3, 11, 100), testEntry(3, 12, 90)})
	if err := log.Commit(&b); err != nil {
		t.Fatal(err)
	}
	start := func(applied ident.Index, ts hybridtime.Timestamp) error {
		cfg := &nyalav1.RaftConfig{Peers: []*nyalav1.Peer{{ReplicaId: 1, ServerId: "a"}}}
		c := NewCore(CoreConfig{HeartbeatTicks: 2, ElectionTicks: 6}, newTestClock())
		v, err := c.StartGroup(GroupConfig{Number: n, Tablet: tablet, Replica: 1, Config: cfg, Applied: applied, AppliedTimestamp: ts}, log.Log(n))
		if err == nil && v.Status().Term != 3 {
			t.Errorf("starts in term %d on a log of term 3", v.Status().Term)
		}
		return err
	}
	for _, tc := range []struct {
		applied ident.Index
		ts      hybridtime.Timestamp
		want    string
	}{{5, 0, "the log begins at 11"}, {13, 0, "the log ends at 12"}, {10, 0, "not above"}, {11, 100, "not above"}, {12, 110, ""}} {
		err := start(tc.applied, tc.ts)
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("applied %d: %v, want %q", tc.applied, err, tc.want)
		}
	}
}

// FuzzDecodeRaft shows that no bytes from the wire panic, and that what passes can be stepped.
func FuzzDecodeRaft(f *testing.F) {
	for _, m := range []*raftpb.Message{msgApp(1, 0, 0, 0, testEntry(1, 1, 5)), {Type: raftpb.MsgVote.Enum(), From: new(uint64(2)), To: new(uint64(1)), Term: new(uint64(4))}} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{8, 3, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		if typ, ok := raftType(b); ok {
			m := new(raftpb.Message)
			// The first of two types in one message counts there, the last one here: raftType only sorts messages into queues.
			if err := proto.Unmarshal(b, m); err == nil && len(b) > 0 && b[0] == 8 && !strings.Contains(string(b[1:]), "\x08") && m.GetType() != typ {
				t.Fatalf("type %v, want %v", typ, m.GetType())
			}
		}
		if _, err := decodeRaft(b, 2, 1); err != nil {
			return
		}
		c, _, tablet := newTestCore(t)
		id, _ := ident.Bytes(string(tablet))
		c.Receive(&nyalav1.GroupMessage{TabletId: id[:], From: 2, To: 1, Kind: &nyalav1.GroupMessage_Raft{Raft: b}})
		c.Take()
	})
}
