package consensus

import (
	"testing"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/wal"
)

func testConfig(voters, learners int) *nyalav1.RaftConfig {
	c := &nyalav1.RaftConfig{NextReplicaId: uint64(voters + learners + 1)}
	for i := range voters + learners {
		name := string(rune('a' + i))
		c.Peers = append(c.Peers, &nyalav1.Peer{ReplicaId: uint64(i + 1), ServerId: name, Address: name + ":1", Learner: i >= voters})
	}
	return c
}

// TestPlanChange shows what each kind of change makes of a config, and that raft makes the same of it.
func TestPlanChange(t *testing.T) {
	peer := func(name string) []*nyalav1.Peer { return []*nyalav1.Peer{{ServerId: name, Address: name + ":1"}} }
	for name, c := range map[string]struct {
		change  ConfigChange
		joint   bool
		voters  int
		members int
		code    status.Code
	}{
		"add a learner":            {change: ConfigChange{Add: peer("x")}, voters: 3, members: 5},
		"remove a learner":         {change: ConfigChange{Remove: []ident.ReplicaID{4}}, voters: 3, members: 3},
		"promote":                  {change: ConfigChange{Promote: []ident.ReplicaID{4}}, joint: true, voters: 4, members: 4},
		"remove a voter":           {change: ConfigChange{Remove: []ident.ReplicaID{2}}, joint: true, voters: 2, members: 4},
		"replace":                  {change: ConfigChange{Promote: []ident.ReplicaID{4}, Remove: []ident.ReplicaID{1}, Add: peer("x")}, joint: true, voters: 3, members: 5},
		"two learners":             {change: ConfigChange{Remove: []ident.ReplicaID{4}, Add: peer("x")}, joint: true, voters: 3, members: 4},
		"nothing":                  {code: status.InvalidArgument},
		"no voter left":            {change: ConfigChange{Remove: []ident.ReplicaID{1, 2, 3}}, code: status.InvalidArgument},
		"promote a voter":          {change: ConfigChange{Promote: []ident.ReplicaID{1}}, code: status.InvalidArgument},
		"remove a stranger":        {change: ConfigChange{Remove: []ident.ReplicaID{9}}, code: status.InvalidArgument},
		"one twice":                {change: ConfigChange{Promote: []ident.ReplicaID{4}, Remove: []ident.ReplicaID{4}}, code: status.InvalidArgument},
		"a server that has one":    {change: ConfigChange{Add: peer("b")}, code: status.AlreadyPresent},
		"a server that loses one":  {change: ConfigChange{Add: peer("b"), Remove: []ident.ReplicaID{2}}, code: status.AlreadyPresent},
		"a server without address": {change: ConfigChange{Add: []*nyalav1.Peer{{ServerId: "x"}}}, code: status.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			before := testConfig(3, 1)
			p, err := planChange(testTablet(1), before, &c.change)
			if status.CodeOf(err) != c.code {
				t.Fatal(err)
			}
			if !proto.Equal(before, testConfig(3, 1)) {
				t.Fatal("the config in force was touched")
			}
			if err != nil {
				return
			}
			if isJoint(p.config) != c.joint || len(voterIDs(p.config)) != c.voters || len(members(p.config)) != c.members {
				t.Fatalf("%v", p.config)
			}
			b, err := proto.Marshal(p.config)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := decodeConfig(b); err != nil {
				t.Fatal(err)
			}
			if left := planLeave(p.config).config; isJoint(left) || len(left.GetOutgoingPeers()) != 0 || left.GetNextReplicaId() != nextReplicaID(p.config) {
				t.Fatalf("%v", left)
			}
		})
	}
}

// TestRetention: what a group may keep for others falls from all to nothing as the server's logs grow.
func TestRetention(t *testing.T) {
	l := Limits{RetainBytes: 800, RetainTotalBytes: 1000}
	for total, want := range map[int64]int64{0: 800, 500: 800, 501: 700, 750: 400, 999: 0, 1000: 0, 5000: 0} {
		if got := l.retention(total); got != want {
			t.Errorf("of logs of %d bytes together %d may be kept, not %d", total, got, want)
		}
	}
}

// TestInstallCopy shows what a replica keeps of itself when it is replaced by a copy, and when it isn't.
func TestInstallCopy(t *testing.T) {
	entry := func(term, index uint64) *raftpb.Entry { return testEntry(term, index, 0) }
	type want struct {
		code               status.Code
		term, vote, commit uint64
		last               ident.OpID
	}
	for name, c := range map[string]struct {
		hs          *raftpb.HardState
		log         []*raftpb.Entry
		replica, id ident.ReplicaID
		start       ident.OpID
		want        want
	}{
		"far behind": {
			&raftpb.HardState{Term: new(uint64(7)), Vote: new(uint64(2)), Commit: new(uint64(1))},
			[]*raftpb.Entry{entry(1, 1), entry(1, 2)},
			3, 3,
			ident.OpID{Term: 5, Index: 9},
			want{term: 7, vote: 2, commit: 9, last: ident.OpID{Term: 5, Index: 9}},
		},
		"in a later term": {
			&raftpb.HardState{Term: new(uint64(4)), Vote: new(uint64(2)), Commit: new(uint64(1))},
			[]*raftpb.Entry{entry(1, 1)},
			3, 3,
			ident.OpID{Term: 5, Index: 9},
			want{term: 5, commit: 9, last: ident.OpID{Term: 5, Index: 9}},
		},
		"holds more": {
			&raftpb.HardState{Term: new(uint64(2)), Vote: new(uint64(3)), Commit: new(uint64(1))},
			[]*raftpb.Entry{entry(1, 1), entry(2, 2), entry(2, 3), entry(2, 4)},
			3, 3,
			ident.OpID{Term: 2, Index: 3},
			want{term: 2, vote: 3, commit: 3, last: ident.OpID{Term: 2, Index: 4}},
		},
		"of another history": {
			&raftpb.HardState{Term: new(uint64(2)), Commit: new(uint64(1))},
			[]*raftpb.Entry{entry(1, 1), entry(1, 2), entry(1, 3), entry(1, 4)},
			3, 3,
			ident.OpID{Term: 2, Index: 3},
			want{term: 2, commit: 3, last: ident.OpID{Term: 2, Index: 3}},
		},
		"another replica": {
			&raftpb.HardState{Term: new(uint64(9)), Vote: new(uint64(3)), Commit: new(uint64(4))},
			[]*raftpb.Entry{entry(2, 1), entry(2, 2), entry(2, 3), entry(2, 4)},
			3, 5,
			ident.OpID{Term: 2, Index: 3},
			want{term: 2, commit: 3, last: ident.OpID{Term: 2, Index: 3}},
		},
		"out of date": {
			&raftpb.HardState{Term: new(uint64(2)), Commit: new(uint64(3))},
			[]*raftpb.Entry{entry(1, 1), entry(1, 2), entry(1, 3)},
			3, 3,
			ident.OpID{Term: 1, Index: 3},
			want{code: status.AlreadyPresent},
		},
		"an older replica": {&raftpb.HardState{Term: new(uint64(2))}, nil, 5, 3, ident.OpID{Term: 1, Index: 3}, want{code: status.IllegalState}},
	} {
		t.Run(name, func(t *testing.T) {
			log := wal.NewMem()
			old := log.AllocateNumber()
			var b wal.Batch
			b.CreateGroup(old, testTablet(1), nil, ident.OpID{})
			b.Append(old, c.log)
			b.SetHardState(old, c.hs)
			if err := log.Commit(&b); err != nil {
				t.Fatal(err)
			}
			in := CopyInstall{Tablet: testTablet(1), Replica: c.id, Old: old, OldReplica: c.replica, Number: log.AllocateNumber(), Start: c.start}
			var cm Commit
			if err := in.Fill(&cm, log); status.CodeOf(err) != c.want.code {
				t.Fatal(err)
			} else if err != nil {
				return
			}
			if err := log.Commit(&cm.Batch); err != nil {
				t.Fatal(err)
			}
			log = log.Crash()
			if log.Log(old) != nil {
				t.Fatal("the old group is still there")
			}
			l := log.Log(in.Number)
			hs := l.HardState()
			if got := (want{0, hs.GetTerm(), hs.GetVote(), hs.GetCommit(), l.LastOpID()}); got != c.want || l.Start() != c.start {
				t.Fatalf("%+v behind %s, want %+v", got, l.Start(), c.want)
			}
		})
	}
}

// FuzzDecodeConfig: whatever stands in a config entry, it is refused or a config that can be worked with.
func FuzzDecodeConfig(f *testing.F) {
	for _, c := range []*nyalav1.RaftConfig{testConfig(3, 1), testConfig(1, 0), {NextReplicaId: 1}} {
		b, err := proto.Marshal(c)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := decodeConfig(b)
		if err != nil {
			return
		}
		if len(jointConfig(confState(c)).IDs()) == 0 {
			t.Fatal("a config without a voter")
		}
	})
}
