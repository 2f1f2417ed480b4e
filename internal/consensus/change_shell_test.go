package consensus

import (
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/wal"
)

// copyTo does what a tablet copy does, with what the source's test store holds: it holds the log, takes the applied state, and
// installs it on another host.
func copyTo(t *testing.T, tablet ident.TabletID, from, to *testHost, replica ident.ReplicaID) {
	t.Helper()
	s, _ := from.Status(tablet)
	release, err := from.HoldLog(t.Context(), tablet, replica, s.Applied)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	from.mu.Lock()
	state := append([]CommittedEntry(nil), from.applied[tablet]...)
	from.mu.Unlock()
	last := state[len(state)-1]
	in := CopyInstall{Tablet: tablet, Replica: replica, Number: to.AllocateNumber(), Record: []byte("copied"), Start: last.OpID}
	cfg := GroupConfig{Number: in.Number, Tablet: tablet, Replica: replica, Applied: last.Index, Config: s.Config}
	for _, e := range state {
		in.Timestamp = max(in.Timestamp, e.Timestamp)
		if e.Config != nil {
			cfg.Config = e.Config
		}
	}
	cfg.AppliedTimestamp = in.Timestamp
	if old, ok := to.Status(tablet); ok {
		in.Old, in.OldReplica = old.Number, old.Replica
	}
	if err := to.InstallCopy(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	to.mu.Lock()
	to.applied[tablet] = state
	to.mu.Unlock()
	if err := to.StartGroup(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
}

func (c *testCluster) peerOf(h *testHost) *nyalav1.Peer {
	return &nyalav1.Peer{ServerId: string(h.id), Address: string(h.id) + ":7050"}
}

// TestChangeConfig takes a tablet from one replica to three and back to another one alone, with real goroutines: a member is
// added, its server says that it has no such replica, it is copied, promoted, and at the end the leader removes itself.
func TestChangeConfig(t *testing.T) {
	c := newTestCluster(t, 3)
	for _, h := range c.hosts {
		h.Opened()
	}
	tablet := testTablet(1)
	c.createGroup(tablet, 1)
	first := c.hosts[0]
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	first.until(t, "a leader", func() bool { return first.status[tablet].Ready })
	var cfg *nyalav1.RaftConfig
	for i, h := range c.hosts[1:] {
		id := ident.ReplicaID(i + 2)
		var err error
		if cfg, err = first.ChangeConfig(ctx, tablet, ConfigChange{Add: []*nyalav1.Peer{c.peerOf(h)}}); err != nil {
			t.Fatal(err)
		}
		if p := memberOf(cfg, id); p == nil || !p.GetLearner() || p.GetServerId() != string(h.id) {
			t.Fatalf("after adding %s: %v", h.id, cfg)
		}
		if _, err = first.ChangeConfig(ctx, tablet, ConfigChange{Promote: []ident.ReplicaID{id}}); status.CodeOf(err) != status.IllegalState {
			t.Fatalf("a learner without a log is promoted: %v", err)
		}
		first.until(t, "a call for a copy", func() bool { return len(first.needs[tablet]) > i })
		copyTo(t, tablet, first, h, id)
		if !eventually(t, func() bool {
			ms, err := first.Members(ctx, tablet)
			return err == nil && len(ms) > i+1 && ms[i+1].Replica == id && ms[i+1].Match > 0 && !ms[i+1].NeedsCopy
		}) {
			t.Fatalf("replica %d doesn't go on from its copy", id)
		}
		if cfg, err = first.ChangeConfig(ctx, tablet, ConfigChange{Promote: []ident.ReplicaID{id}}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(voterIDs(cfg)); n != 3 || isJoint(cfg) {
		t.Fatalf("after two promotions: %v", cfg)
	}
	stale := ident.Index(cfg.GetOpidIndex() - 1)
	if _, err := first.ChangeConfig(ctx, tablet, ConfigChange{ExpectIndex: &stale, Remove: []ident.ReplicaID{2}}); status.CodeOf(err) != status.IllegalState {
		t.Fatalf("a change decided on an older config: %v", err)
	}
	if _, _, err := first.Propose(ctx, tablet, wal.KindWrite, []byte("x"), nil); err != nil {
		t.Fatal(err)
	}
	if cfg, err := first.ChangeConfig(ctx, tablet, ConfigChange{Remove: []ident.ReplicaID{1, 2}}); err != nil || len(cfg.GetPeers()) != 1 {
		t.Fatalf("the leader and another are removed: %v, %v", cfg, err)
	}
	last := c.hosts[2]
	last.until(t, "leadership of the one that is left", func() bool { return last.status[tablet].Ready })
	for _, h := range c.hosts[:2] {
		h.until(t, "word of its removal", func() bool { return h.removed[tablet] })
	}
	if _, _, err := last.Propose(ctx, tablet, wal.KindWrite, []byte("y"), nil); err != nil {
		t.Fatal(err)
	}
	s, _ := last.Status(tablet)
	last.until(t, "the config at the state machine", func() bool { return proto.Equal(s.Config, last.configIn(tablet)) })
	if s.Config.GetNextReplicaId() != 4 {
		t.Fatalf("ids were handed out up to %d", s.Config.GetNextReplicaId())
	}
}

// configIn is the last config that the state machine was given; h.mu is held.
func (h *testHost) configIn(tablet ident.TabletID) (c *nyalav1.RaftConfig) {
	for _, e := range h.applied[tablet] {
		if e.Config != nil {
			c = e.Config
		}
	}
	return c
}
