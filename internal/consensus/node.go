package consensus

import (
	"errors"
	"fmt"
	"runtime/debug"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"

	"github.com/nyaladb/nyala/internal/ident"
)

// The calls into raft. Raft panics where its log can't be read and where what it is told can't be; such a panic costs
// this replica alone, which fails by it: its node is in the middle of a step and is never stepped again.

func (g *group) startNode(c *raft.Config) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = panicError(r)
		}
	}()
	g.node, err = raft.NewRawNode(c)
	return err
}

// caught is deferred around each call into raft.
func (g *group) caught() {
	if r := recover(); r != nil {
		g.fail(panicError(r))
	}
}

func panicError(r any) error {
	switch r := r.(type) {
	case raftPanic:
		return errors.New("raft: " + string(r))
	case error:
		var re interface{ RuntimeError() }
		if errors.As(r, &re) {
			return fmt.Errorf("raft: %w\n%s", r, debug.Stack())
		}
		return fmt.Errorf("raft: %w", r)
	default:
		return fmt.Errorf("raft: %v", r)
	}
}

// step gives raft a message; a proposal that it drops is told by the error.
func (g *group) step(m *raftpb.Message) (err error) {
	defer g.caught()
	return g.node.Step(m)
}

// hear gives raft what it waits for of its own: durable appends, applied entries. A message that it has outlived says nothing
// to it any more.
func (g *group) hear(m *raftpb.Message) { _ = g.step(m) }

func (g *group) nextReady() (rd raft.Ready, ok bool) {
	defer g.caught()
	return g.node.Ready(), true
}

func (g *group) applyConfChange(cc *raftpb.ConfChangeV2) (cs *raftpb.ConfState) {
	defer g.caught()
	return g.node.ApplyConfChange(cc)
}

func (g *group) tickNode() {
	defer g.caught()
	g.node.Tick()
}

func (g *group) campaign() {
	defer g.caught()
	// An error says only that the replica can't campaign now, which the election timer will try again.
	_ = g.node.Campaign()
}

func (g *group) forgetLeader() {
	defer g.caught()
	_ = g.node.ForgetLeader() // it can't be dropped
}

func (g *group) startRead(ctx []byte) {
	defer g.caught()
	g.node.ReadIndex(ctx)
}

func (g *group) unreachable(to ident.ReplicaID) {
	defer g.caught()
	g.node.ReportUnreachable(uint64(to))
}

func (g *group) startTransfer(to ident.ReplicaID) {
	defer g.caught()
	g.node.TransferLeader(uint64(to))
}

// transferee is who raft is handing over to; 0: nobody.
func (g *group) transferee() ident.ReplicaID {
	return ident.ReplicaID(g.node.BasicStatus().LeadTransferee)
}

// progress visits what a leader knows of each member's log.
func (g *group) progress(f func(id ident.ReplicaID, learner bool, pr tracker.Progress)) {
	g.node.WithProgress(func(id uint64, typ raft.ProgressType, pr tracker.Progress) {
		f(ident.ReplicaID(id), typ == raft.ProgressTypeLearner, pr)
	})
}
